"""What a journal tells of each attempt of a run: the ground of `report` and `explain`. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from humigence_supervise.domain import Kind
from humigence_supervise.records import Entry, Event, Json, Record


@dataclass(frozen=True, slots=True)
class AttemptStory:
    """One attempt from its plan to the decision about it; times are Unix time in seconds.

    `exited_s` and `cleared_s` are None before it was over and its tree gone; `how` is then "".
    `resume_step` is the completed steps it began with. `left` is why a healthy one was ended.
    """

    number: int
    rung: str
    world_size: int | None
    resume_step: int
    resume_from: str | None
    begun_s: float
    exited_s: float | None = None
    cleared_s: float | None = None
    decided_s: float | None = None
    how: str = ""
    diagnosis: Record | None = None
    decision: Record | None = None
    rung_change: str = ""
    left: str = ""

    @property
    def failed(self) -> bool:
        """True for an incident: it was judged, and not as healthy."""
        return self.decision is not None and self.decision.facts.get("kind") != Kind.HEALTHY

    @property
    def last_step(self) -> int | None:
        """The completed steps at its end, None while nobody has told them."""
        told = integer(self.decision, "last_step")
        return integer(self.diagnosis, "last_step") if told is None else told


def attempt_stories(entries: Iterable[Entry]) -> tuple[AttemptStory, ...]:
    """Return every attempt the entries tell of, in their order."""
    told: dict[int, AttemptStory] = {}
    for entry in entries:
        number = entry.record.attempt
        if number is None:
            continue
        if entry.record.event is Event.ATTEMPT_PLANNED:
            told[number] = _planned(number, entry)
        elif number in told:
            told[number] = _after(told[number], entry)
    return tuple(told.values())


def when(entry: Entry) -> float:
    """Return an entry's Unix time in seconds."""
    return datetime.fromisoformat(entry.ts).timestamp()


def integer(record: Record | None, key: str) -> int | None:
    """Return a fact that is a whole number, None where it was not told."""
    value = record.facts.get(key) if record is not None else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def text(record: Record | None, key: str) -> str:
    """Return a fact that is text, "" where it was not told."""
    value = record.facts.get(key) if record is not None else None
    return value if isinstance(value, str) else ""


def items(record: Record | None, key: str) -> list[Json]:
    """Return a fact that is a list, an empty one where it was not told."""
    value = record.facts.get(key) if record is not None else None
    return value if isinstance(value, list) else []


def _planned(number: int, entry: Entry) -> AttemptStory:
    record = entry.record
    return AttemptStory(
        number=number,
        rung=record.rung or "",
        world_size=integer(record, "world_size"),
        resume_step=integer(record, "resume_step") or 0,
        resume_from=text(record, "resume_from") or None,
        begun_s=when(entry),
    )


def _after(story: AttemptStory, entry: Entry) -> AttemptStory:
    record, at_s = entry.record, when(entry)
    match record.event:
        case Event.ATTEMPT_LEAVING:
            return replace(story, left=record.message)
        case Event.ATTEMPT_EXITED if story.exited_s is None:
            how = f"Ended on purpose. {story.left}" if story.left else record.message
            return replace(story, exited_s=at_s, how=how)
        case Event.TREE_CLEARED:
            return replace(story, cleared_s=at_s)
        case Event.DIAGNOSIS_MADE:
            return replace(story, diagnosis=record)
        case Event.DECISION_MADE if story.decision is None:
            return replace(story, decision=record, decided_s=at_s)
        case Event.RUNG_CHANGED:
            return replace(story, rung_change=record.message)
        case _:
            return story
