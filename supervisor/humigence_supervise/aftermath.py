"""What follows the end of an attempt: the verdict, and what carries it out. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, assert_never

from humigence_supervise import contract, policy, resolutions
from humigence_supervise.actions import Action, Append, Means, Prepare, Probe
from humigence_supervise.decisions import (
    Complete,
    GrowMicroBatch,
    Incident,
    Retry,
    ShrinkMicroBatch,
    StepDown,
    StepUp,
    Stop,
    UseOlderCheckpoint,
    Verdict,
    WaitForMemory,
    WaitForSpace,
)
from humigence_supervise.domain import Kind
from humigence_supervise.happenings import Context, Diagnosed, NoRoom, NotPrepared
from humigence_supervise.phases import WaitingForRoom, Want
from humigence_supervise.records import Event, Record
from humigence_supervise.state import Leaving, State, fold
from humigence_supervise.way_up import suspects

Actions = tuple[Action, ...]

CLOCK_SLACK_S: Final = 1.0
"""By how much a wait may seem too long before the clock is taken to have been set back."""

UNPREPARED_MOST: Final = 8
"""How often in a row it is looked again whether an attempt can be prepared."""

BEFORE_STEPPING_DOWN: Final = 2
"""How often of these before a rung is given up: a driver may be silent for a moment."""

NO_SUCH_RUNG: Final = "The ladder has become shorter: there is no such rung any more."

PROBE_LIMIT_S: Final = 50.0
"""A probe is ended after this; its own deadline is a little earlier, to say what was wrong."""


def means_of(state: State, context: Context) -> Means:
    """Return with what the next attempt is made."""
    # The ladder may have become shorter since the journal was written.
    return Means(
        min(state.rung_index, len(context.rungs) - 1),
        state.micro_samples,
        state.excluded_gpus,
        suspects(state.incidents),
        state.defragment,
    )


def prepare(state: State, context: Context, room: WaitingForRoom | None = None) -> Prepare:
    """Return the wish for the next attempt; `room` is what the run waits for, if it does."""
    lowest = state.rung_index + 1 >= len(context.rungs)
    wanted = Prepare(
        means_of(state, context),
        state.attempt + 1,
        state.checkpoint_step,
        lowest_rung=lowest,
        bad_step=state.bad_step,
        stranger=state.stranger,
    )
    if room is None:
        return wanted
    return replace(
        wanted,
        need_mib=room.need_mib,
        patient=room.until_s is None or not is_over(room.until_s, room.patience_s, context),
    )


def is_over(until_s: float, length_s: float, context: Context) -> bool:
    """Say whether a time has come, also on a clock that was set back meanwhile."""
    remaining_s = until_s - context.now_s
    return remaining_s <= 0 or remaining_s > length_s + CLOCK_SLACK_S


# --- after a diagnosis -------------------------------------------------------------------------


def judge(state: State, event: Diagnosed, context: Context) -> Actions:
    """Return the verdict about an ended attempt and what carries it out."""
    diagnosis = event.diagnosis
    incident = Incident(
        attempt=state.attempt,
        rung_index=state.rung_index,
        kind=diagnosis.kind,
        fingerprint=diagnosis.fingerprint,
        at_s=context.now_s,
        first_step=state.first_step,
        last_step=event.last_step,
        checkpoint_step=event.checkpoint_step,
        gpu=diagnosis.gpu or "",
        holder=diagnosis.memory.holder if diagnosis.memory else None,
    )
    standing = policy.Situation(
        incidents=(*state.incidents, incident),
        rung_count=len(context.rungs),
        micro_samples=context.micro_samples if state.micro_samples is None else state.micro_samples,
        need_mib=event.need_mib,
        free_mib=event.free_mib,
        now_s=context.now_s,
        chance=context.chance,
        gpus_left=_gpus_left(state, event),
        defragmented=state.defragment,
        fits_micro=state.fits_micro,
    )
    verdict = policy.decide(context.policy, standing, diagnosis)
    record = resolutions.decided(state, context, incident, verdict)
    made: Actions = (Append(record),)
    if verdict.excluded_gpu and verdict.excluded_gpu not in state.excluded_gpus:
        why = diagnosis.reason
        made = (*made, Append(resolutions.gpu_excluded(state, context, verdict.excluded_gpu, why)))
    return (*made, *_carried_out(verdict, state, fold((record,), state), event, context))


def _carried_out(
    verdict: Verdict, before: State, after: State, event: Diagnosed, context: Context
) -> Actions:
    match verdict.decision:
        case Complete():
            return (Append(resolutions.completed(event)),)
        case Stop() as decision:
            return (Append(_given_up(decision, event.diagnosis.kind)),)
        case WaitForSpace(reason=reason, need_mib=need_mib):
            room = NoRoom(Want.DISK, reason, need_mib, event.free_mib)
            return (Append(resolutions.waits_for_room(after, context, room)),)
        case WaitForMemory(reason=reason, stranger=stranger, patience_s=patience_s):
            room = NoRoom(Want.GPU_MEMORY, reason)
            return (Append(resolutions.waits_for_room(after, context, room, stranger, patience_s)),)
        case StepDown() | StepUp():
            changed = resolutions.rung_changed(before, after, context, event.diagnosis.kind)
            return (Append(changed), prepare(after, context))
        case ShrinkMicroBatch() | GrowMicroBatch() | UseOlderCheckpoint():
            return (prepare(after, context),)
        case Retry(delay_s=delay_s):
            if delay_s <= 0:
                return (prepare(after, context),)
            return (Append(resolutions.waits(after, context, delay_s)),)
        case _:
            assert_never(verdict.decision)


def _gpus_left(state: State, event: Diagnosed) -> int | None:
    if event.gpus is None:
        return None
    out = {*state.excluded_gpus, event.diagnosis.gpu}
    return len([gpu for gpu in event.gpus if gpu not in out])


def _given_up(decision: Stop, kind: Kind) -> Record:
    if kind is Kind.CONFIG_ERROR:
        return resolutions.ended(Event.RUN_FAILED, contract.EXIT_CONFIG, decision.reason)
    if decision.hopeless:
        return resolutions.ended(Event.RUN_FAILED, contract.EXIT_HOPELESS, decision.reason)
    return resolutions.ended(Event.RUN_GAVE_UP, contract.EXIT_GAVE_UP, decision.reason)


# --- when no attempt can be prepared -----------------------------------------------------------


def no_attempt(state: State, event: NotPrepared, context: Context) -> Actions:
    """Step down where a lower rung may do, look again what may pass, else end the run."""
    if (
        event.lower_may_do
        and state.unprepared >= BEFORE_STEPPING_DOWN
        and state.rung_index + 1 < len(context.rungs)
    ):
        lower = StepDown(f"{event.reason} The next lower rung may do.", state.rung_index + 1)
        unless = "With what this rung needs it would have been started."
        record = _decided_without_incident(state, context, Verdict(lower, unless=unless))
        after = fold((record,), state)
        changed = resolutions.rung_changed(state, after, context, Kind.UNKNOWN, "Missing GPUs:")
        return (Append(record), Append(changed), prepare(after, context))
    if event.exit_code == contract.EXIT_GAVE_UP and state.unprepared < UNPREPARED_MOST:
        delay_s = context.policy.backoff.delay_s(state.unprepared, context.chance)
        return (Append(resolutions.waits(state, context, max(delay_s, 0.001), event.reason)),)
    return (Append(resolutions.not_prepared(event)),)


# --- the way back up ---------------------------------------------------------------------------


def left_on_purpose(state: State, leaving: Leaving, context: Context) -> Actions:
    """Go on after a healthy attempt was ended: probe the higher rung, or take larger batches."""
    if leaving.rung_index is not None and leaving.rung_index >= len(context.rungs):
        return (
            Append(resolutions.wait_over(state, context, NO_SUCH_RUNG)),
            prepare(state, context),
        )
    if leaving.rung_index is not None:
        started = resolutions.probe_started(state, context, leaving.rung_index, PROBE_LIMIT_S)
        after = fold((started,), state)
        means = replace(means_of(state, context), rung_index=leaving.rung_index)
        return (Append(started), Probe(means, after.attempt))
    assert leaving.micro_samples is not None
    decision = GrowMicroBatch(
        f"Larger micro-batches fit once: {leaving.micro_samples} again, the global batch"
        " unchanged. If they do not, it stays at the smaller ones for good.",
        leaving.micro_samples,
    )
    unless = "policy.grow_after_checkpoints 0 keeps a reduced micro-batch."
    record = _decided_without_incident(state, context, Verdict(decision, unless=unless))
    return (Append(record), prepare(fold((record,), state), context))


def probed(state: State, rung_index: int, context: Context, *, why: str) -> Actions:
    """Go up after a probe that passed (`why` is ""), else on with the rung below."""
    if not why and rung_index >= len(context.rungs):
        why = NO_SUCH_RUNG
    if state.stop is not None:
        why = "a stop was asked for."
    tried = resolutions.promotion_tried(
        state, context, rung_index, passed=not why, why=why, probed=state.stop is None
    )
    after = fold((tried,), state)
    if state.stop is not None:
        return (Append(tried), Append(resolutions.stopped(state.stop)))
    if why:
        return (Append(tried), prepare(after, context))
    rung = context.rungs[rung_index].name
    decision = StepUp(f"Its GPUs work together again: back up to {rung}.", rung_index)
    unless = "A probe that failed would have kept the run on the lower rung."
    record = _decided_without_incident(after, context, Verdict(decision, unless=unless))
    higher = fold((record,), after)
    changed = resolutions.rung_changed(after, higher, context, Kind.HEALTHY)
    return (Append(tried), Append(record), Append(changed), prepare(higher, context))


def _decided_without_incident(state: State, context: Context, verdict: Verdict) -> Record:
    """Return the record of a decision that no failure led to."""
    nothing = Incident(
        attempt=state.attempt,
        rung_index=state.rung_index,
        kind=Kind.HEALTHY,
        fingerprint="",
        at_s=context.now_s,
        first_step=state.first_step,
        last_step=state.checkpoint_step,
        checkpoint_step=state.checkpoint_step,
    )
    return resolutions.decided(state, context, nothing, verdict)
