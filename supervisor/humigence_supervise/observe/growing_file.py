"""Reading what was appended to a file that another process writes, cuts or replaces."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path


@dataclass(slots=True)
class GrowingFile:
    """A position in a file; nothing is held open between two reads.

    When the file shrinks or is replaced by another one, reading goes on at its beginning and
    `restarts` counts one more. A path that is missing or no regular file reads as empty.
    """

    path: Path
    offset: int = 0
    restarts: int = 0
    _identity: tuple[int, int] | None = None

    def waiting_bytes(self) -> int:
        """Return how many bytes are there to be read; one stat call.

        Raises:
            OSError: the file is there but cannot be looked at.
        """
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
        # O_NONBLOCK: a FIFO put in the file's place since the stat must not hold us for ever.
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return b""
        try:
            data = os.pread(descriptor, waiting, self.offset)
        finally:
            os.close(descriptor)
        self.offset += len(data)
        return data

    def _begin_again(self) -> None:
        if self._identity is not None:
            self._identity, self.offset = None, 0
            self.restarts += 1
