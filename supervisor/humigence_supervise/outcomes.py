"""What a move of the table comes to where a run stands now. Pure."""

from __future__ import annotations

from typing import Final, assert_never

from humigence_supervise.budgets import Policy, fruitless_before
from humigence_supervise.decisions import (
    Decision,
    Retry,
    ShrinkMicroBatch,
    StepDown,
    Stranger,
    UseOlderCheckpoint,
    WaitForMemory,
    WaitForSpace,
)
from humigence_supervise.domain import Diagnosis, Kind
from humigence_supervise.moves import MOVES, Move, row_of
from humigence_supervise.situation import Situation, is_repeated

LONG_WAIT_S: Final = 30.0
"""First delay before a retry after what takes minutes to pass, such as a service that is down."""


def decision_of(
    move: Move, policy: Policy, standing: Situation, diagnosis: Diagnosis
) -> Decision | None:
    """Return the decision a move makes here, or None where it is impossible."""
    now, kind = standing.now, diagnosis.kind.value
    match move:
        case Move.RETRY:
            if is_repeated(policy, standing):
                return _skip_rung(policy, standing, diagnosis)
            fruitless = len(fruitless_before(standing.incidents))
            delay_s = policy.backoff.delay_s(fruitless, standing.chance)
            return Retry(
                f"A failure of this kind ({kind}) often passes with fresh processes: the same rung"
                f" once more, from the newest good checkpoint, in {delay_s:.1f} s.",
                delay_s,
            )
        case Move.WAIT:
            why = f"What failed ({kind}) is outside of this machine's power and takes its time"
            return _wait(why, policy, standing)
        case Move.DOWN:
            return StepDown(_why_down(diagnosis), now.rung_index + 1)
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
            return _shrink(standing.micro_samples, standing.fits_micro)
        case Move.OLDER:
            return _older(standing)
        case Move.WAIT_SPACE:
            return _wait_for_space(policy, standing)
        case Move.WAIT_MEMORY:
            return _wait_for_memory(policy, standing, diagnosis)
        case Move.STOP:
            return None
        case _:
            assert_never(move)


def _skip_rung(policy: Policy, standing: Situation, diagnosis: Diagnosis) -> Decision | None:
    """Leave the rung; None where that is no way out, so that the run ends."""
    if Move.DOWN not in row_of(diagnosis, policy.overrides) or standing.on_lowest_rung:
        return None
    return StepDown(
        f"The same failure at step {standing.now.last_step} twice: it is deterministic on this"
        " rung.",
        standing.now.rung_index + 1,
    )


def _shrink(micro_samples: int | None, fits_micro: int | None) -> Decision | None:
    if micro_samples is None or micro_samples <= 1:
        return None
    # The largest proper divisor, so that the sums of the batch still hold.
    smaller = fits_micro or max(
        d for d in range(1, micro_samples // 2 + 1) if micro_samples % d == 0
    )
    return ShrinkMicroBatch(
        f"Micro-batches of {micro_samples} do not fit into memory: {smaller} with"
        f" {micro_samples // smaller} times the accumulation, the global batch unchanged.",
        smaller,
    )


def _why_down(diagnosis: Diagnosis) -> str:
    kind = diagnosis.kind.value
    if diagnosis.kind is Kind.CUDA_OOM:
        return (
            f"{kind} on this rung: a lower one needs no memory for gradient buckets and NCCL, so"
            " the same micro-batch may fit there."
        )
    if Move.RETRY in MOVES[diagnosis.kind][:1]:
        return f"{kind} on this rung, also after it was tried again: a lower one may be spared it."
    return f"{kind} on this rung: the next lower one does without what failed."


def _older(standing: Situation) -> Decision | None:
    """Leave out the newest checkpoint, which may carry the fault, or the one that was resumed from.

    The latter where nothing newer was saved, or where leaving out the newest did not help.
    """
    now = standing.now
    again = any(one.kind is now.kind for one in fruitless_before(standing.incidents))
    trained = now.last_step > now.first_step  # else what was loaded is to blame
    newer = now.checkpoint_step > now.first_step and (
        now.first_step == 0 or (trained and not again)
    )
    bad_step = now.checkpoint_step if newer else now.first_step
    if bad_step <= 0:
        return None
    return UseOlderCheckpoint(
        f"No checkpoint from step {bad_step} on is used any more: an older one.", bad_step
    )


def _wait(why: str, policy: Policy, standing: Situation) -> Retry:
    fruitless = len(fruitless_before(standing.incidents))
    delay_s = policy.backoff.delay_s(fruitless, standing.chance, at_least_s=LONG_WAIT_S)
    return Retry(f"{why}: the same rung again in {delay_s:.0f} s.", delay_s)


def _wait_for_space(policy: Policy, standing: Situation) -> Decision:
    if standing.free_mib is None:
        return _wait("How full the disk of the checkpoints is, nothing tells", policy, standing)
    if standing.free_mib >= standing.need_mib:
        why = "There is room on the disk of the checkpoints now: another one is full, or it was"
        return _wait(f"{why} for a while", policy, standing)
    return WaitForSpace(
        "The disk is full: nothing is started until there is room for a checkpoint.",
        standing.need_mib,
    )


def _wait_for_memory(policy: Policy, standing: Situation, diagnosis: Diagnosis) -> Decision:
    reading = diagnosis.memory
    held_mib = None if reading is None or reading.held_mib is None else int(reading.held_mib)
    patience_s = policy.backoff.max_s
    until = "" if standing.on_lowest_rung else f", {patience_s:.0f} s at most"
    return WaitForMemory(
        f"{diagnosis.reason} It is not ours to end: the run waits until the memory is free{until}.",
        Stranger(diagnosis.gpu or "", None if reading is None else reading.pid, held_mib),
        patience_s,
    )
