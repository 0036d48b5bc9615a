"""Start, adopt and stop an attempt, always through its keeper."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from humigence_supervise import proc
from humigence_supervise.contract import (
    ATTEMPTS_DIR,
    EXIT_FILE,
    INCIDENT_DIR,
    KEEPER_FILE,
    KEEPER_LOCK,
    PLAN_FILE,
    PROGRESS_DIR,
    RANKS_DIR,
    ExitRecord,
    KeeperRecord,
    attempt_name,
)
from humigence_supervise.domain import LaunchPlan, ProcessId
from humigence_supervise.durable import write_json
from humigence_supervise.plan_file import public_plan
from humigence_supervise.small_json import read_small_json, read_small_object
from humigence_supervise.sweep import members, sweep

__all__ = [
    "RANK_ENTRY_PROGRAM",
    "Keeper",
    "LaunchError",
    "adopt",
    "free_port",
    "lock_held",
    "members",
    "planned_world_size",
    "read_exit",
    "start",
    "sweep",
]

START_S = 30.0
"""How long a keeper may take to be ready; it needs some 0.05 s."""
CLEAR_S = 5.0
"""How long a keeper that did not get ready may take to end."""
MAX_RANKS = 4096
"""More ranks than one machine runs: a plan.json that says so is not believed."""
KEEPER_PROGRAM = Path(__file__).with_name("keeper.py")
RANK_ENTRY_PROGRAM = Path(__file__).with_name("rank_entry.py")
"""The doorway that a plan's argv names where the worker's own program would stand."""


class LaunchError(OSError):
    """An attempt could not be started; its text is one sentence for people."""


@dataclass(frozen=True, slots=True)
class Keeper:
    """A handle on the keeper of one attempt; `pidfd` is readable once the keeper has ended.

    A keeper ends only when nothing of its attempt is alive and exit.json says so, unless it was
    killed itself: then exit.json is missing or not `cleared`, and `sweep` is due.
    """

    attempt: int
    process: ProcessId
    pidfd: int

    @property
    def ended(self) -> bool:
        """True once the keeper has ended."""
        return bool(select.select([self.pidfd], [], [], 0)[0])

    def stop(self) -> None:
        """Ask for a graceful end: the ranks save, for at most the plan's grace_s."""
        self._send(signal.SIGTERM)

    def clear(self) -> None:
        """Ask for an end now: everything of the attempt is killed."""
        self._send(signal.SIGUSR2)

    def reap(self) -> None:
        """Reap the keeper when it has ended and is a child of this process."""
        with suppress(ChildProcessError):
            os.waitpid(self.process.pid, os.WNOHANG)

    def close(self) -> None:
        """Give the descriptor back; the keeper lives on."""
        os.close(self.pidfd)

    def _send(self, signum: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signum)


def start(plan: LaunchPlan, run_dir: Path, environ: Mapping[str, str]) -> Keeper:
    """Start a planned attempt in its folder below an absolute `run_dir`; return its keeper.

    The worker sees `environ` changed by the plan. Returns when the launcher was executed, or when
    the keeper found that it cannot be: then exit.json has the `error` and the keeper ends.
    Raises LaunchError when there is no keeper: no room, no process, or another one at work.
    """
    assert plan.attempt_dir == run_dir / ATTEMPTS_DIR / attempt_name(plan.attempt)
    try:
        _create_folders(plan)
        write_json(plan.attempt_dir / PLAN_FILE, public_plan(plan))
        return _start_keeper(plan, _merged(environ, plan))
    except LaunchError:
        raise
    except (OSError, ValueError) as error:
        raise LaunchError(f"attempt {plan.attempt} cannot be started: {error}") from error


def adopt(run_dir: Path, attempt: int) -> Keeper | None:
    """Return the living keeper of an attempt that an earlier supervisor started, if there is one.

    It must be of this boot, have the recorded pid and start time, and hold the run's lock.
    Raises OSError when descriptors are exhausted.
    """
    record = _read_record(run_dir / ATTEMPTS_DIR / attempt_name(attempt))
    if record is None or record["boot_id"] != proc.boot_id() or not lock_held(run_dir):
        return None
    return _handle(attempt, ProcessId(record["pid"], record["start_ticks"]))


def lock_held(run_dir: Path) -> bool:
    """Tell whether some keeper of this run is alive, known or not. Raises OSError."""
    try:
        descriptor = os.open(run_dir / KEEPER_LOCK, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)


def read_exit(attempt_dir: Path) -> ExitRecord | None:
    """Return what the keeper wrote about the attempt's end; None when it did not, or not whole."""
    record = read_small_object(attempt_dir / EXIT_FILE)
    if record is None or not ExitRecord.__required_keys__.issubset(record):
        return None
    return cast("ExitRecord", record)


def planned_world_size(attempt_dir: Path) -> int:
    """Return how many ranks an attempt was planned with; 1 when its plan.json does not tell."""
    match read_small_json(attempt_dir / PLAN_FILE):
        case {"world_size": int(ranks)} if 1 <= ranks <= MAX_RANKS:
            return ranks
        case _:
            return 1


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nobody listens on now. Raises OSError."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind(("127.0.0.1", 0))
        return cast("int", listener.getsockname()[1])


def _create_folders(plan: LaunchPlan) -> None:
    if (plan.attempt_dir / KEEPER_FILE).exists():
        raise LaunchError(
            f"attempt {plan.attempt} was started before: {plan.attempt_dir} has a {KEEPER_FILE}"
        )
    for rank in range(plan.world_size):
        (plan.attempt_dir / RANKS_DIR / str(rank)).mkdir(parents=True, exist_ok=True)
    for name in (PROGRESS_DIR, INCIDENT_DIR):
        (plan.attempt_dir / name).mkdir(exist_ok=True)


def _merged(environ: Mapping[str, str], plan: LaunchPlan) -> dict[str, str]:
    merged = {**environ, **{change.name: change.value for change in plan.env}}
    return {name: value for name, value in merged.items() if name not in plan.unset_env}


def _start_keeper(plan: LaunchPlan, environ: dict[str, str]) -> Keeper:
    answer, keepers_end = os.pipe2(os.O_CLOEXEC)
    try:
        try:
            pid = _spawn(plan.attempt_dir, environ, keepers_end)
        finally:
            os.close(keepers_end)
        keeper = _handle_of_child(plan.attempt, pid)
        refusal = _read_until_ready(answer)
    finally:
        os.close(answer)
    record = _read_record(plan.attempt_dir)
    if record is not None and record["pid"] == pid:
        return keeper
    keeper.clear()
    select.select([keeper.pidfd], [], [], CLEAR_S)
    keeper.reap()
    keeper.close()
    raise LaunchError(f"attempt {plan.attempt} has no keeper: {refusal or 'it never got ready'}")


def _spawn(attempt_dir: Path, environ: dict[str, str], output: int) -> int:
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-I", "-S", str(KEEPER_PROGRAM), str(attempt_dir)],
        environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, output, 1),
            (os.POSIX_SPAWN_DUP2, output, 2),
        ],
        setsid=True,
        setsigmask=(),
        setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
    )


def _handle_of_child(attempt: int, pid: int) -> Keeper:
    try:
        process = proc.identity(pid)
        keeper = None if process is None else _handle(attempt, process)
    except OSError:
        # Without a descriptor it could not be followed. A child's pid is safe until it is reaped.
        os.kill(pid, signal.SIGUSR2)
        os.waitpid(pid, 0)
        raise
    assert keeper is not None  # a child that is not reaped
    return keeper


def _read_until_ready(answer: int) -> str:
    """Read what the keeper says until it closes its output, which is when it is ready or gone."""
    deadline = time.monotonic() + START_S
    said = b""
    while (left_s := deadline - time.monotonic()) > 0:
        if select.select([answer], [], [], left_s)[0]:
            chunk = os.read(answer, 65536)
            if not chunk:
                break
            said += chunk
    return said.decode("utf-8", "replace").removeprefix("humigence-supervise: ").strip()


def _handle(attempt: int, process: ProcessId) -> Keeper | None:
    pidfd = proc.open_pidfd(process)
    return None if pidfd is None else Keeper(attempt, process, pidfd)


def _read_record(attempt_dir: Path) -> KeeperRecord | None:
    record = read_small_object(attempt_dir / KEEPER_FILE) or {}
    match record:
        case {"pid": int(), "start_ticks": int(), "boot_id": str()}:
            return cast("KeeperRecord", record)
        case _:
            return None
