"""Judge a failed attempt: which way the run goes on, and why. Pure; time and chance are arguments.

The table is in `moves.py`, what may be spent in `budgets.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, assert_never

from humigence_supervise.budgets import (
    Policy,
    fruitless_before,
    is_deterministic,
    is_patient,
    period_spent,
    spent,
)
from humigence_supervise.decisions import (
    Complete,
    Decision,
    Incident,
    Retry,
    ShrinkMicroBatch,
    StepDown,
    Stop,
    Stranger,
    UseOlderCheckpoint,
    Verdict,
    WaitForMemory,
    WaitForSpace,
)
from humigence_supervise.domain import Diagnosis, Kind
from humigence_supervise.grounds import unless, why_not
from humigence_supervise.moves import PATIENT, SELF_LIMITED, TRANSIENT, Move, row_of

LONG_WAIT_S: Final = 30.0
"""First delay before a retry after what takes minutes to pass, such as a service that is down."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where the run stands when an attempt has ended.

    `incidents` are all failed attempts in order, the one being judged last. `micro_samples` is
    None when nobody said a batch. `need_mib` is the room the next checkpoint takes. `gpus_left`
    counts the GPUs that may still be used, the faulty one left out; None: unknown, or a CPU run.
    `defragmented`: the allocator was told already to join free pieces.
    """

    incidents: tuple[Incident, ...]
    rung_count: int
    micro_samples: int | None
    need_mib: int
    now_s: float
    chance: float
    gpus_left: int | None = None
    defragmented: bool = False

    @property
    def now(self) -> Incident:
        """The incident being judged."""
        return self.incidents[-1]

    @property
    def on_lowest_rung(self) -> bool:
        """True where there is nothing to step down to."""
        return self.now.rung_index + 1 >= self.rung_count


def decide(policy: Policy, standing: Standing, diagnosis: Diagnosis) -> Verdict:
    """Return what happens next after the last incident of `standing`, with the grounds."""
    if diagnosis.kind is Kind.HEALTHY:
        return Verdict(Complete(diagnosis.reason))
    moves = _moves_left(policy, standing, diagnosis)
    excluded = diagnosis.gpu or "" if diagnosis.kind is Kind.GPU_FAULT else ""
    barred = _barred(policy, standing, diagnosis)
    for index, move in enumerate(moves):
        decision = (
            barred
            if _is_barred(move, barred, policy, standing)
            else _try(move, policy, standing, diagnosis)
        )
        if decision is None:
            continue
        following = next((m for m in moves[index + 1 :] if m is not move), Move.STOP)
        return Verdict(
            decision,
            why_not(decision, following, diagnosis),
            unless(decision, policy, standing.now, on_lowest_rung=standing.on_lowest_rung),
            excluded,
        )
    raise AssertionError("Move.STOP is always possible")


def _moves_left(policy: Policy, standing: Standing, diagnosis: Diagnosis) -> tuple[Move, ...]:
    """Return what the row of the last incident's kind still offers on its rung, STOP last."""
    now = standing.now
    times = {Move.RETRY: policy.retries, Move.DOWN: 0 if standing.on_lowest_rung else 1}
    row = row_of(diagnosis, policy.overrides)
    moves = [move for move in row for _ in range(times.get(move, 1))]
    used = sum(
        1
        for one in fruitless_before(standing.incidents)
        if (one.kind, one.holder, one.rung_index) == (now.kind, now.holder, now.rung_index)
    )
    return (*moves[used:], Move.STOP)


# --- what forbids a further attempt ------------------------------------------------------------


def _barred(policy: Policy, standing: Standing, diagnosis: Diagnosis) -> Stop | None:
    """Return the end of a run that has spent what it may on attempts, None before that."""
    why = period_spent(policy, standing.incidents, standing.now_s)
    why = why or spent(policy, standing.incidents)
    if why:
        return Stop(f"{why} The last one: {diagnosis.reason}", hopeless=False)
    now = standing.now
    code_at_start = now.kind is Kind.USER_CODE and now.last_step <= now.first_step
    if code_at_start and now.kind not in policy.overrides:
        return Stop(
            f"{diagnosis.reason} It failed before any new step, and would again."
            f" {diagnosis.advice}",
            hopeless=True,
        )
    return None


def _is_barred(move: Move, barred: Stop | None, policy: Policy, standing: Standing) -> bool:
    """Say whether a spent budget forbids this move.

    A move that can be made only so often needs no budget of attempts without progress; waiting
    for the world needs none at all.
    """
    if barred is None or move is Move.STOP or move in PATIENT:
        return False
    if move in SELF_LIMITED:
        return bool(period_spent(policy, standing.incidents, standing.now_s))
    return True


# --- the moves ---------------------------------------------------------------------------------


def _try(move: Move, policy: Policy, standing: Standing, diagnosis: Diagnosis) -> Decision | None:
    """Return the decision a move makes here, or None where it is impossible."""
    now, kind = standing.now, diagnosis.kind.value
    fruitless = len(fruitless_before(standing.incidents))
    match move:
        case Move.RETRY:
            if is_deterministic(standing.incidents):
                return _skip_rung(policy, standing, diagnosis)
            delay_s = policy.backoff.delay_s(fruitless, standing.chance)
            return Retry(
                f"A failure of this kind ({kind}) often passes with fresh processes: the same rung"
                f" once more, from the newest good checkpoint, in {delay_s:.1f} s.",
                delay_s,
            )
        case Move.WAIT:
            delay_s = policy.backoff.delay_s(fruitless, standing.chance, at_least_s=LONG_WAIT_S)
            return Retry(
                f"What failed ({kind}) is outside of this machine's power and takes its time: the"
                f" same rung again in {delay_s:.0f} s.",
                delay_s,
            )
        case Move.DOWN:
            return StepDown(
                f"{kind} on this rung: the next lower one does without what failed.",
                now.rung_index + 1,
            )
        case Move.ELSEWHERE:
            if not diagnosis.gpu or standing.gpus_left == 0:
                return None
            return Retry(f"GPU {diagnosis.gpu} is not used any more: the same rung on another one.")
        case Move.DEFRAGMENT:
            if standing.defragmented:
                return None
            return Retry(
                "GPU memory was free, but in pieces: the same rung with an allocator that joins"
                " them (expandable_segments:True).",
                defragment=True,
            )
        case Move.SHRINK:
            return _shrink(standing.micro_samples)
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
        case Move.WAIT_MEMORY:
            return _wait_for_memory(policy, standing, diagnosis)
        case Move.STOP:
            return _stop(standing, diagnosis)
        case _:
            assert_never(move)


def _skip_rung(policy: Policy, standing: Standing, diagnosis: Diagnosis) -> Decision:
    now = standing.now
    may_go_down = Move.DOWN in row_of(diagnosis, policy.overrides)
    if may_go_down and not standing.on_lowest_rung:
        return StepDown(
            f"The same failure at step {now.last_step} twice: it is deterministic on this rung.",
            now.rung_index + 1,
        )
    return _stop(standing, diagnosis)


def _shrink(micro_samples: int | None) -> Decision | None:
    if micro_samples is None or micro_samples <= 1:
        return None
    # The largest proper divisor, so that the sums of the batch still hold.
    smaller = max(d for d in range(1, micro_samples // 2 + 1) if micro_samples % d == 0)
    return ShrinkMicroBatch(
        f"Micro-batches of {micro_samples} do not fit into memory: {smaller} with"
        f" {micro_samples // smaller} times the accumulation, the global batch unchanged.",
        smaller,
    )


def _wait_for_memory(policy: Policy, standing: Standing, diagnosis: Diagnosis) -> Decision:
    reading = diagnosis.memory
    held_mib = None if reading is None or reading.held_mib is None else int(reading.held_mib)
    patience_s = policy.backoff.max_s
    until = "" if standing.on_lowest_rung else f", {patience_s:.0f} s at most"
    return WaitForMemory(
        f"{diagnosis.reason} It is not ours to end: the run waits until the memory is free{until}.",
        Stranger(diagnosis.gpu or "", None if reading is None else reading.pid, held_mib),
        patience_s,
    )


def _stop(standing: Standing, diagnosis: Diagnosis) -> Stop:
    now = standing.now
    repeated = is_deterministic(standing.incidents) and not is_patient(now)
    why = ""
    if diagnosis.kind is Kind.CUDA_OOM and standing.micro_samples is None:
        why = " The micro-batch cannot be made smaller: no batch is configured (batch.micro)."
    if diagnosis.kind is Kind.CUDA_OOM and standing.micro_samples == 1:
        why = " Micro-batches of 1 sample do not fit either: no smaller one is left to try."
    if diagnosis.kind is Kind.GPU_FAULT and standing.gpus_left == 0:
        why = " No healthy GPU is left: reset it (nvidia-smi -r) or reboot."
    first = ""
    if repeated:
        first = (
            f"The same failure at step {now.last_step} twice, and no lower rung would avoid it:"
            " it is deterministic, trying again cannot help. "
        )
    return Stop(
        f"{first}{diagnosis.reason}{why} {diagnosis.advice}",
        hopeless=repeated or diagnosis.kind not in TRANSIENT,
    )
