"""The output files of an attempt, cut into lines; memory is bounded whatever stands in them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from humigence_supervise.contract import ATTEMPTS_DIR, LAUNCHER_LOG, RANKS_DIR, attempt_name
from humigence_supervise.observe.growing_file import GrowingFile

RANK_STREAMS: Final = ("stdout", "stderr")
LAUNCHER_STREAM: Final = "launcher"
MAX_LINE_BYTES: Final = 64 * 1024
UTF8_TAIL_BYTES: Final = 3


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of output. `rank` is None for the launcher's own (stream "launcher").

    `text` is the line without its end; bytes that are not UTF-8 stand as lone surrogates, so
    ``text.encode("utf-8", "surrogateescape")`` is what was written. It may hold anything a
    program can print: people get it through `printable.for_people`. A line longer than
    `MAX_LINE_BYTES` comes in pieces.
    """

    attempt: int
    rank: int | None
    stream: str
    text: str


@dataclass(slots=True)
class LogFile:
    """One file of an attempt. `unread` is why the last turn could not read it, "" when it could."""

    attempt: int
    rank: int | None
    stream: str
    file: GrowingFile
    unread: str = ""
    _held: bytes = b""
    _restarts: int = 0

    def waiting_bytes(self) -> int:
        """Return how much is there to be read; never raises OSError, see `unread`."""
        self.unread = ""
        try:
            return self.file.waiting_bytes()
        except OSError as error:
            self.unread = f"{self.file.path} could not be read ({error.strerror})"
            return 0

    def take_turn(self, most_bytes: int) -> tuple[int, list[LogLine]]:
        """Return how many bytes were read, and the lines that were completed by them.

        An unfinished line waits for its end. Never raises OSError, see `unread`.
        """
        self.unread = ""
        try:
            data = self.file.read(most_bytes)
        except OSError as error:
            self.unread = f"{self.file.path} could not be read ({error.strerror})"
            return 0, []
        lines: list[LogLine] = []
        if self.file.restarts != self._restarts:
            self._restarts = self.file.restarts
            lines = self.rest()
        *complete, held = (self._held + data).split(b"\n")
        lines.extend(self._line(piece) for line in complete for piece in _pieces(line))
        *overlong, self._held = _pieces(held)
        lines.extend(self._line(piece) for piece in overlong)
        return len(data), lines

    def rest(self) -> list[LogLine]:
        """Return the unfinished last line, if there is one, as if it were complete."""
        held, self._held = self._held, b""
        return [self._line(held)] if held else []

    def _line(self, raw: bytes) -> LogLine:
        text = raw.removesuffix(b"\r").decode("utf-8", "surrogateescape")
        return LogLine(self.attempt, self.rank, self.stream, text)


def attempts(run_dir: Path) -> tuple[int, ...]:
    """Return the numbers of all attempts that have a folder, ascending; empty when unreadable."""
    folder = run_dir / ATTEMPTS_DIR
    return tuple(one for one in _numbers(folder) if (folder / attempt_name(one)).is_dir())


def log_files(run_dir: Path, attempt: int, rank: int | None) -> list[LogFile]:
    """Return the output files of an attempt: the launcher's and every rank's, or one rank's."""
    folder = run_dir / ATTEMPTS_DIR / attempt_name(attempt)
    found: list[LogFile] = []
    if rank is None:
        launcher = GrowingFile(folder / LAUNCHER_LOG)
        found.append(LogFile(attempt, None, LAUNCHER_STREAM, launcher))
    for number in _numbers(folder / RANKS_DIR) if rank is None else [rank]:
        for stream in RANK_STREAMS:
            path = folder / RANKS_DIR / str(number) / f"{stream}.log"
            found.append(LogFile(attempt, number, stream, GrowingFile(path)))
    return found


def _numbers(folder: Path) -> list[int]:
    """Return the folder's entries that are numbers; what is not there has none."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - names are all we need
    except OSError:
        return []
    digits = (name for name in names if name.isascii() and name.isdigit())
    return sorted({int(name) for name in digits if len(name) <= 9})  # noqa: PLR2004 - no forged giants


def _pieces(line: bytes) -> Iterator[bytes]:
    """Cut a line into pieces of at most `MAX_LINE_BYTES`, not within a UTF-8 character."""
    start = 0
    while len(line) - start > MAX_LINE_BYTES:
        end = start + MAX_LINE_BYTES
        for back in range(UTF8_TAIL_BYTES + 1):
            if line[end - back] & 0xC0 != 0x80:  # noqa: PLR2004 - not a continuation byte
                end -= back
                break
        yield line[start:end]
        start = end
    yield line[start:]
