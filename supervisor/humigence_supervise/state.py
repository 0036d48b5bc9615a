"""What is known of a run: a phase and a memory, both the fold of its journal. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from humigence_supervise.decisions import Incident, Stranger
from humigence_supervise.domain import Holder, Kind
from humigence_supervise.facts import FactError, Facts
from humigence_supervise.phases import (
    Clearing,
    Diagnosing,
    Ended,
    Launching,
    Phase,
    Probing,
    Ready,
    Running,
    Waiting,
    WaitingForRoom,
    Want,
)
from humigence_supervise.records import Event, Record


@dataclass(frozen=True, slots=True)
class Leaving:
    """Why a healthy attempt is ended: for a higher rung, or for larger micro-batches there."""

    rung_index: int | None = None
    micro_samples: int | None = None


@dataclass(frozen=True, slots=True)
class Pace:
    """Two thinned progress lines of one attempt: its first and its newest. Steps are completed."""

    first_at_s: float
    first_step: int
    at_s: float
    step: int

    def step_s(self) -> float | None:
        """Return seconds a step, None before two of them are known."""
        steps = self.step - self.first_step
        return (self.at_s - self.first_at_s) / steps if steps > 0 else None


@dataclass(frozen=True, slots=True)
class Promotion:
    """One try to go back up to a rung; `passed` says what its probe found, if it was `probed`."""

    rung_index: int
    at_s: float
    passed: bool
    probed: bool = True


@dataclass(frozen=True, slots=True)
class State:
    """A phase and the memory of the run.

    `attempt` is the number of the latest attempt, 0 before the first; `first_step` the step it
    resumed at, `resumed` whether from a checkpoint. `checkpoint_step` is the newest checkpoint
    known to be committed. `micro_samples` is a reduced micro-batch, None for the configured one;
    `larger_micro` what it was before it was last reduced, `grown` whether that was tried again
    since, `fits_micro` what fitted before that try. `stop` is the exit code a requested stop ends
    with, None when none was requested. `rung_since_s` is since when it is on its rung, None from
    the start of the run. `pace` and `target_step` are what the attempt's progress tells.
    `quiet_checkpoints` were committed since the last incident; `unprepared` counts the times in a
    row that no attempt could be prepared. Of the next attempt: from `bad_step` on it must use no
    checkpoint, `stranger` has to leave its GPU first. `excluded_gpus` must not be used, whatever
    they are called: UUID, index or PCI bus id.
    """

    phase: Phase = field(default_factory=Ready)
    run_id: str = ""
    attempt: int = 0
    rung_index: int = 0
    first_step: int = 0
    resumed: bool = False
    checkpoint_step: int = 0
    micro_samples: int | None = None
    larger_micro: int | None = None
    grown: bool = False
    fits_micro: int | None = None
    defragment: bool = False
    stop: int | None = None
    leaving: Leaving | None = None
    rung_since_s: float | None = None
    pace: Pace | None = None
    target_step: int | None = None
    quiet_checkpoints: int = 0
    unprepared: int = 0
    bad_step: int | None = None
    stranger: Stranger | None = None
    excluded_gpus: tuple[str, ...] = ()
    incidents: tuple[Incident, ...] = ()
    promotions: tuple[Promotion, ...] = ()

    @property
    def asked_to_end(self) -> bool:
        """True once the attempt is to end gracefully: for a stop, or to go on better."""
        return self.stop is not None or self.leaving is not None


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
    try:
        return _apply(state, record, Facts(record))
    except FactError as error:
        raise StateError(str(error)) from error


def _apply(state: State, record: Record, facts: Facts) -> State:
    match record.event:
        case Event.RUN_STARTED:
            return replace(state, phase=Ready(), run_id=facts.text("run_id"))
        case Event.RUN_RESUMED:
            return _resumed(state, facts)
        case Event.GPU_READMITTED:
            return replace(state, excluded_gpus=facts.texts("excluded_gpus") or ())
        case Event.RUN_STOPPING:
            return replace(state, stop=facts.integer("exit_code"))
        case Event.DECISION_MADE:
            return _decided(state, facts)
        case Event.BACKOFF_STARTED:
            return _waits(state, facts)
        case Event.BACKOFF_ENDED:
            return replace(state, phase=Ready())
        case Event.PROMOTION_STARTED:
            index, until_s = facts.integer("rung_index"), facts.number("until_s")
            phase = Probing(index, until_s, facts.number("limit_s"))
            return replace(state, phase=phase, attempt=facts.attempt(), leaving=None)
        case Event.PROMOTION_TRIED:
            return _tried(state, facts)
        case Event.RUN_COMPLETED | Event.RUN_STOPPED | Event.RUN_GAVE_UP | Event.RUN_FAILED:
            return replace(state, phase=Ended(record.event, facts.integer("exit_code")))
        case _:
            return _attempted(state, record, facts)


def _attempted(state: State, record: Record, facts: Facts) -> State:
    """Return the state after a record about the attempt that is under way."""
    match record.event:
        case Event.ATTEMPT_PLANNED:
            return _planned(state, facts)
        case Event.ATTEMPT_STARTED | Event.ATTEMPT_ADOPTED:
            return replace(state, phase=Running())
        case Event.ATTEMPT_PROGRESS:
            return _progressed(state, facts)
        case Event.CHECKPOINT_COMMITTED:
            quiet = state.quiet_checkpoints + 1
            return replace(state, checkpoint_step=facts.integer("step"), quiet_checkpoints=quiet)
        case Event.ATTEMPT_LEAVING:
            higher = facts.optional_integer("to_rung_index")
            leaving = Leaving(higher, facts.optional_integer("to_micro_samples"))
            return replace(state, leaving=leaving)
        case Event.ATTEMPT_EXITED:
            return replace(state, phase=Clearing())
        case Event.TREE_CLEARED:
            return replace(state, phase=Diagnosing())
        case _:
            return state


def _progressed(state: State, facts: Facts) -> State:
    at_s, step = facts.number("at_s"), facts.integer("step")
    first = state.pace or Pace(at_s, step, at_s, step)
    pace = Pace(first.first_at_s, first.first_step, at_s, step)
    return replace(state, pace=pace, target_step=facts.optional_integer("target_step"))


def _tried(state: State, facts: Facts) -> State:
    tried = Promotion(
        facts.integer("rung_index"),
        facts.number("at_s"),
        facts.boolean("passed"),
        facts.optional_boolean("probed") is not False,
    )
    phase = Ready() if isinstance(state.phase, Probing) else state.phase
    return replace(state, phase=phase, promotions=(*state.promotions, tried))


def _resumed(state: State, facts: Facts) -> State:
    """Begin the budgets anew; which GPUs are bad does not change by starting again."""
    micro = facts.optional_integer("micro_samples")
    return replace(
        state,
        phase=Ready(),
        stop=None,
        leaving=None,
        incidents=(),
        promotions=(),
        unprepared=0,
        quiet_checkpoints=0,
        rung_since_s=facts.optional_number("at_s"),
        rung_index=facts.integer("rung_index"),
        micro_samples=micro,
        larger_micro=None if micro is None else state.larger_micro,
        grown=micro is not None and state.grown,
        fits_micro=None if micro is None else state.fits_micro,
    )


def _planned(state: State, facts: Facts) -> State:
    step = facts.integer("resume_step")
    return replace(
        state,
        phase=Launching(),
        attempt=facts.attempt(),
        first_step=step,
        resumed=facts.optional_text("resume_from") is not None,
        pace=None,
        checkpoint_step=step,
        leaving=None,
        unprepared=0,
        bad_step=None,
        stranger=None,
    )


def _waits(state: State, facts: Facts) -> State:
    unprepared = facts.optional_integer("unprepared") or 0
    state = replace(state, unprepared=unprepared)
    want = facts.optional_member("want", Want)
    need_mib = facts.optional_integer("need_mib")
    if want is None and need_mib is None:
        return replace(state, phase=Waiting(facts.number("until_s"), facts.number("delay_s")))
    gpu, pid = facts.optional_text("gpu"), facts.optional_integer("pid")
    if gpu is not None or pid is not None:
        stranger = Stranger(gpu or "", pid, facts.optional_integer("held_mib"))
        state = replace(state, stranger=stranger)
    room = WaitingForRoom(
        want or Want.DISK,
        need_mib or 0,
        facts.optional_number("until_s"),
        facts.optional_number("delay_s") or 0.0,
    )
    return replace(state, phase=room)


def _decided(state: State, facts: Facts) -> State:
    incident = Incident(
        attempt=state.attempt,
        rung_index=state.rung_index,
        kind=facts.member("kind", Kind),
        fingerprint=facts.text("fingerprint"),
        at_s=facts.number("at_s"),
        first_step=facts.integer("first_step"),
        last_step=facts.integer("last_step"),
        checkpoint_step=facts.integer("checkpoint_step"),
        gpu=facts.optional_text("gpu") or "",
        holder=facts.optional_member("holder", Holder),
    )
    failed = incident.kind is not Kind.HEALTHY
    before, micro = state.micro_samples, facts.optional_integer("micro_samples")
    rung_index = facts.integer("rung_index")
    excluded = facts.texts("excluded_gpus")
    state = replace(
        state,
        phase=Ready(),
        leaving=None,
        rung_index=rung_index,
        rung_since_s=state.rung_since_s if rung_index == state.rung_index else incident.at_s,
        micro_samples=micro,
        bad_step=facts.optional_integer("bad_step"),
        defragment=facts.optional_boolean("defragment") or state.defragment,
        excluded_gpus=state.excluded_gpus if excluded is None else excluded,
    )
    if failed:
        state = replace(state, incidents=(*state.incidents, incident), quiet_checkpoints=0)
    if micro != before and failed:
        larger = facts.optional_integer("larger_micro")
        return replace(state, larger_micro=larger, fits_micro=None)
    return state if micro == before else replace(state, grown=True, fits_micro=before)
