"""Time stamps before a log message -> Unix time, with the clock they were read from (pure).

Two stamps can be compared only when one clock wrote both: a logger without a zone prints local
time, a container runtime UTC, and glog and syslog leave out the year.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

_TIME: Final = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:[.,](?P<fraction>\d{1,9}))?"
_MONTHS: Final = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"

_STAMPS: Final = (
    (
        "iso",
        r"[\[(]?(?:[A-Za-z]{1,20} (?:[A-Z] )?)?(?P<year>\d{4})(?P<sep>[-/.])(?P<month>\d\d)(?P=sep)"
        r"(?P<day>\d\d)[T _,]{1,2}" + _TIME + r"(?: ?(?P<zone>Z\b|UTC\b|GMT\b|[+-]\d\d:?\d\d\b))?"
        r"(?: [\w.:-]{1,60}(?=\]))?[\])]?[:,]?",
    ),
    (
        "glog",
        r"\[?[DIWEFC](?P<month>\d{1,2}?)(?P<day>\d\d) "
        + _TIME
        + r"\s+(?:\d+ )?[\w./<>\\-]{1,200}:\d+\](?: \[\d+/\d+\])?",
    ),
    (
        "vllm",
        r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<month>\d\d)-(?P<day>\d\d) "
        + _TIME
        + r" \[?[\w./-]{1,200}:\d+\]",
    ),
    (
        "syslog",
        r"(?:<\d{1,3}>)?(?P<monthname>"
        + _MONTHS
        + r") (?P<day>[ \d]?\d) "
        + _TIME
        + r"(?: [\w.-]{1,64} [\w./()@-]{1,64}(?:\[\d+\])?:)?",
    ),
    (
        "log4j",
        r"(?P<day>\d\d)-(?P<monthname>" + _MONTHS + r")-(?P<year>\d{4}|\d\d) " + _TIME,
    ),
    (
        "american",
        r"\[?(?P<month>\d\d)/(?P<day>\d\d)(?:/(?P<year>\d{4}|\d\d))?[ ,]{1,2}"
        + _TIME
        + r"(?: ?[AP]M\b)?(?: [\w.]{1,60})?\]?:?",
    ),
)
_PATTERNS: Final = tuple((clock, re.compile(r"\s*" + text + r"\s?")) for clock, text in _STAMPS)
_FIRST: Final = re.compile(r"\s*[\[(<]?[\dA-Z]")
_TWO_DIGITS: Final = 100


@dataclass(frozen=True, slots=True)
class Stamp:
    """A moment as a named clock told it; `at_s` is Unix time, taken as UTC without a zone."""

    clock: str
    at_s: float


def peel_stamp(text: str, year: int) -> tuple[str, Stamp | None] | None:
    """Return the text behind a leading stamp and its time, None where there is no stamp.

    `year` completes stamps without one. The time is None for what is no date (99:99:99).
    """
    if not _FIRST.match(text):
        return None
    for clock, pattern in _PATTERNS:
        if found := pattern.match(text):
            return text[found.end() :], _read(clock, found, year)
    return None


def _read(clock: str, found: re.Match[str], year: int) -> Stamp | None:
    parts = found.groupdict()
    zone = parts.get("zone")
    written = int(parts.get("year") or year)
    month = parts.get("month") or _MONTHS.split("|").index(parts["monthname"]) + 1
    try:
        moment = datetime(
            written if written >= _TWO_DIGITS else 2000 + written,
            int(month),
            int(parts["day"]),
            int(parts["hour"]),
            int(parts["minute"]),
            int(parts["second"]),
            tzinfo=UTC,
        )
    except ValueError:
        return None
    fraction_s = float(f"0.{parts['fraction'] or 0}")
    return Stamp(
        f"{clock} zoned" if zone else clock,
        moment.timestamp() - _offset_s(zone) + fraction_s,
    )


def _offset_s(zone: str | None) -> int:
    if not zone or zone[0] not in "+-":
        return 0
    sign = -1 if zone[0] == "-" else 1
    return sign * (int(zone[1:3]) * 3600 + int(zone[-2:]) * 60)
