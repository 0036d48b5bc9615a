"""How each rank ended, seen the moment it ends and without being its parent.

torchrun reaps its ranks within 0.1 s and tells nobody how they died, so the status is read from
the zombie: field 52 of /proc/<pid>/stat, shown to whoever may ptrace the process, as its own
user may. Once it was reaped, kernels from 6.15 on still tell through the pidfd.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from humigence_supervise import proc
from humigence_supervise.contract import RANK_ERROR_FILE, RANK_PROCESS_FILE, RANKS_DIR
from humigence_supervise.domain import ExitStatus, ProcessId, RankExit
from humigence_supervise.small_json import load_small_json, read_small_json

MAX_PID = 1 << 30
MAX_TICKS = 1 << 63
# linux/pidfd.h: struct pidfd_info as of 6.13 (mask, cgroup, eleven ids, exit code), its ioctl,
# and the bit of the mask that asks for, and then vouches for, the exit code.
_PIDFD_INFO = struct.Struct("=QQ11Ii")
_PIDFD_GET_INFO = 0xC000FF0B | _PIDFD_INFO.size << 16
_PIDFD_INFO_EXIT = 1 << 3


@dataclass(frozen=True, slots=True)
class _Watched:
    rank: int
    process: ProcessId


class RankWatch:
    """The ranks of one attempt: found as they come through the doorway, followed to their end.

    The loop calls `discover` now and then, waits on `fds`, and hands the readable ones to
    `exits`. A rank that was gone when it was found is an exit with an unknown status.
    `unread` is which ranks the last `discover` could not look for, and why; () is all well.
    """

    def __init__(self, attempt_dir: Path, world_size: int) -> None:
        """Watch `world_size` ranks of an attempt, those of an adopted one too."""
        self._folders = {rank: attempt_dir / RANKS_DIR / str(rank) for rank in range(world_size)}
        self._awaited = set(self._folders)
        self._watched: dict[int, _Watched] = {}
        self.unread: tuple[str, ...] = ()

    @property
    def fds(self) -> tuple[int, ...]:
        """The pidfds of the ranks that are running; each is readable once its rank has ended."""
        return tuple(self._watched)

    def discover(self) -> tuple[RankExit, ...]:
        """Look for ranks that have started; return those that had already gone by now.

        Never raises OSError: a rank that cannot be looked at is looked for again, see `unread`.
        """
        gone = []
        unread = []
        for rank in sorted(self._awaited):
            try:
                process = _read_process(self._folders[rank])
                pidfd = proc.open_pidfd(process)
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                why = getattr(error, "strerror", None) or error
                unread.append(f"rank {rank} cannot be watched: {RANK_PROCESS_FILE}: {why}")
                continue
            self._awaited.discard(rank)
            if pidfd is None:
                gone.append(self._exit(_Watched(rank, process), ExitStatus()))
            else:
                self._watched[pidfd] = _Watched(rank, process)
        self.unread = tuple(unread)
        return tuple(gone)

    def exits(self, readable: Iterable[int]) -> tuple[RankExit, ...]:
        """Return how the ranks of readable pidfds ended; their pidfds are closed."""
        ended = []
        for pidfd in readable:
            watched = self._watched.pop(pidfd, None)
            if watched is None:
                continue
            ended.append(self._exit(watched, _status(pidfd, watched.process)))
            os.close(pidfd)
        return tuple(ended)

    def close(self) -> None:
        """Stop watching; the ranks run on."""
        for pidfd in self._watched:
            os.close(pidfd)
        self._watched.clear()

    def _exit(self, watched: _Watched, status: ExitStatus) -> RankExit:
        message = _read_error(self._folders[watched.rank] / RANK_ERROR_FILE)
        return RankExit(watched.rank, watched.process.pid, status, message)


def _read_process(folder: Path) -> ProcessId:
    """Return who a rank said it is; raises OSError or ValueError."""
    match load_small_json(folder / RANK_PROCESS_FILE):
        case {"pid": int(pid), "start_ticks": int(ticks)} if (
            0 < pid < MAX_PID and 0 <= ticks < MAX_TICKS
        ):
            return ProcessId(pid, ticks)
        case _:
            raise ValueError("it names no process")


def _status(pidfd: int, process: ProcessId) -> ExitStatus:
    try:
        found = proc.stat(process.pid)
    except OSError:  # no descriptors: the pidfd may still tell, else it stays unknown
        found = None
    if found is not None and found.dead and found.start_ticks == process.start_ticks:
        return _decoded(found.exit_status)
    return _decoded(_status_after_reaping(pidfd))


def _status_after_reaping(pidfd: int) -> int | None:
    request = _PIDFD_INFO.pack(_PIDFD_INFO_EXIT, *[0] * 13)
    try:
        mask, *_, wait_status = _PIDFD_INFO.unpack(fcntl.ioctl(pidfd, _PIDFD_GET_INFO, request))
    except OSError:  # an older kernel
        return None
    return int(wait_status) if mask & _PIDFD_INFO_EXIT else None


def _decoded(wait_status: int | None) -> ExitStatus:
    if wait_status is None:
        return ExitStatus()
    result = os.waitstatus_to_exitcode(wait_status)
    return ExitStatus(code=result) if result >= 0 else ExitStatus(signal=-result)


def _read_error(path: Path) -> str:
    """Return the message of a torchelastic error file, "" where there is none."""
    match read_small_json(path):
        case {"message": {"message": message}} | {"message": message}:
            return str(message)
        case _:
            return ""
