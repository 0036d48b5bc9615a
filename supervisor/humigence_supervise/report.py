"""`report`: what a run did, as one HTML file that needs nothing else."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from humigence_supervise import contract
from humigence_supervise.accounting import Account, account_run
from humigence_supervise.curves import Curve, read_curves
from humigence_supervise.durable import sync_folder
from humigence_supervise.history import attempt_stories, when
from humigence_supervise.journal import read_journal
from humigence_supervise.records import Entry
from humigence_supervise.report_page import figures, moment, page, safe, section
from humigence_supervise.report_parts import (
    ENDS,
    Told,
    ended_words,
    key_figures,
    ledger_sentence,
    state_word,
    summary,
)
from humigence_supervise.report_svg import loss_svg, timeline_svg
from humigence_supervise.report_tables import attempts_table, causes_table, time_table
from humigence_supervise.spent import stretches

_PLAN_BYTES: Final = 1 << 20


def report_html(run_dir: Path) -> str:
    """Return the report of a run: live, ended, or not begun (then it says so).

    What could not be read is named in it.

    Raises:
        JournalError: the journal is damaged.
        OSError: the journal cannot be read.
    """
    told = _read(run_dir)
    state = state_word(told)
    badge = f'<span class="badge {state}">{safe(state.replace("_", " "))}</span>'
    parts = [f"<h1>{safe(told.run)} {badge}</h1>"]
    parts += [f"<p>{safe(sentence)}</p>" for sentence in summary(told)]
    if told.unread:
        parts += [f"<p>Not read: {safe(problem)}</p>" for problem in told.unread]
    if told.entries:
        parts += [figures(key_figures(told)), *_sections(told)]
    parts.append(f"<footer><p>Written at {moment(time.time())} from {safe(run_dir)}</p></footer>")
    return page(f"{told.run}: {state.replace('_', ' ')}", "\n".join(parts))


def write_report(run_dir: Path, target: Path) -> None:
    """Write the report to `target`, whole or not at all.

    Raises:
        JournalError: the journal is damaged.
        OSError: the journal cannot be read or the file not be written.
    """
    content = report_html(run_dir).encode()
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(target)
    except OSError:
        part.unlink(missing_ok=True)
        raise
    sync_folder(target.parent)


def _sections(told: Told) -> list[str]:
    found = []
    if told.stories and told.parts:
        found.append(_timeline(told))
    found.append(section("Loss", _loss(told)))
    if told.stories:
        found.append(section("Attempts", attempts_table(told)))
    causes = causes_table(told) if told.incidents else "<p>Nothing failed.</p>"
    found.append(section("Causes", causes))
    found.append(section("Time", time_table(told.parts)))
    found.append(section("Samples", f"<p>{safe(ledger_sentence(told))}</p>"))
    return found


def _timeline(told: Told) -> str:
    picture = timeline_svg(told.stories, told.parts, ended_words(told.stories))
    says = "Bars are attempts, by rung: red failed, green completed, blue runs, grey was stopped."
    return section("Timeline", f"<figure>{picture}<figcaption>{says}</figcaption></figure>")


def _loss(told: Told) -> str:
    marks = [
        (number, story.last_step)
        for number, story in enumerate(told.incidents, start=1)
        if story.last_step is not None
    ]
    picture = loss_svg(tuple(told.curves.values()), marks)
    if not picture:
        return "<p>No loss was reported.</p>"
    says = ["Numbers mark incidents; dashed steps were done again."]
    strange = sum(curve.not_finite for curve in told.curves.values())
    if strange:
        says.append(f"Steps whose loss was not a finite number: {strange}.")
    return f"<figure>{picture}<figcaption>{' '.join(says)}</figcaption></figure>"


def _read(run_dir: Path) -> Told:
    entries = read_journal(run_dir / contract.JOURNAL_FILE)
    stories = attempt_stories(entries)
    curves: dict[int, Curve] = {}
    account: Account | None = None
    unread: list[str] = []
    try:
        account = account_run(run_dir)
        curves = read_curves(run_dir, (story.number for story in stories), entries)
    except OSError as error:
        unread.append(f"progress: {error.filename or run_dir}: {error.strerror or error}")
    return Told(
        run=entries[0].run if entries else run_dir.absolute().name,
        entries=entries,
        stories=stories,
        curves=curves,
        account=account,
        parts=stretches(entries, curves, _until_s(entries, curves.values())),
        batches={story.number: _batch(run_dir, story.number) for story in stories},
        unread=tuple(unread),
    )


def _until_s(entries: tuple[Entry, ...], curves: Iterable[Curve]) -> float:
    """Return when the run ended, or the newest moment anything is known of.

    A run that nobody supervises is not told to have waited until now, and a worker's clock may
    not lead into the future.
    """
    journaled_s = max((when(entry) for entry in entries), default=0.0)
    if not entries or entries[-1].record.event in ENDS:
        return journaled_s
    worked_s = max((curve.last_s for curve in curves), default=0.0)
    return max(journaled_s, min(worked_s, time.time()))


def _batch(run_dir: Path, attempt: int) -> str:
    """Return the sums of an attempt's batch in words; "" where its plan does not tell them."""
    folder = run_dir / contract.ATTEMPTS_DIR / contract.attempt_name(attempt)
    try:
        with (folder / contract.PLAN_FILE).open("rb") as stream:
            plan = json.loads(stream.read(_PLAN_BYTES))
    except (OSError, ValueError, RecursionError):
        return ""
    batch = plan.get("batch") if isinstance(plan, dict) else None
    if not isinstance(batch, dict):
        return ""
    sums = [batch.get(key) for key in ("global", "micro", "grad_accum", "world_size")]
    if not all(isinstance(one, int) for one in sums):
        return ""
    return f"batch {sums[0]} = {sums[1]} x {sums[2]} x {sums[3]} ranks"
