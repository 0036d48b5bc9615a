"""What can happen to a run, and what can be done about it: the machine's alphabet. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from humigence_supervise import contract
from humigence_supervise.domain import (
    Checkpoint,
    Diagnosis,
    LaunchPlan,
    ProcessId,
    Progress,
    RankExit,
    Rung,
)
from humigence_supervise.policy import Policy
from humigence_supervise.records import Json, Record


@dataclass(frozen=True, slots=True)
class Begin:
    """A supervisor takes the run over: fresh, resumed or after another one's death.

    `facts` are what `run.started` says of the run (its id as `run_id` among them).
    """

    facts: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class Refused:
    """A checkpoint that is not used. Only a `damaged` one is put aside; others are unreadable."""

    path: Path
    reason: str
    damaged: bool


@dataclass(frozen=True, slots=True)
class Prepared:
    """A plan for the next attempt, and the newer checkpoints refused on the way."""

    plan: LaunchPlan
    refused: tuple[Refused, ...] = ()


@dataclass(frozen=True, slots=True)
class NotPrepared:
    """No attempt can be started: `need_mib` of space are wanting, or the run ends with a code."""

    reason: str
    need_mib: int | None = None
    free_mib: int | None = None
    exit_code: int = contract.EXIT_CONFIG


@dataclass(frozen=True, slots=True)
class Launched:
    """The keeper lives. `adopted`: it was started by a supervisor before this one."""

    keeper: ProcessId
    world_size: int
    resume_from: Checkpoint | None = None
    adopted: bool = False


@dataclass(frozen=True, slots=True)
class NotLaunched:
    """The keeper could not be started, or the one that should live is gone without a trace."""

    reason: str


@dataclass(frozen=True, slots=True)
class RankDied:
    """A rank's process ended while its launcher still lives."""

    exit: RankExit


@dataclass(frozen=True, slots=True)
class TreeGone:
    """The keeper has ended; nothing of the attempt is alive. `took_s` since it was asked to."""

    how: str
    took_s: float
    facts: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProgressMade:
    """The newest progress line of rank 0 (or of the only rank heard)."""

    progress: Progress


@dataclass(frozen=True, slots=True)
class CheckpointSeen:
    """A checkpoint appeared under its final name; it is verified before it is used."""

    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class SignatureSeen:
    """A catalogue row matched a line of a live log."""

    facts: Mapping[str, Json]
    message: str


@dataclass(frozen=True, slots=True)
class LogSampled:
    """A live log grew faster than it is read; `skipped_bytes` of it in all were left out."""

    rank: int
    file: str
    skipped_bytes: int


@dataclass(frozen=True, slots=True)
class Diagnosed:
    """The evidence of the ended attempt is read. Steps are completed steps."""

    diagnosis: Diagnosis
    last_step: int
    checkpoint_step: int
    need_mib: int
    free_mib: int | None = None
    facts: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StopRequested:
    """Somebody wants the run to stop; `exit_code` says as what. `now`: without saving."""

    exit_code: int
    now: bool = False


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed. `free_mib` is the room where checkpoints go, None when not asked."""

    free_mib: int | None = None


Happening = (
    Begin
    | Prepared
    | NotPrepared
    | Launched
    | NotLaunched
    | RankDied
    | TreeGone
    | ProgressMade
    | CheckpointSeen
    | SignatureSeen
    | LogSampled
    | Diagnosed
    | StopRequested
    | Tick
)


# --- actions


@dataclass(frozen=True, slots=True)
class Append:
    """Journal this; nothing after it is done before it is durable."""

    record: Record


@dataclass(frozen=True, slots=True)
class Prepare:
    """Choose a checkpoint, read the host, plan: answered by `Prepared` or `NotPrepared`.

    `checkpoint_step` is the newest step known to be saved: above 0, none left is a loss.
    """

    rung_index: int
    micro_samples: int | None
    attempt: int
    checkpoint_step: int


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Put a bad checkpoint aside by rename."""

    path: Path
    reason: str


@dataclass(frozen=True, slots=True)
class QuarantineStep:
    """Put the checkpoint of this step aside: the worker could not use it."""

    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class Launch:
    """Start the plan: answered by `Launched` or `NotLaunched`."""

    plan: LaunchPlan


@dataclass(frozen=True, slots=True)
class Recover:
    """Find the attempt that should live: `Launched(adopted=True)`, `NotLaunched` or `TreeGone`."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Terminate:
    """Ask the attempt to save and exit."""


@dataclass(frozen=True, slots=True)
class Clear:
    """Kill the attempt's tree: answered by `TreeGone`."""


@dataclass(frozen=True, slots=True)
class Gather:
    """Read the evidence and diagnose: answered by `Diagnosed`."""

    attempt: int


Action = (
    Append | Prepare | Quarantine | QuarantineStep | Launch | Recover | Terminate | Clear | Gather
)


@dataclass(frozen=True, slots=True)
class Context:
    """What a step may know of the world. `now_s` is Unix time, `chance` one draw in [0, 1).

    `micro_samples` is the configured micro-batch, None where nobody said a batch.
    """

    rungs: tuple[Rung, ...]
    policy: Policy
    micro_samples: int | None
    now_s: float
    chance: float
