"""A run's loss, thinned to what a picture can show, and when its steps were done."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from humigence_supervise.domain import Section
from humigence_supervise.records import Entry
from humigence_supervise.steps import steps_of

MAX_POINTS: Final = 2000
MAX_CURVES: Final = 250
"""Attempts whose curve is drawn, the newest ones: each keeps 8 points or more."""

Point = tuple[int, float]
"""A completed step and its loss, which is finite."""


@dataclass(frozen=True, slots=True)
class Curve:
    """What one attempt's steps say; times are Unix time in seconds.

    Its time of training began at `first_s` and ended at `last_s`; up to `kept_s` went into steps
    that no later attempt did again, the last of them `kept_step` (None: all of them counted).
    `not_finite` counts steps whose loss was NaN or infinite.
    """

    attempt: int
    first_s: float
    kept_s: float
    last_s: float
    last_step: int
    kept_step: int | None
    points: tuple[Point, ...]
    not_finite: int


@dataclass(slots=True)
class Thinned:
    """Keeps at most `most` points (8 or more): of each stretch the lowest and the highest.

    So a spike is never thinned away. Memory does not grow with the number of points.
    """

    most: int
    _stretches: list[tuple[Point, Point]] = field(default_factory=list)
    _length: int = 1
    _filled: int = 0

    def add(self, point: Point) -> None:
        """Take in the next point."""
        if self._stretches and self._filled < self._length:
            self._stretches[-1] = _widest(self._stretches[-1], (point, point))
            self._filled += 1
            return
        if len(self._stretches) >= self.most // 2:
            pairs = [self._stretches[i : i + 2] for i in range(0, len(self._stretches), 2)]
            self._stretches = [_widest(pair[0], pair[-1]) for pair in pairs]
            self._length *= 2
        self._stretches.append((point, point))
        self._filled = 1

    def points(self) -> tuple[Point, ...]:
        """Return what was kept, in the order of the steps."""
        return tuple(point for stretch in self._stretches for point in sorted(set(stretch)))


def read_curves(
    run_dir: Path, attempts: Iterable[int], entries: Iterable[Entry]
) -> dict[int, Curve]:
    """Return the curve of each attempt (numbers ascending) that completed or began a step.

    Raises:
        OSError: a progress file is there but cannot be read.
    """
    newest_first = sorted(attempts, reverse=True)
    budget = MAX_POINTS // max(1, min(len(newest_first), MAX_CURVES))
    known = tuple(entries)
    found: dict[int, Curve] = {}
    kept_step: int | None = None
    for place, attempt in enumerate(newest_first):
        most = budget if place < MAX_CURVES else 0
        read = _read_curve(run_dir, attempt, known, kept_step, most)
        if read is not None:
            start, found[attempt] = read
            kept_step = start if kept_step is None else min(kept_step, start)
    return dict(sorted(found.items()))


def _read_curve(
    run_dir: Path, attempt: int, entries: tuple[Entry, ...], kept_step: int | None, most: int
) -> tuple[int, Curve] | None:
    """Return the completed steps the attempt began with, and its curve."""
    thinned = Thinned(most)
    start = last_step = not_finite = 0
    first_s: float | None = None
    kept_s = last_s = 0.0
    for line in steps_of(run_dir, attempt, entries):
        if first_s is None:
            start = line.step if line.section is Section.INIT else max(0, line.step - 1)
            first_s = kept_s = line.at_s
        last_s, last_step = line.at_s, line.step
        if kept_step is None or line.step <= kept_step:
            kept_s = line.at_s
        if line.loss is None or line.section is Section.INIT:
            continue
        if not math.isfinite(line.loss):
            not_finite += 1
        elif most:
            thinned.add((line.step, line.loss))
    if first_s is None:
        return None
    kept = None if kept_step is None or last_step <= kept_step else kept_step
    points = thinned.points()
    return start, Curve(attempt, first_s, kept_s, last_s, last_step, kept, points, not_finite)


def _widest(one: tuple[Point, Point], other: tuple[Point, Point]) -> tuple[Point, Point]:
    """Return the lowest and the highest point of two stretches."""
    lowest = min(one[0], other[0], key=lambda point: point[1])
    highest = max(one[1], other[1], key=lambda point: point[1])
    return lowest, highest
