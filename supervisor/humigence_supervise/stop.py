"""`stop`: end a run from outside, and return when nothing of it is alive."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path

from humigence_supervise import contract, launch, proc
from humigence_supervise.domain import ProcessId
from humigence_supervise.journal import read_journal
from humigence_supervise.run_lock import holder
from humigence_supervise.state import fold


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
        _end(supervisor, signal.SIGQUIT if now else signal.SIGTERM, timeout_s)
        return "The supervisor and its attempt have ended."
    state = fold(entry.record for entry in read_journal(run_dir / contract.JOURNAL_FILE))
    keeper = launch.adopt(run_dir, state.attempt) if state.attempt else None
    if keeper is None:
        left = launch.sweep(state.run_id) if state.run_id else ()
        return f"Nothing was running; {len(left)} left-over processes were ended."
    keeper.close()
    _end(keeper.process, signal.SIGUSR2 if now else signal.SIGTERM, timeout_s)
    return "The attempt, which had no supervisor, has ended."


def _end(process: ProcessId, signum: signal.Signals, timeout_s: float | None) -> None:
    pidfd = proc.open_pidfd(process)
    if pidfd is None:
        return
    signal.pidfd_send_signal(pidfd, signum)
    ended = bool(select.select([pidfd], [], [], timeout_s)[0])
    os.close(pidfd)
    if not ended:
        raise StopTimeoutError(
            f"pid {process.pid} is still alive after {timeout_s:.0f} s: it may be saving."
            " Wait, or end it without saving: stop --now."
        )
