"""What is known of a run: a phase and a memory, both the fold of its journal. Pure.

Ready -> Launching -> Running -> Clearing -> Diagnosing -> Ready | Waiting | Ended
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from humigence_supervise.domain import Incident, Kind
from humigence_supervise.records import Event, Record


@dataclass(frozen=True, slots=True)
class Ready:
    """Nothing of the run is alive; an attempt on the current rung is wanted."""


@dataclass(frozen=True, slots=True)
class Launching:
    """An attempt is planned and journaled; whether it lives is not known yet."""


@dataclass(frozen=True, slots=True)
class Running:
    """An attempt lives, watched through its keeper."""


@dataclass(frozen=True, slots=True)
class Clearing:
    """The attempt is over as a job; its tree is being cleared."""


@dataclass(frozen=True, slots=True)
class Diagnosing:
    """The tree is gone; evidence is being read."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Nothing is alive and nothing is started before `until_s` (Unix time), in `delay_s`."""

    until_s: float
    delay_s: float


@dataclass(frozen=True, slots=True)
class WaitingForSpace:
    """Nothing is alive and nothing is started before `need_mib` are free."""

    need_mib: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The run is over. `event` says how; `exit_code` is what `start` returns."""

    event: Event
    exit_code: int


Phase = Ready | Launching | Running | Clearing | Diagnosing | Waiting | WaitingForSpace | Ended


@dataclass(frozen=True, slots=True)
class State:
    """A phase and the memory of the run.

    `attempt` is the number of the latest attempt, 0 before the first; `first_step` the step it
    resumed at. `checkpoint_step` is the newest checkpoint known to be committed. `micro_samples`
    is a reduced micro-batch, None for the configured one. `stop` is the exit code a requested
    stop ends with, None when none was requested.
    """

    phase: Phase = field(default_factory=Ready)
    run_id: str = ""
    attempt: int = 0
    rung_index: int = 0
    first_step: int = 0
    checkpoint_step: int = 0
    micro_samples: int | None = None
    stop: int | None = None
    progress_at_s: float = 0.0
    incidents: tuple[Incident, ...] = ()


class StateError(ValueError):
    """The journal says something that its lines cannot mean."""


def fold(records: Iterable[Record], state: State | None = None) -> State:
    """Return the state after the records, from the beginning unless a state is given."""
    state = State() if state is None else state
    for record in records:
        state = apply(state, record)
    return state


def apply(state: State, record: Record) -> State:
    """Return the state after one record. Events that only inform change nothing.

    Raises:
        StateError: a fact the fold needs is missing or of the wrong type.
    """
    facts = _Facts(record)
    match record.event:
        case Event.RUN_STARTED:
            return replace(state, phase=Ready(), run_id=facts.text("run_id"))
        case Event.RUN_RESUMED:
            return replace(
                state,
                phase=Ready(),
                stop=None,
                incidents=(),
                rung_index=facts.integer("rung_index"),
                micro_samples=facts.optional_integer("micro_samples"),
            )
        case Event.RUN_STOPPING:
            return replace(state, stop=facts.integer("exit_code"))
        case Event.ATTEMPT_PLANNED:
            step = facts.integer("resume_step")
            return replace(
                state,
                phase=Launching(),
                attempt=facts.attempt(),
                first_step=step,
                progress_at_s=0.0,
                checkpoint_step=step,
            )
        case Event.ATTEMPT_STARTED | Event.ATTEMPT_ADOPTED:
            return replace(state, phase=Running())
        case Event.ATTEMPT_PROGRESS:
            return replace(state, progress_at_s=facts.number("at_s"))
        case Event.CHECKPOINT_COMMITTED:
            return replace(state, checkpoint_step=facts.integer("step"))
        case Event.ATTEMPT_EXITED:
            return replace(state, phase=Clearing())
        case Event.TREE_CLEARED:
            return replace(state, phase=Diagnosing())
        case Event.DECISION_MADE:
            return _decided(state, facts)
        case Event.BACKOFF_STARTED:
            need_mib = facts.optional_integer("need_mib")
            if need_mib is not None:
                return replace(state, phase=WaitingForSpace(need_mib))
            return replace(state, phase=Waiting(facts.number("until_s"), facts.number("delay_s")))
        case Event.BACKOFF_ENDED:
            return replace(state, phase=Ready())
        case Event.RUN_COMPLETED | Event.RUN_STOPPED | Event.RUN_GAVE_UP | Event.RUN_FAILED:
            return replace(state, phase=Ended(record.event, facts.integer("exit_code")))
        case _:
            return state


def _decided(state: State, facts: _Facts) -> State:
    incident = Incident(
        attempt=facts.attempt(),
        rung_index=state.rung_index,
        kind=Kind(facts.text("kind")),
        fingerprint=facts.text("fingerprint"),
        at_s=facts.number("at_s"),
        first_step=facts.integer("first_step"),
        last_step=facts.integer("last_step"),
        checkpoint_step=facts.integer("checkpoint_step"),
    )
    failed = incident.kind is not Kind.HEALTHY
    return replace(
        state,
        phase=Ready(),
        rung_index=facts.integer("rung_index"),
        micro_samples=facts.optional_integer("micro_samples"),
        incidents=(*state.incidents, incident) if failed else state.incidents,
    )


class _Facts:
    """Typed access to a record's facts."""

    def __init__(self, record: Record) -> None:
        self._record = record

    def attempt(self) -> int:
        if self._record.attempt is None:
            raise StateError(f"{self._record.event.value} has no attempt")
        return self._record.attempt

    def integer(self, key: str) -> int:
        value = self._record.facts.get(key)
        if not isinstance(value, int):
            raise self._bad(key, "an integer")
        return value

    def optional_integer(self, key: str) -> int | None:
        return None if self._record.facts.get(key) is None else self.integer(key)

    def number(self, key: str) -> float:
        value = self._record.facts.get(key)
        if not isinstance(value, int | float):
            raise self._bad(key, "a number")
        return float(value)

    def text(self, key: str) -> str:
        value = self._record.facts.get(key)
        if not isinstance(value, str):
            raise self._bad(key, "a string")
        return value

    def _bad(self, key: str, wanted: str) -> StateError:
        return StateError(f"{self._record.event.value}: the fact {key!r} is not {wanted}")
