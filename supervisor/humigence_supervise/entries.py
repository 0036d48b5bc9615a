"""What the journal says of each event: one function an event, facts and a sentence. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from humigence_supervise import contract
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
    Beginning,
    Checkpoint,
    Hit,
    Kind,
    LaunchPlan,
    Progress,
    RankExit,
    Section,
)
from humigence_supervise.happenings import (
    Context,
    Diagnosed,
    Launched,
    LogSampled,
    NoRoom,
    NotPrepared,
    Refused,
    SignatureSeen,
    StopRequested,
)
from humigence_supervise.plan_file import public_argv
from humigence_supervise.records import Event, Json, Level, Record, finite
from humigence_supervise.state import State, Want

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

Facts = dict[str, Json]


def run_started(facts: Mapping[str, Json]) -> Record:
    """A run begins."""
    ignored = facts.get("not_acted_on")
    if not isinstance(ignored, list) or not ignored:
        return Record(Event.RUN_STARTED, "The run starts.", facts=facts)
    message = f"The run starts. This version does not act on: {', '.join(map(str, ignored))}."
    return Record(Event.RUN_STARTED, message, Level.WARNING, facts=facts)


def adopted(state: State) -> Record:
    """Another supervisor's unfinished run is taken over."""
    phase = type(state.phase).__name__.lower()
    message = f"Taken over from a supervisor that ended while the run was {phase}."
    return Record(
        Event.RUN_ADOPTED, message, Level.WARNING, state.attempt or None, facts={"phase": phase}
    )


def resumed(context: Context, after: Event, rung_index: int, micro_samples: int | None) -> Record:
    """A stopped or given-up run is started again by its operator."""
    facts: Facts = {
        "after": after.value,
        "at_s": context.now_s,
        "rung_index": rung_index,
        "micro_samples": micro_samples,
    }
    message = f"Resumed after {after.value}; the budgets begin anew."
    return Record(Event.RUN_RESUMED, message, facts=facts)


def readmitted(allowed: tuple[str, ...], still_excluded: tuple[str, ...]) -> Record:
    """The operator allows GPUs again that were excluded."""
    facts: Facts = {"readmitted": list(allowed), "excluded_gpus": list(still_excluded)}
    message = f"The operator allows these GPUs again: {', '.join(allowed)}."
    return Record(Event.GPU_READMITTED, message, facts=facts)


def planned(plan: LaunchPlan) -> Record:
    """The next attempt is decided in every detail (see its plan.json)."""
    source = plan.resume_from
    origin = f"from checkpoint step {source.step}" if source else "from scratch"
    facts: Facts = {
        "rung_index": plan.rung_index,
        "world_size": plan.world_size,
        "resume_step": source.step if source else 0,
        "resume_from": str(source.path) if source else None,
        "argv": list(public_argv(plan.argv)),
        "gpus": [gpu.uuid for gpu in plan.gpus],
        "micro_batch": plan.batch.micro_samples if plan.batch else None,
        "grad_accum": plan.batch.grad_accum if plan.batch else None,
    }
    ranks = "1 rank" if plan.world_size == 1 else f"{plan.world_size} ranks"
    message = f"Attempt {plan.attempt} on {plan.rung} ({ranks}), {origin}."
    return Record(Event.ATTEMPT_PLANNED, message, attempt=plan.attempt, rung=plan.rung, facts=facts)


def started(state: State, context: Context, event: Launched) -> Record:
    """The attempt's keeper lives."""
    source = event.resume_from
    facts: Facts = {
        "keeper_pid": event.keeper.pid,
        "keeper_start_ticks": event.keeper.start_ticks,
        "world_size": event.world_size,
        "resume_step": state.first_step,
        "resume_from": str(source.path) if source else None,
    }
    if event.adopted:
        return _of_attempt(
            state, context, Event.ATTEMPT_ADOPTED, "The attempt still runs: adopted.", facts
        )
    origin = f"resumed from step {state.first_step}" if source else "from scratch"
    message = f"Attempt {state.attempt} started on {_rung(state, context)}, {origin}."
    return _of_attempt(state, context, Event.ATTEMPT_STARTED, message, facts)


def progressed(state: State, context: Context, progress: Progress) -> Record:
    """A thinned heartbeat of work."""
    facts: Facts = {
        "at_s": context.now_s,
        "step": progress.step,
        "samples": [progress.first_sample, progress.last_sample],
        "loss": finite(progress.loss),
        "section": progress.section.value,
        "target_step": progress.target_step,
    }
    message = f"Step {progress.step} is done."
    if progress.section is Section.INIT:
        message = f"The worker is ready and begins after step {progress.step}."
    return _of_attempt(state, context, Event.ATTEMPT_PROGRESS, message, facts)


def committed(state: State, context: Context, checkpoint: Checkpoint) -> Record:
    """A checkpoint appeared under its final name."""
    facts: Facts = {
        "step": checkpoint.step,
        "samples": checkpoint.samples,
        "path": str(checkpoint.path),
    }
    return _of_attempt(
        state,
        context,
        Event.CHECKPOINT_COMMITTED,
        f"Checkpoint of step {checkpoint.step} is on disk.",
        facts,
    )


def refused(one: Refused) -> Record:
    """A checkpoint cannot be used; a damaged one is about to be put aside."""
    fate = "put aside" if one.damaged else "left where it is"
    return Record(
        Event.CHECKPOINT_REFUSED,
        f"{one.path.name} is refused and {fate}: {one.reason}",
        Level.WARNING,
        facts={"path": str(one.path), "reason": one.reason, "damaged": one.damaged},
    )


def matched(state: State, context: Context, event: SignatureSeen) -> Record:
    """A line of a live log matched the catalogue."""
    return _of_attempt(
        state, context, Event.SIGNATURE_MATCHED, event.message, event.facts, level=Level.WARNING
    )


def sampled(state: State, context: Context, event: LogSampled) -> Record:
    """A live log grows too fast to be read whole; its newest part is."""
    facts: Facts = {"rank": event.rank, "file": event.file, "skipped_bytes": event.skipped_bytes}
    message = (
        f"Rank {event.rank} writes faster than its log is read while it runs: "
        f"{event.skipped_bytes >> 20} MiB of {event.file} were left out so far."
    )
    return _of_attempt(state, context, Event.LOG_SAMPLED, message, facts)


def resumed_wrongly(state: State, context: Context, how: str, began: Beginning | None) -> Record:
    """The worker did not begin at the step of the checkpoint it was given."""
    facts: Facts = {
        "promised_step": state.first_step,
        "began_step": began.most if began is not None else None,
    }
    message = f"{how} The attempt is ended before it overwrites anything."
    return _of_attempt(state, context, Event.RESUME_MISMATCH, message, facts, level=Level.ERROR)


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
    return _of_attempt(state, context, Event.ATTEMPT_LEAVING, message, facts)


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
    present = _rung(state, context)
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
    return _of_attempt(state, context, Event.PROMOTION_TRIED, message, facts, level=level)


def ended_badly(exit_: RankExit) -> bool:
    """Say whether a rank's end calls for the end of the others.

    An unknown end is left to the launcher. A rank that saved and left on a signal (143, 130) is
    no danger to others that are still saving.
    """
    saved = (contract.EXIT_SIGTERM, contract.EXIT_SIGINT)
    return exit_.status.signal is not None or exit_.status.code not in (None, 0, *saved)


def rank_died(state: State, context: Context, exit_: RankExit) -> Record:
    """A rank's process ended badly: the attempt is over as a job."""
    status = exit_.status
    how = f"exited with code {status.code}"
    if status.signal is not None:
        how = f"was killed by signal {status.signal}"
    facts: Facts = {
        "rank": exit_.rank,
        "pid": exit_.pid,
        "code": status.code,
        "signal": status.signal,
    }
    message = f"Rank {exit_.rank} (pid {exit_.pid}) {how}."
    return _of_attempt(state, context, Event.ATTEMPT_EXITED, message, facts, level=Level.WARNING)


def exited(
    state: State, context: Context, message: str, facts: Mapping[str, Json] | None = None
) -> Record:
    """The attempt ended by itself."""
    return _of_attempt(state, context, Event.ATTEMPT_EXITED, message, facts)


def cleared(
    state: State, context: Context, took_s: float, facts: Mapping[str, Json] | None = None
) -> Record:
    """Nothing of the attempt is alive."""
    all_facts: Facts = {**(facts or {}), "took_s": round(took_s, 3)}
    message = "No process of the attempt is left."
    removed = all_facts.get("shm_removed")
    if isinstance(removed, list):
        message += f" {len(removed)} segments that its NCCL left in /dev/shm were removed."
    return _of_attempt(state, context, Event.TREE_CLEARED, message, all_facts)


def diagnosed(state: State, context: Context, event: Diagnosed) -> Record:
    """The root cause, with its evidence."""
    diagnosis = event.diagnosis
    facts: Facts = {
        "kind": diagnosis.kind.value,
        "rank": diagnosis.rank,
        "reason": diagnosis.reason,
        "advice": diagnosis.advice,
        "action": diagnosis.remedy.value,
        "confidence": diagnosis.confidence.value,
        "fingerprint": diagnosis.fingerprint,
        "root": _hit(diagnosis.root) if diagnosis.root else None,
        "symptoms": [_hit(hit) for hit in diagnosis.symptoms],
        "gpu": diagnosis.gpu,
        "context": list(diagnosis.context),
        "unread": list(diagnosis.unread),
        **event.facts,
    }
    return _of_attempt(state, context, Event.DIAGNOSIS_MADE, diagnosis.reason, facts)


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
    return _of_attempt(state, context, Event.DECISION_MADE, decision.reason, facts)


def gpu_excluded(state: State, context: Context, gpu: str, why: str) -> Record:
    """A GPU is not used any more in this run."""
    message = (
        f"GPU {gpu} is not used again in this run: {why} When it is healthy again, allow it with"
        f" `start --readmit-gpu {gpu}`."
    )
    return _of_attempt(
        state, context, Event.GPU_EXCLUDED, message, {"gpu": gpu}, level=Level.WARNING
    )


def rung_changed(
    before: State, after: State, context: Context, kind: Kind, cause: str = ""
) -> Record:
    """The sentence users of this launcher know, with the cause in the place of "NCCL"."""
    nccl = kind.value.startswith("nccl_") or kind is Kind.NVLINK_P2P
    cause = cause or ("NCCL" if nccl else CAUSES.get(kind, f"{kind.value}:"))
    new = _rung(after, context)
    message = f"⚠️ {cause} multi-GPU failed, falling back to single GPU training on cuda:0."
    if context.rungs[after.rung_index].gpus != 1:
        message = f"⚠️ {cause} {_rung(before, context)} failed, falling back to {new}."
    if after.rung_index < before.rung_index:
        message = f"Going back up to {new}."
    facts: Facts = {"from": _rung(before, context), "to": new, "kind": kind.value}
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
    return _of_attempt(state, context, Event.BACKOFF_STARTED, message, facts, level=level)


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
    return _of_attempt(state, context, Event.BACKOFF_STARTED, message, facts, level=Level.WARNING)


def wait_over(state: State, context: Context, message: str) -> Record:
    """What was waited for is there."""
    return _of_attempt(state, context, Event.BACKOFF_ENDED, message)


def stopping(state: State, context: Context, event: StopRequested) -> Record:
    """Somebody asked the run to stop."""
    message = "Stop requested: the worker saves at the next step and exits."
    if event.now or state.stop is not None:
        message = "Stop requested at once: the attempt is killed without saving."
    facts: Facts = {"exit_code": event.exit_code}
    return _of_attempt(state, context, Event.RUN_STOPPING, message, facts)


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


def _rung(state: State, context: Context) -> str:
    return context.rungs[min(state.rung_index, len(context.rungs) - 1)].name


def _of_attempt(
    state: State,
    context: Context,
    event: Event,
    message: str,
    facts: Mapping[str, Json] | None = None,
    *,
    level: Level = Level.INFO,
) -> Record:
    rung = _rung(state, context)
    return Record(event, message, level, state.attempt or None, rung, facts or {})


def _hit(hit: Hit) -> Facts:
    facts = dataclasses.asdict(hit)
    return {**facts, "kind": hit.kind.value, "role": hit.role.value}
