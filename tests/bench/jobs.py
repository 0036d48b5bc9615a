"""The same small training, started in two ways: under the supervisor and by hand."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import psutil

PROGRAM = Path(sys.executable).with_name("humigence-supervise")
TRAIN = Path(__file__).parents[2] / "worker" / "train.py"
WORLD_SIZE = 2
WARM_UP_STEPS = 20
POLL_S = 0.005


class BenchError(Exception):
    """A measurement could not be made; the message says why."""


def read_lines(path):
    """Give the complete JSON lines of a file that may not exist yet."""
    if not path.exists():
        return []
    text = path.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def wait_for(fact, what, timeout_s):
    """Poll until `fact` gives something true, and give that."""
    deadline = time.monotonic() + timeout_s
    while not (found := fact()):
        if time.monotonic() > deadline:
            raise BenchError(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(POLL_S)
    return found


def first_bytes_at(path, timeout_s):
    """Give the time (Unix, s) at which a file first held something."""
    wait_for(lambda: path.exists() and path.stat().st_size, f"output in {path}", timeout_s)
    return time.time()


class Job:
    """One training in a folder of its own; stop it with `with`."""

    def __init__(self, folder, worker):
        """Write the worker's configuration; `worker` overrides its defaults."""
        shutil.rmtree(folder, ignore_errors=True)
        self.folder = folder
        self.run_dir = folder / "run"
        self.run_dir.mkdir(parents=True)
        self.worker_config = folder / "worker.json"
        settings = {"max_steps": 100_000, "save_steps": 10, "log_steps": 1000}
        self.worker_config.write_text(json.dumps(settings | worker))
        self.process = None

    def __enter__(self):
        """Start."""
        with (self.folder / "output.log").open("wb") as output:
            self.process = subprocess.Popen(
                self.argv(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self.environ(),
                cwd=self.folder,
            )
        return self

    def __exit__(self, *_):
        """Leave no process behind, in whatever state the job is."""
        family = []  # as psutil remembers them: it never kills a stranger with a reused pid
        for pid in (self.process.pid, *self.others()):
            with contextlib.suppress(psutil.NoSuchProcess):
                one = psutil.Process(pid)
                family += [one, *one.children(recursive=True)]
        self.stop()
        for one in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        self.process.wait()

    def others(self):
        """Give the pids that are no descendants of the process."""
        return []

    def stop(self):
        """Stop in the job's own way, where it has one: what is left is killed anyway."""

    def steps(self, attempt=None):
        """Give the progress lines of rank 0; of the first attempt if none is named."""
        raise NotImplementedError

    def trained_steps(self, attempt=None):
        """Give only the lines of completed steps."""
        return [line for line in self.steps(attempt) if line["section"] == "train"]

    def wait_for(self, fact, what, timeout_s=120):
        """Poll like `wait_for`, but give up when the job has ended."""

        def while_it_lives():
            if (found := fact()) or self.process.poll() is None:
                return found
            output = (self.folder / "output.log").read_text()[-2000:]
            raise BenchError(f"ended with {self.process.returncode} before {what}:\n{output}")

        return wait_for(while_it_lives, what, timeout_s)

    def wait_for_steps(self, count):
        """Wait until this many steps are completed, give their lines."""
        self.wait_for(lambda: len(self.trained_steps()) >= count, f"{count} steps")
        return self.trained_steps()

    def fault_at(self):
        """Give the time (Unix, s) of the fault: its marker is made just before it acts."""
        markers = self.run_dir / "faults"
        self.wait_for(lambda: any(markers.glob("*.fired")), "the fault")
        return next(markers.glob("*.fired")).stat().st_mtime


class Supervised(Job):
    """`humigence-supervise start`, two ranks first, then a single process."""

    def argv(self):
        """Write the config and give the command."""
        config = {
            "name": "bench",
            "run_dir": str(self.run_dir),
            "accelerator": "cpu",
            "worker": {"script": str(TRAIN), "args": ["--config", str(self.worker_config)]},
            "batch": {"global": 8, "micro": 4},
            "ladder": [
                {"name": "multi_gpu", "gpus": WORLD_SIZE},
                {"name": "single_gpu", "gpus": 1, "args": ["--fallback_single_gpu"]},
            ],
        }
        path = self.folder / "bench.json"
        path.write_text(json.dumps(config))
        return [PROGRAM, "start", path, "--log-format", "json"]

    def environ(self):
        """Give the environment: ours."""
        return dict(os.environ)

    def attempt(self, number):
        """Give the folder of an attempt."""
        return self.run_dir / "attempts" / f"{number:04d}"

    def steps(self, attempt=None):
        """Give the progress lines of rank 0."""
        return read_lines(self.attempt(attempt or 1) / "progress" / "0.jsonl")

    def events(self):
        """Give the journal."""
        return read_lines(self.run_dir / "journal.jsonl")

    def event_at(self, name, attempt, timeout_s=60):
        """Wait for an event of an attempt, give its time (Unix, s)."""

        def find():
            return [e for e in self.events() if (e["event"], e["attempt"]) == (name, attempt)]

        found = wait_for(find, f"{name} of attempt {attempt}", timeout_s)[0]
        return datetime.fromisoformat(found["ts"]).timestamp()

    def others(self):
        """Give keepers and ranks: they are meant to outlive the supervisor."""
        files = [*self.run_dir.glob("attempts/*/keeper.json")]
        files += self.run_dir.glob("attempts/*/ranks/*/process.json")
        found = [json.loads(path.read_text()) for path in files]
        return [one["pid"] for one in found if is_alive(one)]

    def stop(self):
        """Kill through the run."""
        subprocess.run(
            [PROGRAM, "stop", self.run_dir, "--now"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=60,
        )


class ByHand(Job):
    """The torchrun command a person would type, with the same worker."""

    def __init__(self, folder, worker, *, max_restarts=0):
        """Allow torchrun its own restarts."""
        super().__init__(folder, worker)
        self.max_restarts = max_restarts

    def argv(self):
        """Give the command."""
        launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={WORLD_SIZE}"]
        launch += [f"--max-restarts={self.max_restarts}", "--log-dir", self.folder / "logs"]
        launch += ["--redirects=3", TRAIN]
        worker = ["--config", self.worker_config, "--run-dir", self.run_dir]
        return [sys.executable, *launch, *worker]

    def environ(self):
        """Give our environment and a place for progress lines."""
        return os.environ | {"HUMIGENCE_PROGRESS_DIR": str(self.folder / "progress")}

    def steps(self, attempt=None):
        """Give the progress lines of rank 0, of all attempts: each begins with an `init` line."""
        assert attempt is None, "torchrun does not say which attempt a line belongs to"
        return read_lines(self.folder / "progress" / "0.jsonl")

    def logs(self):
        """Give rank 0's output files by attempt, from 1."""
        found = self.folder.glob("logs/*/attempt_*/0/stdout.log")
        return {1 + int(path.parents[1].name.removeprefix("attempt_")): path for path in found}


def is_alive(record):
    """Say whether the recorded process still is that process."""
    try:
        stat = Path(f"/proc/{record['pid']}/stat").read_text()
    except OSError:
        return False
    return int(stat.rpartition(")")[2].split()[19]) == record["start_ticks"]
