"""What the journal says of what is decided, waited for and ended: facts and a sentence. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from humigence_supervise import contract
from humigence_supervise.attempt_records import of_attempt, rung_name
from humigence_supervise.decisions import (
    GrowMicroBatch,
    Incident,
    Retry,
    ShrinkMicroBatch,
    StepDown,
    StepUp,
    Stranger,
    UseOlderCheckpoint,
    Verdict,
)
from humigence_supervise.domain import (
    Kind,
)
from humigence_supervise.happenings import (
    Context,
    Diagnosed,
    NoRoom,
    NotPrepared,
    StopRequested,
)
from humigence_supervise.phases import Want
from humigence_supervise.records import Event, Json, Level, Record
from humigence_supervise.state import State

Facts = dict[str, Json]

CAUSES: Mapping[Kind, str] = {
    Kind.CUDA_OOM: "CUDA out of memory:",
    Kind.GPU_FAULT: "GPU fault:",
    Kind.HANG: "Hang:",
    Kind.HOST_OOM: "Host out of memory:",
    Kind.RENDEZVOUS: "Rendezvous:",
    Kind.SHM: "Shared memory:",
    Kind.SEGFAULT: "Crash:",
    Kind.UNKNOWN: "Unknown cause:",
}
"""How the fallback sentence begins; every kind of the NCCL family says "NCCL"."""


def leaves(
    state: State,
    context: Context,
    reason: str,
    *,
    rung_index: int | None = None,
    micro_samples: int | None = None,
) -> Record:
    """A healthy attempt is ended gracefully, to go on better."""
    what = f"micro-batches of {micro_samples}"
    if rung_index is not None:
        what = context.rungs[rung_index].name
    facts: Facts = {"to_rung_index": rung_index, "to_micro_samples": micro_samples}
    message = f"{reason} The worker saves and exits, then {what} is tried."
    return of_attempt(state, context, Event.ATTEMPT_LEAVING, message, facts)


def probe_started(state: State, context: Context, rung_index: int, limit_s: float) -> Record:
    """The GPUs of a higher rung are tried together before it trains again."""
    name = context.rungs[rung_index].name
    facts: Facts = {
        "to": name,
        "rung_index": rung_index,
        "limit_s": limit_s,
        "until_s": context.now_s + limit_s,
    }
    message = f"Probing {name}: a real collective of all its ranks, {limit_s:.0f} s at most."
    present = rung_name(state, context)
    number = state.attempt + 1
    return Record(Event.PROMOTION_STARTED, message, attempt=number, rung=present, facts=facts)


def promotion_tried(
    state: State, context: Context, rung_index: int, *, passed: bool, why: str, probed: bool
) -> Record:
    """What came of a try to go back up; not `probed`: it did not come to a probe."""
    name = context.rungs[min(rung_index, len(context.rungs) - 1)].name
    facts: Facts = {
        "to": name,
        "rung_index": rung_index,
        "at_s": context.now_s,
        "passed": passed,
        "probed": probed,
        "why": why,
    }
    message = f"The probe of {name} passed."
    if not passed:
        message = f"Not going back up to {name}: {why}"
    level = Level.INFO if passed else Level.WARNING
    return of_attempt(state, context, Event.PROMOTION_TRIED, message, facts, level=level)


def decided(state: State, context: Context, incident: Incident, verdict: Verdict) -> Record:
    """What happens next, why, and the incident as policy remembers it."""
    decision = verdict.decision
    rung_index = state.rung_index
    if isinstance(decision, StepDown | StepUp):
        rung_index = decision.rung_index
    micro, larger = state.micro_samples, None
    if isinstance(decision, ShrinkMicroBatch | GrowMicroBatch):
        larger = context.micro_samples if micro is None else micro
        micro = decision.micro_samples
    excluded = list(state.excluded_gpus)
    if verdict.excluded_gpu and verdict.excluded_gpu not in excluded:
        excluded.append(verdict.excluded_gpu)
    facts: Facts = {
        "decision": type(decision).__name__,
        "reason": decision.reason,
        "why_not": verdict.why_not,
        "unless": verdict.unless,
        "kind": incident.kind.value,
        "fingerprint": incident.fingerprint,
        "at_s": incident.at_s,
        "first_step": incident.first_step,
        "last_step": incident.last_step,
        "checkpoint_step": incident.checkpoint_step,
        "gpu": incident.gpu or None,
        "holder": incident.holder.value if incident.holder else None,
        "rung_index": rung_index,
        "micro_samples": micro,
        "larger_micro": larger,
        "bad_step": decision.bad_step if isinstance(decision, UseOlderCheckpoint) else None,
        "defragment": state.defragment or (isinstance(decision, Retry) and decision.defragment),
        "excluded_gpus": [*excluded],
    }
    return of_attempt(state, context, Event.DECISION_MADE, decision.reason, facts)


def gpu_excluded(state: State, context: Context, gpu: str, why: str) -> Record:
    """A GPU is not used any more in this run."""
    message = (
        f"GPU {gpu} is not used again in this run: {why} When it is healthy again, allow it with"
        f" `start --readmit-gpu {gpu}`."
    )
    return of_attempt(
        state, context, Event.GPU_EXCLUDED, message, {"gpu": gpu}, level=Level.WARNING
    )


def rung_changed(
    before: State, after: State, context: Context, kind: Kind, cause: str = ""
) -> Record:
    """The sentence users of this launcher know, with the cause in the place of "NCCL"."""
    nccl = kind.value.startswith("nccl_") or kind is Kind.NVLINK_P2P
    cause = cause or ("NCCL" if nccl else CAUSES.get(kind, f"{kind.value}:"))
    new = rung_name(after, context)
    message = f"⚠️ {cause} multi-GPU failed, falling back to single GPU training on cuda:0."
    if context.rungs[after.rung_index].gpus != 1:
        message = f"⚠️ {cause} {rung_name(before, context)} failed, falling back to {new}."
    if after.rung_index < before.rung_index:
        message = f"Going back up to {new}."
    facts: Facts = {"from": rung_name(before, context), "to": new, "kind": kind.value}
    level = Level.INFO if after.rung_index < before.rung_index else Level.WARNING
    return Record(Event.RUNG_CHANGED, message, level, before.attempt, new, facts)


def waits(state: State, context: Context, delay_s: float, why: str = "") -> Record:
    """The next attempt waits for a time. `why`: there was none to make; it is tried again."""
    facts: Facts = {
        "delay_s": round(delay_s, 3),
        "until_s": context.now_s + delay_s,
        "need_mib": None,
        "unprepared": state.unprepared + 1 if why else None,
    }
    message = f"Waiting {delay_s:.1f} s before the next attempt."
    if why:
        message = f"{why} Looking again in {delay_s:.1f} s."
    level = Level.WARNING if why else Level.INFO
    return of_attempt(state, context, Event.BACKOFF_STARTED, message, facts, level=level)


def waits_for_room(
    state: State,
    context: Context,
    room: NoRoom,
    stranger: Stranger | None = None,
    patience_s: float | None = None,
) -> Record:
    """The next attempt waits until there is room for it, or for `patience_s` at most."""
    disk = room.want is Want.DISK
    missing = None if room.free_mib is None else max(0, room.need_mib - room.free_mib)
    facts: Facts = {
        "want": room.want.value,
        "need_mib": room.need_mib if disk else None,
        "free_mib": room.free_mib,
        "missing_mib": missing if disk else None,
        "gpu": stranger.gpu or None if stranger else None,
        "pid": stranger.pid if stranger else None,
        "held_mib": stranger.held_mib if stranger else None,
        "delay_s": patience_s,
        "until_s": None if patience_s is None else context.now_s + patience_s,
    }
    message = room.reason
    if disk:
        free = f" {room.free_mib} MiB are free, {missing} MiB are missing."
        known = "" if missing is None else free
        message = f"{room.reason} Waiting until {room.need_mib} MiB are free.{known}"
    return of_attempt(state, context, Event.BACKOFF_STARTED, message, facts, level=Level.WARNING)


def wait_over(state: State, context: Context, message: str) -> Record:
    """What was waited for is there."""
    return of_attempt(state, context, Event.BACKOFF_ENDED, message)


def stopping(state: State, context: Context, event: StopRequested) -> Record:
    """Somebody asked the run to stop."""
    message = "Stop requested: the worker saves at the next step and exits."
    if event.now or state.stop is not None:
        message = "Stop requested at once: the attempt is killed without saving."
    facts: Facts = {"exit_code": event.exit_code}
    return of_attempt(state, context, Event.RUN_STOPPING, message, facts)


def stopped(exit_code: int, ended: Diagnosed | None = None) -> Record:
    """The run stopped on request; `start` resumes it. `ended` tells of its last attempt."""
    message = "Stopped on request; `start` goes on from the newest checkpoint."
    unsaved = 0 if ended is None else max(0, ended.last_step - ended.checkpoint_step)
    if unsaved:
        message += f" {unsaved} steps since the last save are done again then."
    facts: Facts = {"exit_code": exit_code, "unsaved_steps": unsaved}
    return Record(Event.RUN_STOPPED, message, facts=facts)


def completed(event: Diagnosed) -> Record:
    """The target is reached. The facts hold the ledger."""
    ledger = event.facts.get("ledger")
    samples = f" Samples: {ledger['says']}." if isinstance(ledger, dict) else ""
    message = f"The run is complete at step {event.last_step}.{samples}"
    facts: Facts = {**event.facts, "exit_code": contract.EXIT_COMPLETED}
    return Record(Event.RUN_COMPLETED, message, facts=facts)


def ended(event: Event, exit_code: int, reason: str) -> Record:
    """The run ends without reaching its target (`run.failed` or `run.gave_up`)."""
    return Record(event, reason, Level.ERROR, facts={"exit_code": exit_code})


def not_prepared(event: NotPrepared) -> Record:
    """No further attempt can be started, and waiting would not change it."""
    later_may_help = event.exit_code == contract.EXIT_GAVE_UP
    name = Event.RUN_GAVE_UP if later_may_help else Event.RUN_FAILED
    return ended(name, event.exit_code, event.reason)
