"""Reading log files of any size and content, at rest and while they grow (fs).

Nothing here can be surprised by what stands in a file: bytes stay bytes until a line is found
interesting, a line of a gigabyte costs no more memory than a block, and what was left out is
said. Files are opened without blocking and never written.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from humigence_supervise.catalogue import load_catalogue
from humigence_supervise.gate import Gate
from humigence_supervise.observe.characters import decode
from humigence_supervise.observe.growing_file import GrowingFile
from humigence_supervise.observe.lines import LogLine, read_line

BLOCK_BYTES: Final = 1 << 20
_MAX_LINE_BYTES: Final = 1 << 18
"""Of a longer line only head and tail are kept."""

_BARS_BYTES: Final = 1 << 13
"""A longer line of progress bars is freed of those that were only drawn anew."""

_BAR_MARKS: Final = b"0123456789 #=>.:,-|/\\[]<?\xe2" + bytes(range(0x80, 0x97))
"""What changes when a bar is drawn anew; the last ones are of the block characters."""

_TAIL_BYTES: Final = 1 << 20
_TAIL_BACKLOG_BYTES: Final = 8 << 20
"""A log that grows faster than it can be read is sampled: only its newest part is."""


@dataclass(frozen=True, slots=True)
class Block:
    """Whole lines of a file; `first_line` counts from 1."""

    first_line: int
    lines: list[bytes]


class OpenLog:
    """A regular file opened for reading, never blocking; close it."""

    def __init__(self, path: Path) -> None:
        """Open it; raises OSError, also for a folder, a pipe or a device."""
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(self.descriptor).st_mode):
            self.close()
            raise OSError(errno.EINVAL, "not a regular file", str(path))

    def close(self) -> None:
        """Let go of the file."""
        os.close(self.descriptor)


class LogReader:
    """Reads a file's head and tail, at most `max_bytes`; all of it when `max_bytes` is None.

    After the iteration `unread` says what was left out ("" when nothing was).
    """

    def __init__(self, descriptor: int, name: str, max_bytes: int | None = None) -> None:
        """Read from an open descriptor, which the caller closes; `name` is for messages."""
        self._descriptor = descriptor
        self._name = name
        self._max_bytes = max_bytes
        self._cut_lines = 0
        self._skipped_bytes = 0

    @property
    def unread(self) -> str:
        """What was left out, for people."""
        notes = []
        if self._skipped_bytes:
            notes.append(
                f"{self._skipped_bytes} bytes in the middle were not read (lines behind them are "
                "numbered as if they were not there)",
            )
        if self._cut_lines:
            notes.append(f"{self._cut_lines} very long lines were cut in their middle")
        return f"{self._name}: {', '.join(notes)}" if notes else ""

    def blocks(self) -> Iterator[Block]:
        """Yield blocks of whole lines; raises OSError when reading fails."""
        size = os.fstat(self._descriptor).st_size
        if self._max_bytes is None or size <= self._max_bytes:
            yield from self._lines_of(1, None)
            return
        head = self._max_bytes // 4
        next_line = 1
        for block in self._lines_of(1, head):
            next_line = block.first_line + len(block.lines)
            yield block
        tail_start = size - (self._max_bytes - head)
        self._skip_to(tail_start)
        yield from self._lines_of(next_line, None)

    def _skip_to(self, offset: int) -> None:
        position = os.lseek(self._descriptor, 0, os.SEEK_CUR)
        self._skipped_bytes = max(0, offset - position)
        os.lseek(self._descriptor, offset, os.SEEK_SET)

    def _lines_of(self, first_line: int, limit: int | None) -> Iterator[Block]:
        """Yield blocks from the present position on, at most `limit` bytes."""
        carry = b""
        in_cut_line = False
        left = limit
        while left is None or left > 0:
            data = os.read(
                self._descriptor, BLOCK_BYTES if left is None else min(left, BLOCK_BYTES)
            )
            if not data:
                break
            left = None if left is None else left - len(data)
            *lines, carry = (carry + data).split(b"\n")
            if lines:
                yield Block(first_line, self._shortened(lines, in_cut_line=in_cut_line))
                first_line += len(lines)
                in_cut_line = False
            if len(carry) > _MAX_LINE_BYTES:
                cut_before = self._cut_lines
                (carry,) = self._shortened([carry], in_cut_line=in_cut_line)
                in_cut_line = in_cut_line or self._cut_lines > cut_before
        if carry:
            yield Block(first_line, self._shortened([carry], in_cut_line=in_cut_line))

    def _shortened(self, lines: list[bytes], *, in_cut_line: bool) -> list[bytes]:
        """Bound the length of lines. `in_cut_line`: the first one was counted as cut already."""
        if max(map(len, lines)) <= _BARS_BYTES:
            return lines
        few_bars = [_latest_bars(line) if len(line) > _BARS_BYTES else line for line in lines]
        self._cut_lines += sum(len(line) > _MAX_LINE_BYTES for line in few_bars[in_cut_line:])
        return [_without_middle(line) for line in few_bars]


def _without_middle(line: bytes) -> bytes:
    half = _MAX_LINE_BYTES // 2
    return line if len(line) <= _MAX_LINE_BYTES else line[:half] + b" ... " + line[-half:]


def _latest_bars(line: bytes) -> bytes:
    """Leave out progress bars that were drawn anew later; what is glued to one stays."""
    latest: dict[bytes, bytes] = {}
    for bar in reversed(line.split(b"\r")):
        latest.setdefault(bar.translate(None, _BAR_MARKS), bar)
    return b"\r".join(reversed(latest.values()))


class LogTail:
    """Follows a growing log and returns those of its new lines that could mean something.

    Survives rotation (the rest of a renamed file is read first) and truncation, keeps a partial
    last line back, and reads a bounded number of bytes a call: of a flood only the newest part.
    `skipped_bytes` counts what was left out. Close it.
    """

    def __init__(self, path: Path, gate: Gate | None = None) -> None:
        """Follow `path`, which need not exist yet; `gate` judges lines."""
        self._file = GrowingFile(path, held=True)
        self._gate = Gate(load_catalogue().literals) if gate is None else gate
        self._partial = b""
        self._restarts = 0
        self.skipped_bytes = 0

    def poll(self) -> list[LogLine]:
        """Return the new lines that pass the gate; never blocks.

        Raises:
            OSError: the file is there but cannot be read.
        """
        flood = self._skip_flood()
        data = self._file.read(_TAIL_BYTES)
        lines: list[bytes] = []
        if self._file.restarts != self._restarts:
            self._restarts = self._file.restarts
            lines, self._partial = [self._partial], b""
        if flood:
            data = data[data.find(b"\n") + 1 :]
        *complete, self._partial = (self._partial + data).split(b"\n")
        lines += complete
        if len(self._partial) > _MAX_LINE_BYTES:
            self._partial = self._partial[-_MAX_LINE_BYTES:]
        hot = self._gate.hot_lines(lines)
        return [line for index in hot for line in read_line(decode(lines[index]))]

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _skip_flood(self) -> bool:
        """Leave out what cannot be read in time; the first line after it is not whole."""
        left_out = self._file.waiting_bytes() - _TAIL_BYTES
        if left_out <= _TAIL_BACKLOG_BYTES:
            return False
        self.skipped_bytes += left_out
        self._file.offset += left_out
        self._partial = b""
        return True
