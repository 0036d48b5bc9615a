"""One supervisor a run: a kernel lock on ``supervisor.lock``.

The lock is what counts; it is gone with its holder, however that one ended. The text inside only
says who to ask.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import time
from pathlib import Path

from humigence_supervise import contract, proc
from humigence_supervise.domain import ProcessId
from humigence_supervise.small_json import read_small_json

TAKE_S = 1.0
"""How long the lock is tried for: whoever only looks who holds it holds it for a moment too."""
RETRY_S = 0.01


class RunHeldError(RuntimeError):
    """Another supervisor holds the run; `holder` is None when its hint cannot be read."""

    def __init__(
        self, run_dir: Path, holder: ProcessId | None, what: str = "another supervisor"
    ) -> None:
        """Say who holds `run_dir` and what to do."""
        who = f" (pid {holder.pid})" if holder is not None else ""
        super().__init__(
            f"{run_dir} is held by {what}{who}. Follow it with"
            f" `humigence-supervise status {run_dir}`, or end it with `humigence-supervise stop"
            f" {run_dir}`."
        )
        self.holder = holder


class RunLock:
    """The held lock; released by `release` or by the death of the process."""

    def __init__(self, run_dir: Path) -> None:
        """Take the lock of `run_dir` for this process.

        Raises:
            RunHeldError: another process holds it.
            OSError: the lock file cannot be opened.
        """
        path = run_dir / contract.SUPERVISOR_LOCK
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _take(self._descriptor)
        except BlockingIOError as busy:
            os.close(self._descriptor)
            raise RunHeldError(run_dir, _hint(path)) from busy
        me = proc.identity(os.getpid())
        assert me is not None, "a running process has a start time"
        os.ftruncate(self._descriptor, 0)
        hint = {"pid": me.pid, "start_ticks": me.start_ticks, "boot_id": proc.boot_id()}
        os.pwrite(self._descriptor, json.dumps(hint).encode(), 0)

    def release(self) -> None:
        """Give the lock back."""
        os.close(self._descriptor)


def holder(run_dir: Path) -> ProcessId | None:
    """Return the living supervisor of a run, verified, or None."""
    path = run_dir / contract.SUPERVISOR_LOCK
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        process = _hint(path)
        return process if process is not None and proc.is_alive(process) else None
    finally:
        os.close(descriptor)
    return None


def _take(descriptor: int) -> None:
    """Lock an open file for this process alone. Raises BlockingIOError when it stays held."""
    deadline = time.monotonic() + TAKE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise
            select.select([], [], [], RETRY_S)
        else:
            return


def _hint(path: Path) -> ProcessId | None:
    match read_small_json(path):
        case {"pid": int(pid), "start_ticks": int(ticks)}:
            return ProcessId(pid, ticks)
        case _:
            return None
