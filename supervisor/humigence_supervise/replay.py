"""`replay`: what the present policy would have decided, beside what happened. Writes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from humigence_supervise import ladder
from humigence_supervise.batching import PlanError, batch_of_rung
from humigence_supervise.config import Settings
from humigence_supervise.courses import Course, forecast
from humigence_supervise.decisions import Retry, WaitForMemory, WaitForSpace
from humigence_supervise.diagnose import diagnose
from humigence_supervise.domain import Evidence, Kind, Launcher, Rung
from humigence_supervise.journal import read_journal
from humigence_supervise.reading import diagnosis_document, read_input
from humigence_supervise.records import Entry, Event, Json
from humigence_supervise.rejudge import Judged, Unprompted, rejudge, rungs_of
from humigence_supervise.replay_source import Chosen, find_journal
from humigence_supervise.reread import Reread, reread

Document = dict[str, Json]

DEFAULT_RUNGS = (
    Rung("multi_gpu", "all", Launcher.TORCHRUN),
    Rung("single_gpu", 1, Launcher.PYTHON),
)
DEFAULT_GPUS = 2

_FOR_ROOM = frozenset((WaitForSpace.__name__, WaitForMemory.__name__))
"""Decisions that wait until there is room, however long that takes."""


def replay_document(source: str, cwd: Path, config: Path | None, *, rediagnose: bool) -> Document:
    """Return what the policy decides about `source`: a journal, a run, a log, or "-".

    The policy is that of `config`, else of the config the run was started with while that can be
    read, else the default one; the document says which. `rediagnose` reads the attempts' evidence
    again in the place of the journaled diagnoses.

    Raises:
        ConfigError: `config` cannot be used.
        JournalError, StateError: the journal is damaged, or of a newer version.
        UnreadableError, RunNotFoundError: there is nothing to read under this name.
        OSError: the journal cannot be read.
    """
    journal = find_journal(source, cwd)
    if journal is None:
        chosen = Chosen.of(config)
        return _log_document(source, chosen)
    entries = read_journal(journal)
    chosen = Chosen.of(config, entries)
    return _journal_document(source, journal, entries, chosen, rediagnose=rediagnose)


# --- a journal -----------------------------------------------------------------------------------


def _journal_document(
    source: str, journal: Path, entries: tuple[Entry, ...], chosen: Chosen, *, rediagnose: bool
) -> Document:
    read = reread(journal.parent, entries) if rediagnose else Reread()
    judged, unprompted = rejudge(entries, chosen.policy, read.diagnoses)
    rungs = rungs_of(entries)
    same = sum(1 for one in judged if one.same)
    history = "Each decision is judged on what really happened before it."
    if rediagnose:
        history += " Its causes are those found now, where the evidence could be read again."
    return {
        "input": source,
        "what": "journal",
        "journal": str(journal),
        "run": entries[0].run if entries else None,
        "policy": chosen.says,
        "ladder": [rung.name for rung in rungs],
        "ladder_known": any(
            entry.record.event is Event.RUN_STARTED and "ladder" in entry.record.facts
            for entry in entries
        ),
        "history": history,
        "rediagnosed": rediagnose,
        "decisions": [
            _row(number, one, rungs, read.not_read) for number, one in enumerate(judged, start=1)
        ],
        "not_judged": [_unprompted(one) for one in unprompted],
        "same": same,
        "of": len(judged),
        "summary": _summary(entries, judged, same),
    }


def _row(
    number: int, one: Judged, rungs: tuple[Rung, ...], not_read: Mapping[int, str]
) -> Document:
    return {
        "incident": number,
        "attempt": one.attempt,
        "rung": rungs[one.rung_index].name,
        "step": one.step,
        "kind": one.kind.value,
        "new_kind": None if one.new_kind is None else one.new_kind.value,
        "not_rediagnosed": not_read.get(one.attempt),
        "happened": _course(one.happened, rungs),
        "now": _course(one.now, rungs),
        "same": one.same,
        "unknown": [*sorted(one.unknown)],
    }


def _course(course: Course, rungs: tuple[Rung, ...]) -> Document:
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


def _unprompted(one: Unprompted) -> Document:
    return {"attempt": one.attempt, "decision": one.decision, "reason": one.reason}


def _summary(entries: tuple[Entry, ...], judged: tuple[Judged, ...], same: int) -> str:
    if not entries:
        return "Nothing is journaled yet."
    if not judged:
        return "No attempt failed: there is no decision to compare."
    are = "decision is" if len(judged) == 1 else "decisions are"
    said = f"{same} of {len(judged)} {are} the same."
    first = next((number for number, one in enumerate(judged, start=1) if not one.same), None)
    if first is None or first == len(judged):
        return said
    return (
        f"{said} From incident {first} on the run would have gone another way; what came after it"
        " is judged as it happened."
    )


# --- a log ---------------------------------------------------------------------------------------


def _log_document(source: str, chosen: Chosen) -> Document:
    evidence = read_input(source, None)
    diagnosis = diagnose(evidence)
    settings = chosen.settings
    rungs = DEFAULT_RUNGS if settings is None else ladder.rungs(settings)
    ranks = evidence.world_size or DEFAULT_GPUS
    micro = _micro_samples(settings, rungs[0].name, ranks)
    first_step, last_step, how = _steps(evidence, diagnosis.kind)
    assumed = ["The failure comes back each time, at the same step, without a new checkpoint.", how]
    if settings is None:
        assumed.append("The ladder is the default one (--config names another).")
    if micro is None and diagnosis.kind is Kind.CUDA_OOM:
        assumed.append("No batch is known, so the micro-batch cannot shrink (--config names one).")
    if diagnosis.kind is Kind.GPU_FAULT:
        assumed.append(f"There are {ranks} GPUs, and another one fails each time.")
    courses = forecast(
        diagnosis,
        rungs,
        chosen.policy,
        micro_samples=micro,
        steps=(first_step, last_step),
        gpus=ranks,
    )
    code = courses[-1].exit_code
    return {
        "input": source,
        "what": "log",
        "diagnosis": diagnosis_document(source, diagnosis),
        "policy": chosen.says,
        "ladder": [rung.name for rung in rungs],
        "assumed": [one for one in assumed if one],
        "decisions": [
            {"number": number, **_course(one, rungs), "delay_s": round(one.delay_s, 3)}
            for number, one in enumerate(courses, start=1)
        ],
        "ended": code is not None,
        "exit_code": code,
        "summary": _end(courses, diagnosis.kind),
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
        return "Nothing failed: the run would be complete."
    if last.exit_code is None:
        return f"After {count} decisions the run would still go on."
    waited_s = sum(one.delay_s for one in courses if one.decision == Retry.__name__)
    room = any(one.decision in _FOR_ROOM for one in courses)
    besides = ", besides the waits for room" if room else ""
    return (
        f"The run would end with exit code {last.exit_code} after {count} failed"
        f" attempt{'s' * (count > 1)} and {waited_s:.0f} s of waiting{besides}."
    )
