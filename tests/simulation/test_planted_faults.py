"""A rule counts only once it has caught a fault: each of these supervisors has one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from simulation import journal, setups, trainer, world
from simulation.histories import play
from simulation.troubles import operator_of, world_of

from humigence_supervise import (
    aftermath,
    contract,
    ladder,
    loop,
    machine,
    moves,
    policy,
    standing,
    state,
    way_up,
)
from humigence_supervise.domain import Batch, Kind
from humigence_supervise.happenings import (
    Action,
    Append,
    Begin,
    Clear,
    Diagnosed,
    Gather,
    Happening,
    Launch,
    Prepare,
    Prepared,
    QuarantineStep,
    RankDied,
    StopRequested,
    Tick,
)
from humigence_supervise.moves import Move
from humigence_supervise.records import Event, Record
from humigence_supervise.state import (
    Launching,
    Probing,
    Running,
    State,
    Waiting,
    WaitingForRoom,
    fold,
)

SEEDS = 500
Patch = pytest.MonkeyPatch
Actions = tuple[Action, ...]
Edit = Callable[[State, Happening, Actions, machine.Context], Actions]

FAULTS: list[tuple[Callable[[Patch], None], str]] = []


def caught_by(rule: str) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    """Register a fault with the rule that has to catch it."""

    def register(fault: Callable[[Patch], None]) -> Callable[[Patch], None]:
        FAULTS.append((fault, rule))
        return fault

    return register


def edited(patch: Patch, edit: Edit) -> None:
    """Give the loop a machine whose actions are edited; its state is still their fold."""

    def step(before: State, event: Happening, context: machine.Context) -> tuple[State, Actions]:
        _, actions = machine.step(before, event, context)
        actions = edit(before, event, actions, context)
        return fold((one.record for one in actions if isinstance(one, Append)), before), actions

    patch.setattr(loop, "step", step)


def without(*events: Event) -> Edit:
    """Leave records out."""
    return lambda _state, _event, actions, _context: tuple(
        one for one in actions if not (isinstance(one, Append) and one.record.event in events)
    )


def changed(event: Event, change: Callable[[Record], Record]) -> Edit:
    """Change the records of an event."""
    return lambda _state, _event, actions, _context: tuple(
        Append(change(one.record)) if isinstance(one, Append) and one.record.event is event else one
        for one in actions
    )


@caught_by("excluded_gpus_stay_out")
def forgets_which_gpus_are_bad(patch: Patch) -> None:
    """The exclusion is decided and not remembered."""
    forget = changed(
        Event.DECISION_MADE,
        lambda record: replace(record, facts={**record.facts, "excluded_gpus": []}),
    )
    edited(patch, forget)


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


@caught_by("nothing_starts_after_a_stop")
def forgets_the_stop_when_it_dies(patch: Patch) -> None:
    """The next supervisor does not know what the one before was asked."""
    apply = state._apply  # noqa: SLF001 - a fault is planted where no door is

    def forgetful(before: State, record: Record, facts: object) -> State:
        after = apply(before, record, facts)
        return replace(after, stop=None) if record.event is Event.RUN_ADOPTED else after

    patch.setattr(state, "_apply", forgetful)


@caught_by("nothing_deterministic_is_retried")
def never_learns(patch: Patch) -> None:
    """The same failure at the same step is tried for ever."""
    patch.setattr(standing, "is_deterministic", lambda _incidents: False)


@caught_by("the_state_is_the_fold")
def loses_a_record(patch: Patch) -> None:
    """The journal swallows what a diagnosis led to."""
    append = journal.SimJournal.append

    def lossy(self, records, *, decisive=True):
        kept = [one for one in records if one.event is not Event.DECISION_MADE]
        return append(self, kept, decisive=decisive)

    patch.setattr(journal.SimJournal, "append", lossy)


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
    patch.setattr(machine, "_is_over", lambda *_: True)


@caught_by("a_wait_is_not_begun_anew")
def waits_again_after_a_restart(patch: Patch) -> None:
    """A supervisor that takes over in a backoff begins it anew."""

    def edit(before: State, event: Happening, actions: Actions, context) -> Actions:
        if isinstance(before.phase, Waiting) and isinstance(event, Begin):
            waits = machine.entries.waits(before, context, before.phase.delay_s)
            return (*actions, Append(waits))
        return actions

    edited(patch, edit)


@caught_by("a_wait_ends_in_time")
def trusts_the_clock(patch: Patch) -> None:
    """A clock that was set back prolongs a wait."""
    patch.setattr(machine, "CLOCK_SLACK_S", 1e9)


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


@caught_by("the_global_batch_stays")
def shrinks_without_accumulating(patch: Patch) -> None:
    """Smaller micro-batches make smaller steps."""
    split = ladder.batch_of_rung

    def careless(settings, rung, ranks, virtual, micro):
        batch = split(settings, rung, ranks, virtual, micro)
        whole = split(settings, rung, ranks, virtual, None)
        if batch is None or whole is None:
            return batch
        return Batch(batch.global_samples, batch.micro_samples, whole.grad_accum, ranks)

    patch.setattr(ladder, "batch_of_rung", careless)


@caught_by("what_cannot_be_helped_ends")
def tries_a_wrong_configuration_again(patch: Patch) -> None:
    """A configuration error is retried."""
    patch.setitem(moves.MOVES, Kind.CONFIG_ERROR, (Move.RETRY, Move.STOP))


@caught_by("lower_rungs_come_before_the_end")
def gives_up_too_soon(patch: Patch) -> None:
    """NCCL fails on two GPUs, and one is not tried."""
    for kind in (Kind.NCCL_INIT, Kind.NCCL_REMOTE, Kind.NCCL_TIMEOUT):
        patch.setitem(moves.MOVES, kind, (Move.STOP,))


@caught_by("a_retry_has_budget")
def does_not_count(patch: Patch) -> None:
    """Attempts without progress cost nothing, and the table is as patient as can be."""
    patch.setattr(policy, "spent", lambda *_: "")
    patch.setattr(standing, "is_deterministic", lambda _incidents: False)
    patch.setitem(moves.MOVES, Kind.UNKNOWN, (*(Move.RETRY,) * 16, Move.STOP))


@caught_by("a_period_has_its_budget")
def forgets_the_period(patch: Patch) -> None:
    """Any number of failures may come in a day."""
    patch.setattr(policy, "period_spent", lambda *_: "")


@caught_by("unprepared_attempts_are_few")
def looks_for_ever(patch: Patch) -> None:
    """It is always looked once more whether an attempt can be made."""
    patch.setattr(aftermath, "UNPREPARED_MOST", 99)


@caught_by("one_trainer_at_a_time")
def launches_beside_the_living(patch: Patch) -> None:
    """After a crash between plan and launch the attempt is not looked for."""

    def edit(before: State, event: Happening, actions: Actions, context) -> Actions:
        if isinstance(before.phase, Launching | Running) and isinstance(event, Begin):
            over = machine.entries.wait_over(before, context, "Begin anew.")
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
                QuarantineStep(before.checkpoint_step, "who knows"),
            )
            if isinstance(event, Diagnosed)
            else actions
        ),
    )


@caught_by("the_newest_good_checkpoint_is_used")
def takes_an_older_checkpoint(patch: Patch) -> None:
    """The plan names another checkpoint than the newest good one."""

    def step(before: State, event: Happening, context: machine.Context) -> tuple[State, Actions]:
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
            (Append(machine.entries.stopped(contract.EXIT_SIGTERM)),)
            if isinstance(event, StopRequested) and isinstance(before.phase, Running)
            else actions
        ),
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


@caught_by("the_ledger_is_exact")
def a_worker_skips_samples(patch: Patch) -> None:
    """A worker that resumes goes on with the samples behind those that are due."""
    line = trainer.Trainer._line  # noqa: SLF001 - as above

    def skipping(self, section):
        line(self, section)
        if self.began and self.lines[-1].last_sample:
            last = self.lines[-1]
            by = self.world.global_batch
            self.lines[-1] = replace(
                last, first_sample=last.first_sample + by, last_sample=last.last_sample + by
            )

    patch.setattr(trainer.Trainer, "_line", skipping)


@caught_by("a_healed_run_completes")
def gives_up_on_a_sound_machine(patch: Patch) -> None:
    """Who was told once that a GPU is bad ends every later attempt on it."""
    patch.setattr(world.World, "well", lambda _self: False)
    patch.setattr(aftermath, "UNPREPARED_MOST", 0)
    edited(patch, without(Event.GPU_READMITTED))


@pytest.mark.parametrize(("fault", "rule"), FAULTS, ids=[fault.__name__ for fault, _ in FAULTS])
def test_a_planted_fault_is_caught(
    fault: Callable[[Patch], None], rule: str, monkeypatch: Patch
) -> None:
    """Within some hundred histories the rule breaks that was made for the fault."""
    setups.planned_once.cache_clear()
    fault(monkeypatch)
    broken: list[str] = []
    try:
        for seed in range(SEEDS):
            try:
                play(world_of(seed), seed, persisted=False, operator=operator_of(seed))
            except AssertionError as error:
                broken.append(getattr(error, "rule", repr(error)))
                if broken[-1] == rule:
                    return
    finally:
        setups.planned_once.cache_clear()
    pytest.fail(f"not caught; what broke instead: {sorted(set(broken))}")
