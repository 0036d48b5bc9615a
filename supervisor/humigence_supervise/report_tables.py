"""The report's tables: attempts, causes, time. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import Final

from humigence_supervise.history import AttemptStory, integer, text
from humigence_supervise.report_page import duration, safe, table
from humigence_supervise.report_parts import Told, last_step
from humigence_supervise.spent import MEANINGS, Stretch, Use, totals

_ALWAYS_SHOWN: Final = (Use.PRODUCTIVE, Use.REDONE, Use.RECOVERY, Use.WAITING)


def attempts_table(told: Told) -> str:
    """Return a row for each attempt, as HTML."""
    heads = ("attempt", "rung", "resumed from", "steps", "ran for", "ended", "cause", "decision")
    rows = [_attempt_row(told, story) for story in told.stories]
    return table(heads, rows, long=("ended", "cause", "decision"))


def causes_table(told: Told) -> str:
    """Return a row for each cause that was found, with its newest evidence, as HTML."""
    groups: dict[str, list[AttemptStory]] = {}
    for story in told.incidents:
        groups.setdefault(text(story.decision, "fingerprint"), []).append(story)
    heads = ("cause", "attempts", "what happened", "evidence", "what to do")
    rows = [
        (
            f"<code>{safe(text(same[-1].decision, 'kind'))}</code>",
            safe(", ".join(str(story.number) for story in same)),
            safe(text(same[-1].diagnosis, "reason") or "unknown"),
            _evidence(same[-1]),
            safe(text(same[-1].diagnosis, "advice")),
        )
        for same in groups.values()
    ]
    return table(heads, rows, long=heads[2:])


def time_table(parts: Iterable[Stretch]) -> str:
    """Return what the wall time went into, as HTML; the rows sum to the last one."""
    sums = totals(parts)
    wall_s = sum(sums.values())
    shown = [use for use in Use if use in _ALWAYS_SHOWN or sums[use] > 0]
    rows = [
        (
            f"{_key(use)}{safe(use.value)}",
            safe(duration(sums[use])),
            f"{sums[use] / wall_s:.1%}" if wall_s else "-",
            safe(MEANINGS[use]),
        )
        for use in shown
    ]
    total = ("<strong>wall time</strong>", f"<strong>{safe(duration(wall_s))}</strong>", "", "")
    return table(("time", "took", "share", "what it is"), [*rows, total], long=("what it is",))


def _key(use: Use) -> str:
    """Return a small square in the colour that the timeline gives to this use."""
    return (
        '<svg class="key" viewBox="0 0 1 1" aria-hidden="true">'
        f'<rect class="u-{use.name.lower()}" width="1" height="1"></rect></svg>'
    )


def _attempt_row(told: Told, story: AttemptStory) -> Sequence[str]:
    last = last_step(told, story)
    steps = "unknown" if last is None else "none"
    if last is not None and last > story.resume_step:
        steps = f"{story.resume_step + 1} to {last}"
    origin = "from scratch"
    if story.resume_from:
        origin = f"step {story.resume_step} ({PurePath(story.resume_from).name})"
    end_s = told.parts[-1].end_s if story.cleared_s is None and told.parts else story.cleared_s
    took_s = max(0.0, (end_s or story.begun_s) - story.begun_s)
    decision = text(story.decision, "decision")
    kind, cause = text(story.diagnosis, "kind"), text(story.diagnosis, "reason")
    batch = told.batches.get(story.number, "")
    return (
        str(story.number),
        safe(story.rung) + (f'<br><span class="soft">{safe(batch)}</span>' if batch else ""),
        safe(origin),
        safe(steps),
        safe(duration(took_s)),
        safe(story.how or "still running"),
        f"<code>{safe(kind)}</code> {safe(cause)}" if kind else "",
        f"<strong>{safe(decision)}</strong> {safe(text(story.decision, 'reason'))}"
        if decision
        else "",
    )


def _evidence(story: AttemptStory) -> str:
    root = story.diagnosis.facts.get("root") if story.diagnosis is not None else None
    if not isinstance(root, dict):
        return "no line of a log; read from how the processes ended"
    where = f"attempt {story.number}, {root.get('file')}:{root.get('line')}"
    rank = integer(story.diagnosis, "rank")
    who = "" if rank is None else f", rank {rank}"
    return f"{safe(where + who)}<br><code>{safe(root.get('text') or '')}</code>"
