"""What must hold of everything that is journaled: decisions, waits, ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulation.notes import Failure, is_patient
from simulation.setups import run_of, settings_of

from humigence_supervise.domain import Kind
from humigence_supervise.records import Event, Record

if TYPE_CHECKING:
    from simulation.world import World

DOWN_FIRST = frozenset(
    (
        Kind.NCCL_INIT,
        Kind.NCCL_TIMEOUT,
        Kind.NCCL_REMOTE,
        Kind.NCCL_INTERNAL,
        Kind.NVLINK_P2P,
        Kind.HANG,
        Kind.GPU_FAULT,
        Kind.DEVICE_MISMATCH,
    )
)
"""Kinds that a lower rung does without: the table of GROUND.md, section 3."""
DOWN_AFTER_RETRY = frozenset(
    (
        Kind.RENDEZVOUS,
        Kind.HOST_OOM,
        Kind.DATALOADER,
        Kind.SEGFAULT,
        Kind.PREEMPTED,
        Kind.UNKNOWN,
    )
)
NEVER_AGAIN = frozenset(
    (
        Kind.IMPORT_ERROR,
        Kind.CONFIG_ERROR,
        Kind.GPU_UNSUPPORTED,
        Kind.DEVICE_ASSERT,
        Kind.CUDA_INIT_FORK,
        Kind.NAN_DIVERGENCE,
    )
)


def a_retry_has_budget(world: World, record: Record) -> bool:
    """The same rung again is decided only while there are attempts without progress left."""
    now = _failure(world, record)
    if now is None or not _plain_retry(now):
        return True
    return (
        is_patient(now.kind, now.holder)
        or now.fruitless < settings_of(world.setup).policy.attempts_without_progress
    )


def a_period_has_its_budget(world: World, record: Record) -> bool:
    """No attempt follows when too many have failed within the period."""
    now = _failure(world, record)
    if now is None or now.decision == "Stop":
        return True
    waits = is_patient(now.kind, now.holder) and now.decision != "StepDown"
    return waits or now.in_period < settings_of(world.setup).policy.max_attempts.count


def nothing_deterministic_is_retried(world: World, record: Record) -> bool:
    """The same failure at the same step twice leads elsewhere, not to the same rung again."""
    now = _failure(world, record)
    if now is None or not _plain_retry(now) or is_patient(now.kind, now.holder):
        return True
    return not now.known or now.kind == Kind.PREEMPTED  # to be told to end is no failure


def what_cannot_be_helped_ends(world: World, record: Record) -> bool:
    """What trying again cannot help is not tried again."""
    now = _failure(world, record)
    if now is None or now.kind in settings_of(world.setup).policy.overrides:
        return True
    return now.kind not in NEVER_AGAIN or now.decision == "Stop"


def lower_rungs_come_before_the_end(world: World, record: Record) -> bool:
    """The run does not end while a rung is left that does without what failed."""
    now = _failure(world, record)
    if now is None or now.decision != "Stop":
        return True
    policy = settings_of(world.setup).policy
    if now.rung_index + 1 >= len(run_of(world.setup).rungs) or now.kind in policy.overrides:
        return True
    if now.in_period >= policy.max_attempts.count:
        return True
    spent = now.fruitless >= policy.attempts_without_progress
    return now.kind not in DOWN_FIRST and (now.kind not in DOWN_AFTER_RETRY or spent)


def promotions_are_few(world: World, record: Record) -> bool:
    """No more healthy attempts are left for a higher rung than the configuration allows."""
    if record.event is not Event.PROMOTION_STARTED:
        return True
    return world.notes.promotions <= settings_of(world.setup).promote.max_promotions


def up_only_after_a_passing_probe(world: World, record: Record) -> bool:
    """The run goes to a higher rung only when a probe of it has just passed."""
    if record.event is not Event.DECISION_MADE or record.facts["decision"] != "StepUp":
        return True
    return world.notes.probe_passed_of == record.facts["rung_index"]


def no_promotion_comes_too_early(world: World, record: Record) -> bool:
    """A healthy attempt is left for a higher rung only a while after the last failure."""
    failed_at_s = world.notes.last_failed_at_s
    if record.event is not Event.ATTEMPT_LEAVING or record.facts["to_rung_index"] is None:
        return True
    if failed_at_s is None or world.clock_jumps or not world.notes.failures:
        return True
    return world.now_s - failed_at_s >= settings_of(world.setup).promote.after_s - 0.01


def micro_batches_shrink_for_memory_only(world: World, record: Record) -> bool:
    """Smaller micro-batches are an answer to a full GPU, and to nothing else."""
    now = _failure(world, record)
    return now is None or now.decision != "ShrinkMicroBatch" or now.kind == Kind.CUDA_OOM


def growth_is_tried_once(world: World, record: Record) -> bool:
    """A reduced micro-batch is raised again once."""
    del record
    return world.notes.growths <= 1 + world.notes.renewals


def unprepared_attempts_are_few(world: World, record: Record) -> bool:
    """It is not looked for ever whether an attempt can be made."""
    del record
    return world.notes.unprepared <= 8


def a_wait_is_not_begun_anew(world: World, record: Record) -> bool:
    """A wait of known length goes on after a restart of the supervisor; it is not made again."""
    return record.event is not Event.BACKOFF_STARTED or not world.notes.waits_anew


def an_ended_run_says_why(world: World, record: Record) -> bool:
    """The end of a run has a reason in words and a code that fits it."""
    del world
    codes = {
        Event.RUN_COMPLETED: (0,),
        Event.RUN_STOPPED: (130, 143),
        Event.RUN_GAVE_UP: (75,),
        Event.RUN_FAILED: (78, 93),
    }.get(record.event)
    if codes is None:
        return True
    return bool(record.message.strip()) and record.facts["exit_code"] in codes


def an_ended_run_says_no_more(world: World, record: Record) -> bool:
    """After the end nothing is journaled until an operator starts the run again."""
    return record.event is Event.RUN_RESUMED or world.notes.final in (None, record)


def _failure(world: World, record: Record) -> Failure | None:
    if record.event is not Event.DECISION_MADE or record.facts["kind"] == Kind.HEALTHY:
        return None
    return world.notes.failures[-1]


def _plain_retry(now: Failure) -> bool:
    return now.decision == "Retry" and not now.defragment and not now.hardware


AT_APPEND = (
    a_retry_has_budget,
    a_period_has_its_budget,
    nothing_deterministic_is_retried,
    what_cannot_be_helped_ends,
    lower_rungs_come_before_the_end,
    promotions_are_few,
    up_only_after_a_passing_probe,
    no_promotion_comes_too_early,
    micro_batches_shrink_for_memory_only,
    growth_is_tried_once,
    unprepared_attempts_are_few,
    a_wait_is_not_begun_anew,
    an_ended_run_says_why,
    an_ended_run_says_no_more,
)
