"""Judge a failed attempt: which way the run goes on, and why. Pure; time and chance are arguments.

The table `MOVES` is the whole policy: for each kind the moves in the order they are tried while
the run makes no progress. Progress (a newer checkpoint) starts the row anew; a move that is
impossible (no lower rung, micro-batch already 1) is passed over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import assert_never

from humigence_supervise.domain import (
    Complete,
    Decision,
    Diagnosis,
    Incident,
    Kind,
    Remedy,
    Retry,
    ShrinkMicroBatch,
    StepDown,
    Stop,
    UseOlderCheckpoint,
    WaitForSpace,
)


class Move(StrEnum):
    """One cell of the table."""

    RETRY = "retry"
    DOWN = "down"
    SHRINK = "shrink"
    OLDER = "older"
    WAIT_SPACE = "wait_space"
    STOP = "stop"


_RETRY_DOWN = (Move.RETRY, Move.DOWN, Move.STOP)
_DOWN_RETRY = (Move.DOWN, Move.RETRY, Move.STOP)
_STOP = (Move.STOP,)

MOVES: Mapping[Kind, tuple[Move, ...]] = {
    Kind.NCCL_INIT: _DOWN_RETRY,
    Kind.NCCL_TIMEOUT: _DOWN_RETRY,
    Kind.NCCL_REMOTE: _DOWN_RETRY,
    Kind.NCCL_INTERNAL: _DOWN_RETRY,
    Kind.NVLINK_P2P: _DOWN_RETRY,
    Kind.HANG: _DOWN_RETRY,
    Kind.CUDA_OOM: (Move.DOWN, *(Move.SHRINK,) * 16, Move.STOP),
    Kind.RENDEZVOUS: _RETRY_DOWN,
    Kind.GPU_FAULT: (Move.DOWN, Move.STOP),
    Kind.HOST_OOM: _RETRY_DOWN,
    Kind.DATALOADER: _RETRY_DOWN,
    Kind.SEGFAULT: _RETRY_DOWN,
    Kind.PREEMPTED: _RETRY_DOWN,
    Kind.UNKNOWN: _RETRY_DOWN,
    Kind.SHM: (Move.DOWN, Move.STOP),
    Kind.CHECKPOINT_CORRUPT: (Move.OLDER, Move.OLDER, Move.STOP),
    Kind.DISK_FULL: (Move.WAIT_SPACE,) * 16,
    Kind.NETWORK_HUB: (Move.RETRY, Move.RETRY, Move.STOP),
    Kind.USER_CODE: (Move.RETRY, Move.STOP),
    Kind.IMPORT_ERROR: _STOP,
    Kind.CONFIG_ERROR: _STOP,
    Kind.GPU_UNSUPPORTED: _STOP,
    Kind.DEVICE_ASSERT: _STOP,
    Kind.CUDA_INIT_FORK: _STOP,
    Kind.NAN_DIVERGENCE: _STOP,
    Kind.DEVICE_MISMATCH: (Move.DOWN, Move.STOP),
    Kind.PREMATURE_SUCCESS: (Move.RETRY, Move.STOP),
}

TRANSIENT = frozenset(kind for kind, row in MOVES.items() if Move.RETRY in row) - {
    Kind.USER_CODE,
    Kind.PREMATURE_SUCCESS,
} | {Kind.GPU_FAULT, Kind.DISK_FULL}
"""Kinds that another hour may cure: giving up on them is not hopeless (75, not 93)."""

STOP_IF_TOLD = frozenset((Kind.SHM,))
"""Kinds of two causes: NCCL's shared memory is avoided below, a data loader's has to be mended."""

OVERRIDES: Mapping[Remedy, tuple[Move, ...]] = {
    Remedy.FALLBACK_SINGLE_GPU: _DOWN_RETRY,
    Remedy.RETRY_SAME: _RETRY_DOWN,
    Remedy.REDUCE_MICROBATCH: (*(Move.SHRINK,) * 16, Move.STOP),
    Remedy.RESUME_OLDER_CHECKPOINT: (Move.OLDER, Move.OLDER, Move.STOP),
    Remedy.WAIT_THEN_RETRY: (Move.RETRY, Move.RETRY, Move.STOP),
    Remedy.STOP_AND_TELL: _STOP,
}
"""What `policy: {kind: action}` in the config puts in a row's place."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delay before the n-th fruitless retry: first_s * factor**n, at most max_s, +- jitter."""

    first_s: float = 1.0
    max_s: float = 300.0
    factor: float = 2.0
    jitter: float = 0.2

    def delay_s(self, fruitless: int, chance: float) -> float:
        """Return seconds to wait; `chance` in [0, 1) is the draw for the jitter."""
        grown = min(self.max_s, self.first_s * self.factor ** min(fruitless, 64))
        return grown * (1.0 + self.jitter * (2.0 * chance - 1.0))


@dataclass(frozen=True, slots=True)
class Policy:
    """The budgets and overrides of one run.

    `retries` is how often a retry is repeated before the row's next move. `max_attempts`
    failures within `period_s` seconds end the run, whatever progress was made.
    """

    overrides: Mapping[Kind, Remedy] = field(default_factory=dict)
    retries: int = 1
    attempts_without_progress: int = 3
    max_attempts: int = 20
    period_s: float = 86_400.0
    backoff: Backoff = field(default_factory=Backoff)


@dataclass(frozen=True, slots=True)
class Standing:
    """Where the run stands when an attempt has ended.

    `incidents` are all failed attempts in order, the one being judged last. `micro_samples` is
    None when nobody said a batch. `need_mib` is the room the next checkpoint takes.
    """

    incidents: tuple[Incident, ...]
    rung_count: int
    micro_samples: int | None
    need_mib: int
    now_s: float
    chance: float


def decide(policy: Policy, standing: Standing, diagnosis: Diagnosis) -> Decision:
    """Return what happens next after the last incident of `standing`, with the reason."""
    if diagnosis.kind is Kind.HEALTHY:
        return Complete(diagnosis.reason)
    now = standing.incidents[-1]
    moves = _moves_left(policy, standing, diagnosis.remedy)
    spent = _budget_spent(policy, standing)
    # A smaller micro-batch is bounded by itself, and a full disk is waited for, not tried again.
    if spent and moves[0] not in {Move.STOP, Move.SHRINK, Move.WAIT_SPACE}:
        return Stop(f"{spent} The last one: {diagnosis.reason}", hopeless=False)
    no_new_step = now.last_step <= now.first_step
    if now.kind is Kind.USER_CODE and no_new_step and now.kind not in policy.overrides:
        return Stop(
            f"{diagnosis.reason} It failed before any new step, and would again."
            f" {diagnosis.advice}",
            hopeless=True,
        )
    for move in moves:
        decision = _try(move, policy, standing, diagnosis)
        if decision is not None:
            return decision
    raise AssertionError("Move.STOP is always possible")


def _row(policy: Policy, kind: Kind, remedy: Remedy) -> tuple[Move, ...]:
    """Return the moves for a kind: the operator's, the evidence's own verdict, or the table's."""
    override = policy.overrides.get(kind)
    if override is not None:
        return OVERRIDES[override]
    told_to_stop = remedy is Remedy.STOP_AND_TELL and kind in STOP_IF_TOLD
    return _STOP if told_to_stop else MOVES[kind]


def _moves_left(policy: Policy, standing: Standing, remedy: Remedy) -> tuple[Move, ...]:
    """Return what the row of the last incident's kind still offers on its rung, STOP last."""
    now = standing.incidents[-1]
    row = _row(policy, now.kind, remedy)
    lowest = now.rung_index + 1 >= standing.rung_count
    times = {Move.RETRY: policy.retries, Move.DOWN: 0 if lowest else 1}
    moves = [move for move in row for _ in range(times.get(move, 1))]
    earlier = _fruitless_before(standing.incidents)
    used = sum(1 for one in earlier if (one.kind, one.rung_index) == (now.kind, now.rung_index))
    return (*moves[used:], Move.STOP)


def made_progress(incident: Incident) -> bool:
    """Say whether the attempt left a newer checkpoint than it began with."""
    return incident.checkpoint_step > incident.first_step


def _fruitless_before(incidents: tuple[Incident, ...]) -> tuple[Incident, ...]:
    """Return the incidents before the last one that count against it: none if it progressed."""
    *before, now = incidents
    if made_progress(now):
        return ()
    for index in range(len(before) - 1, -1, -1):
        if made_progress(before[index]):
            return tuple(before[index:])
    return tuple(before)


def _budget_spent(policy: Policy, standing: Standing) -> str:
    """Return why no further attempt may be made, or an empty string."""
    fruitless = 0
    for incident in reversed(standing.incidents):
        if made_progress(incident):
            break
        fruitless += incident.kind is not Kind.DISK_FULL
    if fruitless >= policy.attempts_without_progress:
        return (
            f"{fruitless} attempts in a row ended without a newer checkpoint"
            f" (policy.attempts_without_progress is {policy.attempts_without_progress})."
        )
    recent = [i for i in standing.incidents if standing.now_s - i.at_s <= policy.period_s]
    if len(recent) >= policy.max_attempts:
        return (
            f"{len(recent)} attempts failed within {policy.period_s:.0f} s"
            f" (policy.max_attempts allows {policy.max_attempts})."
        )
    return ""


def _is_deterministic(now: Incident, before: tuple[Incident, ...]) -> bool:
    """Say whether the same failure happened at the same step before."""
    return any(
        (one.fingerprint, one.last_step, one.kind) == (now.fingerprint, now.last_step, now.kind)
        for one in before
    )


def _skip_rung(now: Incident, standing: Standing, *, may_go_down: bool) -> Decision:
    if may_go_down and now.rung_index + 1 < standing.rung_count:
        return StepDown(
            f"The same failure at step {now.last_step} twice: it is deterministic on this rung.",
            now.rung_index + 1,
        )
    return Stop(
        f"The same failure at step {now.last_step} twice, and no lower rung would avoid it:"
        " it is deterministic, trying again cannot help.",
        hopeless=True,
    )


def _largest_divisor_below(micro: int) -> int:
    """Return the largest proper divisor, so that the sums of the batch still hold."""
    return max(d for d in range(1, micro // 2 + 1) if micro % d == 0)


def _try(move: Move, policy: Policy, standing: Standing, diagnosis: Diagnosis) -> Decision | None:
    """Return the decision a move makes here, or None where it is impossible."""
    now = standing.incidents[-1]
    match move:
        case Move.RETRY:
            if _is_deterministic(now, standing.incidents[:-1]):
                row = _row(policy, now.kind, diagnosis.remedy)
                return _skip_rung(now, standing, may_go_down=Move.DOWN in row)
            fruitless = len(_fruitless_before(standing.incidents))
            delay_s = policy.backoff.delay_s(fruitless, standing.chance)
            return Retry(f"{diagnosis.kind.value} may pass: the same rung again.", delay_s)
        case Move.DOWN:
            return StepDown(
                f"{diagnosis.kind.value} on this rung: the next lower one avoids it.",
                now.rung_index + 1,
            )
        case Move.SHRINK:
            if standing.micro_samples is None or standing.micro_samples <= 1:
                return None
            smaller = _largest_divisor_below(standing.micro_samples)
            return ShrinkMicroBatch(
                f"Micro-batch {standing.micro_samples} does not fit into memory: {smaller} with"
                " more accumulation, the global batch unchanged.",
                smaller,
            )
        case Move.OLDER:
            if now.first_step <= 0:
                return None
            return UseOlderCheckpoint(
                f"The checkpoint of step {now.first_step} cannot be used: an older one.",
                now.first_step,
            )
        case Move.WAIT_SPACE:
            return WaitForSpace(
                "The disk is full: nothing is started until there is room for a checkpoint.",
                standing.need_mib,
            )
        case Move.STOP:
            return Stop(
                f"{diagnosis.reason} {diagnosis.advice}",
                hopeless=diagnosis.kind not in TRANSIENT,
            )
        case _:
            assert_never(move)
