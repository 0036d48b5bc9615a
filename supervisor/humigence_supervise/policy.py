"""Judge a failed attempt: which way the run goes on, and why. Pure; time and chance are arguments.

The table is in `moves.py`, what may be spent in `budgets.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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
from humigence_supervise.domain import Diagnosis, Holder, Kind, Remedy
from humigence_supervise.grounds import HOPELESS, LATER, unless, why_not
from humigence_supervise.moves import PATIENT, SELF_LIMITED, TRANSIENT, Move, row_of

LONG_WAIT_S: Final = 30.0
"""First delay before a retry after what takes minutes to pass, such as a service that is down."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where the run stands when an attempt has ended.

    `incidents` are all failed attempts in order, the one being judged last. `micro_samples` is
    None when nobody said a batch. `need_mib` is the room the next checkpoint takes, `free_mib` what
    there is. `gpus_left`
    counts the GPUs that may still be used, the faulty one left out; None: unknown, or a CPU run.
    `defragmented`: the allocator was told already to join free pieces.
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

    @property
    def disk_is_full(self) -> bool:
        """True where a checkpoint is seen not to fit."""
        return self.free_mib is not None and self.free_mib < self.need_mib

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
    verdict = _judge(policy, standing, diagnosis)
    if isinstance(verdict.decision, Stop):
        return verdict
    following = _judge(policy, _repeated(standing, verdict.decision), diagnosis).decision
    stubborn = {**policy.overrides, diagnosis.kind: Remedy.RETRY_SAME}
    kept = _judge(replace(policy, overrides=stubborn), standing, diagnosis).decision
    words = unless(
        verdict.decision, following, standing.now, retry_keeps_rung=isinstance(kept, Retry)
    )
    return replace(verdict, unless=words)


def _repeated(standing: Standing, decision: Decision) -> Standing:
    """Return where the run would stand if the decision did not help: the same failure again."""
    again = standing.now
    left = standing.gpus_left
    if isinstance(decision, StepDown):
        again = replace(again, rung_index=decision.rung_index)
    if again.kind is Kind.GPU_FAULT:  # the faulty one is out: it is another one
        again, left = replace(again, gpu="another"), None if left is None else max(0, left - 1)
    micro = standing.micro_samples
    return replace(
        standing,
        incidents=(*standing.incidents, again),
        micro_samples=decision.micro_samples if isinstance(decision, ShrinkMicroBatch) else micro,
        gpus_left=left,
        defragmented=standing.defragmented or (isinstance(decision, Retry) and decision.defragment),
    )


def _judge(policy: Policy, standing: Standing, diagnosis: Diagnosis) -> Verdict:
    """Return the verdict without what would change it, where it is no end of the run."""
    moves = _moves_left(policy, standing, diagnosis)
    excluded = diagnosis.gpu or "" if diagnosis.kind is Kind.GPU_FAULT else ""
    barred = _barred(policy, standing, diagnosis)
    for index, move in enumerate(moves):
        later = moves[index + 1 :]
        if barred is not None and _is_barred(move, policy, standing):
            if move is Move.RETRY and Move.DOWN in later:
                continue
            return replace(barred, excluded_gpu=excluded)
        if move is Move.STOP:
            return replace(_end(policy, standing, diagnosis), excluded_gpu=excluded)
        decision = _try(move, policy, standing, diagnosis)
        if decision is not None:
            # A move that was skipped to leaves itself behind: it is not the next best one.
            made = Move.DOWN if isinstance(decision, StepDown) else move
            best = next((other for other in later if other is not made), Move.STOP)
            return Verdict(decision, why_not(decision, best, diagnosis), "", excluded)
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


def _barred(policy: Policy, standing: Standing, diagnosis: Diagnosis) -> Verdict | None:
    """Return the end of a run that has spent what it may on attempts, None before that."""
    now = standing.now
    code_at_start = now.kind is Kind.USER_CODE and now.last_step <= now.first_step
    if code_at_start and now.kind not in policy.overrides:
        stop = Stop(
            f"{diagnosis.reason} It failed before any new step, and would again."
            f" {diagnosis.advice}",
            hopeless=True,
        )
        return Verdict(stop, HOPELESS, "After a new step it would have been tried once more.")
    period = period_spent(policy, standing.incidents, standing.now_s)
    why = period or spent(policy, standing.incidents)
    if not why:
        return None
    no_way_down = standing.on_lowest_rung or Move.DOWN not in row_of(diagnosis, policy.overrides)
    if not period and no_way_down and _is_repeated(policy, standing):
        return _end(policy, standing, diagnosis)
    return Verdict(
        Stop(f"{why} The last one: {diagnosis.reason}", hopeless=False),
        LATER,
        "Progress would have given the budget back, a larger one allowed another attempt.",
    )


def _is_barred(move: Move, policy: Policy, standing: Standing) -> bool:
    """Say whether a spent budget forbids this move.

    A move that can be made only so often needs no budget of attempts without progress; waiting
    for the world needs none at all.
    """
    if move is Move.STOP:
        return False
    if move in PATIENT and is_patient(policy, standing.now):
        return False
    if move in SELF_LIMITED:
        return bool(period_spent(policy, standing.incidents, standing.now_s))
    return True


def _is_repeated(policy: Policy, standing: Standing) -> bool:
    """Say whether a failure is known to come back on this rung: the same one at the same step."""
    return is_deterministic(standing.incidents) and not is_patient(policy, standing.now)


# --- the moves ---------------------------------------------------------------------------------


def _try(move: Move, policy: Policy, standing: Standing, diagnosis: Diagnosis) -> Decision | None:
    """Return the decision a move makes here, or None where it is impossible."""
    now, kind = standing.now, diagnosis.kind.value
    fruitless = len(fruitless_before(standing.incidents))
    match move:
        case Move.RETRY:
            if _is_repeated(policy, standing):
                return _skip_rung(policy, standing, diagnosis)
            delay_s = policy.backoff.delay_s(fruitless, standing.chance)
            return Retry(
                f"A failure of this kind ({kind}) often passes with fresh processes: the same rung"
                f" once more, from the newest good checkpoint, in {delay_s:.1f} s.",
                delay_s,
            )
        case Move.WAIT_SPACE if not standing.disk_is_full:
            delay_s = policy.backoff.delay_s(fruitless, standing.chance, at_least_s=LONG_WAIT_S)
            return Retry(
                "There is room on the disk of the checkpoints now: it was full for a while, or"
                f" another one is. The same rung again in {delay_s:.0f} s.",
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
            return None
        case _:
            assert_never(move)


def _skip_rung(policy: Policy, standing: Standing, diagnosis: Diagnosis) -> Decision | None:
    """Leave the rung; None where that is no way out, so that the run ends."""
    if Move.DOWN not in row_of(diagnosis, policy.overrides) or standing.on_lowest_rung:
        return None
    return StepDown(
        f"The same failure at step {standing.now.last_step} twice: it is deterministic on this"
        " rung.",
        standing.now.rung_index + 1,
    )


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


def _end(policy: Policy, standing: Standing, diagnosis: Diagnosis) -> Verdict:
    """Return the end of the run at the end of a row."""
    now, what = standing.now, f"{diagnosis.reason}{_nothing_left(standing, diagnosis)}"
    temporary = diagnosis.kind in TRANSIENT or now.holder is Holder.STRANGER
    if _is_repeated(policy, standing):
        # Whatever keeps an attempt from its first step, another hour may cure it.
        hopeless = not temporary or now.last_step > now.first_step
        stop = Stop(
            f"The same failure at step {now.last_step} twice, and no lower rung would avoid it: it"
            f" is deterministic, trying again cannot help. {what} {diagnosis.advice}",
            hopeless=hopeless,
        )
        changed = "Another failure, or the same one at another step, would have been tried again."
        return Verdict(stop, HOPELESS if hopeless else LATER, changed)
    stop = Stop(f"{what} {diagnosis.advice}", hopeless=not temporary)
    if not {Move.RETRY, *PATIENT} & set(row_of(diagnosis, policy.overrides)):
        changed = "Nothing but a change of what is wrong would have led to another attempt."
    else:
        changed = "Progress before it failed again would have given it more tries."
    return Verdict(stop, LATER if temporary else HOPELESS, changed)


def _nothing_left(standing: Standing, diagnosis: Diagnosis) -> str:
    """Return why the moves of a row are used up, where that is worth a sentence."""
    if diagnosis.kind is Kind.CUDA_OOM and standing.micro_samples is None:
        return " The micro-batch cannot be made smaller: no batch is configured (batch.micro)."
    if diagnosis.kind is Kind.CUDA_OOM and standing.micro_samples == 1:
        return " Micro-batches of 1 sample do not fit either: no smaller one is left to try."
    if diagnosis.kind is Kind.GPU_FAULT and standing.gpus_left == 0:
        return " No healthy GPU is left: reset it (nvidia-smi -r) or reboot."
    return ""
