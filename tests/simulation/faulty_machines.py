"""Supervisors that wait, stop, climb or end wrongly."""

from __future__ import annotations

from dataclasses import replace

from simulation.planting import Actions, Patch, caught_by, changed, edited, without

from humigence_supervise import aftermath, loop, machine, resolutions, way_up
from humigence_supervise.actions import Append
from humigence_supervise.domain import Kind
from humigence_supervise.happenings import (
    Begin,
    Context,
    Diagnosed,
    Happening,
    Prepared,
    StopRequested,
    Tick,
    TreeGone,
)
from humigence_supervise.phases import Probing, Waiting, WaitingForRoom
from humigence_supervise.records import Event, Record
from humigence_supervise.state import State, fold


@caught_by("nothing_starts_after_a_stop")
def is_deaf_while_it_waits(patch: Patch) -> None:
    """A stop in a backoff is not heard."""
    edited(
        patch,
        lambda before, event, actions, _context: (
            ()
            if isinstance(before.phase, Waiting) and isinstance(event, StopRequested)
            else actions
        ),
    )


@caught_by("a_stop_is_obeyed")
def is_deaf_while_it_trains(patch: Patch) -> None:
    """A stop is journaled and the worker not told."""
    edited(
        patch,
        lambda _before, event, actions, _context: (
            actions[:1] if isinstance(event, StopRequested) else actions
        ),
    )


@caught_by("a_retry_is_not_hasty")
def drops_the_backoff(patch: Patch) -> None:
    """A retry follows at once."""

    def edit(before: State, event: Happening, actions: Actions, context) -> Actions:
        kept = without(Event.BACKOFF_STARTED)(before, event, actions, context)
        if not isinstance(event, Diagnosed) or kept == actions:
            return actions
        after = fold((one.record for one in kept if isinstance(one, Append)), before)
        return (*kept, aftermath.prepare(after, context))

    edited(patch, edit)


@caught_by("a_wait_is_waited")
def is_impatient(patch: Patch) -> None:
    """Every wait is over at the first look."""
    patch.setattr(machine, "is_over", lambda *_: True)


@caught_by("a_wait_is_not_begun_anew")
def waits_again_after_a_restart(patch: Patch) -> None:
    """A supervisor that takes over in a backoff begins it anew."""

    def edit(before: State, event: Happening, actions: Actions, context) -> Actions:
        if isinstance(before.phase, Waiting) and isinstance(event, Begin):
            waits = resolutions.waits(before, context, before.phase.delay_s)
            return (*actions, Append(waits))
        return actions

    edited(patch, edit)


@caught_by("a_wait_ends_in_time")
def trusts_the_clock(patch: Patch) -> None:
    """A clock that was set back prolongs a wait."""
    patch.setattr(aftermath, "CLOCK_SLACK_S", 1e9)


@caught_by("room_that_is_there_is_taken")
def never_looks_for_room_again(patch: Patch) -> None:
    """What is waited for is not looked at."""
    edited(
        patch,
        lambda before, event, actions, _context: (
            () if isinstance(before.phase, WaitingForRoom) and isinstance(event, Tick) else actions
        ),
    )


@caught_by("time_goes_on")
def spins(patch: Patch) -> None:
    """The loop asks again and again without a pause."""
    patch.setattr(loop.Loop, "_timeout_s", lambda _self: 0.001)


@caught_by("promotions_are_few")
def climbs_for_ever(patch: Patch) -> None:
    """There is always another try to go up."""
    due = way_up.promotion_due

    def eager(before: State, rungs, promoting, now_s):
        return due(before, rungs, replace(promoting, max_promotions=99, after_s=0.0), now_s)

    patch.setattr(machine, "promotion_due", eager)


@caught_by("a_probe_is_bounded")
def never_ends_a_probe(patch: Patch) -> None:
    """A probe that hangs is waited for."""
    edited(
        patch,
        lambda before, event, actions, _context: (
            () if isinstance(before.phase, Probing) and isinstance(event, Tick) else actions
        ),
    )


@caught_by("growth_is_tried_once")
def grows_for_ever(patch: Patch) -> None:
    """What did not fit is tried again and again."""
    due = way_up.growth_due
    patch.setattr(
        machine, "growth_due", lambda before, *more: due(replace(before, grown=False), *more)
    )


@caught_by("an_ended_run_says_why")
def ends_without_a_word(patch: Patch) -> None:
    """A run that failed says nothing."""
    edited(patch, changed(Event.RUN_FAILED, lambda record: replace(record, message=" ")))


@caught_by("complete_is_complete")
def believes_exit_code_0(patch: Patch) -> None:
    """A program that left early counts as done."""

    def edit(before: State, event: Happening, _actions: Actions, context) -> Actions:
        if isinstance(event, Diagnosed) and event.diagnosis.kind is Kind.PREMATURE_SUCCESS:
            healthy = replace(event.diagnosis, kind=Kind.HEALTHY)
            return machine.step(before, replace(event, diagnosis=healthy), context)[1]
        return _actions

    edited(patch, edit)


@caught_by("a_healed_run_completes")
def gives_up_on_a_sound_machine(patch: Patch) -> None:
    """Who was told once that a GPU is bad ends every later attempt on it."""
    patch.setattr(aftermath, "UNPREPARED_MOST", 0)
    edited(patch, without(Event.GPU_READMITTED))


@caught_by("up_only_after_a_passing_probe")
def takes_any_probe_for_passed(patch: Patch) -> None:
    """A probe that failed leads up all the same."""
    edited(
        patch,
        lambda before, event, actions, context: (
            machine.step(before, replace(event, facts={"launcher_code": 0}), context)[1][1:]
            if isinstance(before.phase, Probing) and isinstance(event, TreeGone)
            else actions
        ),
    )


@caught_by("no_promotion_comes_too_early")
def climbs_at_once(patch: Patch) -> None:
    """A rung that failed is tried again at the first checkpoint."""
    due = way_up.promotion_due

    def eager(before, rungs, promoting, now_s):
        return due(before, rungs, replace(promoting, after_s=0.0), now_s)

    patch.setattr(machine, "promotion_due", eager)


@caught_by("patience_ends_in_time")
def waits_for_a_stranger_for_ever(patch: Patch) -> None:
    """Somebody else's memory is waited for without end, though a lower rung is left."""
    patient = aftermath.prepare

    def prepare(before, context, room=None):
        return replace(patient(before, context, room), patient=True)

    patch.setattr(machine, "prepare", prepare)


@caught_by("nothing_starts_after_the_end")
def goes_on_after_the_verdict(patch: Patch) -> None:
    """It is decided to stop, and the next attempt is prepared."""

    def edit(before: State, event: Happening, actions: Actions, context: Context) -> Actions:
        kept = without(Event.RUN_FAILED)(before, event, actions, context)
        if not isinstance(event, Diagnosed) or kept == actions:
            return actions
        after = fold((one.record for one in kept if isinstance(one, Append)), before)
        return (*kept, aftermath.prepare(after, context))

    edited(patch, edit)


@caught_by("an_ended_run_says_no_more")
def has_the_last_word(patch: Patch) -> None:
    """Something is journaled after the end of the run."""
    edited(
        patch,
        lambda _before, event, actions, _context: (
            (*actions, Append(Record(Event.NOTIFY_SENT, "!")))
            if isinstance(event, Diagnosed)
            else actions
        ),
    )


@caught_by("the_run_comes_to_an_end")
def stands_still(patch: Patch) -> None:
    """A diagnosis leads to nothing."""
    edited(
        patch,
        lambda _before, event, actions, _context: () if isinstance(event, Diagnosed) else actions,
    )


@caught_by("the_code_is_journaled")
def says_that_all_went_well(patch: Patch) -> None:
    """The exit code is 0 whatever happened."""
    real = loop.Loop.until_ended

    def until_ended(self, facts, readmit):
        return 0 * real(self, facts, readmit)

    patch.setattr(loop.Loop, "until_ended", until_ended)


@caught_by("a_stopped_run_was_stopped")
def calls_a_stop_a_failure(patch: Patch) -> None:
    """A run that was stopped says that it gave up."""
    edited(
        patch,
        changed(
            Event.RUN_STOPPED,
            lambda record: replace(record, event=Event.RUN_GAVE_UP, facts={"exit_code": 75}),
        ),
    )


@caught_by("every_end_has_a_cause")
def loses_heart(patch: Patch) -> None:
    """The run gives up before its first attempt, over nothing."""
    edited(
        patch,
        lambda before, event, actions, _context: (
            (Append(resolutions.ended(Event.RUN_GAVE_UP, 75, "Why try.")),)
            if isinstance(event, Prepared) and before.attempt == 0
            else actions
        ),
    )
