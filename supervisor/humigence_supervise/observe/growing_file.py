"""Reading what was appended to a file that another process writes, cuts or replaces."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True)
class GrowingFile:
    """A position in a file.

    When the file shrinks or is replaced by another one, reading goes on at its beginning and
    `restarts` counts one more. A path that is missing or no regular file reads as empty.

    `held`: the file is kept open between two reads. One that is renamed or removed is then read
    to its end before the next one of its name is begun; close it. Otherwise nothing is held open,
    and what was appended to it since the last read is lost.
    """

    path: Path
    offset: int = 0
    restarts: int = 0
    held: bool = False
    _identity: tuple[int, int] | None = None
    _descriptor: int | None = field(default=None, repr=False)

    def waiting_bytes(self) -> int:
        """Return how many bytes are there to be read; one or two stat calls.

        Raises:
            OSError: the file is there but cannot be looked at.
        """
        if self._descriptor is not None:
            try:
                size = os.fstat(self._descriptor).st_size
            except OSError:
                self.close()
                raise
            if size < self.offset:
                self._restart()
            if size > self.offset or not self._has_successor():
                return size - self.offset
            self.close()
        try:
            status = self.path.stat()
        except FileNotFoundError:
            # Without this a new file that is given the same inode would be taken for the old one.
            self._begin_again()
            return 0
        if not stat.S_ISREG(status.st_mode):
            return 0
        identity = (status.st_dev, status.st_ino)
        if status.st_size < self.offset or self._identity not in {None, identity}:
            self._begin_again()
        self._identity = identity
        return status.st_size - self.offset

    def read(self, most_bytes: int) -> bytes:
        """Return the next bytes, at most so many; empty when there is nothing new.

        Raises:
            OSError: the file is there but cannot be read.
        """
        waiting = min(self.waiting_bytes(), most_bytes)
        if waiting <= 0:
            return b""
        if self._descriptor is None:
            # O_NONBLOCK: a FIFO put in the file's place since the stat must not hold us for ever.
            try:
                self._descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except FileNotFoundError:
                return b""
        try:
            data = os.pread(self._descriptor, waiting, self.offset)
        except OSError:
            self.close()
            raise
        if not self.held:
            self.close()
        self.offset += len(data)
        return data

    def close(self) -> None:
        """Let go of the file; reading goes on where it was."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _has_successor(self) -> bool:
        """Say whether another file of the name holds something; until then the old one goes on."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return False
        other = (status.st_dev, status.st_ino) != self._identity
        return other and stat.S_ISREG(status.st_mode) and status.st_size > 0

    def _begin_again(self) -> None:
        if self._identity is not None:
            self._identity = None
            self._restart()

    def _restart(self) -> None:
        self.offset = 0
        self.restarts += 1
