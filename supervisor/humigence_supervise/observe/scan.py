"""The lines of one log -> what the catalogue says of them (pure)."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from humigence_supervise.catalogue import Catalogue, Row
from humigence_supervise.domain import ExitStatus, Hit, RankExit
from humigence_supervise.gate import Gate
from humigence_supervise.observe.lines import LogLine, normalize, segments, windows
from humigence_supervise.observe.logs import Block
from humigence_supervise.observe.recovery import forgive
from humigence_supervise.observe.traceback import (
    crash_frame,
    exit_of_job,
    exit_of_rank,
    is_in_traceback,
    is_root_failure,
    spawned_rank,
    user_frame,
)

_ABOVE_LINES: Final = 80
_BELOW_LINES: Final = 60
_HITS_PER_ROW: Final = 12
_LOOKS_AROUND: Final = 2_000
"""Times a scan looks at the lines around a hit: bounds the cost of a flood of errors."""

_PIECES: Final = 200
_TEXT_MAX: Final = 2_000
_END_LINES: Final = 4
_END_SEARCHED: Final = 20
_PROGRESS_SAMPLES: Final = 200
_PROGRESS_KEPT: Final = 2_000
_LOOSE_LINES: Final = 30
"""An exception's name without a traceback counts only this near to the end of the log."""

_PROGRESS: Final = re.compile(
    r"\bloss\W{1,5}\d"
    r"|(?:\bstep|\biter(?:ation)?|\bepoch|global_step)\W{1,6}\d+.{0,200}\bloss"
    r"|\d+/\d+ \[\d+:\d\d(?::\d\d)?<",
    re.IGNORECASE,
)
"""A line of a program that trains: a loss, or a progress bar that moves."""


@dataclass(slots=True)
class Scan:
    """What one file showed. `exits`, `first_dead` and `job` are what launchers print."""

    hits: list[Hit] = field(default_factory=list)
    exits: dict[int, RankExit] = field(default_factory=dict)
    first_dead: int | None = None
    job: ExitStatus | None = None
    progress_seen: bool = False
    lines: int = 0


class Scanner:
    """Reads one file block by block; `finish` closes it. Answers depend on the lines alone."""

    def __init__(
        self,
        catalogue: Catalogue,
        file: str,
        rank: int | None = None,
        year: int = 1970,
        *,
        large: bool = True,
    ) -> None:
        """Scan `file` (a name for messages), the output of `rank` where one rank wrote it.

        `large`: see `Gate`.
        """
        self._catalogue = catalogue
        self._gate = Gate(catalogue.literals, large=large)
        self._file = file
        self._rank = rank
        self._year = year
        self._before: list[bytes] = []
        self._ends: list[tuple[int, LogLine]] = []
        self._counts: Counter[tuple[str, int | None]] = Counter()
        self._looks = 0
        self._loose: list[Hit] = []
        self._progress_lines: list[int] = []
        self.result = Scan()

    def feed(self, block: Block) -> None:
        """Read the next whole lines."""
        lines = self._before + block.lines
        offset = len(self._before)
        for index in self._gate.hot_lines(block.lines):
            self._read(lines, offset + index, block.first_line + index)
        self._note_progress(block)
        self._note_end(block)
        self._before = lines[-_ABOVE_LINES:]
        self.result.lines = block.first_line + len(block.lines) - 1

    def finish(self) -> Scan:
        """Return the result; texts that count only at the end of a log are looked for now."""
        for number, line in self._ends:
            row = self._catalogue.match(line.text)
            if row is not None and row.at_end:
                self._keep(row, line, number, [], [])
        last = self.result.lines
        self.result.hits += [hit for hit in self._loose if hit.line > last - _LOOSE_LINES]
        self.result.hits.sort(key=lambda hit: hit.line)
        self.result.hits = forgive(self.result.hits, self._progress_lines)
        self.result.progress_seen = bool(self._progress_lines)
        return self.result

    def _note_end(self, block: Block) -> None:
        """Remember the last lines that say something (rules of dashes do not)."""
        first = max(0, len(block.lines) - _END_SEARCHED)
        for number, raw in enumerate(block.lines[first:], block.first_line + first):
            line = normalize(raw[-_TEXT_MAX:].decode(errors="replace"), self._year)
            if any(map(str.isalnum, line.text)):
                self._ends = [*self._ends[-_END_LINES + 1 :], (number, line)]

    def _note_progress(self, block: Block) -> None:
        """Note which lines show progress; a big block is sampled."""
        stride = max(1, len(block.lines) // _PROGRESS_SAMPLES)
        for index in range(0, len(block.lines), stride):
            raw = block.lines[index]
            if _PROGRESS.search(raw[-1_000:].decode(errors="replace")):
                self._progress_lines.append(block.first_line + index)
        del self._progress_lines[:-_PROGRESS_KEPT]

    def _read(self, lines: list[bytes], index: int, number: int) -> None:
        rank = self._rank
        for piece in segments(lines[index].decode(errors="replace"))[-_PIECES:]:
            line = normalize(piece, self._year)
            rank = line.rank if line.rank is not None else rank
            for text in windows(line.text, self._catalogue.literals):
                self._match(LogLine(text, rank, line.at_s), lines, index, number)

    def _match(self, line: LogLine, lines: list[bytes], index: int, number: int) -> None:
        around: list[list[str]] = []

        def above() -> list[str]:
            if not around:
                around.append(self._neighbours(lines[max(0, index - _ABOVE_LINES) : index], line))
            return around[0]

        row = self._catalogue.match(line.text, lambda: "\n".join(above()))
        if row is None or row.at_end:
            return
        if row.id == "process.exit_code":
            self._note_exit(line.text, above())
        key = (row.id, line.rank)
        self._counts[key] += 1
        if self._counts[key] <= _HITS_PER_ROW:
            below = lines[index + 1 : index + 1 + _BELOW_LINES]
            self._keep(row, line, number, above(), below)

    def _keep(
        self,
        row: Row,
        line: LogLine,
        number: int,
        above: list[str],
        below: list[bytes],
    ) -> None:
        frame = user_frame(above)
        if not frame and line.text.startswith("Fatal Python error"):
            frame = crash_frame(self._neighbours(below, line))
        hit = Hit(
            signature=row.id,
            kind=row.kind,
            role=row.role,
            rank=line.rank if line.rank is not None else spawned_rank(above),
            file=self._file,
            line=number,
            text=line.text[:_TEXT_MAX],
            at_s=line.at_s,
            frame=frame,
        )
        if row.fallback and not is_in_traceback(above):
            self._loose.append(hit)
        else:
            self.result.hits.append(hit)

    def _neighbours(self, lines: list[bytes], line: LogLine) -> list[str]:
        """Return the texts of neighbouring lines that the same rank wrote."""
        self._looks += 1
        if self._looks > _LOOKS_AROUND:
            return []
        texts = (normalize(raw[-_TEXT_MAX:].decode(errors="replace"), self._year) for raw in lines)
        return [other.text for other in texts if other.rank in (None, line.rank)]

    def _note_exit(self, text: str, above: list[str]) -> None:
        ended = exit_of_rank(text, above)
        if ended is None:
            self.result.job = exit_of_job(text) or self.result.job
            return
        rank, pid, status = ended
        self.result.exits[rank] = RankExit(rank, pid, status)
        if is_root_failure(above):
            self.result.first_dead = rank
