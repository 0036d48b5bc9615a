"""The lines around an interesting one, as the same rank wrote them (pure)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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

    def texts(self, lines: list[bytes], rank: int | None) -> list[str]:
        """Return the texts of `lines` that `rank` wrote, or nobody in particular."""
        self._looks += 1
        if self._looks > _LOOKS:
            return []
        return [line.text for raw in lines for line in self.line(raw) if line.rank in (None, rank)]

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
        seen: list[list[str]] = []

        def above() -> list[str]:
            if not seen:
                seen.append(self.texts(lines[max(0, index - ABOVE_LINES) : index], rank))
            return seen[0] + [piece.text for piece in pieces[:at]]

        def below() -> list[str]:
            rest = [piece.text for piece in pieces[at + 1 :]]
            return rest + self.texts(lines[index + 1 : index + 1 + BELOW_LINES], rank)

        return Place(number, above, below)
