"""`replay LOG`: what the policy does about a failure that comes back again and again (fs)."""

from __future__ import annotations

from typing import Final

from humigence_supervise import ladder
from humigence_supervise.batching import PlanError, batch_of_rung
from humigence_supervise.config import Settings
from humigence_supervise.decisions import Retry, WaitForMemory, WaitForSpace
from humigence_supervise.diagnose import diagnose
from humigence_supervise.domain import Evidence, Kind, Launcher, Rung
from humigence_supervise.reading import diagnosis_document, read_input
from humigence_supervise.records import Json
from humigence_supervise.replay.courses import Course, course_facts, forecast
from humigence_supervise.replay.source import Chosen

Document = dict[str, Json]

DEFAULT_RUNGS: Final = (
    Rung("multi_gpu", "all", Launcher.TORCHRUN),
    Rung("single_gpu", 1, Launcher.PYTHON),
)
DEFAULT_GPUS: Final = 2

_FOR_ROOM: Final = frozenset((WaitForSpace.__name__, WaitForMemory.__name__))
"""Decisions that wait until there is room, however long that takes."""

_WHENEVER: Final = "it comes back each time"
_ALIKE: Final = "the very same failure comes back, at the same step"
_OTHER: Final = "a failure of this kind comes back, at another place each time"


def log_document(source: str, chosen: Chosen) -> Document:
    """Return the diagnosis of a log, and the decisions about it until the run would end.

    There are two sequences where it matters whether the failure is the very same one each time.

    Raises:
        UnreadableError: it cannot be read.
    """
    evidence = read_input(source, None)
    diagnosis = diagnose(evidence)
    settings = chosen.settings
    rungs = DEFAULT_RUNGS if settings is None else ladder.rungs(settings)
    ranks = evidence.world_size or DEFAULT_GPUS
    micro = _micro_samples(settings, rungs[0].name, ranks)
    first_step, last_step, how = _steps(evidence, diagnosis.kind)
    assumed = ["No attempt gets further than the first one, and there is no new checkpoint.", how]
    if settings is None:
        assumed.append("The ladder is the default one (--config names another).")
    if micro is None and diagnosis.kind is Kind.CUDA_OOM:
        assumed.append("No batch is known, so the micro-batch cannot shrink (--config names one).")
    if diagnosis.kind is Kind.GPU_FAULT:
        assumed.append(f"There are {ranks} GPUs, and another one fails each time.")
    if diagnosis.kind is Kind.DISK_FULL:
        assumed.append("The disk of the checkpoints is full each time.")
    alike, other = (
        forecast(
            diagnosis,
            rungs,
            chosen.policy,
            micro_samples=micro,
            steps=(first_step, last_step),
            gpus=ranks,
            alike=alike,
        )
        for alike in (True, False)
    )
    sequences: dict[str | None, tuple[Course, ...]] = {_ALIKE: alike, _OTHER: other}
    if len(alike) == len(other) and all(map(Course.leads_where, alike, other)):
        sequences = {_WHENEVER: other}
    if diagnosis.kind is Kind.HEALTHY:
        sequences, assumed = {None: other}, []
    return {
        "input": source,
        "what": "log",
        "diagnosis": diagnosis_document(source, diagnosis),
        "policy": chosen.says,
        "ladder": [rung.name for rung in rungs],
        "assumed": [one for one in assumed if one],
        "sequences": [
            _sequence(given, courses, rungs, diagnosis.kind) for given, courses in sequences.items()
        ],
    }


def _sequence(
    given: str | None, courses: tuple[Course, ...], rungs: tuple[Rung, ...], kind: Kind
) -> Document:
    return {
        "if": given,
        "decisions": [
            {"number": number, **course_facts(one, rungs), "delay_s": round(one.delay_s, 3)}
            for number, one in enumerate(courses, start=1)
        ],
        "exit_code": courses[-1].exit_code,
        "summary": _end(courses, kind),
    }


def _steps(evidence: Evidence, kind: Kind) -> tuple[int, int, str]:
    """Return completed steps at the attempt's start and end, and what had to be assumed."""
    how = ""
    first, last = evidence.first_step, evidence.last_step
    if first is None:
        first = 0
        if kind is Kind.CHECKPOINT_CORRUPT:
            first, how = 1, "It was resumed from a checkpoint, of step 1 for want of its number."
    if last is None:
        last = first + 1 if evidence.progress_seen else first
        done = "some steps (counted as one)" if evidence.progress_seen else "no step"
        how = how or f"The attempt did {done} before it failed."
    return first, last, how


def _micro_samples(settings: Settings | None, rung: str, ranks: int) -> int | None:
    if settings is None:
        return None
    try:
        batch = batch_of_rung(settings, rung, ranks, ranks, None)
    except PlanError:
        return settings.batch.micro_samples
    return None if batch is None else batch.micro_samples


def _end(courses: tuple[Course, ...], kind: Kind) -> str:
    last, count = courses[-1], len(courses)
    if kind is Kind.HEALTHY:
        return "Nothing in it shows a failure, so there is nothing to decide."
    if last.exit_code is None:
        return f"After {count} decisions the run would still go on."
    waited_s = sum(one.delay_s for one in courses if one.decision == Retry.__name__)
    waiting = f" and {waited_s:.0f} s of waiting" if waited_s else ""
    if any(one.decision in _FOR_ROOM for one in courses):
        waiting += " and waiting for room"
    attempts = "1 failed attempt" if count == 1 else f"{count} failed attempts"
    return f"The run would end with exit code {last.exit_code} after {attempts}{waiting}."
