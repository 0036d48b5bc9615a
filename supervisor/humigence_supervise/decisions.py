"""What policy remembers and decides: incidents, decisions, and the verdict that explains one."""

from __future__ import annotations

from dataclasses import dataclass

from humigence_supervise.domain import Holder, Kind


@dataclass(frozen=True, slots=True)
class Incident:
    """One failed attempt as policy remembers it. Steps are completed steps.

    `gpu` is the GPU it is about, "" where nothing tells; `holder` who held the memory, for an
    out-of-memory.
    """

    attempt: int
    rung_index: int
    kind: Kind
    fingerprint: str
    at_s: float
    first_step: int
    last_step: int
    checkpoint_step: int
    gpu: str = ""
    holder: Holder | None = None


@dataclass(frozen=True, slots=True)
class Stranger:
    """Another process on a GPU we need: what an out-of-memory text said of it, as far as it did."""

    gpu: str = ""
    pid: int | None = None
    held_mib: int | None = None


@dataclass(frozen=True, slots=True)
class Retry:
    """The same rung again, after `delay_s`.

    `defragment`: from now on with an allocator that can join free pieces of GPU memory.
    """

    reason: str
    delay_s: float = 0.0
    defragment: bool = False


@dataclass(frozen=True, slots=True)
class StepDown:
    """The rung with this index, lower than the present one."""

    reason: str
    rung_index: int


@dataclass(frozen=True, slots=True)
class StepUp:
    """The rung with this index, higher than the present one, after a passing probe."""

    reason: str
    rung_index: int


@dataclass(frozen=True, slots=True)
class ShrinkMicroBatch:
    """The same rung with smaller micro-batches; the global batch stays."""

    reason: str
    micro_samples: int


@dataclass(frozen=True, slots=True)
class GrowMicroBatch:
    """The same rung with the larger micro-batches it had before; the global batch stays."""

    reason: str
    micro_samples: int


@dataclass(frozen=True, slots=True)
class UseOlderCheckpoint:
    """The same rung from an older good checkpoint; the one at `bad_step` is quarantined."""

    reason: str
    bad_step: int


@dataclass(frozen=True, slots=True)
class WaitForSpace:
    """Nothing until `need_mib` are free where the checkpoints go; then the same rung."""

    reason: str
    need_mib: int


@dataclass(frozen=True, slots=True)
class WaitForMemory:
    """Nothing until another process has given GPU memory back; then the same rung.

    After `patience_s` the attempt is made all the same, unless the process is seen to be there
    still and no lower rung is left.
    """

    reason: str
    stranger: Stranger
    patience_s: float


@dataclass(frozen=True, slots=True)
class Stop:
    """The run ends here. `hopeless`: trying again cannot help (exit 93), otherwise 75."""

    reason: str
    hopeless: bool


@dataclass(frozen=True, slots=True)
class Complete:
    """The target is reached."""

    reason: str


Decision = (
    Retry
    | StepDown
    | StepUp
    | ShrinkMicroBatch
    | GrowMicroBatch
    | UseOlderCheckpoint
    | WaitForSpace
    | WaitForMemory
    | Stop
    | Complete
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A decision with its grounds.

    `why_not` says why it is not the next best one, `unless` what would have changed it; "" where
    there is nothing to say. `excluded_gpu` must not be used again in this run; "" for none.
    """

    decision: Decision
    why_not: str = ""
    unless: str = ""
    excluded_gpu: str = ""
