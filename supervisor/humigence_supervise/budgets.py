"""What a run may spend on failures: backoff, attempts without progress, attempts in a period. Pure.

Progress is a newer checkpoint or a step that no attempt had completed before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from humigence_supervise.decisions import Incident
from humigence_supervise.domain import Holder, Kind, Remedy

_MOST_DOUBLINGS: Final = 64


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delay before the n-th fruitless retry: first_s * factor**n, at most max_s, +- jitter."""

    first_s: float = 1.0
    max_s: float = 300.0
    factor: float = 2.0
    jitter: float = 0.2

    def delay_s(self, fruitless: int, chance: float, *, at_least_s: float = 0.0) -> float:
        """Return seconds to wait; `chance` in [0, 1) is the draw for the jitter.

        `at_least_s` is a larger first delay, for what takes longer to pass; `max_s` holds.
        """
        first_s = max(self.first_s, at_least_s)
        grown = min(self.max_s, first_s * self.factor ** min(fruitless, _MOST_DOUBLINGS))
        return grown * (1.0 + self.jitter * (2.0 * chance - 1.0))


@dataclass(frozen=True, slots=True)
class Policy:
    """The budgets and overrides of one run.

    `retries` is how often a retry is repeated before the row's next move. `max_attempts`
    failures within `period_s` seconds end the run, whatever progress was made. After
    `grow_after_checkpoints` quiet ones a reduced micro-batch is raised again once; 0: never.
    """

    overrides: Mapping[Kind, Remedy] = field(default_factory=dict)
    retries: int = 1
    attempts_without_progress: int = 3
    max_attempts: int = 20
    period_s: float = 86_400.0
    backoff: Backoff = field(default_factory=Backoff)
    grow_after_checkpoints: int = 10


def since_progress(incidents: tuple[Incident, ...]) -> tuple[Incident, ...]:
    """Return the last incidents that belong together: none of them got further than the first.

    The first of them may have made progress before it failed, or follows an attempt that did and
    was ended without a failure.
    """
    start = saved = reached = 0
    for index, one in enumerate(incidents):
        if one.first_step > saved or _got_further(one, saved, reached):
            start = index
        saved = max(saved, one.first_step, one.checkpoint_step)
        reached = max(reached, one.last_step)
    return incidents[start:]


def progressed(incidents: tuple[Incident, ...]) -> bool:
    """Say whether the last of the attempts itself got further than all before it."""
    *before, now = incidents
    saved = max((one.checkpoint_step for one in before), default=0)
    reached = max((one.last_step for one in before), default=0)
    return _got_further(now, saved, reached)


def _got_further(incident: Incident, saved: int, reached: int) -> bool:
    new_checkpoint = incident.checkpoint_step > max(saved, incident.first_step)
    return new_checkpoint or incident.last_step > max(reached, incident.first_step)


def fruitless_before(incidents: tuple[Incident, ...]) -> tuple[Incident, ...]:
    """Return the incidents before the last one that count against it: none if it progressed."""
    return since_progress(incidents)[:-1]


def is_patient(policy: Policy, incident: Incident) -> bool:
    """Say whether the world is waited for after such an incident, so that it costs no attempt."""
    override = policy.overrides.get(incident.kind)
    if override not in {None, Remedy.WAIT_THEN_RETRY}:
        return False
    waited_for = incident.kind in {Kind.DISK_FULL, Kind.NETWORK_HUB}
    return waited_for or incident.holder is Holder.STRANGER


def without_progress(policy: Policy, incidents: tuple[Incident, ...]) -> int:
    """Return how many attempts in a row, up to the last one, made no progress."""
    together = since_progress(incidents)
    earlier = incidents[: len(incidents) - len(together) + 1]
    counted = together[1:] if progressed(earlier) else together
    return sum(1 for one in counted if not is_patient(policy, one))


def spent(policy: Policy, incidents: tuple[Incident, ...]) -> str:
    """Return why no further attempt without progress may be made, or an empty string."""
    count = without_progress(policy, incidents)
    if count < policy.attempts_without_progress:
        return ""
    return (
        f"{count} attempts in a row made no progress: no newer checkpoint and no new step"
        f" (policy.attempts_without_progress is {policy.attempts_without_progress})."
    )


def period_spent(policy: Policy, incidents: tuple[Incident, ...], now_s: float) -> str:
    """Return why no further attempt may be made in this period, or an empty string."""
    recent = [one for one in incidents if now_s - one.at_s <= policy.period_s]
    count = sum(1 for one in recent if not is_patient(policy, one))
    if count < policy.max_attempts:
        return ""
    return (
        f"{count} attempts failed within {policy.period_s:.0f} s"
        f" (policy.max_attempts allows {policy.max_attempts})."
    )


def is_deterministic(incidents: tuple[Incident, ...]) -> bool:
    """Say whether the last failure happened before: the same one at the same step.

    Another GPU that breaks is another failure, and who is told to end from outside did not fail.
    """
    *before, now = incidents
    if now.kind is Kind.PREEMPTED:
        return False
    any_gpu = now.kind is not Kind.GPU_FAULT
    return any(
        (one.fingerprint, one.last_step, one.kind) == (now.fingerprint, now.last_step, now.kind)
        and (any_gpu or one.gpu == now.gpu)
        for one in before
    )
