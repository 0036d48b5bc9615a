"""The lines around an interesting one, as the same rank wrote them (pure)."""

from __future__ import annotations

from typing import Final

from humigence_supervise.observe.characters import decode
from humigence_supervise.observe.lines import LogLine, read_line

_LOOKS: Final = 2_000
"""Times a scan looks around: bounds the cost of a flood of errors."""

_BYTES: Final = 8_000
"""Of a longer neighbour only the end is read."""

_REMEMBERED: Final = 4_096
"""Lines read and kept: in a flood, the surroundings of two errors are mostly the same."""


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
