"""The lines around the one that proves a cause, read again from its file (fs)."""

from __future__ import annotations

from collections import deque
from contextlib import closing
from pathlib import Path
from typing import Final

from humigence_supervise.observe.characters import decode
from humigence_supervise.observe.lines import read_line
from humigence_supervise.observe.logs import LogReader, OpenLog
from humigence_supervise.records import Json

_BEFORE: Final = 6
_AFTER: Final = 3
_SEARCHED_BYTES: Final = 1 << 30
"""Lines are numbered by counting them from the start, some 0.3 s a gigabyte; no further."""

_TEXT_MAX: Final = 1_000
_COMPARED: Final = 80


def lines_around(path: Path, line: int, proof: str) -> list[Json]:
    """Return `{"line": number, "text": str}` of the lines around line `line`, itself included.

    Empty where the file is gone, cannot be read, is too long to count its lines, or does not say
    `proof` in that line: of a long log the middle was not read, and its lines were not counted.
    """
    kept: deque[tuple[int, bytes]] = deque(maxlen=_BEFORE + 1 + _AFTER)
    try:
        with closing(OpenLog(path)) as log:
            if not _keep_until(log.descriptor, line + _AFTER, kept):
                return []
    except OSError:
        return []
    if not any(number == line and _says(raw, proof) for number, raw in kept):
        return []
    return [
        {"line": number, "text": raw[-_TEXT_MAX:].decode(errors="replace")}
        for number, raw in kept
        if line - _BEFORE <= number
    ]


def _keep_until(descriptor: int, last: int, kept: deque[tuple[int, bytes]]) -> bool:
    """Leave the lines up to number `last` in `kept`; False where the file is too long for it."""
    read_bytes = 0
    for block in LogReader(descriptor, "").blocks():
        begins = max(0, last - (kept.maxlen or 0) - block.first_line)
        ends = last - block.first_line + 1
        kept.extend(enumerate(block.lines[begins:ends], block.first_line + begins))
        if ends <= len(block.lines):
            return True
        read_bytes += sum(map(len, block.lines))
        if read_bytes > _SEARCHED_BYTES:
            return False
    return True


def _says(raw: bytes, proof: str) -> bool:
    """Return whether a line holds the text of a hit, which may be a part of it or go on below."""
    texts = [piece.text.strip() for piece in read_line(decode(raw))]
    return any(text and (text in proof or proof.strip()[:_COMPARED] in text) for text in texts)


def marked(around: list[Json], proof: Json) -> list[str]:
    """Return the lines for people, numbered, with a mark at the one with the number `proof`."""
    lines = [one for one in around if isinstance(one, dict)]
    return [
        f"{'>' if one.get('line') == proof else ' '} {one.get('line'):>6} | {one.get('text')}"
        for one in lines
    ]
