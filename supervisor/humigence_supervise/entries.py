"""What the journal says of what happened: one function an event, facts and a sentence. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from humigence_supervise import contract
from humigence_supervise.attempt_records import of_attempt, rung_name
from humigence_supervise.domain import (
    Beginning,
    Checkpoint,
    Hit,
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
    Refused,
    SignatureSeen,
)
from humigence_supervise.plan_file import public_argv
from humigence_supervise.records import Event, Json, Level, Record, finite
from humigence_supervise.state import State

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
        return of_attempt(
            state, context, Event.ATTEMPT_ADOPTED, "The attempt still runs: adopted.", facts
        )
    origin = f"resumed from step {state.first_step}" if source else "from scratch"
    message = f"Attempt {state.attempt} started on {rung_name(state, context)}, {origin}."
    return of_attempt(state, context, Event.ATTEMPT_STARTED, message, facts)


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
    return of_attempt(state, context, Event.ATTEMPT_PROGRESS, message, facts)


def committed(state: State, context: Context, checkpoint: Checkpoint) -> Record:
    """A checkpoint appeared under its final name."""
    facts: Facts = {
        "step": checkpoint.step,
        "samples": checkpoint.samples,
        "path": str(checkpoint.path),
    }
    return of_attempt(
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
    return of_attempt(
        state, context, Event.SIGNATURE_MATCHED, event.message, event.facts, level=Level.WARNING
    )


def sampled(state: State, context: Context, event: LogSampled) -> Record:
    """A live log grows too fast to be read whole; its newest part is."""
    facts: Facts = {"rank": event.rank, "file": event.file, "skipped_bytes": event.skipped_bytes}
    message = (
        f"Rank {event.rank} writes faster than its log is read while it runs: "
        f"{event.skipped_bytes >> 20} MiB of {event.file} were left out so far."
    )
    return of_attempt(state, context, Event.LOG_SAMPLED, message, facts)


def resumed_wrongly(state: State, context: Context, how: str, began: Beginning | None) -> Record:
    """The worker did not begin at the step of the checkpoint it was given."""
    facts: Facts = {
        "promised_step": state.first_step,
        "began_step": began.most if began is not None else None,
    }
    message = f"{how} The attempt is ended before it overwrites anything."
    return of_attempt(state, context, Event.RESUME_MISMATCH, message, facts, level=Level.ERROR)


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
    return of_attempt(state, context, Event.ATTEMPT_EXITED, message, facts, level=Level.WARNING)


def exited(
    state: State, context: Context, message: str, facts: Mapping[str, Json] | None = None
) -> Record:
    """The attempt ended by itself."""
    return of_attempt(state, context, Event.ATTEMPT_EXITED, message, facts)


def cleared(
    state: State, context: Context, took_s: float, facts: Mapping[str, Json] | None = None
) -> Record:
    """Nothing of the attempt is alive."""
    all_facts: Facts = {**(facts or {}), "took_s": round(took_s, 3)}
    message = "No process of the attempt is left."
    removed = all_facts.get("shm_removed")
    if isinstance(removed, list):
        message += f" {len(removed)} segments that its NCCL left in /dev/shm were removed."
    return of_attempt(state, context, Event.TREE_CLEARED, message, all_facts)


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
    return of_attempt(state, context, Event.DIAGNOSIS_MADE, diagnosis.reason, facts)


def _hit(hit: Hit) -> Facts:
    facts = dataclasses.asdict(hit)
    return {**facts, "kind": hit.kind.value, "role": hit.role.value}
