"""`stop`: end a run from outside, and return when nothing of it is alive."""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress
from pathlib import Path

from humigence_supervise import contract, launch, proc
from humigence_supervise.domain import ProcessId
from humigence_supervise.journal import read_journal
from humigence_supervise.run_lock import holder
from humigence_supervise.state import State, fold


class StopTimeoutError(RuntimeError):
    """Something of the run is still alive after the time given; the message says what."""


def stop(run_dir: Path, *, now: bool, timeout_s: float | None) -> str:
    """Ask the supervisor (or, without one, the keeper) to end the run and wait for it.

    `now` kills without saving. Returns a sentence about what was ended.

    Raises:
        StopTimeoutError: it is still alive after `timeout_s` seconds. None waits for as long as
            it takes, which the keeper bounds by the plan's grace.
    """
    supervisor = holder(run_dir)
    if supervisor is not None:
        _end(supervisor, _signal(run_dir, now=now), timeout_s)
    # It may have been killed before its attempt had ended: what it left is ended here.
    state = _state(run_dir)
    keeper = launch.adopt(run_dir, state.attempt) if state.attempt else None
    if keeper is not None:
        keeper.close()
        _end(keeper.process, signal.SIGUSR2 if now else signal.SIGTERM, timeout_s)
    left = launch.sweep(state.run_id) if state.run_id else ()
    ended = [
        *(["the supervisor"] if supervisor is not None else []),
        *(["an attempt that had no supervisor"] if keeper is not None else []),
        *([f"{len(left)} left-over processes"] if left else []),
    ]
    return f"Ended: {', '.join(ended)}." if ended else "Nothing was running."


def _state(run_dir: Path) -> State:
    return fold(entry.record for entry in read_journal(run_dir / contract.JOURNAL_FILE))


def _signal(run_dir: Path, *, now: bool) -> signal.Signals | None:
    """Return what to send; a second SIGTERM would kill what is still saving, so none is sent."""
    if now:
        return signal.SIGQUIT
    return signal.SIGTERM if _state(run_dir).stop is None else None


def _end(process: ProcessId, signum: signal.Signals | None, timeout_s: float | None) -> None:
    pidfd = proc.open_pidfd(process)
    if pidfd is None:
        return
    if signum is not None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signum)
    ended = bool(select.select([pidfd], [], [], timeout_s)[0])
    os.close(pidfd)
    if not ended:
        raise StopTimeoutError(
            f"pid {process.pid} is still alive after {timeout_s:.0f} s: it may be saving."
            " Wait, or end it without saving: stop --now."
        )
