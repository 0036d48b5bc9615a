"""The phases of a run: what is alive, and what is waited for. Pure.

Ready -> Launching -> Running -> Clearing -> Diagnosing -> Ready | Waiting | Probing | Ended
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from humigence_supervise.records import Event


@dataclass(frozen=True, slots=True)
class Ready:
    """Nothing of the run is alive; an attempt on the current rung is wanted."""


@dataclass(frozen=True, slots=True)
class Launching:
    """An attempt is planned and journaled; whether it lives is not known yet."""


@dataclass(frozen=True, slots=True)
class Running:
    """An attempt lives, watched through its keeper."""


@dataclass(frozen=True, slots=True)
class Clearing:
    """The attempt is over as a job; its tree is being cleared."""


@dataclass(frozen=True, slots=True)
class Diagnosing:
    """The tree is gone; evidence is being read."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Nothing is alive and nothing is started before `until_s` (Unix time), in `delay_s`."""

    until_s: float
    delay_s: float


class Want(StrEnum):
    """What an attempt cannot be started without."""

    DISK = "disk"
    GPU_MEMORY = "gpu_memory"


@dataclass(frozen=True, slots=True)
class WaitingForRoom:
    """Nothing is alive and nothing is started before there is room: on the disk, or on a GPU.

    `need_mib` is wanted on the disk. After `until_s` (Unix time; None: never), in `patience_s`,
    GPU memory is not waited for.
    """

    want: Want
    need_mib: int = 0
    until_s: float | None = None
    patience_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Probing:
    """Nothing trains; whether the GPUs of a higher rung work together is being tried.

    The probe is ended at `until_s` (Unix time), `limit_s` after its start.
    """

    rung_index: int
    until_s: float
    limit_s: float


@dataclass(frozen=True, slots=True)
class Ended:
    """The run is over. `event` says how; `exit_code` is what `start` returns."""

    event: Event
    exit_code: int


Phase = (
    Ready | Launching | Running | Clearing | Diagnosing | Waiting | WaitingForRoom | Probing | Ended
)
