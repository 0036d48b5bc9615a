"""Judge a failed attempt: which way the run goes on, and why. Pure; time and chance are arguments.

The table is in `moves.py`, what its moves come to in `outcomes.py`, what may be spent in
`budgets.py`, the words for it in `grounds.py`.
"""

from __future__ import annotations

from dataclasses import replace

from humigence_supervise.budgets import Policy, fruitless_before, is_patient, period_spent, spent
from humigence_supervise.decisions import (
    Complete,
    Decision,
    Retry,
    ShrinkMicroBatch,
    StepDown,
    Stop,
    Verdict,
)
from humigence_supervise.domain import Diagnosis, Holder, Kind, Remedy
from humigence_supervise.grounds import HOPELESS, LATER, unless, why_not
from humigence_supervise.moves import PATIENT, SELF_LIMITED, TRANSIENT, Move, is_hardware, row_of
from humigence_supervise.outcomes import decision_of
from humigence_supervise.situation import Situation, is_repeated

__all__ = ["Situation", "decide"]


def decide(policy: Policy, standing: Situation, diagnosis: Diagnosis) -> Verdict:
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


def _repeated(standing: Situation, decision: Decision) -> Situation:
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


def _judge(policy: Policy, standing: Situation, diagnosis: Diagnosis) -> Verdict:
    """Return the verdict without what would change it, where it is no end of the run."""
    moves = _moves_left(policy, standing, diagnosis)
    excluded = diagnosis.gpu or "" if is_hardware(diagnosis) else ""
    barred = _barred(policy, standing, diagnosis)
    for index, move in enumerate(moves):
        later = moves[index + 1 :]
        if barred is not None and _is_barred(move, policy, standing):
            if move is Move.RETRY and Move.DOWN in later:
                continue
            return replace(barred, excluded_gpu=excluded)
        if move is Move.STOP:
            return replace(_end(policy, standing, diagnosis), excluded_gpu=excluded)
        decision = decision_of(move, policy, standing, diagnosis)
        if decision is not None:
            # A move that was skipped to leaves itself behind: it is not the next best one.
            made = Move.DOWN if isinstance(decision, StepDown) else move
            best = next((other for other in later if other is not made), Move.STOP)
            return Verdict(decision, why_not(decision, best, diagnosis), "", excluded)
    raise AssertionError("Move.STOP is always possible")


def _moves_left(policy: Policy, standing: Situation, diagnosis: Diagnosis) -> tuple[Move, ...]:
    """Return what the row of the last incident's kind still offers on its rung, STOP last."""
    now = standing.now
    times = {Move.RETRY: policy.retries, Move.DOWN: 0 if standing.on_lowest_rung else 1}
    row = row_of(diagnosis, policy.overrides)
    if standing.fits_micro is not None and now.kind is Kind.CUDA_OOM:
        row = (Move.SHRINK, *row)  # back to what fitted, before anything is given up for it
    moves = [move for move in row for _ in range(times.get(move, 1))]
    used = sum(
        1
        for one in fruitless_before(standing.incidents)
        if (one.kind, one.holder, one.rung_index) == (now.kind, now.holder, now.rung_index)
    )
    # A rung is left each time it fails for good, whatever was tried on it before: going down is
    # never used up, be it that the run came back up or that the ladder was made longer.
    others = [move for move in moves if move is not Move.DOWN]
    left = others[used:]
    where = moves.index(Move.DOWN) if Move.DOWN in moves else len(moves)
    before_down = max(0, where - used)
    down = [Move.DOWN] * (Move.DOWN in moves)
    return (*left[:before_down], *down, *left[before_down:], Move.STOP)


# --- what forbids a further attempt ------------------------------------------------------------


def _barred(policy: Policy, standing: Situation, diagnosis: Diagnosis) -> Verdict | None:
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
    if not period and no_way_down and is_repeated(policy, standing):
        return _end(policy, standing, diagnosis)
    return Verdict(
        Stop(f"{why} The last one: {diagnosis.reason}", hopeless=False),
        LATER,
        "A larger policy.max_attempts, or less frequent failures, would have allowed another."
        if period
        else "Progress would have given the budget back, a larger one allowed another attempt.",
    )


def _is_barred(move: Move, policy: Policy, standing: Situation) -> bool:
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


def _end(policy: Policy, standing: Situation, diagnosis: Diagnosis) -> Verdict:
    """Return the end of the run at the end of a row."""
    now, what = standing.now, f"{diagnosis.reason}{_nothing_left(standing, diagnosis)}"
    temporary = diagnosis.kind in TRANSIENT or now.holder is Holder.STRANGER
    if is_repeated(policy, standing):
        # Whatever keeps an attempt from its first step, another hour may cure it.
        hopeless = not temporary or now.last_step > now.first_step
        known = (
            "it is deterministic, trying again cannot help"
            if hopeless
            else "trying again at once cannot help"
        )
        stop = Stop(
            f"The same failure at step {now.last_step} twice, and no lower rung would avoid it:"
            f" {known}. {what} {diagnosis.advice}",
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


def _nothing_left(standing: Situation, diagnosis: Diagnosis) -> str:
    """Return why the moves of a row are used up, where that is worth a sentence."""
    if diagnosis.kind is Kind.CUDA_OOM and standing.micro_samples is None:
        return " The micro-batch cannot be made smaller: no batch is configured (batch.micro)."
    if diagnosis.kind is Kind.CUDA_OOM and standing.micro_samples == 1:
        return " Micro-batches of 1 sample do not fit either: no smaller one is left to try."
    if diagnosis.kind is Kind.GPU_FAULT and standing.gpus_left == 0:
        return " No healthy GPU is left: reset it (nvidia-smi -r) or reboot."
    return ""
