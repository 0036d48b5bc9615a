"""Every move of a run: `step(state, event, context) -> (state, actions)`. Pure.

`Append` actions are journaled before anything after them is done, and the new state *is* the
fold of the appended records, so a supervisor that replays the journal stands exactly where the
one before it stood. An event that a phase does not name changes nothing there.
"""

from __future__ import annotations

from typing import assert_never

from humigence_supervise import contract, entries, policy
from humigence_supervise.domain import (
    Complete,
    Incident,
    Kind,
    Retry,
    ShrinkMicroBatch,
    StepDown,
    StepUp,
    Stop,
    UseOlderCheckpoint,
    WaitForSpace,
)
from humigence_supervise.happenings import (
    Action,
    Append,
    Begin,
    CheckpointSeen,
    Clear,
    Context,
    Diagnosed,
    Gather,
    Happening,
    Launch,
    Launched,
    LogSampled,
    NotLaunched,
    NotPrepared,
    Prepare,
    Prepared,
    ProgressMade,
    Quarantine,
    QuarantineStep,
    RankDied,
    Recover,
    SignatureSeen,
    StopRequested,
    Terminate,
    Tick,
    TreeGone,
)
from humigence_supervise.records import Event, Record
from humigence_supervise.state import (
    Clearing,
    Diagnosing,
    Ended,
    Launching,
    Ready,
    Running,
    State,
    Waiting,
    WaitingForSpace,
    fold,
)

PROGRESS_EVERY_S = 10.0
"""Thinning of `attempt.progress`; the progress files hold every step."""

CLOCK_SLACK_S = 1.0
"""By how much a wait may seem too long before the clock is taken to have been set back."""

Actions = tuple[Action, ...]


def step(state: State, event: Happening, context: Context) -> tuple[State, Actions]:
    """Return what the run becomes and what is done about `event`, in order."""
    match state.phase:
        case Ready():
            actions = _ready(state, event, context)
        case Launching():
            actions = _launching(state, event, context)
        case Running():
            actions = _running(state, event, context)
        case Clearing():
            actions = _clearing(state, event, context)
        case Diagnosing():
            actions = _diagnosing(state, event, context)
        case Waiting():
            actions = _waiting(state, state.phase, event, context)
        case WaitingForSpace():
            actions = _waiting_for_space(state, state.phase, event, context)
        case Ended():
            actions = _ended(state, event, context)
        case _:
            assert_never(state.phase)
    appended = (action.record for action in actions if isinstance(action, Append))
    return fold(appended, state), actions


# --- one function a phase ------------------------------------------------------------------------


def _ready(state: State, event: Happening, context: Context) -> Actions:
    match event:
        case Begin():
            if state.run_id and state.stop is not None:
                return (Append(entries.adopted(state)), Append(entries.stopped(state.stop)))
            if state.run_id:
                return (Append(entries.adopted(state)), _prepare(state, context))
            return (Append(entries.run_started(event.facts)), _prepare(state, context))
        case Prepared():
            return _planned(event)
        case NotPrepared():
            if event.need_mib is not None:
                return (
                    Append(
                        entries.waits_for_space(
                            state, context, event.reason, event.need_mib, event.free_mib
                        )
                    ),
                )
            return (Append(entries.not_prepared(event)),)
        case StopRequested():
            return (Append(entries.stopped(event.exit_code)),)
        case _:
            return ()


def _launching(state: State, event: Happening, context: Context) -> Actions:
    match event:
        case Begin():
            return (Append(entries.adopted(state)), Recover(state.attempt))
        case Launched():
            started = Append(entries.started(state, context, event))
            return (started,) if state.stop is None else (started, Terminate())
        case NotLaunched():
            return (
                Append(
                    entries.exited(
                        state, context, f"The attempt could not be started: {event.reason}"
                    )
                ),
                Append(entries.cleared(state, context, 0.0)),
                Gather(state.attempt),
            )
        case TreeGone():
            return _gone(state, event, context)
        case StopRequested():
            return (Append(entries.stopping(state, context, event)),)
        case _:
            return ()


def _running(state: State, event: Happening, context: Context) -> Actions:
    match event:
        case Begin():
            return (Append(entries.adopted(state)), Recover(state.attempt))
        case Launched():
            started = Append(entries.started(state, context, event))
            return (started,) if state.stop is None else (started, Terminate())
        case ProgressMade():
            if context.now_s - state.progress_at_s < PROGRESS_EVERY_S:
                return ()
            return (Append(entries.progressed(state, context, event.progress)),)
        case CheckpointSeen():
            if event.checkpoint.step <= state.checkpoint_step:
                return ()
            return (Append(entries.committed(state, context, event.checkpoint)),)
        case SignatureSeen():
            return (Append(entries.matched(state, context, event)),)
        case LogSampled():
            return (Append(entries.sampled(state, context, event)),)
        case RankDied():
            if not entries.ended_badly(event.exit) or state.stop is not None:
                return ()
            return (Append(entries.rank_died(state, context, event.exit)), Clear())
        case TreeGone():
            return _gone(state, event, context)
        case StopRequested():
            if state.stop is None and not event.now:
                return (Append(entries.stopping(state, context, event)), Terminate())
            return (Append(entries.stopping(state, context, event)), Clear())
        case _:
            return ()


def _clearing(state: State, event: Happening, context: Context) -> Actions:
    match event:
        case Begin():
            return (Append(entries.adopted(state)), Recover(state.attempt))
        case Launched():
            return (Clear(),)
        case TreeGone():
            return (
                Append(entries.cleared(state, context, event.took_s, event.facts)),
                Gather(state.attempt),
            )
        case NotLaunched():
            return (Append(entries.cleared(state, context, 0.0)), Gather(state.attempt))
        case StopRequested():
            return (Append(entries.stopping(state, context, event)), Clear())
        case _:
            return ()


def _diagnosing(state: State, event: Happening, context: Context) -> Actions:
    match event:
        case Begin():
            return (Append(entries.adopted(state)), Gather(state.attempt))
        case StopRequested():
            return (Append(entries.stopping(state, context, event)),)
        case Diagnosed():
            made = Append(entries.diagnosed(state, context, event))
            if state.stop is not None and event.diagnosis.kind is not Kind.HEALTHY:
                return (made, Append(entries.stopped(state.stop)))
            return (made, *_go_on(state, event, context))
        case _:
            return ()


def _waiting(state: State, phase: Waiting, event: Happening, context: Context) -> Actions:
    match event:
        case Begin():
            return (Append(entries.adopted(state)),)
        case Tick():
            remaining_s = phase.until_s - context.now_s
            clock_went_back = remaining_s > phase.delay_s + CLOCK_SLACK_S
            if remaining_s > 0 and not clock_went_back:
                return ()
            return (
                Append(entries.wait_over(state, context, "The wait is over.")),
                _prepare(state, context),
            )
        case StopRequested():
            return (Append(entries.stopped(event.exit_code)),)
        case _:
            return ()


def _waiting_for_space(
    state: State, phase: WaitingForSpace, event: Happening, context: Context
) -> Actions:
    match event:
        case Begin():
            return (Append(entries.adopted(state)),)
        case Tick(free_mib=int(free_mib)) if free_mib >= phase.need_mib:
            message = f"There is room again: {free_mib} MiB free, {phase.need_mib} MiB needed."
            return (Append(entries.wait_over(state, context, message)), _prepare(state, context))
        case StopRequested():
            return (Append(entries.stopped(event.exit_code)),)
        case _:
            return ()


def _ended(state: State, event: Happening, context: Context) -> Actions:
    assert isinstance(state.phase, Ended)
    match event:
        case Begin() if state.phase.event is not Event.RUN_COMPLETED:
            keeps_rung = state.phase.event is Event.RUN_STOPPED
            rung_index = min(state.rung_index, len(context.rungs) - 1) if keeps_rung else 0
            micro = state.micro_samples if keeps_rung else None
            resumed = entries.resumed(state.phase.event, rung_index, micro)
            return (
                Append(resumed),
                Prepare(rung_index, micro, state.attempt + 1, state.checkpoint_step),
            )
        case _:
            return ()


# --- what the phases do ------------------------------------------------------------------------


def _planned(event: Prepared) -> Actions:
    actions: list[Action] = []
    for one in event.refused:
        actions.append(Append(entries.refused(one)))
        if one.damaged:
            actions.append(Quarantine(one.path, one.reason))
    return (*actions, Append(entries.planned(event.plan)), Launch(event.plan))


def _go_on(state: State, event: Diagnosed, context: Context) -> Actions:
    """Return the decision about an ended attempt and what carries it out."""
    incident = Incident(
        attempt=state.attempt,
        rung_index=state.rung_index,
        kind=event.diagnosis.kind,
        fingerprint=event.diagnosis.fingerprint,
        at_s=context.now_s,
        first_step=state.first_step,
        last_step=event.last_step,
        checkpoint_step=event.checkpoint_step,
    )
    micro = context.micro_samples if state.micro_samples is None else state.micro_samples
    standing = policy.Standing(
        incidents=(*state.incidents, incident),
        rung_count=len(context.rungs),
        micro_samples=micro,
        need_mib=event.need_mib,
        now_s=context.now_s,
        chance=context.chance,
    )
    decision = policy.decide(context.policy, standing, event.diagnosis)
    record = entries.decided(state, context, incident, decision)
    made, after = Append(record), fold((record,), state)
    match decision:
        case Complete():
            return (made, Append(entries.completed(event)))
        case Stop():
            return (made, Append(_given_up(decision, event.diagnosis.kind)))
        case WaitForSpace():
            return (
                made,
                Append(
                    entries.waits_for_space(
                        after, context, decision.reason, decision.need_mib, event.free_mib
                    )
                ),
            )
        case UseOlderCheckpoint():
            aside = QuarantineStep(decision.bad_step, event.diagnosis.reason)
            return (made, aside, _prepare(after, context))
        case StepDown() | StepUp():
            changed = entries.rung_changed(state, after, context, event.diagnosis.kind)
            return (made, Append(changed), _prepare(after, context))
        case ShrinkMicroBatch():
            return (made, _prepare(after, context))
        case Retry():
            return (made, *_begin_after(decision.delay_s, after, context))
        case _:
            assert_never(decision)


def _begin_after(delay_s: float, state: State, context: Context) -> Actions:
    if delay_s <= 0:
        return (_prepare(state, context),)
    return (Append(entries.waits(state, context, delay_s)),)


def _given_up(decision: Stop, kind: Kind) -> Record:
    if kind is Kind.CONFIG_ERROR:
        return entries.ended(Event.RUN_FAILED, contract.EXIT_CONFIG, decision.reason)
    if decision.hopeless:
        return entries.ended(Event.RUN_FAILED, contract.EXIT_HOPELESS, decision.reason)
    return entries.ended(Event.RUN_GAVE_UP, contract.EXIT_GAVE_UP, decision.reason)


def _gone(state: State, event: TreeGone, context: Context) -> Actions:
    """The attempt ended by itself: its exit and the cleared tree become known together."""
    return (
        Append(entries.exited(state, context, event.how, event.facts)),
        Append(entries.cleared(state, context, event.took_s, event.facts)),
        Gather(state.attempt),
    )


def _prepare(state: State, context: Context) -> Prepare:
    # The ladder may have become shorter since the journal was written.
    rung_index = min(state.rung_index, len(context.rungs) - 1)
    return Prepare(rung_index, state.micro_samples, state.attempt + 1, state.checkpoint_step)
