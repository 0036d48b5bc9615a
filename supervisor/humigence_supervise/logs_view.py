"""What `logs` shows: the output of an attempt so far, or of a run as it goes on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from humigence_supervise.log_files import LogFile, LogLine, attempts, log_files

TURN_BYTES: Final = 16 * 1024
POLL_BYTES: Final = 256 * 1024


def read_logs(
    run_dir: Path, *, rank: int | None = None, attempt: int | None = None
) -> Iterator[LogLine]:
    """Yield what an attempt (default: the newest) has written so far, the files taking turns.

    `rank` None is the launcher and all ranks. Ends also when the attempt goes on writing. A file
    that cannot be read is left out.
    """
    shown = attempt or max(attempts(run_dir), default=0)
    left = [(file, file.waiting_bytes()) for file in log_files(run_dir, shown, rank)]
    while left:
        again: list[tuple[LogFile, int]] = []
        for file, bytes_left in left:
            used, lines = file.take_turn(min(TURN_BYTES, bytes_left))
            yield from lines
            if 0 < used < bytes_left:
                again.append((file, bytes_left - used))
            else:
                yield from file.rest()
        left = again


@dataclass(slots=True)
class LogFollower:
    """The lines of a run as they are written, going on to each new attempt.

    Begins with all of the newest attempt, or stays with `attempt` if one is given. `rank` None
    is the launcher and all ranks. The caller waits; nothing here does.
    """

    run_dir: Path
    rank: int | None = None
    attempt: int | None = None
    _shown: int = 0
    _files: dict[Path, LogFile] = field(default_factory=dict)
    _turn: int = 0

    @property
    def unread(self) -> str:
        """What the last poll could not read and why, one a line; "" when it could all."""
        return "\n".join(file.unread for file in self._files.values() if file.unread)

    def poll(self, most_bytes: int = POLL_BYTES) -> tuple[LogLine, ...]:
        """Return the lines of about the next `most_bytes`; empty when nothing more is there now.

        Files take turns of `TURN_BYTES`, so no rank drowns the others. Never raises OSError.
        """
        newest = self.attempt or max(attempts(self.run_dir), default=0)
        if not self._shown:
            self._shown = newest
        used, lines = self._read(most_bytes)
        while not used and self._shown < newest:
            lines.extend(self.finish())
            self._shown, self._files, self._turn = self._shown + 1, {}, 0
            used, found = self._read(most_bytes)
            lines.extend(found)
        return tuple(lines)

    def finish(self) -> list[LogLine]:
        """Return the unfinished last lines; for when nobody will finish them any more."""
        return [line for file in self._files.values() for line in file.rest()]

    def _read(self, most_bytes: int) -> tuple[int, list[LogLine]]:
        for file in log_files(self.run_dir, self._shown, self.rank):
            self._files.setdefault(file.file.path, file)
        files = list(self._files.values())
        lines: list[LogLine] = []
        total, quiet = 0, 0
        while quiet < len(files) and total < most_bytes:
            file = files[self._turn % len(files)]
            self._turn += 1
            used, found = file.take_turn(min(TURN_BYTES, most_bytes - total))
            lines.extend(found)
            total += used
            quiet = 0 if used else quiet + 1
        return total, lines
