"""One raw log line -> (rank, text, time): what stands before the message is peeled off (pure).

Prefixes stack (a scheduler's stamp, a launcher's rank, a logger's stamp again), so they are
peeled in a loop. Only the rank and the time are kept of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

_MAX_PREFIXES: Final = 8
_MAX_TEXT: Final = 4_000
"""Longer texts are read through windows around what made them interesting."""

_ANSI: Final = re.compile(
    r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|\x1b."
)
_ANSI_WITHOUT_ESC: Final = re.compile(r"\[(?:\d{1,3}(?:;\d{1,3}){0,4})m")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")

_STAMP: Final = (
    r"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)[T _]"
    r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:[.,](?P<fraction>\d{1,9}))?"
    r"(?P<zone>Z|[+-]\d\d:?\d\d)?"
)
_ISO: Final = re.compile(rf"\s*[\[(]?{_STAMP}[\])]?:?\s*")
_GLOG: Final = re.compile(
    r"\s*\[?(?P<level>[IWEF])(?P<month>\d{1,2}?)(?P<day>\d\d) (?P<hour>\d\d):(?P<minute>\d\d):"
    r"(?P<second>\d\d)(?:\.(?P<fraction>\d{1,9}))?\s+(?:\d+ )?[\w./-]+:\d+\]\s*",
)
_OLD_GLOG: Final = re.compile(r"\s*\[[IWEF] [\w./-]+:\d+\]\s*")
_DAY_SHARES_MONTH: Final = 12

_RANKED: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"\s*\[rank ?(?P<rank>\d{1,5})\]:? ?",
        r"\s*\[[A-Za-z_-]{1,20}\d*\|(?P<rank>\d{1,5})\]: ?",
        r"\s*\[[A-Za-z_-]{2,20}(?P<rank>\d{1,5})\]: ?",
        r"\s*\[\d{1,4},(?P<rank>\d{1,5})\]<std(?:out|err)>: ?",
        r"\s*(?P<rank>\d{1,5}): (?=\S)",
        r"\s*[\w.-]{1,80}:(?P<rank>\d{1,5})\]:? ?",
        r"\s*\[(?P<rank>\d{1,5})\]: ?",
        r"\s*[\w.-]{1,80}:\d+:\d+ \[(?P<rank>\d{1,3})\] ",
        r"\s*\[(?P<rank>\d{1,3})\] (?=NCCL |[\w/]+\.(?:cc|h|cu|c):\d+ )",
        r"\s*\[RANK (?P<rank>\d{1,5})\] ?",
    )
)
_UNRANKED: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"\s*\([A-Za-z_]{0,60} ?pid=\d+(?:, ip=[\d.a-f:]+)?\) ?",
        r"\s*(?:stderr|stdout): ?",
        r"\s*[A-Za-z_.-]{1,60}-?\d{1,4}: (?=\S)(?!\S+Error)",
        r"\s*\[(?:INFO|WARNING|WARN|ERROR|CRITICAL|DEBUG)\]\s*",
        r"\s*\[\s*\d{1,9}\.\d{6}\] ?",
    )
)
_RANK_IN_TEXT: Final = re.compile(r"\[(?:PG [^\]]{0,120}?)?Rank (\d{1,5})\]")


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line without its prefixes. `at_s` is Unix time (a stamp without a zone counts as UTC)."""

    text: str
    rank: int | None = None
    at_s: float | None = None


def normalize(raw: str, year: int = 1970) -> LogLine:
    """Peel the prefixes off one line; `year` completes glog stamps, which have none."""
    text = _CONTROL.sub("", _ANSI_WITHOUT_ESC.sub("", _ANSI.sub("", raw))).rstrip()
    rank: int | None = None
    at_s: float | None = None
    for _ in range(_MAX_PREFIXES):
        if found := _ISO.match(text):
            at_s = _unix_time(found, year) if at_s is None else at_s
        elif found := _GLOG.match(text):
            at_s = _unix_time(found, year) if at_s is None else at_s
        elif found := _first_match(_RANKED, text):
            rank = int(found["rank"]) if rank is None else rank
        else:
            found = _OLD_GLOG.match(text) or _first_match(_UNRANKED, text)
        if found is None or found.end() == 0:
            break
        if rank is None and (named := _RANK_IN_TEXT.search(text, 0, 400)):
            rank = int(named[1])
        text = text[found.end() :]
    if rank is None and (named := _RANK_IN_TEXT.search(text, 0, 400)):
        rank = int(named[1])
    return LogLine(text, rank, at_s)


def _first_match(patterns: tuple[re.Pattern[str], ...], text: str) -> re.Match[str] | None:
    return next((found for pattern in patterns if (found := pattern.match(text))), None)


def _unix_time(found: re.Match[str], year: int) -> float | None:
    """Return the stamp as Unix time; None when it is no date (a logger may print anything)."""
    groups = found.groupdict()
    try:
        moment = datetime(
            int(groups.get("year") or year),
            int(groups["month"]),
            int(groups["day"]),
            int(groups["hour"]),
            int(groups["minute"]),
            int(groups["second"]),
            tzinfo=UTC,
        )
    except ValueError:
        return None
    zone = groups.get("zone")
    offset_s = 0
    if zone and zone != "Z":
        sign = -1 if zone[0] == "-" else 1
        offset_s = sign * (int(zone[1:3]) * 3600 + int(zone[-2:]) * 60)
    return moment.timestamp() - offset_s + float(f"0.{groups['fraction'] or 0}")


def segments(raw: str) -> list[str]:
    """Split a raw line into what a person sees as lines: progress bars, escaped newlines.

    A carriage return starts a progress bar anew, with errors glued to its end; a traceback
    inside a JSON string carries its newlines escaped.
    """
    pieces = re.split(r"\r+", raw)
    if any("\\n" in piece for piece in pieces):
        pieces = [part for piece in pieces for part in piece.replace("\\t", " ").split("\\n")]
    return [piece for piece in pieces if piece.strip()]


def windows(text: str, words: tuple[str, ...]) -> list[str]:
    """Return a long text as at most 16 pieces of bounded length around `words`."""
    if len(text) <= _MAX_TEXT:
        return [text]
    pieces: list[str] = []
    covered = 0
    for at in sorted(position for word in words if (position := text.find(word)) >= 0):
        if at >= covered:
            start = max(covered, at - _MAX_TEXT // 4)
            covered = at + _MAX_TEXT // 2
            pieces.append(text[start:covered])
        if len(pieces) == _MAX_WINDOWS:
            break
    return pieces


_MAX_WINDOWS: Final = 16
