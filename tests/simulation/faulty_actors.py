"""Supervisors that start, seek, end or read attempts wrongly."""

from __future__ import annotations

from dataclasses import replace

from simulation.planting import Actions, Patch, caught_by, changed, edited
from simulation.setups import PATHS

from humigence_supervise import aftermath, contract, entries, loop, machine, resolutions
from humigence_supervise.actions import (
    Append,
    Clear,
    Gather,
    Launch,
    Prepare,
    Probe,
    Quarantine,
    Recover,
    Terminate,
)
from humigence_supervise.contract import checkpoint_name
from humigence_supervise.domain import Kind
from humigence_supervise.happenings import (
    Begin,
    Context,
    Diagnosed,
    Happening,
    Prepared,
    ProgressMade,
    RankDied,
    StopRequested,
)
from humigence_supervise.phases import Launching, Running
from humigence_supervise.records import Event
from humigence_supervise.state import State, fold


@caught_by("excluded_gpus_stay_out")
def forgets_which_gpus_are_bad(patch: Patch) -> None:
    """The exclusion is decided and not remembered."""
    forget = changed(
        Event.DECISION_MADE,
        lambda record: replace(record, facts={**record.facts, "excluded_gpus": []}),
    )
    edited(patch, forget)


@caught_by("one_trainer_at_a_time")
def launches_beside_the_living(patch: Patch) -> None:
    """After a crash between plan and launch the attempt is not looked for."""

    def edit(before: State, event: Happening, actions: Actions, context) -> Actions:
        if isinstance(before.phase, Launching | Running) and isinstance(event, Begin):
            over = resolutions.wait_over(before, context, "Begin anew.")
            return (*actions[:-1], Append(over), aftermath.prepare(before, context))
        return actions

    edited(patch, edit)


@caught_by("a_number_is_used_once")
def uses_a_number_twice(patch: Patch) -> None:
    """The next attempt has the number of the last."""
    edited(
        patch,
        lambda before, _event, actions, _context: tuple(
            replace(one, attempt=max(1, before.attempt)) if isinstance(one, Prepare) else one
            for one in actions
        ),
    )


@caught_by("planned_in_the_journal")
def acts_before_it_journals(patch: Patch) -> None:
    """An attempt is launched before its plan is durable."""
    edited(
        patch,
        lambda _before, _event, actions, _context: tuple(
            sorted(actions, key=lambda one: not isinstance(one, Launch))
        ),
    )


@caught_by("an_end_has_its_reason")
def kills_without_a_word(patch: Patch) -> None:
    """A rank died, all are killed, and the journal does not say why."""
    edited(
        patch,
        lambda _before, event, actions, _context: (
            (Clear(),) if isinstance(event, RankDied) and actions else actions
        ),
    )


@caught_by("evidence_is_of_the_dead")
def reads_before_all_are_dead(patch: Patch) -> None:
    """Evidence is gathered while ranks still write."""
    edited(
        patch,
        lambda before, event, actions, _context: (
            (*actions, Gather(before.attempt))
            if isinstance(event, RankDied) and actions
            else actions
        ),
    )


@caught_by("only_bad_checkpoints_go")
def throws_good_checkpoints_away(patch: Patch) -> None:
    """Any failure is blamed on the checkpoint."""
    edited(
        patch,
        lambda before, event, actions, _context: (
            (
                *actions,
                Quarantine(PATHS.checkpoint_dir / checkpoint_name(before.checkpoint_step), "?"),
            )
            if isinstance(event, Diagnosed)
            else actions
        ),
    )


@caught_by("the_newest_good_checkpoint_is_used")
def takes_an_older_checkpoint(patch: Patch) -> None:
    """The plan names another checkpoint than the newest good one."""

    def step(before: State, event: Happening, context: Context) -> tuple[State, Actions]:
        if isinstance(event, Prepared):
            event = replace(event, plan=replace(event.plan, resume_from=None))
        return machine.step(before, event, context)

    patch.setattr(loop, "step", step)


@caught_by("nothing_is_left_alive")
def leaves_the_worker_behind(patch: Patch) -> None:
    """A stop ends the supervisor at once, and the attempt lives on."""
    edited(
        patch,
        lambda before, event, actions, _context: (
            (Append(resolutions.stopped(contract.EXIT_SIGTERM)),)
            if isinstance(event, StopRequested) and isinstance(before.phase, Running)
            else actions
        ),
    )


@caught_by("a_wrong_resume_is_the_last_attempt")
def does_not_listen_to_the_echo(patch: Patch) -> None:
    """That a worker began elsewhere is one failure among others."""
    patch.setattr(machine, "resumed_wrongly", lambda *_: "")
    edited(
        patch,
        lambda before, event, actions, context: (
            machine.step(
                before,
                replace(event, diagnosis=replace(event.diagnosis, kind=Kind.UNKNOWN)),
                context,
            )[1]
            if isinstance(event, Diagnosed) and "resume.mismatch" in event.diagnosis.fingerprint
            else actions
        ),
    )


@caught_by("only_the_failed_are_killed")
def kills_what_it_finds(patch: Patch) -> None:
    """A supervisor that takes over ends the attempt that still runs."""

    def edit(before: State, event: Happening, actions: Actions, context: Context) -> Actions:
        if isinstance(before.phase, Running) and isinstance(event, Begin):
            over = entries.exited(before, context, "It is of another supervisor.")
            return (*actions[:-1], Recover(before.attempt), Append(over), Clear())
        return actions

    edited(patch, edit)


@caught_by("only_the_leaving_are_told_to_leave")
def asks_for_a_save_at_every_progress(patch: Patch) -> None:
    """A healthy worker is told to save and exit."""
    edited(
        patch,
        lambda before, event, actions, _context: (
            (
                Append(entries.exited(before, _context, "Why not.")),
                Terminate(),
            )
            if isinstance(before.phase, Running) and isinstance(event, ProgressMade)
            else actions
        ),
    )


@caught_by("probe_in_the_journal")
def probes_before_it_journals(patch: Patch) -> None:
    """A probe is started before it is said."""
    edited(
        patch,
        lambda _before, _event, actions, _context: tuple(
            sorted(actions, key=lambda one: not isinstance(one, Probe))
        ),
    )


@caught_by("only_our_own_are_touched")
def looks_for_another_attempt(patch: Patch) -> None:
    """A number too high is sought after a restart."""
    edited(
        patch,
        lambda _before, _event, actions, _context: tuple(
            Recover(one.attempt + 1) if isinstance(one, Recover) else one for one in actions
        ),
    )


@caught_by("attempts_are_bounded")
def begins_anew_at_every_progress(patch: Patch) -> None:
    """An attempt is ended at each sign of progress, and another begun, without a verdict."""

    def edit(before: State, event: Happening, actions: Actions, context: Context) -> Actions:
        if isinstance(event, ProgressMade) and not actions and isinstance(before.phase, Running):
            leaving = resolutions.leaves(before, context, "Better safe.", micro_samples=1)
            return (Append(leaving), Terminate())
        if isinstance(event, Diagnosed) and before.leaving and not before.stop:
            over = resolutions.wait_over(before, context, "Again.")
            after = fold((over,), before)
            return (Append(over), aftermath.prepare(after, context))
        return actions

    edited(patch, edit)


@caught_by("no_blamed_checkpoint_is_used")
def trusts_a_checkpoint_again(patch: Patch) -> None:
    """What a worker could not load is given to the next one."""
    edited(
        patch,
        lambda _before, _event, actions, _context: tuple(
            replace(one, bad_step=None) if isinstance(one, Prepare) else one for one in actions
        ),
    )
