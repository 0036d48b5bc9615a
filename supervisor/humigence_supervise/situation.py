"""Where a run stands when an attempt has ended: all that its judge may know. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from humigence_supervise.budgets import Policy, is_deterministic, is_patient
from humigence_supervise.decisions import Incident


@dataclass(frozen=True, slots=True)
class Situation:
    """Where the run stands when an attempt has ended.

    `incidents` are all failed attempts in order, the one being judged last. `micro_samples` is
    None when nobody said a batch. `need_mib` is the room the next checkpoint takes, `free_mib` what
    there is. `gpus_left` counts the GPUs that may still be used, the faulty one left out; None:
    unknown, or a CPU run. `defragmented`: the allocator was told already to join free pieces.
    `fits_micro` is the micro-batch that fitted before a larger one was tried again.
    """

    incidents: tuple[Incident, ...]
    rung_count: int
    micro_samples: int | None
    need_mib: int
    now_s: float
    chance: float
    free_mib: int | None = None
    gpus_left: int | None = None
    defragmented: bool = False
    fits_micro: int | None = None

    @property
    def now(self) -> Incident:
        """The incident being judged."""
        return self.incidents[-1]

    @property
    def on_lowest_rung(self) -> bool:
        """True where there is nothing to step down to."""
        return self.now.rung_index + 1 >= self.rung_count


def is_repeated(policy: Policy, standing: Situation) -> bool:
    """Say whether a failure is known to come back on this rung: the same one at the same step."""
    return is_deterministic(standing.incidents) and not is_patient(policy, standing.now)
