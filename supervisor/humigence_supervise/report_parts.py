"""What the report says in sentences and figures, from what was read of a run. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from humigence_supervise.accounting import Account
from humigence_supervise.curves import Curve
from humigence_supervise.history import AttemptStory, text, when
from humigence_supervise.ledger import describe
from humigence_supervise.records import Entry, Event, Record
from humigence_supervise.report_page import duration, moment
from humigence_supervise.spent import Stretch, Use, totals

ENDS: Final[Mapping[Event, str]] = {
    Event.RUN_COMPLETED: "completed",
    Event.RUN_STOPPED: "stopped",
    Event.RUN_GAVE_UP: "gave_up",
    Event.RUN_FAILED: "failed",
}
_TOLD_INCIDENTS: Final = 3
_WAIT_OR_NOT: Final = (Event.BACKOFF_STARTED, Event.BACKOFF_ENDED, Event.ATTEMPT_PLANNED)


@dataclass(frozen=True, slots=True)
class Told:
    """Everything the report is made of. `account` is None when progress could not be read.

    `unread` says what could not be read, and why. `batches` is the batch of an attempt in words.
    """

    run: str
    entries: tuple[Entry, ...]
    stories: tuple[AttemptStory, ...]
    curves: Mapping[int, Curve]
    account: Account | None
    parts: tuple[Stretch, ...]
    batches: Mapping[int, str]
    unread: tuple[str, ...]

    @property
    def incidents(self) -> tuple[AttemptStory, ...]:
        """The attempts that failed, in their order: incident 1 is the first."""
        return tuple(story for story in self.stories if story.failed)

    @property
    def end(self) -> Record | None:
        """The entry that ended the run, None while it goes on."""
        newest = self.entries[-1].record if self.entries else None
        return newest if newest is not None and newest.event in ENDS else None

    @property
    def wall_s(self) -> float:
        """Seconds from the first entry to the newest thing known."""
        return self.parts[-1].end_s - self.parts[0].begin_s if self.parts else 0.0


def state_word(told: Told) -> str:
    """Return how the run stands, in the words of `status`."""
    if told.end is not None:
        return ENDS[told.end.event]
    waits = [e for e in told.entries if e.record.event in _WAIT_OR_NOT]
    return "waiting" if waits and waits[-1].record.event is Event.BACKOFF_STARTED else "running"


def summary(told: Told) -> list[str]:
    """Return what happened, in a few sentences (plain text)."""
    if not told.entries:
        return ["Nothing is journaled yet: no attempt of this run was planned."]
    return [
        _beginning_and_end(told),
        _how_many(told),
        *(_incident(told, story) for story in told.incidents[:_TOLD_INCIDENTS]),
        *_more(len(told.incidents) - _TOLD_INCIDENTS),
        *([told.end.message] if told.end is not None and told.end.level == "error" else []),
    ]


def ledger_sentence(told: Told) -> str:
    """Return whether every sample was trained on exactly once (plain text)."""
    if told.account is None:
        return "Whether every sample was trained on exactly once is unknown."
    ledger = told.account.ledger
    if not ledger.samples_done:
        return "No progress line names samples, so nothing is known about them."
    if ledger.clean:
        return (
            f"Each of the {ledger.samples_done} samples up to step {ledger.steps_done} counts"
            f" exactly once: {describe(ledger)} steps."
        )
    return f"The samples do not add up: {describe(ledger)}."


def key_figures(told: Told) -> list[tuple[str, str]]:
    """Return name and value of what one looks for first."""
    sums = totals(told.parts)
    share = sums[Use.PRODUCTIVE] / told.wall_s if told.wall_s else 0.0
    known = bool(told.curves)
    last = told.account.last if told.account is not None else None
    redone = told.account.ledger.redone_steps if told.account is not None else None
    return [
        ("step", _step(told)),
        ("last loss", f"{last.loss:.4g}" if last is not None and last.loss is not None else "-"),
        ("wall time", duration(told.wall_s)),
        ("productive", f"{share:.1%}" if known else "unknown"),
        ("attempts", str(len(told.stories))),
        ("incidents", str(len(told.incidents))),
        ("redone steps", "unknown" if redone is None else str(redone)),
    ]


def ended_words(stories: Iterable[AttemptStory]) -> dict[int, str]:
    """Return how each attempt ended: "failed", "completed", "ended" (unjudged) or "running"."""
    return {story.number: _ended_word(story) for story in stories}


def _ended_word(story: AttemptStory) -> str:
    if story.decision is not None:
        return "failed" if story.failed else "completed"
    return "running" if story.exited_s is None else "ended"


def _beginning_and_end(told: Told) -> str:
    begun = moment(when(told.entries[0]))
    took = duration(told.wall_s)
    if told.end is None:
        until = moment(told.parts[-1].end_s) if told.parts else begun
        return (
            f"The run began at {begun} and had not ended at {until}, {took} later: it is"
            f" {state_word(told)}, at step {_step(told)}."
        )
    word = ENDS[told.end.event].replace("_", " ")
    how = "was stopped" if word == "stopped" else word
    return f"The run began at {begun} and {how} after {took}, at step {_step(told)}."


def _how_many(told: Told) -> str:
    made, failed = len(told.stories), len(told.incidents)
    attempts = "one attempt" if made == 1 else f"{made} attempts"
    if not failed:
        return f"It made {attempts}; nothing failed."
    return f"It made {attempts}; {'one' if failed == 1 else failed} of them failed."


def _incident(told: Told, story: AttemptStory) -> str:
    step = last_step(told, story)
    where = f" after step {step}" if step is not None else ""
    cause = text(story.diagnosis, "reason") or "The cause is unknown."
    after = story.rung_change or text(story.decision, "reason")
    following = next((one for one in told.stories if one.number > story.number), None)
    went_on = ""
    if following is not None:
        went_on = f" Attempt {following.number} on {following.rung} began {_origin(following)}."
    return f"Attempt {story.number} on {story.rung} failed{where}. {cause} {after}{went_on}"


def _more(count: int) -> list[str]:
    return [f"{count} more failed; the tables below have them all."] if count > 0 else []


def _origin(story: AttemptStory) -> str:
    return f"from step {story.resume_step}" if story.resume_from else "from scratch"


def _step(told: Told) -> str:
    steps = [curve.last_step for curve in told.curves.values()]
    target = told.account.target_step if told.account is not None else None
    reached = steps[-1] if steps else "unknown"
    return f"{reached} of {target}" if target is not None else str(reached)


def last_step(told: Told, story: AttemptStory) -> int | None:
    """Return the completed steps at an attempt's end, or so far; None when nobody told."""
    if story.last_step is not None:
        return story.last_step
    curve = told.curves.get(story.number)
    return curve.last_step if curve is not None else None
