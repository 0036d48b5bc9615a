"""How faults are planted: in the loop, in its tables, in its machine."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from humigence_supervise import loop, machine
from humigence_supervise.actions import Action, Append
from humigence_supervise.happenings import Context, Happening
from humigence_supervise.records import Event, Record
from humigence_supervise.state import State, fold

Patch = pytest.MonkeyPatch
Actions = tuple[Action, ...]
Edit = Callable[[State, Happening, Actions, Context], Actions]

Fault = Callable[[Patch], None]

FAULTS: list[tuple[Fault, str]] = []
"""Each fault with the rule that has to catch it."""


def caught_by(rule: str) -> Callable[[Fault], Fault]:
    """Register a fault with the rule that has to catch it."""

    def register(fault: Fault) -> Fault:
        FAULTS.append((fault, rule))
        return fault

    return register


def edited(patch: Patch, edit: Edit) -> None:
    """Give the loop a machine whose actions are edited; its state is still their fold."""

    def step(before: State, event: Happening, context: Context) -> tuple[State, Actions]:
        _, actions = machine.step(before, event, context)
        actions = edit(before, event, actions, context)
        return fold((one.record for one in actions if isinstance(one, Append)), before), actions

    patch.setattr(loop, "step", step)


def without(*events: Event) -> Edit:
    """Leave records out."""
    return lambda _state, _event, actions, _context: tuple(
        one for one in actions if not (isinstance(one, Append) and one.record.event in events)
    )


def changed(event: Event, change: Callable[[Record], Record]) -> Edit:
    """Change the records of an event."""
    return lambda _state, _event, actions, _context: tuple(
        Append(change(one.record)) if isinstance(one, Append) and one.record.event is event else one
        for one in actions
    )
