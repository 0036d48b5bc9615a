"""What can be done about what happened to a run; each names its answer. Pure values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from humigence_supervise.decisions import Stranger
from humigence_supervise.domain import LaunchPlan
from humigence_supervise.records import Record
from humigence_supervise.way_up import Promote


@dataclass(frozen=True, slots=True)
class Append:
    """Journal this; nothing after it is done before it is durable."""

    record: Record


@dataclass(frozen=True, slots=True)
class Means:
    """With what an attempt is made: a rung, and what was learned about the GPUs and the batch.

    `excluded_gpus` must not be used; `suspect_gpus` only where there is no other choice.
    """

    rung_index: int
    micro_samples: int | None
    excluded_gpus: tuple[str, ...] = ()
    suspect_gpus: tuple[str, ...] = ()
    defragment: bool = False


@dataclass(frozen=True, slots=True)
class Prepare:
    """Choose a checkpoint, look for room, plan: answered by Prepared, NoRoom or NotPrepared.

    `checkpoint_step` is the newest step known to be saved: above 0, none left is a loss.
    From `bad_step` on no checkpoint must be used; they are put aside. `need_mib` is wanted on the
    disk at least. `stranger` must have left its GPU. Not `patient`:
    GPU memory has been waited for long enough, and is waited for only on the `lowest_rung`, while
    the stranger is seen to be there.
    """

    means: Means
    attempt: int
    checkpoint_step: int
    lowest_rung: bool = False
    bad_step: int | None = None
    need_mib: int = 0
    stranger: Stranger | None = None
    patient: bool = True


@dataclass(frozen=True, slots=True)
class Consider:
    """Look whether a higher rung could be planned now: answered by `Considered`.

    `means` are those of the higher rung, `attempt` is the one that trains.
    """

    promote: Promote
    means: Means
    attempt: int


@dataclass(frozen=True, slots=True)
class Probe:
    """Try the GPUs of a higher rung together: `Launched` or `NotLaunched`, later `TreeGone`."""

    means: Means
    attempt: int


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Put a bad checkpoint aside by rename."""

    path: Path
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
    Append | Prepare | Consider | Probe | Quarantine | Launch | Recover | Terminate | Clear | Gather
)
