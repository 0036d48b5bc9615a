"""What must hold when the supervisor starts, seeks, ends or reads an attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulation.setups import run_of, settings_of
from simulation.shelf import Health

from humigence_supervise.domain import LaunchPlan
from humigence_supervise.state import State

if TYPE_CHECKING:
    from simulation.trainer import Trainer
    from simulation.world import World

MOST_ALIKE = 24
"""More than the moves of any row of the table: nothing is tried so often in the same way."""

# --- an attempt or a probe is started ------------------------------------------------------------


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
    notes = world.notes
    return not (notes.stop_told or notes.stop_journaled)


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
    source = plan.resume_from
    return (source.step if source else 0) == world.shelf.newest_good(below=world.notes.blamed)


def no_blamed_checkpoint_is_used(world: World, plan: LaunchPlan) -> bool:
    """A checkpoint that a worker could not use is not given to the next one."""
    source, blamed = plan.resume_from, world.notes.blamed
    return source is None or blamed is None or source.step < blamed


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
    if now.decision != "Retry" or now.defragment or now.hardware:
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


def a_wrong_resume_is_the_last_attempt(world: World, plan: LaunchPlan) -> bool:
    """After a worker began at another step than its checkpoint's, nothing is started."""
    del plan
    return not world.notes.resumed_wrongly


def nothing_is_tried_for_ever(world: World, plan: LaunchPlan) -> bool:
    """The same attempt from the same checkpoint is not made again and again."""
    del plan
    return world.notes.alike <= MOST_ALIKE


# --- an attempt is sought, ended, read -----------------------------------------------------------


def an_end_has_its_reason(world: World, trainer: Trainer) -> bool:
    """An attempt that we end has the reason in the journal."""
    return trainer.plan.attempt in world.notes.why_ended


def only_the_leaving_are_told_to_leave(world: World, trainer: Trainer) -> bool:
    """An attempt is told to save and exit only for a stop or for a better way of running."""
    return world.notes.stop_journaled or world.notes.leaving == trainer.plan.attempt


def only_the_failed_are_killed(world: World, trainer: Trainer) -> bool:
    """A healthy attempt is not killed but for a stop; a restart of the supervisor is no reason."""
    failed = trainer.fault is not None or trainer.exits or trainer.began_wrongly()
    return bool(failed) or trainer.probe or world.notes.stop_journaled


def only_our_own_are_touched(world: World, attempt: int) -> bool:
    """Only attempts are looked for and ended that the journal says are ours."""
    return attempt in world.notes.planned or attempt in world.notes.probes_said


def evidence_is_of_the_dead(world: World, state: State) -> bool:
    """Evidence is read when nothing of the attempt is alive."""
    del state
    return world.living() is None


def only_bad_checkpoints_go(world: World, step: int) -> bool:
    """No good checkpoint is put aside, but one that training is told to have gone wrong in."""
    blamed = world.notes.blamed
    told = blamed is not None and step >= blamed
    return told or world.shelf.steps[step] is not Health.GOOD


AT_LAUNCH = (
    one_trainer_at_a_time,
    planned_in_the_journal,
    a_number_is_used_once,
    nothing_starts_after_a_stop,
    nothing_starts_after_the_end,
    excluded_gpus_stay_out,
    the_global_batch_stays,
    no_blamed_checkpoint_is_used,
    the_newest_good_checkpoint_is_used,
    a_wait_is_waited,
    a_retry_is_not_hasty,
    a_wrong_resume_is_the_last_attempt,
    nothing_is_tried_for_ever,
)
AT_PROBE = (
    one_trainer_at_a_time,
    probe_in_the_journal,
    a_number_is_used_once,
    nothing_starts_after_a_stop,
    nothing_starts_after_the_end,
    excluded_gpus_stay_out,
    a_wrong_resume_is_the_last_attempt,
)
AT_TERMINATE = (an_end_has_its_reason, only_the_leaving_are_told_to_leave)
AT_CLEAR = (an_end_has_its_reason, only_the_failed_are_killed)
AT_RECOVER = (only_our_own_are_touched,)
AT_GATHER = (evidence_is_of_the_dead,)
AT_QUARANTINE = (only_bad_checkpoints_go,)
