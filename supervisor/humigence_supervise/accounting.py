"""What a run achieved, from the progress files of its attempts: the ledger and the time."""

from __future__ import annotations

from array import array
from bisect import bisect_right
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
    """When an attempt's steps were done: steps of rank 0 and their Unix times, beginning first."""

    steps: array[int] = field(default_factory=lambda: array("q"))
    at_s: array[float] = field(default_factory=lambda: array("d"))


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
                self.times[-1].steps.append(line.step)
                self.times[-1].at_s.append(line.at_s)
                self.last = line
            yield line

    def step_s(self) -> float | None:
        """Return the median time of the newest steps, None before two of them."""
        newest = self.times[-1].at_s[1:][-20:] if self.times else ()
        gaps = sorted(after - before for before, after in pairwise(newest))
        return gaps[len(gaps) // 2] if gaps else None


def _productive_s(times: Iterable[_Times]) -> float:
    """Sum the time of steps that no later attempt did again."""
    total_s, redone_from = 0.0, None
    for one in reversed(list(times)):
        if not one.steps:
            continue
        last = len(one.steps)
        if redone_from is not None:
            last = bisect_right(one.steps, redone_from)
        if last > 1:
            total_s += one.at_s[last - 1] - one.at_s[0]
        start = one.steps[0]
        redone_from = start if redone_from is None else min(redone_from, start)
    return total_s
