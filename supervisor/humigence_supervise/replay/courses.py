"""Where a decision leads, and what a failure leads to that comes back. Pure.

Everything goes through `aftermath.judge`, the code that decides in a living run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from humigence_supervise.actions import Append
from humigence_supervise.aftermath import judge
from humigence_supervise.budgets import Policy
from humigence_supervise.domain import Diagnosis, Kind, Rung
from humigence_supervise.happenings import Context, Diagnosed
from humigence_supervise.history import text
from humigence_supervise.phases import Diagnosing, Ended, Waiting, WaitingForRoom
from humigence_supervise.records import Json, Record
from humigence_supervise.state import State, fold
from humigence_supervise.way_up import Promoting

CHANCE: Final = 0.5
"""The draw of the jitter: in the middle, so that a delay is the configured one."""

MOST_DECISIONS: Final = 100
"""After so many a failure that comes back is not followed any further."""


@dataclass(frozen=True, slots=True)
class Course:
    """A decision and where the run stands after it.

    `micro_samples` is None for the configured micro-batch. `exit_code` is what `start` returns,
    None where the run goes on or nothing tells. `delay_s` is how long nothing is started.
    """

    decision: str
    reason: str
    why_not: str
    unless: str
    rung_index: int
    micro_samples: int | None
    defragment: bool
    exit_code: int | None = None
    delay_s: float = 0.0

    def leads_where(self, other: Course) -> bool:
        """Say whether both lead to the same next attempt, or the same end; delays are no matter."""
        codes = (self.exit_code, other.exit_code)
        return _target(self) == _target(other) and (None in codes or codes[0] == codes[1])


def forecast(
    diagnosis: Diagnosis,
    rungs: tuple[Rung, ...],
    policy: Policy,
    *,
    micro_samples: int | None,
    steps: tuple[int, int],
    gpus: int,
    alike: bool,
) -> tuple[Course, ...]:
    """Return what is decided when a failure comes back without progress, until the run ends.

    `steps` are the completed steps at the attempt's start and end. `alike`: it is the very same
    failure each time, else one of its kind at another place. Of `gpus` GPUs another one fails
    each time, and a disk that is full stays full.
    """
    first_step, last_step = steps
    state = State(phase=Diagnosing(), attempt=1, first_step=first_step, checkpoint_step=first_step)
    box = (diagnosis.gpu or _gpu(0), *(_gpu(number) for number in range(1, gpus)))
    now_s, courses = 0.0, list[Course]()
    while len(courses) < MOST_DECISIONS:
        found = _once_more(diagnosis, len(courses), alike=alike)
        seen = Diagnosed(found, last_step, first_step, need_mib=1, free_mib=0, gpus=box)
        context = context_of(rungs, policy, micro_samples, now_s)
        course, after = decide_again(state, seen, context)
        courses.append(course)
        if isinstance(after.phase, Ended):
            break
        now_s += course.delay_s
        state = replace(after, phase=Diagnosing(), attempt=state.attempt + 1)
    return tuple(courses)


def _once_more(diagnosis: Diagnosis, times: int, *, alike: bool) -> Diagnosis:
    """Return the diagnosis of a failure that came back so many times."""
    if not alike:
        diagnosis = replace(diagnosis, fingerprint=f"{diagnosis.fingerprint} {times}")
    if times and diagnosis.kind is Kind.GPU_FAULT and diagnosis.gpu:
        diagnosis = replace(diagnosis, gpu=_gpu(times))
    return diagnosis


def _gpu(number: int) -> str:
    return f"number {number + 1}"


def context_of(
    rungs: tuple[Rung, ...], policy: Policy, micro_samples: int | None, now_s: float
) -> Context:
    """Return what `judge` may know; nothing in it goes back up a ladder."""
    return Context(
        rungs=rungs,
        policy=policy,
        promoting=Promoting(enabled=False),
        micro_samples=micro_samples,
        counts_from_scratch=True,
        now_s=now_s,
        chance=CHANCE,
    )


def decide_again(state: State, seen: Diagnosed, context: Context) -> tuple[Course, State]:
    """Return what is decided, and the state after it and what follows from it."""
    records = [one.record for one in judge(state, seen, context) if isinstance(one, Append)]
    decided = records[0]
    after = fold(records, state)
    code, delay_s = None, 0.0
    match after.phase:
        case Ended(exit_code=exit_code):
            code = exit_code
        case Waiting(delay_s=waits_s):
            delay_s = waits_s
        case WaitingForRoom(until_s=float(until_s)):
            delay_s = until_s - context.now_s
        case _:
            pass
    return replace(course_of(decided, fold((decided,), state), code), delay_s=delay_s), after


def course_of(decided: Record, after: State, exit_code: int | None) -> Course:
    """Return a journaled decision; `after` is the state that it led to."""
    return Course(
        decision=text(decided, "decision"),
        reason=text(decided, "reason"),
        why_not=text(decided, "why_not"),
        unless=text(decided, "unless"),
        rung_index=after.rung_index,
        micro_samples=after.micro_samples,
        defragment=after.defragment,
        exit_code=exit_code,
    )


def _target(course: Course) -> tuple[str, int, int | None, bool]:
    return (course.decision, course.rung_index, course.micro_samples, course.defragment)


def course_facts(course: Course, rungs: tuple[Rung, ...]) -> dict[str, Json]:
    """Return a decision as a document says it; `rung` is the one the run goes on with."""
    return {
        "decision": course.decision,
        "rung": rungs[course.rung_index].name,
        "micro_samples": course.micro_samples,
        "defragment": course.defragment,
        "exit_code": course.exit_code,
        "reason": course.reason,
        "why_not": course.why_not or None,
        "unless": course.unless or None,
    }
