"""`explain`: one incident of a run: its cause, the evidence, the decision, the loss, the advice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from humigence_supervise import contract
from humigence_supervise.domain import Section
from humigence_supervise.history import AttemptStory, attempt_stories, integer, items, text
from humigence_supervise.journal import read_journal
from humigence_supervise.printable import for_people
from humigence_supervise.records import Entry, Event, Json
from humigence_supervise.steps import steps_of
from humigence_supervise.surroundings import lines_around, marked

Document = dict[str, Json]


class NoIncidentError(ValueError):
    """There is no such incident; the message says what there is."""


def explain_document(run_dir: Path, incident: int | None = None) -> Document:
    """Return all that is known of an incident, counted from 1; the newest one by default.

    `lost.redone_steps` are those the next attempt does again (or would, while there is none);
    `lost.seconds_to_new_step` runs from `lost.since`, when the last step before the failure was
    done (or, without one, when the attempt ended), to the first step never done before. It is
    None while there was none.

    Raises:
        NoIncidentError: nothing failed, or there is no incident of this number.
        JournalError: the journal is damaged.
        OSError: a file of the run cannot be read.
    """
    entries = read_journal(run_dir / contract.JOURNAL_FILE)
    stories = attempt_stories(entries)
    failed = [story for story in stories if story.failed]
    number = len(failed) if incident is None else incident
    if not 1 <= number <= len(failed):
        raise NoIncidentError(_what_there_is(entries, failed, incident))
    story = failed[number - 1]
    later = [one for one in stories if one.number > story.number]
    return {
        "run": entries[0].run,
        "run_dir": str(run_dir),
        "incident": number,
        "incidents": len(failed),
        "attempt": story.number,
        "rung": story.rung,
        "world_size": story.world_size,
        "at": _iso(story.decided_s),
        "ended": story.how,
        "kind": text(story.decision, "kind"),
        "confidence": text(story.diagnosis, "confidence") or None,
        "cause": text(story.diagnosis, "reason") or None,
        "rank": integer(story.diagnosis, "rank"),
        "gpu": text(story.diagnosis, "gpu") or None,
        "root": _root(run_dir, story),
        "symptoms": [hit for hit in items(story.diagnosis, "symptoms") if isinstance(hit, dict)],
        "context": items(story.diagnosis, "context"),
        "unread": items(story.diagnosis, "unread"),
        "decision": text(story.decision, "decision"),
        "reason": text(story.decision, "reason"),
        "why_not": text(story.decision, "why_not") or None,
        "unless": text(story.decision, "unless") or None,
        "rung_change": story.rung_change or None,
        "next_attempt": _next(later),
        "run_ended": _run_ended(entries, story, later),
        "lost": _lost(run_dir, entries, story, stories),
        "advice": text(story.diagnosis, "advice") or None,
    }


def explain_text(document: Document) -> str:
    """Return the document in a few lines for people."""
    rows: list[tuple[str, str]] = [
        ("incident", _headline(document)),
        ("cause", _cause_line(document)),
        *_evidence_rows(document),
        ("ended", str(document["ended"])),
        *_symptom_rows(document),
        ("gpu", str(document["gpu"] or "")),
        *(("also", str(one)) for one in _list(document["context"])),
        *(("not read", str(one)) for one in _list(document["unread"])),
        ("decision", f"{document['decision']}: {document['reason']}"),
        ("", str(document["why_not"] or "")),
        ("unless", str(document["unless"] or "")),
        ("", str(document["rung_change"] or "")),
        ("then", str(document["run_ended"] or _next_line(document))),
        ("lost", _lost_line(document)),
        ("what to do", str(document["advice"] or "")),
    ]
    return "\n".join(f"{name:<12}{for_people(value)}" for name, value in rows if value)


# --- the document ------------------------------------------------------------------------------


def _what_there_is(
    entries: tuple[Entry, ...], failed: list[AttemptStory], incident: int | None
) -> str:
    if not entries:
        return "This run has no incident: nothing is journaled yet."
    run = entries[0].run
    if not failed:
        return f"The run {run} has no incident: no attempt failed. {entries[-1].record.message}"
    listed = ", ".join(
        f"{number} (attempt {story.number}, {text(story.decision, 'kind')})"
        for number, story in enumerate(failed, start=1)
    )
    return f"The run {run} has no incident {incident}. There are: {listed}."


def _root(run_dir: Path, story: AttemptStory) -> Json:
    """Return the line that shows the cause, its file's path and what stands around it there."""
    root = story.diagnosis.facts.get("root") if story.diagnosis is not None else None
    if not isinstance(root, dict):
        return None
    folder = run_dir / contract.ATTEMPTS_DIR / contract.attempt_name(story.number)
    path = folder / str(root.get("file"))
    line = root.get("line")
    proof = str(root.get("text"))
    around = lines_around(path, line, proof) if isinstance(line, int) else []
    return {**root, "path": str(path), "around": around}


def _run_ended(
    entries: tuple[Entry, ...], story: AttemptStory, later: list[AttemptStory]
) -> str | None:
    """Return why no attempt followed though the decision was to go on; None where one did."""
    last = entries[-1].record
    over = last.event in {Event.RUN_FAILED, Event.RUN_GAVE_UP, Event.RUN_STOPPED}
    if later or not over or text(story.decision, "decision") == "Stop":
        return None
    return last.message


def _next(later: list[AttemptStory]) -> Json:
    if not later:
        return None
    following = later[0]
    return {
        "attempt": following.number,
        "rung": following.rung,
        "resume_step": following.resume_step,
        "resume_from": following.resume_from,
    }


def _lost(
    run_dir: Path,
    entries: tuple[Entry, ...],
    story: AttemptStory,
    stories: tuple[AttemptStory, ...],
) -> Document:
    last_step = story.last_step or 0
    later = [one for one in stories if one.number > story.number]
    resume_step = integer(story.decision, "checkpoint_step") or 0
    if later:
        resume_step = later[0].resume_step
    own = _train_times(run_dir, [story], entries)
    since_s = max((at_s for _, at_s in own), default=story.exited_s or story.begun_s)
    reached = max((one.last_step or 0) for one in stories if one.number <= story.number)
    steps = _train_times(run_dir, later, entries)
    new_s = next((at_s for step, at_s in steps if step > reached), None)
    return {
        "last_step": last_step,
        "resume_step": resume_step,
        "redone_steps": max(0, last_step - resume_step),
        "since": _iso(since_s),
        "seconds_to_new_step": None if new_s is None else round(max(0.0, new_s - since_s), 3),
    }


def _train_times(
    run_dir: Path, stories: Iterable[AttemptStory], entries: tuple[Entry, ...]
) -> Iterator[tuple[int, float]]:
    """Yield (step, Unix time) of the steps that the attempts completed."""
    for story in stories:
        for line in steps_of(run_dir, story.number, entries):
            if line.section is Section.TRAIN:
                yield line.step, line.at_s


def _iso(unix_s: float | None) -> str | None:
    """Return a time as the journal writes it; None for one that no calendar has."""
    try:
        when = datetime.fromtimestamp(unix_s, UTC) if unix_s is not None else None
    except (OverflowError, ValueError, OSError):
        return None
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z") if when else None


# --- the text ----------------------------------------------------------------------------------


def _headline(document: Document) -> str:
    ranks = f" ({document['world_size']} ranks)" if document["world_size"] else ""
    return (
        f"{document['incident']} of {document['incidents']} of run {document['run']}:"
        f" attempt {document['attempt']} on {document['rung']}{ranks}, {document['at']}"
    )


def _cause_line(document: Document) -> str:
    sure = f" ({document['confidence']})" if document["confidence"] else ""
    return f"{document['kind']}{sure}: {document['cause'] or 'unknown'}"


def _evidence_rows(document: Document) -> list[tuple[str, str]]:
    root = document["root"]
    if not isinstance(root, dict):
        return [("evidence", "no line of a log shows it; read from how the processes ended")]
    rank = root.get("rank")
    who = "" if rank is None else f" (rank {rank})"
    return [
        ("evidence", f"{root.get('path')}:{root.get('line')}{who}"),
        ("", str(root.get("text") or "")),
        ("", f"in {root['frame']}" if root.get("frame") else ""),
        *(("", line) for line in marked(_list(root.get("around")), root.get("line"))),
    ]


def _symptom_rows(document: Document) -> list[tuple[str, str]]:
    hits = [hit for hit in _list(document["symptoms"]) if isinstance(hit, dict)]
    return [
        ("symptom", f"{hit.get('file')}:{hit.get('line')} {hit.get('kind')}: {hit.get('text')}")
        for hit in hits
    ]


def _next_line(document: Document) -> str:
    following = document["next_attempt"]
    if not isinstance(following, dict):
        return "no further attempt was begun yet"
    origin = "from scratch"
    if following["resume_from"]:
        origin = f"from the checkpoint of step {following['resume_step']}"
    return f"attempt {following['attempt']} on {following['rung']}, {origin}"


def _lost_line(document: Document) -> str:
    lost = document["lost"]
    assert isinstance(lost, dict)
    begun = document["next_attempt"] is not None
    done_again = "were done again" if begun else "would be done again"
    steps = f"{lost['redone_steps']} steps {done_again}"
    seconds = lost["seconds_to_new_step"]
    if seconds is None:
        return f"{steps}; no new step was made since {lost['since']}"
    return f"{steps}; {seconds} s from the last step before it to the next new one"


def _list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []
