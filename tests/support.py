"""What several tests need: plans built by hand, and proof that a run left nothing alive."""

import os
import signal
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from humigence_supervise import launch
from humigence_supervise.contract import ATTEMPTS_DIR, LAUNCHER_LOG, ExitRecord, attempt_name
from humigence_supervise.domain import EnvChange, Launcher, LaunchPlan

PYTHON = sys.executable
FAST_PYTHON = (PYTHON, "-I", "-S", "-u")
"""An interpreter without site packages: it starts in 10 ms."""
RANK_ENTRY = launch.RANK_ENTRY_PROGRAM

LAUNCH_TWO_RANKS = """
import os, signal, subprocess, sys
ranks = [
    subprocess.Popen([sys.executable, "-I", "-S", *sys.argv[1:]], start_new_session=True,
                     env={**os.environ, "RANK": str(r), "LOCAL_RANK": str(r), "WORLD_SIZE": "2"})
    for r in range(2)
]
def forward(signum, frame):
    for rank in ranks:
        rank.send_signal(signum)
signal.signal(signal.SIGTERM, forward)
sys.exit(1 if any([rank.wait() for rank in ranks]) else 0)
"""
"""A launcher with torchrun's habits: each rank in its own session, SIGTERM handed on, exit 1."""


def eventually(fact, what: str, within_s=60.0):
    """Return the first true value of `fact`; fail naming `what` when it stays false."""
    deadline = time.monotonic() + within_s
    while not (value := fact()):
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        time.sleep(0.005)
    return value


def pids_marked(run_id: str) -> list[int]:
    """Return the pids of living processes whose environment names the run, ourselves excluded."""
    mark = b"HUMIGENCE_RUN_ID=" + run_id.encode() + b"\0"
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if mark in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return found


class Run:
    """One run directory of a test, with its own id, and the keepers started in it."""

    def __init__(self, run_dir: Path) -> None:
        """Use an existing folder as the run directory."""
        self.dir = run_dir
        self.id = f"test-{uuid.uuid4().hex}"
        self.keepers: list[launch.Keeper] = []

    def attempt_dir(self, attempt: int = 1) -> Path:
        """Return the folder of an attempt."""
        return self.dir / ATTEMPTS_DIR / attempt_name(attempt)

    def plan(
        self,
        *argv: str,
        attempt: int = 1,
        world_size: int = 1,
        grace_s: float = 10.0,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
        unset_env: tuple[str, ...] = (),
        launcher: Launcher = Launcher.PYTHON,
    ) -> LaunchPlan:
        """Return a plan that runs `argv` with the contract's variables and those of `env`."""
        variables = {
            "HUMIGENCE_RUN_ID": self.id,
            "HUMIGENCE_RUN_DIR": str(self.dir),
            "HUMIGENCE_ATTEMPT": str(attempt),
            "HUMIGENCE_ATTEMPT_DIR": str(self.attempt_dir(attempt)),
            **(env or {}),
        }
        return LaunchPlan(
            attempt=attempt,
            rung="only",
            rung_index=0,
            launcher=launcher,
            world_size=world_size,
            argv=argv,
            env=tuple(EnvChange(k, v, setter="contract", why="test") for k, v in variables.items()),
            unset_env=unset_env,
            cwd=cwd or self.dir,
            attempt_dir=self.attempt_dir(attempt),
            gpus=(),
            batch=None,
            resume_from=None,
            grace_s=grace_s,
        )

    def start(self, *argv: str, environ: dict[str, str] | None = None, **more) -> launch.Keeper:
        """Start an attempt that runs `argv`; see `plan`."""
        plan = self.plan(*argv, **more)
        keeper = launch.start(plan, self.dir, dict(os.environ) if environ is None else environ)
        self.keepers.append(keeper)
        return keeper

    def start_python(self, program: str, *arguments: str, **more) -> launch.Keeper:
        """Start an attempt that is one small Python program."""
        return self.start(*FAST_PYTHON, "-c", program, *arguments, **more)

    def start_ranks(self, program: str, **more) -> launch.Keeper:
        """Start an attempt of two ranks that go through the doorway into a Python program."""
        script = self.dir / "rank.py"
        script.write_text(program)
        return self.start_python(
            LAUNCH_TWO_RANKS, str(RANK_ENTRY), str(script), world_size=2, **more
        )

    def ended(self, keeper: launch.Keeper, within_s: float = 60.0) -> ExitRecord:
        """Wait for a keeper's end; return its last word, which must be that all is gone."""
        eventually(lambda: keeper.ended, "the keeper ends", within_s)
        keeper.reap()
        record = launch.read_exit(self.attempt_dir(keeper.attempt))
        assert record is not None
        assert record["cleared"]
        assert pids_marked(self.id) == []
        return record

    def said(self, words: str, attempt: int = 1) -> None:
        """Wait until the launcher's log holds `words`."""
        log = self.attempt_dir(attempt) / LAUNCHER_LOG
        eventually(lambda: words in log.read_text(errors="replace"), f"{words!r} in {log}")

    def pid_from(self, name: str) -> int:
        """Wait for a file of the run directory that holds a pid; return it."""
        path = self.dir / name
        return int(eventually(lambda: path.exists() and path.read_text().strip(), f"{name}"))


@contextmanager
def open_run(run_dir: Path) -> Iterator[Run]:
    """Give a test a run; at the end nothing of it may be alive."""
    run = Run(run_dir)
    try:
        yield run
        left = pids_marked(run.id)
    finally:
        for pid in pids_marked(run.id):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for keeper in run.keepers:
            eventually(lambda keeper=keeper: keeper.ended, "a killed keeper ends")
            keeper.reap()
            keeper.close()
    assert left == [], "the test left processes alive"
