"""What must hold in every history: each rule is one small function with its sentence.

A rule takes the world and what is happening, and returns whether it holds. They are judged by
the bystander's notes and by the world itself, never by what the product remembers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from simulation.notes import Failure, is_patient
from simulation.setups import run_of, settings_of

from humigence_supervise.domain import Kind, LaunchPlan
from humigence_supervise.ledger import account
from humigence_supervise.records import Event, Record
from humigence_supervise.state import State

if TYPE_CHECKING:
    from simulation.journal import SimJournal
    from simulation.world import World

Rule = Callable[[Any, Any], bool]

SLACK_S = 12.0
"""What a wait may take longer: two of the loop's longest sleeps, and moments between."""
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

OF_NEWS = {one.name for one in fields(State)} & {
    "checkpoint_step",
    "quiet_checkpoints",
    "pace",
    "target_step",
    "progress_at_s",
}
"""What a supervisor knows of news; on a full disk the journal does without them."""


class BrokenError(AssertionError):
    """A rule does not hold; `rule` is its name."""

    def __init__(self, rule: Rule, world: World, subject: object) -> None:
        """Say which rule broke over what."""
        self.rule = rule.__name__
        super().__init__(f"{self.rule}: {rule.__doc__} t={world.now_s:.2f} s, {subject!r:.600}")


def hold(rules: tuple[Rule, ...], world: World, subject: object) -> None:
    """Raise BrokenError unless every rule holds."""
    for rule in rules:
        if not rule(world, subject):
            raise BrokenError(rule, world, subject)


# --- when an attempt or a probe is started -----------------------------------------------------


def one_trainer_at_a_time(world: World, plan: LaunchPlan) -> bool:
    """Nothing of another attempt is alive when one is started."""
    del plan
    return world.living() is None


def planned_in_the_journal(world: World, plan: LaunchPlan) -> bool:
    """An attempt that is started is planned in the journal, as it is."""
    return max(world.notes.planned, default=0) == plan.attempt and world.notes.planned[
        plan.attempt
    ] == (plan.resume_from.step if plan.resume_from else 0)


def probe_in_the_journal(world: World, plan: LaunchPlan) -> bool:
    """A probe that is started is announced in the journal."""
    return plan.attempt in world.notes.probes_said


def a_number_is_used_once(world: World, plan: LaunchPlan) -> bool:
    """No two attempts have one number."""
    return plan.attempt not in world.notes.used and plan.attempt not in world.trainers


def nothing_starts_after_a_stop(world: World, plan: LaunchPlan) -> bool:
    """After a stop was asked for nothing is started until an operator starts the run again."""
    del plan
    return not (world.notes.stop_told or world.notes.stop_journaled)


def nothing_starts_after_the_end(world: World, plan: LaunchPlan) -> bool:
    """After the run was judged over nothing is started until an operator starts it again."""
    del plan
    return world.notes.final is None and not world.notes.hopeless


def excluded_gpus_stay_out(world: World, plan: LaunchPlan) -> bool:
    """A GPU that was excluded is not used until the operator says so."""
    names = world.notes.excluded
    return not any(names & {gpu.uuid, str(gpu.index), gpu.bus_id} for gpu in plan.gpus)


def the_global_batch_stays(world: World, plan: LaunchPlan) -> bool:
    """Micro-batch x accumulation x ranks is the global batch, the same in all attempts."""
    batch = plan.batch
    if batch is None:
        return run_of(world.setup).micro_samples is None
    product = batch.micro_samples * batch.grad_accum * batch.world_size
    first = world.notes.global_batch
    return (
        product == batch.global_samples
        and first in (None, product)
        and (batch.world_size == plan.world_size)
    )


def the_newest_good_checkpoint_is_used(world: World, plan: LaunchPlan) -> bool:
    """An attempt begins at the newest checkpoint that can be used, and at no other."""
    return (plan.resume_from.step if plan.resume_from else 0) == world.newest_good()


def a_wait_is_waited(world: World, plan: LaunchPlan) -> bool:
    """Nothing is started before the journaled end of a wait, but on a clock that was set."""
    del plan
    notes = world.notes
    if notes.wait_wall_until_s is None or notes.clock_changed:
        return True
    return world.wall_s >= notes.wait_wall_until_s - 0.01


def a_retry_is_not_hasty(world: World, plan: LaunchPlan) -> bool:
    """The same attempt once more comes after a backoff."""
    notes, last = world.notes, world.notes.last_plan
    if last is None or notes.last_failed_at_s is None or not notes.failures:
        return True
    now = notes.failures[-1]
    if now.decision != "Retry" or now.defragment or now.kind == Kind.GPU_FAULT:
        return True
    same = (
        last.rung_index == plan.rung_index
        and last.gpus == plan.gpus
        and last.batch == plan.batch
        and last.resume_from == plan.resume_from
    )
    backoff = settings_of(world.setup).policy.backoff
    least_s = backoff.first_s * (1 - backoff.jitter) - 0.01
    return not same or notes.clock_changed or world.now_s - notes.last_failed_at_s >= least_s


# --- when we end an attempt, look for one, read evidence -----------------------------------------


def an_end_has_its_reason(world: World, plan: LaunchPlan) -> bool:
    """An attempt that we end has the reason in the journal."""
    return plan.attempt in world.notes.why_ended


def only_our_own_are_touched(world: World, attempt: int) -> bool:
    """Only attempts are looked for and ended that the journal says are ours."""
    return attempt in world.notes.planned or attempt in world.notes.probes_said


def evidence_is_of_the_dead(world: World, state: State) -> bool:
    """Evidence is read when nothing of the attempt is alive."""
    del state
    return world.living() is None


def only_bad_checkpoints_go(world: World, step: int) -> bool:
    """No good checkpoint is put aside."""
    return world.checkpoints[step].value != "good"


# --- what is journaled -------------------------------------------------------------------------


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
    return now is None or now.kind not in NEVER_AGAIN or now.decision == "Stop"


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
    """No more tries to go up than the configuration allows."""
    if record.event not in (Event.PROMOTION_STARTED, Event.PROMOTION_TRIED):
        return True
    return world.notes.promotions <= settings_of(world.setup).promote.max_promotions


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
    return now.decision == "Retry" and not now.defragment and now.kind != Kind.GPU_FAULT


# --- whenever the supervisor waits ---------------------------------------------------------------


def the_state_is_the_fold(world: World, loop: Any) -> bool:
    """What the supervisor knows is the fold of its journal, but for news that found no room."""
    known, folded = loop._state, loop._journal.folded  # noqa: SLF001 - there is no other window
    if known == folded:
        return True
    heard = {name: getattr(known, name) for name in OF_NEWS}
    return world.notes.news_dropped and known == replace(folded, **heard)


def time_goes_on(world: World, loop: Any) -> bool:
    """The supervisor does not spin: in a second it wakes a bounded number of times."""
    del loop
    since_s, times = world.notes.waits_at
    if world.now_s - since_s >= 1.0:
        world.notes.waits_at = (world.now_s, 0)
        return True
    world.notes.waits_at = (since_s, times + 1)
    return times < 60


def a_wait_ends_in_time(world: World, loop: Any) -> bool:
    """A wait of known length is not prolonged, by restarts of the supervisor neither."""
    del loop
    notes = world.notes
    if notes.wait is None or notes.wait.facts.get("delay_s") is None:
        return True
    delay_s = float(str(notes.wait.facts["delay_s"]))
    limit_s = (2 * delay_s if notes.clock_changed else delay_s) + SLACK_S + notes.down_s
    return world.now_s - notes.wait_since_s <= limit_s


def room_that_is_there_is_taken(world: World, loop: Any) -> bool:
    """Nobody waits for room on a machine that is empty."""
    del loop
    notes = world.notes
    if notes.wait is None or notes.wait.facts.get("want") is None or not world.well():
        notes.roomy_since_s = None
        return True
    if notes.roomy_since_s is None:
        notes.roomy_since_s = world.now_s
    return world.now_s - notes.roomy_since_s <= 60.0


def a_stop_is_obeyed(world: World, loop: Any) -> bool:
    """A stop ends the run within the time a worker has to save."""
    del loop
    notes = world.notes
    if notes.stop_at_s is None or world.disk_mib < 1:
        return True
    limit_s = settings_of(world.setup).stop.grace_s + 60.0 + notes.down_s + world.kill_s
    return world.now_s - notes.stop_at_s <= limit_s


def a_probe_is_bounded(world: World, loop: Any) -> bool:
    """A probe that hangs is ended."""
    del loop
    living = world.living()
    if living is None or not living.probe:
        world.notes.probe_since_s = None
        return True
    if world.notes.probe_since_s is None:
        world.notes.probe_since_s = world.now_s
    limit_s = 120.0 + world.notes.down_s
    return world.notes.clock_changed or world.now_s - world.notes.probe_since_s <= limit_s


def attempts_are_bounded(world: World, loop: Any) -> bool:
    """Bounded faults lead to a bounded number of attempts."""
    del loop
    return world.notes.launches <= world.most_launches


def the_run_comes_to_an_end(world: World, loop: Any) -> bool:
    """A machine on which all is well completes the run, or has ended it, in bounded time."""
    del loop
    if not world.well():
        world.notes.well_since_s = None
        return True
    if world.notes.well_since_s is None:
        world.notes.well_since_s = world.now_s
    return world.now_s - world.notes.well_since_s <= world.patience_s


# --- when the run has ended ----------------------------------------------------------------------


def nothing_is_left_alive(world: World, code: int) -> bool:
    """Nothing of the run is alive when the supervisor ends."""
    del code
    return world.living() is None


def the_code_is_journaled(world: World, code: int) -> bool:
    """The exit code of `start` is the one of the journaled end."""
    final = world.notes.final
    return final is not None and final.facts["exit_code"] == code


def complete_is_complete(world: World, code: int) -> bool:
    """A completed run has made all its steps, and saved the last."""
    return code != 0 or (world.target in world.checkpoints)


def a_stopped_run_was_stopped(world: World, code: int) -> bool:
    """Only who was asked to stop says so, and who was asked does nothing else but complete."""
    final = world.notes.final
    assert final is not None
    asked = world.notes.stop_told or world.notes.stop_journaled
    if final.event is Event.RUN_STOPPED:
        return asked
    return not asked or code == 0 or world.notes.stop_was_late


def every_end_has_a_cause(world: World, code: int) -> bool:
    """Who gives up or fails does so over a failed attempt, or because none could be made."""
    final = world.notes.final
    assert final is not None
    if final.event not in (Event.RUN_GAVE_UP, Event.RUN_FAILED):
        return True
    del code
    notes = world.notes
    return notes.last_answer == "NotPrepared" or bool(notes.failures)


def the_ledger_is_exact(world: World, code: int) -> bool:
    """The steps are one contiguous range, each with its own samples; redone ones stand apart."""
    if world.notes.wrong_resumes:
        return True
    ledger = account(world.histories())
    return (
        ledger.clean
        and (code != 0 or ledger.steps_done == world.target)
        and ledger.samples_done == ledger.steps_done * world.global_batch
        and ledger.redone_steps == world.redone_steps()
    )


def the_journal_reads_back(world: World, journal: SimJournal) -> bool:
    """What was persisted folds to the same state."""
    del world
    return journal.read_back() == journal.folded


AT_LAUNCH = (
    one_trainer_at_a_time,
    planned_in_the_journal,
    a_number_is_used_once,
    nothing_starts_after_a_stop,
    nothing_starts_after_the_end,
    excluded_gpus_stay_out,
    the_global_batch_stays,
    the_newest_good_checkpoint_is_used,
    a_wait_is_waited,
    a_retry_is_not_hasty,
)
AT_PROBE = (
    one_trainer_at_a_time,
    probe_in_the_journal,
    a_number_is_used_once,
    nothing_starts_after_a_stop,
    nothing_starts_after_the_end,
    excluded_gpus_stay_out,
)
AT_OUR_END = (an_end_has_its_reason,)
AT_RECOVER = (only_our_own_are_touched,)
AT_GATHER = (evidence_is_of_the_dead,)
ONLY_BAD_CHECKPOINTS_GO = (only_bad_checkpoints_go,)
AT_APPEND = (
    a_retry_has_budget,
    a_period_has_its_budget,
    nothing_deterministic_is_retried,
    what_cannot_be_helped_ends,
    lower_rungs_come_before_the_end,
    promotions_are_few,
    growth_is_tried_once,
    unprepared_attempts_are_few,
    a_wait_is_not_begun_anew,
    an_ended_run_says_why,
    an_ended_run_says_no_more,
)
AT_WAIT = (
    the_state_is_the_fold,
    time_goes_on,
    a_wait_ends_in_time,
    room_that_is_there_is_taken,
    a_stop_is_obeyed,
    a_probe_is_bounded,
    attempts_are_bounded,
    the_run_comes_to_an_end,
)
AT_END = (
    nothing_is_left_alive,
    the_code_is_journaled,
    complete_is_complete,
    a_stopped_run_was_stopped,
    every_end_has_a_cause,
    the_ledger_is_exact,
)
AT_READ_BACK = (the_journal_reads_back,)
