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
_MAX_WINDOWS: Final = 16
_RANK_WITHIN: Final = 400
_MAX_TEXT: Final = 4_000
"""Longer texts are read through windows around what made them interesting."""

_ANSI: Final = re.compile(
    r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|\x1b."
)
_ANSI_WITHOUT_ESC: Final = re.compile(r"\[(?:\d{1,3}(?:;\d{1,3}){0,4})m")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")

_ISO: Final = (
    r"[\[(]?(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)[T _]"
    r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:[.,](?P<fraction>\d{1,9}))?"
    r"(?P<zone>Z|[+-]\d\d:?\d\d)?[\])]?:?\s*"
)
_GLOG: Final = (
    r"\[?[IWEF](?P<gmonth>\d{1,2}?)(?P<gday>\d\d) (?P<ghour>\d\d):(?P<gminute>\d\d):"
    r"(?P<gsecond>\d\d)(?:\.(?P<gfraction>\d{1,9}))?\s+(?:\d+ )?[\w./-]+:\d+\]\s*"
)
_RANKED: Final = (
    r"\[[Rr][Aa][Nn][Kk] ?(\d{1,5})\]:? ?",  # torch 2.2 and later
    r"\[[A-Za-z_-]{1,20}\d*\|(\d{1,5})\]: ?",  # torchx: [trainer0|0]:
    r"\[[A-Za-z_-]{2,20}(\d{1,5})\]: ?",  # torchrun --tee: [default0]:
    r"\[\d{1,4},(\d{1,5})\]<std(?:out|err)>: ?",  # mpirun
    r"(\d{1,5}): (?=\S)",  # srun --label
    r"[\w.-]{1,80}:(\d{1,5})\]:? ?",
    r"\[(\d{1,5})\]: ?",
    r"[\w.-]{1,80}:\d+:\d+ \[(\d{1,3})\] ",  # NCCL: host:pid:tid [device]
    r"\[(\d{1,3})\] (?=NCCL |[\w/]+\.(?:cc|h|cu|c):\d+ )",
)
_UNRANKED: Final = (
    r"\[[IWEF] [\w./-]+:\d+\]\s*",  # glog of torch before 2.1
    r"\([A-Za-z_]{0,60} ?pid=\d+(?:, ip=[\d.a-f:]+)?\) ?",  # ray
    r"(?:stderr|stdout): ?",
    r"(?!\S*Error)[A-Za-z_.-]{1,60}-?\d{1,4}: (?=\S)",  # pdsh: trainer-2:
    r"\[(?:INFO|WARNING|WARN|ERROR|CRITICAL|DEBUG)\]\s*",
    r"\[\s*\d{1,9}\.\d{6}\] ?",  # kernel log
)
_PREFIX: Final = re.compile(
    r"\s*(?:" + "|".join((_ISO, _GLOG, *_RANKED, *_UNRANKED)) + ")",
)
_RANK_GROUPS: Final = tuple(range(_PREFIX.groups - len(_RANKED) + 1, _PREFIX.groups + 1))
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
    rank = _rank_in(text)
    at_s: float | None = None
    for _ in range(_MAX_PREFIXES):
        found = _PREFIX.match(text)
        if found is None:
            break
        if found["year"] or found["gday"]:
            at_s = _unix_time(found, year) if at_s is None else at_s
        elif rank is None:
            rank = next((int(found[at]) for at in _RANK_GROUPS if found[at]), None)
        text = text[found.end() :]
    return LogLine(text, rank, at_s)


def _rank_in(text: str) -> int | None:
    """Return the rank that torch's own messages name: "[Rank 3]", "[PG 0 Rank 3]"."""
    found = _RANK_IN_TEXT.search(text, 0, _RANK_WITHIN) if "Rank " in text else None
    return int(found[1]) if found else None


def _unix_time(found: re.Match[str], year: int) -> float | None:
    """Return the stamp as Unix time; None when it is no date (a logger may print anything)."""
    mark = "" if found["year"] else "g"
    month, day, hour, minute, second = (
        int(found[mark + name]) for name in ("month", "day", "hour", "minute", "second")
    )
    try:
        stamp = datetime(int(found["year"] or year), month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        return None
    zone = found["zone"]
    offset_s = 0
    if zone and zone != "Z":
        sign = -1 if zone[0] == "-" else 1
        offset_s = sign * (int(zone[1:3]) * 3600 + int(zone[-2:]) * 60)
    return stamp.timestamp() - offset_s + float(f"0.{found[mark + 'fraction'] or 0}")


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
