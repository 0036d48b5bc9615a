"""What a run achieved, from the progress files of its attempts: the ledger and the time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from humigence_supervise import contract
from humigence_supervise.domain import Progress, Section
from humigence_supervise.ledger import Ledger, account, describe
from humigence_supervise.log_files import attempts
from humigence_supervise.observe.progress import stream
from humigence_supervise.records import Json


@dataclass(slots=True)
class _Times:
    """When an attempt's steps were done: `(step, Unix time)` of rank 0, its beginning first."""

    marks: list[tuple[int, float]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Account:
    """`last` is the newest progress line; `productive_s` the time that went into steps kept."""

    ledger: Ledger
    last: Progress | None
    target_step: int | None
    productive_s: float
    step_s: float | None


def account_run(run_dir: Path) -> Account:
    """Read every attempt's progress, oldest first.

    Raises:
        OSError: a progress file is there but cannot be read.
    """
    seen = _Seen()
    ledger = account(seen.watch(run_dir, attempt) for attempt in attempts(run_dir))
    return Account(ledger, seen.last, seen.target_step, _productive_s(seen.times), seen.step_s())


def ledger_facts(ledger: Ledger) -> dict[str, Json]:
    """Return the ledger as it stands in journal and status."""
    return {
        "samples_done": ledger.samples_done,
        "lost_samples": ledger.lost_samples,
        "repeated_samples": ledger.repeated_samples,
        "redone_steps": ledger.redone_steps,
        "clean": ledger.clean,
        "says": describe(ledger),
    }


@dataclass(slots=True)
class _Seen:
    """What is noted in passing while the ledger consumes the lines."""

    last: Progress | None = None
    target_step: int | None = None
    times: list[_Times] = field(default_factory=list)

    def watch(self, run_dir: Path, attempt: int) -> Iterator[Progress]:
        folder = run_dir / contract.ATTEMPTS_DIR / contract.attempt_name(attempt)
        self.times.append(_Times())
        for line in stream(folder / contract.PROGRESS_DIR):
            if line.target_step is not None:
                self.target_step = line.target_step
            if line.section in (Section.INIT, Section.TRAIN) and line.rank == 0:
                self.times[-1].marks.append((line.step, line.at_s))
                self.last = line
            yield line

    def step_s(self) -> float | None:
        """Return the median time of the newest steps, None before two of them."""
        marks = self.times[-1].marks[-21:] if self.times else []
        gaps = sorted(b[1] - a[1] for a, b in pairwise(marks[1:]))
        return gaps[len(gaps) // 2] if gaps else None


def _productive_s(times: Iterable[_Times]) -> float:
    """Sum the time of steps that no later attempt did again."""
    total_s, redone_from = 0.0, None
    for one in reversed(list(times)):
        kept = [mark for mark in one.marks if redone_from is None or mark[0] <= redone_from]
        if len(kept) > 1:
            total_s += kept[-1][1] - kept[0][1]
        if one.marks:
            start = one.marks[0][0]
            redone_from = start if redone_from is None else min(redone_from, start)
    return total_s
