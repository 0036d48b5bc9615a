"""What a policy decides about the failures of a run that is over. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from humigence_supervise.budgets import Policy
from humigence_supervise.courses import Course, context_of, course_of, decide_again
from humigence_supervise.decisions import Incident
from humigence_supervise.domain import (
    Confidence,
    Diagnosis,
    Holder,
    Kind,
    Launcher,
    OomReading,
    Remedy,
    Rung,
)
from humigence_supervise.happenings import Context, Diagnosed
from humigence_supervise.history import integer, text
from humigence_supervise.records import Entry, Event, Record
from humigence_supervise.state import State, StateError, apply

_MOST_RUNGS: Final = 256


class Missing(StrEnum):
    """What the policy looks at and a journal may not tell."""

    DIAGNOSIS = "diagnosis"
    HOLDER = "holder"
    MICRO_BATCH = "micro_batch"
    GPU = "gpu"
    GPUS_LEFT = "gpus_left"
    ACTION = "action"


_NOT_IN_EVIDENCE: Final = frozenset((Missing.MICRO_BATCH, Missing.GPUS_LEFT))
"""What no reading of an attempt's logs brings back."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One incident: what was decided about it, and what the policy decides now.

    `kind` is the journaled one, `new_kind` what was judged now where it was diagnosed anew.
    `unknown` names what the policy would like to know and the journal does not say.
    """

    attempt: int
    rung_index: int
    step: int
    kind: Kind
    new_kind: Kind | None
    happened: Course
    now: Course
    unknown: frozenset[Missing]

    @property
    def same(self) -> bool:
        """True where both lead to the same."""
        return self.happened.leads_where(self.now)


@dataclass(frozen=True, slots=True)
class Unprompted:
    """A decision that no failure led to; the policy for failures says nothing about it."""

    attempt: int | None
    decision: str
    reason: str


def rejudge(
    entries: tuple[Entry, ...], policy: Policy, anew: Mapping[int, Diagnosis]
) -> tuple[tuple[Judged, ...], tuple[Unprompted, ...]]:
    """Return every incident of a journal judged by `policy`, and the decisions without one.

    Each is judged on what really happened before it. `anew` are new diagnoses by attempt; they are
    judged in the place of the journaled ones.

    Raises:
        StateError: an entry does not say what its event must say.
    """
    rungs = rungs_of(entries)
    state, batch, diagnosed = State(), _Batch(), None
    judged: list[Judged] = []
    unprompted: list[Unprompted] = []
    for index, entry in enumerate(entries):
        record = entry.record
        after = _applied(state, entry)
        match record.event:
            case Event.ATTEMPT_PLANNED:
                diagnosed = None
                batch = _Batch.of(record, after, batch)
            case Event.DIAGNOSIS_MADE:
                diagnosed = record
            case Event.DECISION_MADE if len(after.incidents) > len(state.incidents):
                now = after.incidents[-1]
                new = anew.get(now.attempt)
                diagnosis = new or _as_journaled(now, diagnosed)
                missing = _missing(diagnosis.kind, record, diagnosed, batch)
                context = context_of(rungs, policy, batch.micro_samples, now.at_s)
                course = _decided_now(state, now, diagnosis, context, anew)
                judged.append(
                    Judged(
                        attempt=now.attempt,
                        rung_index=now.rung_index,
                        step=now.last_step,
                        kind=now.kind,
                        new_kind=None if new is None else new.kind,
                        happened=course_of(record, after, _exit_code_after(entries, index)),
                        now=course,
                        unknown=missing if new is None else missing & _NOT_IN_EVIDENCE,
                    )
                )
            case Event.DECISION_MADE if text(record, "decision") != "Complete":
                decision, reason = text(record, "decision"), text(record, "reason")
                unprompted.append(Unprompted(record.attempt, decision, reason))
            case _:
                pass
        state = after
    return tuple(judged), tuple(unprompted)


def rungs_of(entries: tuple[Entry, ...]) -> tuple[Rung, ...]:
    """Return the ladder a journal tells of: its names at the start, and any that came later."""
    names: dict[int, str] = {}
    count = 1
    for entry in entries:
        record = entry.record
        ladder = record.facts.get("ladder")
        if record.event is Event.RUN_STARTED and isinstance(ladder, list):
            names |= {index: str(name) for index, name in enumerate(ladder)}
        index = integer(record, "rung_index")
        if index is None:
            continue
        if not 0 <= index < _MOST_RUNGS:
            raise StateError(f"{record.event.value}: there is no rung {index}")
        count = max(count, index + 1)
        if record.event is Event.ATTEMPT_PLANNED and record.rung:
            names.setdefault(index, record.rung)
    count = max(count, *(index + 1 for index in names)) if names else count
    return tuple(_rung(names.get(index, f"rung {index}"), index, count) for index in range(count))


def _decided_now(
    state: State,
    now: Incident,
    diagnosis: Diagnosis,
    context: Context,
    anew: Mapping[int, Diagnosis],
) -> Course:
    history = tuple(_recognized(one, anew.get(one.attempt)) for one in state.incidents)
    before = replace(state, incidents=history, first_step=now.first_step)
    seen = Diagnosed(diagnosis, now.last_step, now.checkpoint_step, need_mib=0)
    return decide_again(before, seen, context)[0]


def _exit_code_after(entries: tuple[Entry, ...], index: int) -> int | None:
    """Return what the run ended with, where the decision was its last."""
    for entry in entries[index + 1 : index + 3]:  # the exclusion of a GPU may stand between
        if entry.record.event in (Event.RUN_FAILED, Event.RUN_GAVE_UP):
            code = entry.record.facts.get("exit_code")
            return code if isinstance(code, int) else None
    return None


# --- what a journal says -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Batch:
    """The configured micro-batch, as the plans tell it; not `known` where none of them says."""

    micro_samples: int | None = None
    known: bool = False

    @classmethod
    def of(cls, planned: Record, state: State, before: _Batch) -> _Batch:
        """Return what a plan says; one with reduced micro-batches says nothing of it."""
        micro = planned.facts.get("micro_batch", "")
        if state.micro_samples is not None or not (micro is None or isinstance(micro, int)):
            return before
        return cls(micro, known=True)


def _as_journaled(now: Incident, diagnosed: Record | None) -> Diagnosis:
    """Return the diagnosis of an incident, as far as the journal tells it."""
    action, confidence = text(diagnosed, "action"), text(diagnosed, "confidence")
    sure = confidence in {one.value for one in Confidence}
    return Diagnosis(
        kind=now.kind,
        root=None,
        symptoms=(),
        remedy=Remedy(action) if action in {one.value for one in Remedy} else Remedy.NONE,
        reason=text(diagnosed, "reason") or f"The journal says no more than {now.kind.value}.",
        advice=text(diagnosed, "advice"),
        confidence=Confidence(confidence) if sure else Confidence.GUESS,
        fingerprint=now.fingerprint,
        gpu=now.gpu or text(diagnosed, "gpu") or None,
        memory=None if now.holder is None else OomReading(now.holder),
    )


def _missing(
    kind: Kind, decided: Record, diagnosed: Record | None, batch: _Batch
) -> frozenset[Missing]:
    """Return what the policy looks at for this kind, and the journal does not tell."""
    missing = set[Missing]() if diagnosed is not None else {Missing.DIAGNOSIS}
    match kind:
        case Kind.CUDA_OOM:
            missing |= {Missing.HOLDER} if "holder" not in decided.facts else set()
            missing |= {Missing.MICRO_BATCH} if not batch.known else set()
        case Kind.GPU_FAULT:
            missing |= {Missing.GPUS_LEFT}
            if not (text(decided, "gpu") or text(diagnosed, "gpu")):
                missing |= {Missing.GPU}
        case Kind.SHM if not text(diagnosed, "action"):
            missing |= {Missing.ACTION}
        case _:
            pass
    return frozenset(missing)


def _recognized(incident: Incident, new: Diagnosis | None) -> Incident:
    """Return an incident of the history so that the same failure is known again.

    Its kind stays: the moves that were made after it were made for that kind.
    """
    if new is None or new.kind is not incident.kind:
        return incident
    holder: Holder | None = new.memory.holder if new.memory else None
    return replace(
        incident,
        fingerprint=new.fingerprint,
        gpu=incident.gpu or new.gpu or "",
        holder=incident.holder or holder,
    )


def _applied(state: State, entry: Entry) -> State:
    try:
        return apply(state, entry.record)
    except (ValueError, OverflowError) as problem:
        raise StateError(
            f"line {entry.seq} of the journal cannot be understood ({problem}). A newer or broken"
            " version may have written it; nothing was changed."
        ) from problem


def _rung(name: str, index: int, count: int) -> Rung:
    """Return a rung of which only the name is known; by default the last one is a single GPU."""
    single = index > 0 and index + 1 == count
    return Rung(name, 1 if single else "all", Launcher.PYTHON if single else Launcher.TORCHRUN)
