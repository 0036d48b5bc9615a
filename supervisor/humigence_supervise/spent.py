"""What a run's wall time went into, second by second. Pure.

The run's time is cut into stretches that join, so their sum *is* the wall time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from humigence_supervise.curves import Curve
from humigence_supervise.events import ENDS
from humigence_supervise.history import AttemptStory, attempt_stories, when
from humigence_supervise.records import Entry, Event


class Use(StrEnum):
    """What a stretch of time went into."""

    PRODUCTIVE = "productive"
    REDONE = "redone"
    RECOVERY = "recovery"
    WAITING = "waiting"
    AROUND = "start and end"
    STOPPED = "stopped"
    UNKNOWN = "unknown"


MEANINGS: Mapping[Use, str] = {
    Use.PRODUCTIVE: "steps that count, with the saves and evaluations between them",
    Use.REDONE: "steps that were done again later, because the resume began before them",
    Use.RECOVERY: "from a failure to the next attempt's training: noticing, clearing, loading",
    Use.WAITING: "nothing ran: a pause before a retry, or no room on the disk",
    Use.AROUND: "starting the first time, the step in the making, and finishing",
    Use.STOPPED: "the run had ended and was not started again yet",
    Use.UNKNOWN: "an attempt ran, but told no steps: productive or not is not known",
}


@dataclass(frozen=True, slots=True)
class Stretch:
    """A half-open stretch of Unix time, in seconds."""

    begin_s: float
    end_s: float
    use: Use


def stretches(
    entries: Iterable[Entry], curves: Mapping[int, Curve], until_s: float
) -> tuple[Stretch, ...]:
    """Return the run's time from its first entry to `until_s`, without a gap."""
    known = tuple(entries)
    if not known:
        return ()
    stories = {story.number: story for story in attempt_stories(known)}
    walk = _Walk(stories, curves, when(known[0]), until_s)
    for entry in known:
        walk.pass_by(entry)
    walk.finish()
    return tuple(walk.found)


def totals(parts: Iterable[Stretch]) -> dict[Use, float]:
    """Return the seconds of every use; they sum to the wall time."""
    sums = dict.fromkeys(Use, 0.0)
    for part in parts:
        sums[part.use] += part.end_s - part.begin_s
    return sums


@dataclass(slots=True)
class _Walk:
    """Goes along the journal; `cursor_s` is up to where the time is told."""

    stories: Mapping[int, AttemptStory]
    curves: Mapping[int, Curve]
    cursor_s: float
    until_s: float
    found: list[Stretch] = field(default_factory=list)
    attempt: AttemptStory | None = None
    between: Use = Use.AROUND
    pause: Use | None = None

    def pass_by(self, entry: Entry) -> None:
        at_s, record = when(entry), entry.record
        match record.event:
            case Event.ATTEMPT_PLANNED:
                self._spend(at_s, self.pause or self.between)
                self.pause = None
                self.attempt = self.stories.get(record.attempt or 0)
            case Event.TREE_CLEARED:
                self._close_attempt(at_s)
            case Event.BACKOFF_STARTED:
                self._spend(at_s, self.between)
                self.pause = Use.WAITING
            case Event.BACKOFF_ENDED | Event.RUN_RESUMED:
                self._spend(at_s, self.pause or self.between)
                self.pause = None
                if record.event is Event.RUN_RESUMED:
                    self.between = Use.AROUND
            case event if event in ENDS:
                self._close_attempt(at_s)
                self._spend(at_s, self.pause or self.between)
                self.pause = Use.STOPPED
            case _:
                pass

    def finish(self) -> None:
        self._close_attempt(self.until_s)
        self._spend(self.until_s, self.pause or self.between)

    def _close_attempt(self, end_s: float) -> None:
        story, self.attempt = self.attempt, None
        if story is None:
            return
        before, self.between = self.between, Use.RECOVERY if story.failed else Use.AROUND
        curve = self.curves.get(story.number)
        if curve is None:
            fruitless = self.between if story.failed else before
            self._spend(end_s, fruitless if self.curves else Use.UNKNOWN)
            return
        for moment_s, use in (
            (curve.first_s, before),
            (curve.kept_s, Use.PRODUCTIVE),
            (curve.last_s, Use.REDONE),
        ):
            self._spend(min(moment_s, end_s), use)
        self._spend(end_s, self.between)

    def _spend(self, until_s: float, use: Use) -> None:
        """Tell the time up to a moment; clocks that went back take nothing away."""
        if until_s <= self.cursor_s:
            return
        if self.found and self.found[-1].use is use:
            self.found[-1] = Stretch(self.found[-1].begin_s, until_s, use)
        else:
            self.found.append(Stretch(self.cursor_s, until_s, use))
        self.cursor_s = until_s
