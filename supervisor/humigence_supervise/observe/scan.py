"""The lines of one log -> what the catalogue says of them (pure)."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Final

from humigence_supervise.catalogue import Catalogue, Row
from humigence_supervise.domain import ExitStatus, Hit, Kind, RankExit, Role
from humigence_supervise.gate import Gate
from humigence_supervise.observe.characters import Narrower, decode
from humigence_supervise.observe.clocks import with_times
from humigence_supervise.observe.job_end import JobEnd
from humigence_supervise.observe.launchers import MAY_TELL_END, block_rank
from humigence_supervise.observe.lines import LogLine, read_line, windows
from humigence_supervise.observe.logs import Block
from humigence_supervise.observe.neighbours import ABOVE_LINES, BELOW_LINES, Neighbours, Place
from humigence_supervise.observe.recovery import forgive, sampled_progress, shows_progress
from humigence_supervise.observe.stamps import Stamp
from humigence_supervise.observe.traceback import (
    crash_frame,
    is_in_traceback,
    is_source,
    outdented,
    spawned_rank,
    user_frame,
)
from humigence_supervise.observe.wrapped import NARROWEST, continued, rows_across

_HITS_PER_ROW: Final = 12
_TEXT_MAX: Final = 2_000
_END_LINES: Final = 4
_END_SEARCHED: Final = 20
_TAIL_LINES: Final = 2_000
"""How the job ended is told in the last lines; they are looked through for it once more."""

_TAIL_BYTES: Final = 8_000
_TAIL_END_BYTES: Final = 1_000
_PROGRESS_KEPT: Final = 2_000
_LAST_STEPS: Final = 500
READINGS: Final = 20_000
"""Of a flood of different errors so many lines are read, and the last ones; some 60 us each."""

_UNGATED_LINES: Final = 400
"""When nothing was found, so many last lines are read once more, each with its successor."""

_LOOSE_LINES: Final = 30
"""An exception's name without a traceback counts only this near to the end of the log."""


@dataclass(slots=True)
class Scan:
    """What one file showed. `exits`, `first_dead` and `job` are what launchers print."""

    hits: list[Hit] = field(default_factory=list)
    exits: dict[int, RankExit] = field(default_factory=dict)
    first_dead: int | None = None
    job: ExitStatus | None = None
    progress_seen: bool = False
    lines: int = 0
    readings: int = 0


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
        most_readings: int = READINGS,
    ) -> None:
        """Scan `file` (a name for messages), the output of `rank` where one rank wrote it.

        `large`: see `Gate`. `most_readings`: so many of its lines are read, and the last ones.
        """
        self._catalogue = catalogue
        self._large = large
        self._most_readings = most_readings
        self._gate: Gate | None = None
        self._narrower = Narrower()
        self._neighbours = Neighbours(year)
        self._file = file
        self._rank = rank
        self._year = year
        self._waiting: list[bytes] = []
        self._tail: deque[bytes] = deque(maxlen=_TAIL_LINES)
        self._counts: Counter[tuple[str, int | None]] = Counter()
        self._found: list[tuple[Hit, tuple[Stamp, ...]]] = []
        self._loose: list[tuple[Hit, tuple[Stamp, ...]]] = []
        self._seen: set[tuple[str, int | None, int]] = set()
        self._progress: list[int] = []
        self._end = JobEnd()
        self._lines = 0
        self._readings = 0

    def feed(self, block: Block) -> None:
        """Read the next whole lines."""
        self._waiting += self._narrower.lines(block.lines)
        self._advance(len(self._waiting) - BELOW_LINES)

    def finish(self) -> Scan:
        """Return the result; what counts only at the end of a log is looked for now."""
        self._advance(len(self._waiting))
        tail = list(self._tail)
        first = self._lines - len(tail) + 1
        often = any(count > _HITS_PER_ROW for count in self._counts.values())
        if often or self._readings > self._most_readings or not self._has_cause():
            self._counts.clear()  # what a log ends with counts, however often it came before
            self._read_ungated(tail, first)
        self._read_end(tail, first)
        for index, raw in enumerate(tail):
            if MAY_TELL_END.search(raw[-_TAIL_END_BYTES:]):
                self._note_ends(tail, index)
        last = self._lines
        self._found += [entry for entry in self._loose if entry[0].line > last - _LOOSE_LINES]
        hits = sorted(with_times(self._found), key=lambda hit: hit.line)
        last_steps = range(max(0, len(tail) - _LAST_STEPS), len(tail))
        self._progress += [first + at for at in last_steps if shows_progress(tail[at])]
        progress = sorted(set(self._progress))
        return Scan(
            forgive(hits, progress, ended_by_exception=self._end.by_exception),
            self._end.exits,
            self._end.first_dead,
            self._end.job,
            progress_seen=bool(progress),
            lines=self._lines,
            readings=min(self._readings, self._most_readings),
        )

    def _has_cause(self) -> bool:
        """Return whether a text was found that names a cause, not just some exception."""
        rows = self._catalogue.by_id
        return any(
            hit.role is Role.ROOT and not rows[hit.signature].fallback for hit, _ in self._found
        )

    def _advance(self, count: int) -> None:
        """Read the first `count` waiting lines; the rest lets them see what stands below."""
        if count <= 0:
            return
        before = list(self._tail)[-ABOVE_LINES:]
        lines = before + self._waiting
        ready, self._waiting = self._waiting[:count], self._waiting[count:]
        first = self._lines + 1
        if self._gate is None:  # of an empty file none is needed
            self._gate = Gate(self._catalogue.literals, large=self._large)
        hot = self._gate.hot_lines(ready)
        for index in hot[: max(0, self._most_readings - self._readings)]:
            self._read(lines, len(before) + index, first + index)
        self._readings += len(hot)
        self._progress += sampled_progress(first, ready)
        del self._progress[:-_PROGRESS_KEPT]
        self._tail.extend(raw[-_TAIL_BYTES:] for raw in ready[-_TAIL_LINES:])
        self._lines += len(ready)

    # --- one line ------------------------------------------------------------------------------

    def _read(self, lines: list[bytes], index: int, number: int) -> None:
        pieces = read_line(decode(lines[index]), self._year)
        for at, piece in enumerate(pieces):
            rank = self._rank if piece.rank is None else piece.rank
            place = self._neighbours.place(lines, index, number, pieces, at)
            for text in windows(piece.text, self._catalogue.literals):
                self._match(LogLine(outdented(text), rank, piece.at_s, piece.stamps), place)

    def _match(self, line: LogLine, place: Place) -> None:
        row = self._catalogue.match(line.text, lambda: "\n".join(place.above()))
        if row is None or row.at_end:
            return
        if row.role is Role.ROOT and is_source(line.text, place.above):
            return
        if row.id == "process.exit_code":
            self._end.note(line.text, place.above)
        key = (row.id, line.rank)
        self._counts[key] += 1
        if self._counts[key] <= _HITS_PER_ROW:
            self._keep(row, line, place)

    def _keep(self, row: Row, line: LogLine, place: Place) -> None:
        seen = (row.id, line.rank, place.number)
        if seen in self._seen:
            return
        self._seen.add(seen)
        above = place.above()
        frame = user_frame(above)
        text = line.text
        if not frame and text.startswith("Fatal Python error"):
            frame = crash_frame(place.below())
        if row.kind is Kind.CUDA_OOM:
            text = continued(text, place.below())
        rank = line.rank
        if rank is None:
            rank = spawned_rank(above)
        if rank is None:
            rank = block_rank(above)
        hit = Hit(
            signature=row.id,
            kind=row.kind,
            role=row.role,
            rank=rank,
            file=self._file,
            line=place.number,
            text=text[:_TEXT_MAX],
            frame=frame,
        )
        loose = row.fallback and not is_in_traceback(above)
        (self._loose if loose else self._found).append((hit, line.stamps))

    # --- the end of the log --------------------------------------------------------------------

    def _read_end(self, tail: list[bytes], first: int) -> None:
        """Match the rows that count only where a log ends, in its last lines that say something."""
        ends: list[tuple[int, LogLine]] = []
        for index in range(max(0, len(tail) - _END_SEARCHED), len(tail)):
            pieces = self._neighbours.line(tail[index])[-_END_SEARCHED:]
            ends += [(first + index, line) for line in pieces if any(map(str.isalnum, line.text))]
        for number, line in ends[-_END_LINES:]:
            row = self._catalogue.match(line.text)
            if row is not None and row.at_end:
                self._keep(row, line, Place(number, list, list))

    def _read_ungated(self, tail: list[bytes], first: int) -> None:
        """Read the end, last line first, with what the gate could not see or thinned out.

        It cannot see words that colours, escapes or line breaks cut.
        """
        for index in reversed(range(max(0, len(tail) - _UNGATED_LINES), len(tail))):
            self._read(tail, index, first + index)
            if index + 1 < len(tail):
                self._read_across(tail, index, first + index)

    def _read_across(self, tail: list[bytes], index: int, number: int) -> None:
        if len(tail[index]) < NARROWEST:
            return
        firsts, seconds = self._neighbours.line(tail[index]), self._neighbours.line(tail[index + 1])
        if not firsts or not seconds or seconds[0].rank not in (None, firsts[-1].rank):
            return
        line = firsts[-1]
        for row, text in rows_across(self._catalogue, line.text, seconds[0].text):
            rank = self._rank if line.rank is None else line.rank
            place = self._neighbours.place(tail, index, number, firsts, len(firsts) - 1)
            self._keep(row, LogLine(text, rank, line.at_s, line.stamps), place)

    def _note_ends(self, tail: list[bytes], index: int) -> None:
        pieces = self._neighbours.line(tail[index])
        for at, piece in enumerate(pieces):
            self._end.note(piece.text, self._neighbours.place(tail, index, 0, pieces, at).above)
