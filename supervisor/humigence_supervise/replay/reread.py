"""The evidence of a run's failed attempts, read again by the present reader (fs)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from humigence_supervise import contract
from humigence_supervise.diagnose import diagnose
from humigence_supervise.domain import (
    Accelerator,
    Beginning,
    Diagnosis,
    Evidence,
    ExitStatus,
    Kind,
    RankExit,
)
from humigence_supervise.history import attempt_stories, integer
from humigence_supervise.reading import UnreadableError, read_input
from humigence_supervise.records import Entry, Event, Record
from humigence_supervise.resume_echo import resumed_wrongly
from humigence_supervise.small_json import read_small_object


@dataclass(frozen=True, slots=True)
class Reread:
    """New diagnoses by attempt; `not_read` says why there is none of the others."""

    diagnoses: Mapping[int, Diagnosis] = field(default_factory=dict)
    not_read: Mapping[int, str] = field(default_factory=dict)


def reread(run_dir: Path, entries: tuple[Entry, ...]) -> Reread:
    """Diagnose every failed attempt of a journal anew, from its folder below `run_dir`."""
    diagnoses: dict[int, Diagnosis] = {}
    not_read: dict[int, str] = {}
    for story in attempt_stories(entries):
        if not story.failed:
            continue
        name = contract.attempt_name(story.number)
        folder = run_dir / contract.ATTEMPTS_DIR / name
        try:
            evidence = read_input(str(folder), None)
        except UnreadableError as error:
            not_read[story.number] = f"{error} The journaled diagnosis stands."
            continue
        found = diagnose(_as_seen(evidence, folder, story.number, entries))
        if found.kind is Kind.HEALTHY:
            not_read[story.number] = (
                "What is left of the attempt shows no failure. The journaled diagnosis stands."
            )
            continue
        diagnoses[story.number] = found
    return Reread(diagnoses, not_read)


def _as_seen(
    evidence: Evidence, folder: Path, attempt: int, entries: tuple[Entry, ...]
) -> Evidence:
    """Add what the supervisor saw itself; it stands in the journal and in no log."""
    exit_record = read_small_object(folder / contract.EXIT_FILE) or {}
    not_started = exit_record.get("error")
    if isinstance(not_started, str):
        evidence = replace(evidence, not_started=not_started)
    began = entries[0].record.facts.get("accelerator")
    if began in {one.value for one in Accelerator}:
        evidence = replace(evidence, accelerator=Accelerator(str(began)))
    for record in _of(attempt, entries):
        match record.event:
            case Event.ATTEMPT_EXITED:
                evidence = _with_exit(evidence, record)
            case Event.HANG_SUSPECTED:
                evidence = replace(evidence, hang_suspected=True)
            case Event.RESUME_MISMATCH:
                promised, step = integer(record, "promised_step"), integer(record, "began_step")
                if promised is not None and step is not None:
                    wrongly = resumed_wrongly(promised, Beginning(step, step))
                    evidence = replace(evidence, resumed_wrongly=wrongly)
            case Event.DECISION_MADE:
                first, last = integer(record, "first_step"), integer(record, "last_step")
                evidence = replace(evidence, first_step=first, last_step=last)
            case _:
                pass
    return evidence


def _with_exit(evidence: Evidence, record: Record) -> Evidence:
    """Add the rank that was seen to die first, where one was."""
    rank, pid = integer(record, "rank"), integer(record, "pid")
    if rank is None or evidence.first_dead is not None:
        return evidence
    status = ExitStatus(integer(record, "code"), integer(record, "signal"))
    ranks = evidence.ranks
    if rank not in {one.rank for one in ranks}:
        ranks = (*ranks, RankExit(rank, pid or 0, status))
    return replace(evidence, first_dead=rank, ranks=ranks)


def _of(attempt: int, entries: tuple[Entry, ...]) -> Iterator[Record]:
    return (entry.record for entry in entries if entry.record.attempt == attempt)
