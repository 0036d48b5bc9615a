"""Every move of a run: `step(state, event, context) -> (state, actions)`. Pure.

`Append` actions are journaled before anything after them is done, and the new state *is* the
fold of the appended records, so a supervisor that replays the journal stands exactly where the
one before it stood. An event that a phase does not name changes nothing there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from humigence_supervise import entries, resolutions
from humigence_supervise.actions import (
    Action,
    Append,
    Clear,
    Consider,
    Gather,
    Launch,
    Quarantine,
    Recover,
    Terminate,
)
from humigence_supervise.aftermath import (
    Actions,
    is_over,
    judge,
    left_on_purpose,
    means_of,
    no_attempt,
    prepare,
    probed,
)
from humigence_supervise.domain import Kind
from humigence_supervise.happenings import (
    Begin,
    CheckpointSeen,
    Considered,
    Context,
    Diagnosed,
    Happening,
    Launched,
    LogSampled,
    NoRoom,
    NotLaunched,
    NotPrepared,
    Prepared,
    ProgressMade,
    RankDied,
    SignatureSeen,
    StopRequested,
    Tick,
    TreeGone,
)
from humigence_supervise.phases import (
    Clearing,
    Diagnosing,
    Ended,
    Launching,
    Probing,
    Ready,
    Running,
    Waiting,
    WaitingForRoom,
    Want,
)
from humigence_supervise.records import Event
from humigence_supervise.resume_echo import resumed_wrongly
from humigence_supervise.state import State, fold
from humigence_supervise.way_up import growth_due, promotion_due, worth_leaving

PROGRESS_EVERY_S = 10.0
"""Thinning of `attempt.progress`; the progress files hold every step."""


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
        case WaitingForRoom():
            actions = _waiting_for_room(state, state.phase, event, context)
        case Probing():
            actions = _probing(state, state.phase, event, context)
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
            if not state.run_id:
                return (Append(entries.run_started(event.facts)), prepare(state, context))
            taken, state = _taken_over(state, event)
            if state.stop is not None:
                return (*taken, Append(resolutions.stopped(state.stop)))
            return (*taken, prepare(state, context))
        case Prepared():
            return _planned(event)
        case NoRoom():
            patience_s = _patience_s(event, context)
            return (Append(resolutions.waits_for_room(state, context, event, None, patience_s)),)
        case NotPrepared():
            return no_attempt(state, event, context)
        case StopRequested():
            return (Append(resolutions.stopped(event.exit_code)),)
        case _:
            return ()


def _launching(state: State, event: Happening, context: Context) -> Actions:
    match event:
        case Begin():
            return (*_taken_over(state, event)[0], Recover(state.attempt))
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
            return (Append(resolutions.stopping(state, context, event)),)
        case _:
            return ()


def _running(state: State, event: Happening, context: Context) -> Actions:
    match event:
        case Begin():
            return (*_taken_over(state, event)[0], Recover(state.attempt))
        case Launched():
            started = Append(entries.started(state, context, event))
            return (started, Terminate()) if state.asked_to_end else (started,)
        case ProgressMade():
            return _progressed(state, event, context)
        case CheckpointSeen():
            if event.checkpoint.step <= state.checkpoint_step:
                return ()
            return _committed(state, event, context)
        case Considered():
            return _considered(state, event, context)
        case SignatureSeen():
            return (Append(entries.matched(state, context, event)),)
        case LogSampled():
            return (Append(entries.sampled(state, context, event)),)
        case RankDied():
            if state.asked_to_end or not entries.ended_badly(event.exit):
                return ()
            return (Append(entries.rank_died(state, context, event.exit)), Clear())
        case TreeGone():
            return _gone(state, event, context)
        case NotLaunched():  # its folder is gone as well
            lost = TreeGone(f"Nothing is left of the attempt: {event.reason}", 0.0)
            return _gone(state, lost, context)
        case StopRequested():
            if state.stop is None and not event.now:
                return (Append(resolutions.stopping(state, context, event)), Terminate())
            return (Append(resolutions.stopping(state, context, event)), Clear())
        case _:
            return ()


def _clearing(state: State, event: Happening, context: Context) -> Actions:
    match event:
        case Begin():
            return (*_taken_over(state, event)[0], Recover(state.attempt))
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
            return (Append(resolutions.stopping(state, context, event)), Clear())
        case _:
            return ()


def _diagnosing(state: State, event: Happening, context: Context) -> Actions:
    match event:
        case Begin():
            return (*_taken_over(state, event)[0], Gather(state.attempt))
        case StopRequested():
            return (Append(resolutions.stopping(state, context, event)),)
        case Diagnosed():
            made = Append(entries.diagnosed(state, context, event))
            if state.stop is not None and event.diagnosis.kind is not Kind.HEALTHY:
                return (made, Append(resolutions.stopped(state.stop, event)))
            if state.leaving is not None and event.diagnosis.kind is Kind.PREEMPTED:
                return (made, *left_on_purpose(state, state.leaving, context))
            return (made, *judge(state, event, context))
        case _:
            return ()


def _waiting(state: State, phase: Waiting, event: Happening, context: Context) -> Actions:
    match event:
        case Begin():
            return _taken_over(state, event)[0]
        case Tick():
            if not is_over(phase.until_s, phase.delay_s, context):
                return ()
            return (
                Append(resolutions.wait_over(state, context, "The wait is over.")),
                prepare(state, context),
            )
        case StopRequested():
            return (Append(resolutions.stopped(event.exit_code)),)
        case _:
            return ()


def _waiting_for_room(
    state: State, phase: WaitingForRoom, event: Happening, context: Context
) -> Actions:
    """Look again at every tick; the journal tells only of what is new."""
    match event:
        case Begin():
            return _taken_over(state, event)[0]
        case Tick():
            return (prepare(state, context, phase),)
        case NoRoom():
            if event.want is phase.want:
                return ()
            patience_s = _patience_s(event, context)
            found = resolutions.waits_for_room(state, context, event, None, patience_s)
            return (Append(found),)
        case Prepared():
            over = resolutions.wait_over(state, context, "What was waited for is there.")
            return (Append(over), *_planned(event))
        case NotPrepared():
            over = resolutions.wait_over(
                state, context, "There is room, but no attempt can be made."
            )
            return (Append(over), *no_attempt(fold((over,), state), event, context))
        case StopRequested():
            return (Append(resolutions.stopped(event.exit_code)),)
        case _:
            return ()


def _probing(state: State, phase: Probing, event: Happening, context: Context) -> Actions:
    match event:
        case Begin():
            return (*_taken_over(state, event)[0], Recover(state.attempt))
        case Launched() if state.stop is not None:
            return (Clear(),)
        case TreeGone():
            said = str(event.facts.get("probe_said") or "nothing")
            passed = event.facts.get("launcher_code") == 0
            why = "" if passed else f"its probe failed. {event.how} It said: {said}"
            return probed(state, phase.rung_index, context, why=why)
        case NotLaunched():
            return probed(state, phase.rung_index, context, why=event.reason)
        case Tick() if is_over(phase.until_s, phase.limit_s, context):
            return (Clear(),)
        case StopRequested():
            return (Append(resolutions.stopping(state, context, event)), Clear())
        case _:
            return ()


def _ended(state: State, event: Happening, context: Context) -> Actions:
    assert isinstance(state.phase, Ended)
    match event:
        case Begin() if state.phase.event is not Event.RUN_COMPLETED:
            keeps_rung = state.phase.event is Event.RUN_STOPPED
            rung_index = min(state.rung_index, len(context.rungs) - 1) if keeps_rung else 0
            micro = state.micro_samples if keeps_rung else None
            resumed = entries.resumed(context, state.phase.event, rung_index, micro)
            again = _readmitted(state, event)
            after = fold((resumed, *(action.record for action in again)), state)
            return (Append(resumed), *again, prepare(after, context))
        case _:
            return ()


# --- what the phases do ------------------------------------------------------------------------


def _taken_over(state: State, event: Begin) -> tuple[tuple[Append, ...], State]:
    """Return what is journaled when another supervisor's run is taken over, and the state then."""
    appended = (Append(entries.adopted(state)), *_readmitted(state, event))
    return appended, fold((action.record for action in appended), state)


def _readmitted(state: State, event: Begin) -> tuple[Append, ...]:
    allowed = tuple(g for g in state.excluded_gpus if g in event.readmit or "all" in event.readmit)
    if not allowed:
        return ()
    still = tuple(gpu for gpu in state.excluded_gpus if gpu not in allowed)
    return (Append(entries.readmitted(allowed, still)),)


def _patience_s(room: NoRoom, context: Context) -> float | None:
    """Return how long GPU memory is waited for; space on the disk is waited for without end."""
    return None if room.want is Want.DISK else context.policy.backoff.max_s


def _progressed(state: State, event: ProgressMade, context: Context) -> Actions:
    """A step is done: journaled now and then; the end of one that begins at the wrong step."""
    strict = state.resumed or context.counts_from_scratch
    if strict and (how := resumed_wrongly(state.first_step, event.began)):
        wrong = entries.resumed_wrongly(state, context, how, event.began)
        over = entries.exited(state, context, "It resumed at the wrong step: ended.")
        return (Append(wrong), Append(over), Clear())
    if state.pace is not None and context.now_s - state.pace.at_s < PROGRESS_EVERY_S:
        return ()
    return (Append(entries.progressed(state, context, event.progress)),)


def _committed(state: State, event: CheckpointSeen, context: Context) -> Actions:
    """A checkpoint is there: the moment at which a better way of running costs nothing."""
    committed = entries.committed(state, context, event.checkpoint)
    after = fold((committed,), state)
    if after.asked_to_end or not worth_leaving(after, context.promoting):
        return (Append(committed),)
    promote = promotion_due(after, context.rungs, context.promoting, context.now_s)
    if promote is not None:
        higher = replace(means_of(after, context), rung_index=promote.rung_index)
        return (Append(committed), Consider(promote, higher, after.attempt))
    larger = growth_due(after, context.policy, context.micro_samples)
    if larger is None:
        return (Append(committed),)
    reason = f"{after.quiet_checkpoints} checkpoints without a failure."
    leaving = resolutions.leaves(after, context, reason, micro_samples=larger)
    return (Append(committed), Append(leaving), Terminate())


def _considered(state: State, event: Considered, context: Context) -> Actions:
    if state.asked_to_end:
        return ()
    promote = event.promote
    if event.hindrance:
        tried = resolutions.promotion_tried(
            state, context, promote.rung_index, passed=False, why=event.hindrance, probed=False
        )
        return (Append(tried),)
    leaving = resolutions.leaves(state, context, promote.reason, rung_index=promote.rung_index)
    return (Append(leaving), Terminate())


def _planned(event: Prepared) -> Actions:
    actions: list[Action] = []
    for one in event.refused:
        actions.append(Append(entries.refused(one)))
        if one.damaged:
            actions.append(Quarantine(one.path, one.reason))
    return (*actions, Append(entries.planned(event.plan)), Launch(event.plan))


def _gone(state: State, event: TreeGone, context: Context) -> Actions:
    """The attempt ended by itself: its exit and the cleared tree become known together."""
    return (
        Append(entries.exited(state, context, event.how, event.facts)),
        Append(entries.cleared(state, context, event.took_s, event.facts)),
        Gather(state.attempt),
    )
