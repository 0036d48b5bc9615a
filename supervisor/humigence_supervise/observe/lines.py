"""One raw log line -> (rank, text, time): what stands around the message is peeled off (pure)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from humigence_supervise.observe.characters import visible
from humigence_supervise.observe.pieces import pieces
from humigence_supervise.observe.prefixes import leading_prefix, without_margin
from humigence_supervise.observe.stamps import Stamp, peel_stamp

_MAX_PREFIXES: Final = 12
_MAX_WINDOWS: Final = 16
_RANK_WITHIN: Final = 400
_MAX_TEXT: Final = 4_000
"""Longer texts are read through windows around what made them interesting."""

_RANK_IN_TEXT: Final = re.compile(r"\[(?:PG [^\]]{0,120}?)?Rank (\d{1,5})\]")


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line without its prefixes.

    `at_s` is Unix time from the first stamp (one without a zone counts as UTC); `stamps` are all
    of the line's, outermost first.
    """

    text: str
    rank: int | None = None
    at_s: float | None = None
    stamps: tuple[Stamp, ...] = ()


def normalize(raw: str, year: int = 1970) -> LogLine:
    """Peel the prefixes off one line; `year` completes stamps that have none."""
    text = without_margin(visible(raw))
    told = _rank_in(text)
    sure = told is not None
    rank = told
    stamps: list[Stamp] = []
    for _ in range(_MAX_PREFIXES):
        if peeled := peel_stamp(text, year):
            text, stamp = peeled
            if stamp is not None:
                stamps.append(stamp)
            continue
        prefix = leading_prefix(text)
        if prefix is None:
            break
        if prefix.rank is not None and not sure and (rank is None or prefix.sure):
            rank, sure = prefix.rank, prefix.sure
        text = text[prefix.end :]
    return LogLine(text, rank, stamps[0].at_s if stamps else None, tuple(stamps))


def _rank_in(text: str) -> int | None:
    """Return the rank that torch's own messages name: "[Rank 3]", "[PG 0 Rank 3]"."""
    found = _RANK_IN_TEXT.search(text, 0, _RANK_WITHIN) if "Rank " in text else None
    return int(found[1]) if found else None


def read_line(raw: str, year: int = 1970) -> list[LogLine]:
    """Return the lines that a raw line holds, one at least.

    One without a time has that of the one before it; one without a rank that of the others,
    where these have one.
    """
    lines = [normalize(piece, year) for piece in pieces(raw)]
    ranks = {line.rank for line in lines if line.rank is not None}
    only = ranks.pop() if len(ranks) == 1 else None
    found: list[LogLine] = []
    for line in lines:
        stamps = line.stamps or (found[-1].stamps if found else ())
        rank = only if line.rank is None else line.rank
        found.append(LogLine(line.text, rank, stamps[0].at_s if stamps else None, stamps))
    return found or [LogLine("")]


def windows(text: str, words: tuple[str, ...]) -> list[str]:
    """Return a long text as at most 16 pieces of bounded length around `words`."""
    if len(text) <= _MAX_TEXT:
        return [text]
    cuts: list[str] = []
    covered = 0
    for at in sorted(position for word in words if (position := text.find(word)) >= 0):
        if at >= covered:
            start = max(covered, at - _MAX_TEXT // 4)
            covered = at + _MAX_TEXT // 2
            cuts.append(text[start:covered])
        if len(cuts) == _MAX_WINDOWS:
            break
    return cuts
