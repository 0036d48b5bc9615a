"""What is decided about GPUs, on pretended ones: strangers are waited for, bad cards left out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support import eventually, pids_marked

from humigence_supervise.contract import EXIT_CONFIG
from humigence_supervise.journal import read_journal
from humigence_supervise.observe import shm_segments
from humigence_supervise.records import Event, Record

UUIDS = tuple(f"GPU-{n}1111111-2222-3333-4444-555555555555" for n in range(2))
SMI = """#!/bin/sh
# A pretended nvidia-smi: what it answers stands in the files beside it.
here=$(dirname "$0")
echo >>"$here/asked"
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


ECC_WORKER = """
import os, pathlib, sys
run_dir = pathlib.Path(os.environ["HUMIGENCE_RUN_DIR"])
with open(run_dir / "used-gpus", "a") as used:
    print(os.environ["CUDA_VISIBLE_DEVICES"], file=used)
attempt = int(os.environ["HUMIGENCE_ATTEMPT"])
if attempt == 1:
    print('''Traceback (most recent call last):
  File "train.py", line 3, in <module>
    loss.backward()
RuntimeError: CUDA error: uncorrectable ECC error encountered''', file=sys.stderr)
sys.exit(78 if attempt < 4 else 0) if attempt != 1 else sys.exit(1)
"""


KILLED_WORKER = """
import os, pathlib, signal, sys, time
run_dir = pathlib.Path(os.environ["HUMIGENCE_RUN_DIR"])
if os.environ["HUMIGENCE_ATTEMPT"] != "1":
    sys.exit(0)
while not (run_dir / "go").exists():
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""


SEGMENT_WORKER = """
import os, pathlib, signal, sys, time
attempt = os.environ["HUMIGENCE_ATTEMPT"]
segments = [pathlib.Path("/dev/shm") / name for name in ("%MINE%", "%SHARED%")]
if attempt == "1":
    for segment, mode in zip(segments, (0o600, 0o644)):
        segment.touch()
        segment.chmod(mode)
if attempt == "%WAITS%":
    while time.time() - segments[1].stat().st_ctime < 1.2:
        time.sleep(0.05)
if attempt == "1":
    os.kill(os.getpid(), signal.SIGKILL)
"""


class Box:
    """A folder with pretended GPUs, and a process that sits on the first."""

    def __init__(self, folder: Path, gpus: int = 1) -> None:
        """Make the GPUs; nobody is on them yet."""
        self.folder = folder
        self.gpus = gpus
        self.name = f"stranger-{uuid.uuid4().hex[:8]}"
        self.smi = folder / "bin"
        self.smi.mkdir()
        (self.smi / "nvidia-smi").write_text(SMI)
        (self.smi / "nvidia-smi").chmod(0o755)
        self.stranger = subprocess.Popen(["sleep", "600"])
        self.supervisor: subprocess.Popen[str] | None = None

    def holds(self, used_mib: int, *, nobody: bool = False) -> None:
        """Have the stranger hold so much on GPU 0, beside a desktop's 500 MiB; 0: it is gone.

        `nobody`: no living process does, as while a driver frees the memory of the dead.
        """
        listed = used_mib and not nobody
        self._write("processes", f"{UUIDS[0]}, {self.stranger.pid}, {used_mib}\n" * listed)
        total, card = 32_112, "NVIDIA GeForce RTX 5090"
        used_lines, free_lines = "", ""
        for index in range(self.gpus):
            used = 500 + used_mib if index == 0 else 0
            uuid, bus = UUIDS[index], f"00000000:0{index + 1}:00.0"
            used_lines += f"{index}, {uuid}, {bus}, {total}, {used}, 40, {card}\n"
            free_lines += f"{index}, {uuid}, {card}, {total}, {total - used}, 580.95.05, {bus}\n"
        self._write("used", used_lines)
        self._write("free", free_lines)

    def _write(self, name: str, text: str) -> None:
        aside = self.smi / f"{name}.new"
        aside.write_text(text)
        aside.rename(self.smi / name)

    def start(self, script: str, *options: str, patience_s: float = 0.5) -> subprocess.Popen[str]:
        """Start a run of a foreign script on one GPU."""
        (self.folder / "train.py").write_text(script.replace("%PID%", str(self.stranger.pid)))
        document = {
            "name": self.name,
            "accelerator": "cuda",
            "worker": {"script": "train.py", "preset": "torchrun"},
            "ladder": [{"name": "single", "gpus": 1}],
            "policy": {"backoff": {"first_s": 0.1, "max_s": patience_s}},
        }
        (self.folder / "config.json").write_text(json.dumps(document))
        argv = [sys.executable, "-m", "humigence_supervise.cli", "start"]
        path = f"{self.smi}:{os.environ['PATH']}"
        self.supervisor = subprocess.Popen(
            [*argv, str(self.folder / "config.json"), *options],
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
    process = box.start(WORKER)

    def waits() -> list[Record]:
        return [e for e in box.events() if e.event is Event.BACKOFF_STARTED]

    eventually(lambda: waits() or process.poll() is not None, "the wait", 60)
    assert process.poll() is None, process.communicate()
    (waiting,) = waits()
    assert (waiting.facts["want"], waiting.facts["pid"]) == ("gpu_memory", box.stranger.pid)
    assert f"pid {box.stranger.pid}" in waiting.message
    assert "20.0 GiB" in waiting.message
    assert box.status()["state"] == "waiting"
    asked = box.smi / "asked"
    before = asked.stat().st_size
    # Far longer than the patience of half a second: without a lower rung there is none.
    eventually(lambda: asked.stat().st_size >= before + 3, "the card is looked at again", 60)
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


def test_a_bad_gpu_stays_out_until_the_operator_says_otherwise(box: Box) -> None:
    """ECC on the best card: the other one from then on, in the next `start` too, until told."""
    box.gpus = 2
    box.holds(0)  # a desktop on GPU 0: GPU 1 has more memory free and is taken first

    def run(*options: str) -> int:
        process = box.start(ECC_WORKER, *options)
        process.communicate(timeout=60)
        return process.returncode

    assert run() == EXIT_CONFIG
    assert run() == EXIT_CONFIG
    used = (box.folder / "runs" / box.name / "used-gpus").read_text().split()
    assert used == [UUIDS[1], UUIDS[0], UUIDS[0]]
    excluded = [e for e in box.events() if e.event is Event.GPU_EXCLUDED]
    assert [e.facts["gpu"] for e in excluded] == [UUIDS[1]]
    assert "--readmit-gpu" in excluded[0].message
    assert box.status()["excluded_gpus"] == [UUIDS[1]]
    assert run("--readmit-gpu", "GPU-never-heard-of") == EXIT_CONFIG
    assert run("--readmit-gpu", UUIDS[1]) == 0
    used = (box.folder / "runs" / box.name / "used-gpus").read_text().split()
    assert used[3:] == [UUIDS[1]]
    assert box.status()["excluded_gpus"] == []


def test_memory_of_the_dead_is_waited_for(box: Box) -> None:
    """The attempt is gone and its memory is not: the next starts when the card is as before."""
    box.holds(0)
    process = box.start(KILLED_WORKER, patience_s=60.0)

    def events(name: Event) -> list[Record]:
        return [one for one in box.events() if one.event is name]

    def ended() -> bool:
        return process.poll() is not None

    eventually(lambda: events(Event.ATTEMPT_STARTED) or ended(), "an attempt", 60)
    box.holds(9_000, nobody=True)
    (box.folder / "runs" / box.name / "go").touch()
    wanting = [None, "gpu_memory"]
    eventually(
        lambda: [e.facts.get("want") for e in events(Event.BACKOFF_STARTED)] == wanting or ended(),
        "the wait for memory",
        60,
    )
    waiting = events(Event.BACKOFF_STARTED)[-1]
    assert "9000 MiB more than before" in waiting.message
    assert "still being freed" in waiting.message
    assert len(events(Event.ATTEMPT_STARTED)) == 1
    box.holds(200)  # somebody else's little memory is no hindrance
    process.communicate(timeout=60)
    assert process.returncode == 0, [one.event.value for one in box.events()]
    assert len(events(Event.ATTEMPT_STARTED)) == 2


@pytest.fixture
def segments() -> Iterator[tuple[Path, Path]]:
    """Give two names of segments as NCCL calls them; whatever a test does, they are gone then."""
    mark = uuid.uuid4().hex[:8]
    names = (Path(f"/dev/shm/nccl-test-{mark}a"), Path(f"/dev/shm/nccl-test-{mark}b"))
    yield names
    for name in names:
        name.unlink(missing_ok=True)


@pytest.mark.parametrize("waits", [1, 2])
def test_segments_of_a_killed_attempt_are_removed_and_told(
    box: Box, segments: tuple[Path, Path], waits: int
) -> None:
    """Nobody uses it: it goes with the tree, or with the next one where it was a moment old.

    What is open to other users stays.
    """
    if shm_segments._others_are_hidden():  # noqa: SLF001 - then nothing is removed
        pytest.skip("/dev/shm is the host's, whose processes cannot be seen from here")
    mine, shared = segments
    box.holds(0)
    script = SEGMENT_WORKER.replace("%MINE%", mine.name).replace("%SHARED%", shared.name)
    process = box.start(script.replace("%WAITS%", str(waits)))
    process.communicate(timeout=60)
    assert process.returncode == 0, [one.event.value for one in box.events()]
    cleared = [one for one in box.events() if one.event is Event.TREE_CLEARED]
    removed = [one for one in cleared if one.facts.get("shm_removed")]
    assert [one.facts["shm_removed"] for one in removed] == [[mine.name]]
    assert "1 segments that its NCCL left in /dev/shm were removed" in removed[0].message
    if waits == 1:
        assert removed == cleared[:1]
    assert not mine.exists()
    assert shared.exists()
