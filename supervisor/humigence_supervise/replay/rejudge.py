"""What a policy decides about the failures of a run that is over. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from humigence_supervise.budgets import Policy
from humigence_supervise.decisions import Incident
from humigence_supervise.domain import Diagnosis, Holder, Kind, Launcher, Rung
from humigence_supervise.happenings import Diagnosed
from humigence_supervise.history import integer, text
from humigence_supervise.records import Entry, Event
from humigence_supervise.replay.courses import Course, context_of, course_of, decide_again
from humigence_supervise.replay.retold import (
    NOT_IN_EVIDENCE,
    Batch,
    Missing,
    diagnosis_told,
    exit_code_told,
    missing_of,
    room_told,
)
from humigence_supervise.state import State, StateError, apply

_MOST_RUNGS: Final = 256
_MOST_SAMPLES: Final = 1 << 20
"""No ladder and no micro-batch is larger; what says so is damaged, or no journal of ours."""


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
    state, batch, diagnosed = State(), Batch(), None
    judged: list[Judged] = []
    unprompted: list[Unprompted] = []
    for index, entry in enumerate(entries):
        record = entry.record
        after = _applied(state, entry)
        match record.event:
            case Event.ATTEMPT_PLANNED:
                diagnosed = None
                batch = Batch.of(record, after, batch)
            case Event.DIAGNOSIS_MADE:
                diagnosed = record
            case Event.DECISION_MADE if len(after.incidents) > len(state.incidents):
                now = after.incidents[-1]
                new = anew.get(now.attempt)
                diagnosis = new or diagnosis_told(now, diagnosed)
                what_followed = [one.record for one in entries[index + 1 : index + 3]]
                room = room_told(what_followed)
                missing = missing_of(diagnosis.kind, record, diagnosed, batch, room)
                context = context_of(rungs, policy, batch.micro_samples, now.at_s)
                seen = Diagnosed(diagnosis, now.last_step, now.checkpoint_step, *room)
                history = tuple(_recognized(one, anew.get(one.attempt)) for one in state.incidents)
                before = replace(state, incidents=history, first_step=now.first_step)
                judged.append(
                    Judged(
                        attempt=now.attempt,
                        rung_index=now.rung_index,
                        step=now.last_step,
                        kind=now.kind,
                        new_kind=None if new is None else new.kind,
                        happened=course_of(record, after, exit_code_told(what_followed)),
                        now=decide_again(before, seen, context)[0],
                        unknown=missing if new is None else missing & NOT_IN_EVIDENCE,
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
        after = apply(state, entry.record)
        sizes = (after.micro_samples, integer(entry.record, "micro_batch"))
        if any(size is not None and not 0 < size <= _MOST_SAMPLES for size in sizes):
            raise StateError("there is no such micro-batch")
    except (ValueError, OverflowError) as problem:
        raise StateError(
            f"line {entry.seq} of the journal cannot be understood ({problem}). A newer or broken"
            " version may have written it; nothing was changed."
        ) from problem
    return after


def _rung(name: str, index: int, count: int) -> Rung:
    """Return a rung of which only the name is known; by default the last one is a single GPU."""
    single = index > 0 and index + 1 == count
    return Rung(name, 1 if single else "all", Launcher.PYTHON if single else Launcher.TORCHRUN)
