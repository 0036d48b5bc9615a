"""The journal's vocabulary: event names and what one line says. Pure.

A `Record` is a line before it is written; an `Entry` is one that was. What the supervisor knows
is the fold of the entries (see `machine.apply`), so every fact a later decision needs stands in
one of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

Json = str | int | float | bool | list["Json"] | dict[str, "Json"] | None


def finite(value: float | None) -> float | None:
    """Return a number as JSON can say it: NaN and infinity become None."""
    return value if value is not None and math.isfinite(value) else None


class Event(StrEnum):
    """Constant names; programs match on them, never on the message."""

    RUN_STARTED = "run.started"
    RUN_ADOPTED = "run.adopted"
    RUN_RESUMED = "run.resumed"
    RUN_STOPPING = "run.stopping"
    ATTEMPT_PLANNED = "attempt.planned"
    ATTEMPT_STARTED = "attempt.started"
    ATTEMPT_ADOPTED = "attempt.adopted"
    ATTEMPT_PROGRESS = "attempt.progress"
    ATTEMPT_LEAVING = "attempt.leaving"
    ATTEMPT_EXITED = "attempt.exited"
    TREE_CLEARED = "tree.cleared"
    CHECKPOINT_COMMITTED = "checkpoint.committed"
    CHECKPOINT_REFUSED = "checkpoint.refused"
    SIGNATURE_MATCHED = "signature.matched"
    LOG_SAMPLED = "log.sampled"
    HANG_SUSPECTED = "hang.suspected"
    DIAGNOSIS_MADE = "diagnosis.made"
    DECISION_MADE = "decision.made"
    RUNG_CHANGED = "rung.changed"
    GPU_EXCLUDED = "gpu.excluded"
    GPU_READMITTED = "gpu.readmitted"
    RESUME_MISMATCH = "resume.mismatch"
    BACKOFF_STARTED = "backoff.started"
    BACKOFF_ENDED = "backoff.ended"
    PROMOTION_STARTED = "promotion.started"
    PROMOTION_TRIED = "promotion.tried"
    NOTIFY_SENT = "notify.sent"
    RUN_COMPLETED = "run.completed"
    RUN_STOPPED = "run.stopped"
    RUN_GAVE_UP = "run.gave_up"
    RUN_FAILED = "run.failed"


class Level(StrEnum):
    """How loud a line is."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Record:
    """One fact about to be journaled. `facts` keys never collide with the fixed columns."""

    event: Event
    message: str
    level: Level = Level.INFO
    attempt: int | None = None
    rung: str | None = None
    facts: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Entry:
    """A journaled record: `seq` from 1, `ts` UTC with microseconds and Z, `mono_ns` of its boot.

    `more` entries follow that were written with it: they count together or not at all.
    """

    seq: int
    ts: str
    mono_ns: int
    run: str
    record: Record
    more: int = 0


FIXED_COLUMNS = frozenset(
    ("seq", "ts", "mono_ns", "event", "level", "run", "attempt", "rung", "message", "more", "crc")
)
