"""Messages that a terminal or a box broke in two (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from humigence_supervise.catalogue import Catalogue, Row

_REACH: Final = 400
"""Of each of two lines so much is looked at: a pattern across the break is shorter."""

NARROWEST: Final = 40
"""No terminal breaks lines shorter than this."""

_CONTINUED_LINES: Final = 8
_NEW_MESSAGE: Final = re.compile(
    r"\s*$|Traceback |\s*File \"|[\w.]{1,80}(?:Error|Exception|Warning)\b|[\[({╭╰+]"
    r"|\d{4}-|[A-Z]{4,}:|During handling|The above exc|[\w/.-]{1,80}: ",
)


def rows_across(catalogue: Catalogue, first: str, second: str) -> Iterator[tuple[Row, str]]:
    """Yield what only the two lines together say, with the text that says it.

    A break may stand inside a word or in a space's place. Only a match that reaches across it
    counts: what stands in one line was read there.
    """
    head, tail = first[-_REACH:], second.strip()[:_REACH]
    for glue in ("", " "):
        text = head + glue + tail
        row = catalogue.match(text)
        if row is None or row.fallback or row.at_end:
            continue
        found = row.pattern.search(text)
        if found and found.start() < len(head) and found.end() > len(head) + len(glue):
            yield row, text
            return


def continued(text: str, below: list[str]) -> str:
    """Return a message with the lines it goes on in, where a narrow terminal broke it."""
    last = text
    for line in below[:_CONTINUED_LINES]:
        if len(last) < NARROWEST or _NEW_MESSAGE.match(line):
            break
        text = f"{text} {line.strip()}"
        last = line
    return text
