"""A record about the attempt of a state, on its rung. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from humigence_supervise.happenings import Context
from humigence_supervise.records import Event, Json, Level, Record
from humigence_supervise.state import State


def rung_name(state: State, context: Context) -> str:
    """Return the name of the rung the run is on; the ladder may have become shorter."""
    return context.rungs[min(state.rung_index, len(context.rungs) - 1)].name


def of_attempt(
    state: State,
    context: Context,
    event: Event,
    message: str,
    facts: Mapping[str, Json] | None = None,
    *,
    level: Level = Level.INFO,
) -> Record:
    """Return a record about the newest attempt."""
    rung = rung_name(state, context)
    return Record(event, message, level, state.attempt or None, rung, facts or {})
