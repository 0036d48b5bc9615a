"""`replay`: what the present policy would have decided, beside what happened. Writes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from humigence_supervise.domain import Rung
from humigence_supervise.journal import read_journal
from humigence_supervise.records import Entry, Event, Json
from humigence_supervise.replay.courses import course_facts
from humigence_supervise.replay.log import log_document
from humigence_supervise.replay.rejudge import Judged, Unprompted, rejudge, rungs_of
from humigence_supervise.replay.reread import Reread, reread
from humigence_supervise.replay.source import Chosen, find_journal

Document = dict[str, Json]


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
        return log_document(source, Chosen.of(config))
    entries = read_journal(journal)
    chosen = Chosen.of(config, entries)
    return _journal_document(source, journal, entries, chosen, rediagnose=rediagnose)


def _journal_document(
    source: str, journal: Path, entries: tuple[Entry, ...], chosen: Chosen, *, rediagnose: bool
) -> Document:
    read = reread(journal.parent, entries) if rediagnose else Reread()
    judged, unprompted = rejudge(entries, chosen.policy, read.diagnoses)
    rungs = rungs_of(entries)
    same = sum(1 for one in judged if one.same)
    history = "Each decision is judged on what really happened before it."
    if rediagnose:
        history += " Its own cause is the one found now, where the evidence could be read again."
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
        "happened": course_facts(one.happened, rungs),
        "now": course_facts(one.now, rungs),
        "same": one.same,
        "unknown": [*sorted(one.unknown)],
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
