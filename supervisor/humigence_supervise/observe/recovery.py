"""Errors a program survived: what training went on after is not what ended it (pure)."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import replace
from typing import Final

from humigence_supervise.catalogue import HINT, load_catalogue
from humigence_supervise.domain import Hit, Role

_STEPS_AFTER: Final = 10
"""So many lines of progress after an error show that it was survived; other ranks go on for a
step or two after one of them has died."""

_NEVER_SURVIVED: Final = 110
"""Strength of what the kernel or the hardware reports, which stays true."""


_ALL_OF_FIRST: Final = 500
_THEN_EVERY: Final = 50
"""Which lines are looked at depends on their number alone: the first, then a sample."""

_PROGRESS: Final = re.compile(
    r"\bloss\W{1,5}\d"
    r"|(?:\bstep|\biter(?:ation)?|\bepoch|global_step)\W{1,6}\d+.{0,200}\bloss"
    r"|[1-9]\d*/\d+ \[\d+:\d\d(?::\d\d)?<",
    re.IGNORECASE,
)
"""A line of a program that trains: a loss, or a progress bar that moves."""


def sampled_progress(first_line: int, lines: list[bytes]) -> list[int]:
    """Return the numbers of the lines that show progress, of many lines those of a sample."""
    fresh = range(first_line, min(first_line + len(lines), _ALL_OF_FIRST + 1))
    start = max(first_line, _ALL_OF_FIRST + 1)
    later = range(-(-start // _THEN_EVERY) * _THEN_EVERY, first_line + len(lines), _THEN_EVERY)
    return [n for n in (*fresh, *later) if shows_progress(lines[n - first_line])]


def shows_progress(line: bytes) -> bool:
    """Return whether a program that trains wrote this."""
    end = line[-1_000:]
    if b" [" not in end and b"loss" not in end.lower():  # most lines, found out fast
        return False
    return bool(_PROGRESS.search(end.decode(errors="replace")))


def forgive(hits: list[Hit], progress: list[int], *, ended_by_exception: bool) -> list[Hit]:
    """Turn survived errors into context. `hits` and `progress` are in the order of lines.

    Survived is an error with much progress after it, unless no cause of its own follows while
    consequences of some failure do, or a launcher says that an exception ended a process: then
    the outputs of several ranks, or stdout behind stderr, stand one after the other in the file.
    """
    return [
        replace(hit, role=Role.CONTEXT)
        if _is_survived(hit, hits, progress, ended_by_exception=ended_by_exception)
        else hit
        for hit in hits
    ]


def _is_survived(
    hit: Hit,
    hits: list[Hit],
    progress: list[int],
    *,
    ended_by_exception: bool,
) -> bool:
    strength = load_catalogue().by_id[hit.signature].strength
    if strength >= _NEVER_SURVIVED:
        return False
    steps = _STEPS_AFTER if strength > HINT else 1
    enough = bisect_right(progress, hit.line) + steps - 1
    if enough >= len(progress):
        return False
    later = [other for other in hits if other.line > progress[enough]]
    if any(other.role is Role.ROOT for other in later):
        return True
    return not ended_by_exception and not any(other.role is Role.SYMPTOM for other in later)
