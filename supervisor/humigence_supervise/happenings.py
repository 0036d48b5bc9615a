"""What can happen to a run, and what can be done about it: the machine's alphabet. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from humigence_supervise import contract
from humigence_supervise.budgets import Policy
from humigence_supervise.domain import (
    Beginning,
    Checkpoint,
    Diagnosis,
    LaunchPlan,
    ProcessId,
    Progress,
    RankExit,
    Rung,
)
from humigence_supervise.phases import Want
from humigence_supervise.records import Json
from humigence_supervise.way_up import Promote, Promoting


@dataclass(frozen=True, slots=True)
class Begin:
    """A supervisor takes the run over: fresh, resumed or after another one's death.

    `facts` are what `run.started` says of the run (its id as `run_id` among them). `readmit`
    are GPUs that the operator allows again, "all" for every one.
    """

    facts: Mapping[str, Json]
    readmit: tuple[str, ...] = ()


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
class NoRoom:
    """An attempt has to wait: `need_mib` are wanting on the disk, or GPU memory is not free yet."""

    want: Want
    reason: str
    need_mib: int = 0
    free_mib: int | None = None


@dataclass(frozen=True, slots=True)
class NotPrepared:
    """No attempt can be started; `exit_code` is what the run ends with if nothing changes.

    75 may pass by itself, so it is tried again first. `lower_may_do`: this rung needs what the
    machine does not have now, a lower one may not.
    """

    reason: str
    exit_code: int = contract.EXIT_CONFIG
    lower_may_do: bool = False


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
    """The newest progress line of any rank, and where the worker began."""

    progress: Progress
    began: Beginning | None = None


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
    """The evidence of the ended attempt is read. Steps are completed steps.

    `gpus` are the UUIDs of the GPUs that are there now, None where that is unknown or no matter.
    """

    diagnosis: Diagnosis
    last_step: int
    checkpoint_step: int
    need_mib: int
    free_mib: int | None = None
    gpus: tuple[str, ...] | None = None
    facts: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Considered:
    """Whether the promotion could be made now; `hindrance` is why not, "" if it could."""

    promote: Promote
    hindrance: str = ""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """Somebody wants the run to stop; `exit_code` says as what. `now`: without saving."""

    exit_code: int
    now: bool = False


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Happening = (
    Begin
    | Prepared
    | NoRoom
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
    | Considered
    | StopRequested
    | Tick
)


@dataclass(frozen=True, slots=True)
class Context:
    """What a step may know of the world. `now_s` is Unix time, `chance` one draw in [0, 1).

    `micro_samples` is the configured micro-batch, None where nobody said a batch.
    `counts_from_scratch`: the worker is known to begin at step 0 when nothing is resumed.
    """

    rungs: tuple[Rung, ...]
    policy: Policy
    promoting: Promoting
    micro_samples: int | None
    counts_from_scratch: bool
    now_s: float
    chance: float
