"""The lines around an interesting one, as the same rank wrote them (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from humigence_supervise.observe.characters import decode
from humigence_supervise.observe.lines import LogLine, read_line

ABOVE_LINES: Final = 80
BELOW_LINES: Final = 60
"""So far one looks."""

_LOOKS: Final = 2_000
"""Times a scan looks around: bounds the cost of a flood of errors."""

_BYTES: Final = 8_000
"""Of a longer neighbour only the end is read."""

_TEXTS: Final = 400
_TEXTS_OF_LINE: Final = 60
"""So many texts are looked at, also where one line holds a whole traceback."""

_REMEMBERED: Final = 4_096
"""Lines read and kept: in a flood, the surroundings of two errors are mostly the same."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a line stands: its number, and how to see the texts above and below it."""

    number: int
    above: Callable[[], list[str]]
    below: Callable[[], list[str]]


class Neighbours:
    """Reads neighbouring lines, each once, and not for ever."""

    def __init__(self, year: int) -> None:
        """Complete stamps without a year with `year`."""
        self._year = year
        self._looks = 0
        self._read: dict[bytes, tuple[LogLine, ...]] = {}
        self._last: tuple[list[bytes], int, int | None, list[str]] = ([], -1, None, [])

    def _walk(self, lines: Iterable[bytes], rank: int | None) -> list[list[str]]:
        """Return the texts of `lines`, which come nearest first, that belong to `rank`, by line."""
        self._looks += 1
        found: list[list[str]] = []
        left = _TEXTS
        for raw in lines if self._looks <= _LOOKS else ():
            found.append(_of_rank(self.line(raw)[-_TEXTS_OF_LINE:], rank))
            left -= len(found[-1])
            if left <= 0:
                break
        return found

    def line(self, raw: bytes) -> tuple[LogLine, ...]:
        """Return what one raw line holds."""
        known = self._read.get(raw)
        if known is None:
            if len(self._read) >= _REMEMBERED:
                self._read.clear()
            known = tuple(read_line(decode(raw[-_BYTES:]), self._year))
            self._read[raw] = known
        return known

    def place(
        self,
        lines: list[bytes],
        index: int,
        number: int,
        pieces: Sequence[LogLine],
        at: int,
    ) -> Place:
        """Return where piece `at` of `lines[index]` stands, line `number` of the file."""
        rank = pieces[at].rank

        def above() -> list[str]:
            return self._above(lines, index, rank) + _of_rank(pieces[:at], rank)

        def below() -> list[str]:
            under = lines[index + 1 : index + 1 + BELOW_LINES]
            return _of_rank(pieces[at + 1 :], rank) + list(chain(*self._walk(under, rank)))

        return Place(number, above, below)

    def _above(self, lines: list[bytes], index: int, rank: int | None) -> list[str]:
        """Return the texts above a line, oldest first; the pieces of one line share them."""
        known_lines, known_index, known_rank, known = self._last
        if known_lines is lines and (known_index, known_rank) == (index, rank):
            return known
        over = lines[max(0, index - ABOVE_LINES) : index]
        found = list(chain(*reversed(self._walk(reversed(over), rank))))
        self._last = (lines, index, rank, found)
        return found


def _of_rank(lines: Sequence[LogLine], rank: int | None) -> list[str]:
    return [line.text for line in lines if line.rank in (None, rank)]
