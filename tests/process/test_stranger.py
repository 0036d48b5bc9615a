"""GPU memory that another process holds: named, waited for, left alone; on a pretended GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from support import eventually, pids_marked

from humigence_supervise.journal import read_journal
from humigence_supervise.records import Event, Record

UUID = "GPU-11111111-2222-3333-4444-555555555555"
SMI = """#!/bin/sh
# A pretended nvidia-smi: what it answers stands in the files beside it.
here=$(dirname "$0")
case "$1" in
  *compute-apps*) cat "$here/processes" ;;
  *memory.free*) cat "$here/free" ;;
  *) cat "$here/used" ;;
esac
"""
WORKER = """
import os, pathlib, sys
mark = pathlib.Path(os.environ["HUMIGENCE_RUN_DIR"]) / "ran-before"
if mark.exists():
    sys.exit(0)
mark.touch()
print('''Traceback (most recent call last):
  File "train.py", line 3, in <module>
    loss.backward()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity \
of 31.36 GiB of which 1.10 GiB is free. Process %PID% has 20.00 GiB memory in use. Including \
non-PyTorch memory, this process has 10.20 GiB memory in use. Of the allocated memory 9.80 GiB is \
allocated by PyTorch, and 120.00 MiB is reserved by PyTorch but unallocated.''', file=sys.stderr)
sys.exit(1)
"""


class Box:
    """A folder with a pretended GPU, and a process that sits on it."""

    def __init__(self, folder: Path) -> None:
        """Make the GPU; nobody is on it yet."""
        self.folder = folder
        self.name = f"stranger-{uuid.uuid4().hex[:8]}"
        self.smi = folder / "bin"
        self.smi.mkdir()
        (self.smi / "nvidia-smi").write_text(SMI)
        (self.smi / "nvidia-smi").chmod(0o755)
        self.stranger = subprocess.Popen(["sleep", "600"])
        self.supervisor: subprocess.Popen[str] | None = None

    def holds(self, used_mib: int) -> None:
        """Have the stranger hold so much, beside 500 MiB of a desktop; 0: it is not there."""
        total, desktop = 32_112, 500
        used = desktop + used_mib
        listed = f"{UUID}, {self.stranger.pid}, {used_mib}\n" if used_mib else ""
        self._write("processes", listed)
        card = "NVIDIA GeForce RTX 5090"
        self._write("used", f"0, {UUID}, 00000000:01:00.0, {total}, {used}, 40, {card}\n")
        self._write(
            "free", f"0, {UUID}, {card}, {total}, {total - used}, 580.95.05, 00000000:01:00.0\n"
        )

    def _write(self, name: str, text: str) -> None:
        aside = self.smi / f"{name}.new"
        aside.write_text(text)
        aside.rename(self.smi / name)

    def start(self) -> subprocess.Popen[str]:
        """Start a run of a foreign script on the one GPU."""
        (self.folder / "train.py").write_text(WORKER.replace("%PID%", str(self.stranger.pid)))
        document = {
            "name": self.name,
            "accelerator": "cuda",
            "worker": {"script": "train.py", "preset": "torchrun"},
            "ladder": [{"name": "single", "gpus": 1}],
            "policy": {"backoff": {"first_s": 0.1, "max_s": 0.5}},
        }
        (self.folder / "config.json").write_text(json.dumps(document))
        argv = [sys.executable, "-m", "humigence_supervise.cli", "start"]
        path = f"{self.smi}:{os.environ['PATH']}"
        self.supervisor = subprocess.Popen(
            [*argv, str(self.folder / "config.json")],
            env={**os.environ, "PATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        return self.supervisor

    def events(self) -> list[Record]:
        """Return the journal so far."""
        journal = self.folder / "runs" / self.name / "journal.jsonl"
        with suppress(FileNotFoundError):
            return [entry.record for entry in read_journal(journal)]
        return []

    def status(self) -> dict[str, object]:
        """Return `status --json`."""
        argv = [sys.executable, "-m", "humigence_supervise.cli", "status", "--json"]
        run_dir = self.folder / "runs" / self.name
        done = subprocess.run([*argv, str(run_dir)], capture_output=True, check=True)
        document = json.loads(done.stdout)
        assert isinstance(document, dict)
        return document


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    """A box whose stranger, and whatever else was started, is gone at the end."""
    made = Box(tmp_path)
    yield made
    made.stranger.kill()
    made.stranger.wait()
    if made.supervisor is not None and made.supervisor.poll() is None:
        made.supervisor.kill()
        made.supervisor.wait()
    started = next((e for e in made.events() if e.event is Event.RUN_STARTED), None)
    assert started is None or pids_marked(str(started.facts["run_id"])) == []


def test_a_stranger_is_named_and_waited_for(box: Box) -> None:
    """The card is full of another's memory: the run waits, longer than its patience, untouched."""
    box.holds(20_480)
    process = box.start()

    def waits() -> list[Record]:
        return [e for e in box.events() if e.event is Event.BACKOFF_STARTED]

    eventually(lambda: waits() or process.poll() is not None, "the wait", 60)
    assert process.poll() is None, process.communicate()
    (waiting,) = waits()
    assert (waiting.facts["want"], waiting.facts["pid"]) == ("gpu_memory", box.stranger.pid)
    assert f"pid {box.stranger.pid}" in waiting.message
    assert "20.0 GiB" in waiting.message
    before = psutil.Process(process.pid).cpu_times()
    eventually(lambda: box.status()["state"] == "waiting", "status says so", 30)
    eventually(
        lambda: sum(psutil.Process(process.pid).cpu_times()[:2]) > sum(before[:2]) + 0.02,
        "the card is looked at again",
        60,
    )
    assert process.poll() is None
    assert len([e for e in box.events() if e.event is Event.ATTEMPT_STARTED]) == 1
    assert box.stranger.poll() is None
    box.holds(0)
    out, err = process.communicate(timeout=60)
    names = [e.event.value for e in box.events()]
    assert process.returncode == 0, (names, out[-2000:], err)
    assert names.index("backoff.started") < names.index("backoff.ended")
    assert names.count("attempt.started") == 2
    assert box.stranger.poll() is None, "the stranger was ended by somebody"
