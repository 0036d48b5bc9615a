"""Errors a program survived: what training went on after is not what ended it (pure)."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from typing import Final

from humigence_supervise.catalogue import load_catalogue
from humigence_supervise.domain import Hit, Role

_STEPS_AFTER: Final = 10
"""So many lines of progress after an error show that it was survived; other ranks go on for a
step or two after one of them has died."""

_NEVER_SURVIVED: Final = 110
"""Strength of what the kernel or the hardware reports, which stays true."""


def forgive(hits: list[Hit], progress_lines: list[int]) -> list[Hit]:
    """Turn survived errors into context.

    Survived is an error with much progress after it, unless consequences of some failure follow
    and no cause of their own: then logs of several ranks stand one after the other in the file.
    `hits` and `progress_lines` are in the order of lines.
    """
    return [
        replace(hit, role=Role.CONTEXT) if _is_survived(hit, hits, progress_lines) else hit
        for hit in hits
    ]


def _is_survived(hit: Hit, hits: list[Hit], progress_lines: list[int]) -> bool:
    first_after = bisect_right(progress_lines, hit.line)
    enough = first_after + _STEPS_AFTER - 1
    if enough >= len(progress_lines):
        return False
    if load_catalogue().by_id[hit.signature].strength >= _NEVER_SURVIVED:
        return False
    later = [other for other in hits if other.line > progress_lines[enough]]
    causes = [other for other in later if other.role is Role.ROOT]
    return bool(causes) or not any(other.role is Role.SYMPTOM for other in later)
