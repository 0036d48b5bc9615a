"""Who is this process: the few facts of /proc the supervisor acts on.

A pid alone is no identity, since pids are used again; a pid with the start time of its process
is one for ever within a boot (proc_pid_stat(5), field 22). Everything that signals a process
goes through a pidfd that was checked against that pair after it was opened.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from humigence_supervise.domain import ProcessId

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# What reading of a process says when it is gone or not to be seen. Anything else (no descriptors,
# no memory) is no answer, and raised: "cannot look" must never read as "is dead".
_GONE = (FileNotFoundError, ProcessLookupError, PermissionError)
_DEAD_STATES = frozenset("ZX")
# Fields of /proc/<pid>/stat counted from 0 after the command name: state is field 3 of the page.
_STATE, _PPID, _START_TICKS, _EXIT_CODE = 0, 1, 19, 49


@dataclass(frozen=True, slots=True)
class Stat:
    """What /proc/<pid>/stat says. `exit_status` is a wait status, true of a zombie only."""

    pid: int
    state: str
    ppid: int
    start_ticks: int
    exit_status: int | None

    @property
    def dead(self) -> bool:
        """True for a process that has ended, reaped or not."""
        return self.state in _DEAD_STATES


def stat(pid: int) -> Stat | None:
    """Return the stat of a process, None when there is none (or it may not be seen).

    Raises OSError when the answer cannot be had; so do all who ask through it.
    """
    try:
        raw = Path(f"/proc/{pid}/stat").read_bytes()
    except _GONE:
        return None
    return parse_stat(raw)


def parse_stat(raw: bytes) -> Stat | None:
    """Parse a stat line; the command name may itself hold blanks and parentheses."""
    head, found, tail = raw.rpartition(b")")
    fields = tail.split()
    if not found or len(fields) <= _START_TICKS:
        return None
    return Stat(
        pid=int(head.split(b" ", 1)[0]),
        state=fields[_STATE].decode("ascii"),
        ppid=int(fields[_PPID]),
        start_ticks=int(fields[_START_TICKS]),
        exit_status=int(fields[_EXIT_CODE]) if len(fields) > _EXIT_CODE else None,
    )


def boot_id() -> str:
    """Return the kernel's name for this boot. Raises OSError where /proc is not mounted."""
    return _BOOT_ID.read_text(encoding="ascii").strip()


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None when there is none."""
    found = stat(pid)
    return None if found is None else found.start_ticks


def identity(pid: int) -> ProcessId | None:
    """Return who holds this pid now; None when nobody does."""
    ticks = start_ticks(pid)
    return None if ticks is None else ProcessId(pid, ticks)


def is_alive(process: ProcessId) -> bool:
    """Tell whether this very process runs still; a zombie does not."""
    found = stat(process.pid)
    return found is not None and not found.dead and found.start_ticks == process.start_ticks


def environ_of(pid: int) -> dict[bytes, bytes] | None:
    """Return the environment a process was started with; None when it may not be read.

    It is the process's own memory: one that rewrites its title may have overwritten it.
    """
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except _GONE:
        return None
    pairs = (entry.partition(b"=") for entry in raw.split(b"\0"))
    return {name: value for name, found, value in pairs if found}


def all_pids() -> tuple[int, ...]:
    """Return every pid that /proc shows now."""
    return tuple(int(entry) for entry in os.listdir("/proc") if entry.isdigit())  # noqa: PTH208 - names only, and often


def open_pidfd(process: ProcessId) -> int | None:
    """Return a pidfd of this very process, also of its zombie; None when it is gone.

    Raises OSError when descriptors are exhausted.
    """
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return None
    # Checked after opening: from now on the descriptor can mean no other process.
    try:
        same = start_ticks(process.pid) == process.start_ticks
    except OSError:
        os.close(pidfd)
        raise
    if not same:
        os.close(pidfd)
        return None
    return pidfd


def send_signal(process: ProcessId, signum: signal.Signals) -> bool:
    """Signal this very process and no other. False when it is gone or is not ours to signal."""
    pidfd = open_pidfd(process)
    if pidfd is None:
        return False
    try:
        signal.pidfd_send_signal(pidfd, signum)
    except (ProcessLookupError, PermissionError):
        return False
    else:
        return True
    finally:
        os.close(pidfd)
