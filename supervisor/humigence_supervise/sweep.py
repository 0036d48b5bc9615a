"""Find and end what is left of a run whose keeper was killed.

The keeper clears an attempt by descent, and needs no marks. Without it, what its processes have in
common is the environment they were started with, and the processes they started in turn.
"""

from __future__ import annotations

import os
import select
import signal
import time

from humigence_supervise import proc
from humigence_supervise.contract import ENV_ATTEMPT, ENV_RUN_ID
from humigence_supervise.domain import ProcessId

SWEEP_S = 10.0


def members(run_id: str, attempt: int | None = None) -> tuple[ProcessId, ...]:
    """Return the living processes of a run (of one attempt of it).

    These are this user's processes started with the run's id in their environment, and all their
    descendants. The caller and those it descends from are none, whatever their environment: a
    person may have copied it into the shell this runs in. One that rewrote its environment *and*
    lost its marked parent is not found.
    """
    assert run_id
    stats = {found.pid: found for pid in proc.all_pids() if (found := proc.stat(pid)) is not None}
    spared = _with_ancestors(os.getpid(), stats)
    family = {pid for pid in stats.keys() - spared if _is_marked(pid, run_id, attempt)}
    while grown := {s.pid for s in stats.values() if s.ppid in family} - family - spared:
        family |= grown
    return tuple(ProcessId(pid, stats[pid].start_ticks) for pid in family if not stats[pid].dead)


def sweep(run_id: str, attempt: int | None = None) -> tuple[int, ...]:
    """Kill every member of a run (of one attempt), until none is found or SWEEP_S is over.

    Returns the pids that were killed, in order. What `members` still returns afterwards did not
    die although killed (D state). Raises OSError when descriptors are exhausted.
    """
    deadline = time.monotonic() + SWEEP_S
    killed: set[int] = set()
    while (found := members(run_id, attempt)) and time.monotonic() < deadline:
        for process in found:
            if proc.send_signal(process, signal.SIGKILL):
                killed.add(process.pid)
        _wait_for_ends(found, deadline)
    return tuple(sorted(killed))


def _with_ancestors(pid: int, stats: dict[int, proc.Stat]) -> set[int]:
    line = set()
    while pid in stats and pid not in line:
        line.add(pid)
        pid = stats[pid].ppid
    return line


def _is_marked(pid: int, run_id: str, attempt: int | None) -> bool:
    environ = proc.environ_of(pid)
    if environ is None or environ.get(ENV_RUN_ID.encode()) != os.fsencode(run_id):
        return False
    return attempt is None or environ.get(ENV_ATTEMPT.encode()) == b"%d" % attempt


def _wait_for_ends(processes: tuple[ProcessId, ...], deadline: float) -> None:
    """Wait until all have ended, at most until a monotonic time."""
    pidfds = [pidfd for process in processes if (pidfd := proc.open_pidfd(process)) is not None]
    try:
        poll = select.poll()
        for pidfd in pidfds:
            poll.register(pidfd, select.POLLIN)
        waiting = len(pidfds)
        while waiting and (left_s := deadline - time.monotonic()) > 0:
            for pidfd, _ in poll.poll(left_s * 1000):
                poll.unregister(pidfd)
                waiting -= 1
    finally:
        for pidfd in pidfds:
            os.close(pidfd)
