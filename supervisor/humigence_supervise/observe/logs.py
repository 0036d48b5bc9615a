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
from humigence_supervise.observe.growing_file import GrowingFile
from humigence_supervise.observe.lines import LogLine, normalize, segments

BLOCK_BYTES: Final = 1 << 20
_MAX_LINE_BYTES: Final = 1 << 18
"""Of a longer line only head and tail are kept."""

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
            if len(carry) > 2 * _MAX_LINE_BYTES:
                carry = carry[:_MAX_LINE_BYTES] + b" ... " + carry[-_MAX_LINE_BYTES:]
                self._cut_lines += 0 if in_cut_line and not lines else 1
                in_cut_line = True
            elif lines:
                in_cut_line = False
            if lines:
                yield Block(first_line, lines)
                first_line += len(lines)
        if carry:
            yield Block(first_line, [carry])


class LogTail:
    """Follows a growing log and returns those of its new lines that could mean something.

    Survives rotation and truncation (`GrowingFile`), keeps a partial last line back, and reads
    a bounded number of bytes a call; `skipped_bytes` counts what a flood made it leave out.
    """

    def __init__(self, path: Path, gate: Gate | None = None) -> None:
        """Follow `path`, which need not exist yet; `gate` judges lines."""
        self._file = GrowingFile(path)
        self._gate = Gate(load_catalogue().literals) if gate is None else gate
        self._partial = b""
        self._restarts = 0
        self.skipped_bytes = 0

    def poll(self) -> list[LogLine]:
        """Return the new lines that pass the gate; never blocks.

        Raises:
            OSError: the file is there but cannot be read.
        """
        waiting = self._file.waiting_bytes()
        if waiting > _TAIL_BACKLOG_BYTES:
            self.skipped_bytes += waiting - _TAIL_BYTES
            self._file.offset += waiting - _TAIL_BYTES
            self._partial = b""
        data = self._file.read(_TAIL_BYTES)
        if self._file.restarts != self._restarts:
            self._restarts = self._file.restarts
            self._partial = b""
        *lines, self._partial = (self._partial + data).split(b"\n")
        if len(self._partial) > _MAX_LINE_BYTES:
            self._partial = self._partial[-_MAX_LINE_BYTES:]
        return [
            normalize(piece)
            for index in self._gate.hot_lines(lines)
            for piece in segments(lines[index].decode(errors="replace"))
        ]
