"""`start --detach`: the supervisor in a session of its own; returns once it holds the run."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from pathlib import Path

from humigence_supervise import contract
from humigence_supervise.config import ConfigError, Settings
from humigence_supervise.run_lock import holder

READY_S = 30.0
OUTPUT_FILE = "supervisor.log"


class DetachError(RuntimeError):
    """The detached supervisor ended, or did not take the run over in time.

    `exit_code` is its own, or that of an internal error when it still runs.
    """

    def __init__(self, said: str, exit_code: int) -> None:
        """Pass on what the supervisor said."""
        super().__init__(said)
        self.exit_code = exit_code


def start_detached(settings: Settings, arguments: list[str]) -> str:
    """Start `humigence-supervise` with the same arguments in the background.

    Returns a sentence that says how to follow it.

    Raises:
        ConfigError: the run directory cannot be created.
        DetachError: the supervisor ended at once; the message has what it said.
    """
    run_dir = settings.run_dir
    try:
        run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)  # closed to others, as in preflight
    except OSError as error:
        raise ConfigError((f"run_dir: {run_dir} cannot be created ({error.strerror})",)) from error
    kept = [word for word in arguments if word != "--detach"]
    output = run_dir / OUTPUT_FILE
    with output.open("ab") as stream:
        begin = stream.tell()
        child = subprocess.Popen(
            [sys.executable, "-m", "humigence_supervise.cli", *kept],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
    if not _holds(run_dir, child):
        with output.open("rb") as stream:
            stream.seek(begin)
            said = stream.read(4000).decode("utf-8", "replace").strip()
        late = f"pid {child.pid} did not take the run over in {READY_S:.0f} s"
        ended = child.poll()
        raise DetachError(said or late, contract.EXIT_INTERNAL if ended is None else ended)
    return (
        f"{settings.name} runs under pid {child.pid}."
        f" Follow it: humigence-supervise events -f {run_dir}"
    )


def _holds(run_dir: Path, child: subprocess.Popen[bytes]) -> bool:
    """Wait until the child holds the run's lock; False when it ended first or takes too long."""
    pidfd = os.pidfd_open(child.pid)
    try:
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            found = holder(run_dir)
            if found is not None and found.pid == child.pid:
                return True
            if select.select([pidfd], [], [], 0.05)[0]:
                return child.wait() == 0
        return False
    finally:
        os.close(pidfd)
