"""When a run that fares worse than it could is to be led back: a higher rung, larger batches. Pure.

Both end a healthy attempt gracefully, right after a checkpoint, so nothing is lost; and both are
bounded: a rung is tried a few times at growing intervals, a larger micro-batch once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from humigence_supervise.budgets import Policy
from humigence_supervise.decisions import Incident
from humigence_supervise.domain import Holder, Kind, Rung
from humigence_supervise.moves import TRANSIENT
from humigence_supervise.state import State

MAY_HAVE_PASSED: Final = TRANSIENT | {
    Kind.NCCL_INIT,
    Kind.NCCL_TIMEOUT,
    Kind.NCCL_REMOTE,
    Kind.NCCL_INTERNAL,
    Kind.NVLINK_P2P,
    Kind.HANG,
}
"""Kinds after which the higher rung may work another time; a probe tells."""

WORTH_S: Final = 60.0
"""To leave an attempt for a better one costs up to so many seconds of training."""

_MOST_DOUBLINGS: Final = 32


@dataclass(frozen=True, slots=True)
class Promoting:
    """How a run goes back up: not before `after_s` healthy seconds, doubled after each failure.

    At most `max_promotions` tries are made.
    """

    enabled: bool = True
    after_s: float = 1800.0
    max_promotions: int = 3


@dataclass(frozen=True, slots=True)
class Promote:
    """A rung worth trying again, and why."""

    rung_index: int
    reason: str


def promotion_due(
    state: State, rungs: tuple[Rung, ...], promoting: Promoting, now_s: float
) -> Promote | None:
    """Return the rung to go back up to now, None where it is too early or makes no sense."""
    probes = sum(one.probed for one in state.promotions)
    if not promoting.enabled or probes >= promoting.max_promotions:
        return None
    index = _rung_to_try(state, rungs)
    if index is None:
        return None
    failed = failed_promotions(state, promoting.after_s)
    wait_s = promoting.after_s * 2 ** min(failed, _MOST_DOUBLINGS)
    marks = [one.at_s for one in state.incidents] + [one.at_s for one in state.promotions]
    if state.rung_since_s is not None:
        marks.append(state.rung_since_s)
    healthy_s = now_s - max(marks, default=now_s)
    if healthy_s < wait_s:
        return None
    after = f" (tries that failed before: {failed})" if failed else ""
    present = rungs[min(state.rung_index, len(rungs) - 1)]
    return Promote(
        index,
        f"{healthy_s:.0f} s without a failure on {present.name}{after}: what made"
        f" the run leave {rungs[index].name} may have passed.",
    )


def worth_leaving(state: State, promoting: Promoting) -> bool:
    """Say whether enough of the run is left to gain from a better way of running it.

    What nobody told is taken for enough.
    """
    if state.target_step is None:
        return True
    left_steps = state.target_step - state.checkpoint_step
    step_s = state.pace.step_s() if state.pace is not None else None
    if left_steps <= 0 or step_s is None:
        return left_steps > 0
    return left_steps * step_s >= min(WORTH_S, promoting.after_s)


def failed_promotions(state: State, healthy_s: float) -> int:
    """Return how many tries failed: by their probe, or by a failure soon after they passed."""
    failures = 0
    for one in state.promotions:
        soon = any(
            incident.rung_index == one.rung_index and 0 <= incident.at_s - one.at_s < healthy_s
            for incident in state.incidents
        )
        failures += not one.passed or soon
    return failures


def growth_due(state: State, policy: Policy, configured: int | None) -> int | None:
    """Return the larger micro-batch to try once more, None where it is too early or was tried."""
    if state.micro_samples is None or state.grown or not policy.grow_after_checkpoints:
        return None
    larger = configured if state.larger_micro is None else state.larger_micro
    if larger is None or larger <= state.micro_samples:
        return None
    return larger if state.quiet_checkpoints >= policy.grow_after_checkpoints else None


def suspects(incidents: tuple[Incident, ...]) -> tuple[str, ...]:
    """Return the GPUs that failures are blamed on: better not used where another can be."""
    blamed = (one.gpu for one in incidents if one.gpu and one.kind in MAY_HAVE_PASSED)
    return tuple(dict.fromkeys(blamed))


def _rung_to_try(state: State, rungs: tuple[Rung, ...]) -> int | None:
    """Return the highest rung with other GPUs than the present one that was tried least often."""
    present = rungs[min(state.rung_index, len(rungs) - 1)]
    tries = [one.rung_index for one in state.promotions]
    worth = [
        index
        for index in range(min(state.rung_index, len(rungs) - 1))
        if rungs[index].gpus != present.gpus and _may_have_passed(state.incidents, index)
    ]
    return min(worth, key=lambda index: (tries.count(index), index), default=None)


def _may_have_passed(incidents: tuple[Incident, ...], rung_index: int) -> bool:
    """Say whether what last failed on a rung may work another time.

    A rung that never failed was passed over, because its GPUs were not there, for example.
    """
    there = [one for one in incidents if one.rung_index == rung_index]
    if not there:
        return True
    last = there[-1]
    same = [
        one
        for one in there
        if (one.fingerprint, one.last_step) == (last.fingerprint, last.last_step)
    ]
    if len(same) > 1 and last.last_step > last.first_step:
        return False
    if last.kind is Kind.CUDA_OOM:
        return last.holder is Holder.STRANGER
    return last.kind in MAY_HAVE_PASSED
