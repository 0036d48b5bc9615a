"""A tiny real job under a real supervisor, and what its journal and its files must say."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from support import eventually

from humigence_supervise.journal import read_journal
from humigence_supervise.records import Event, Record

TARGET = 24
WORKER = {
    "data": "text.txt",
    "seq_len": 32,
    "d_model": 32,
    "n_layers": 2,
    "n_heads": 2,
    "max_steps": TARGET,
    "save_steps": 5,
    "log_steps": 5,
    "max_eval_samples": 20,
}
LADDER = [
    {"name": "multi_gpu", "gpus": 2},
    {"name": "single_gpu", "gpus": 1, "args": ["--fallback_single_gpu"]},
]


@dataclass
class Job:
    """A run directory with its config; whatever it starts is gone at the end."""

    folder: Path
    name: str
    supervisor: subprocess.Popen[str] | None = None

    @property
    def run_dir(self) -> Path:
        """Where the run is."""
        return self.folder / "runs" / self.name

    @property
    def config(self) -> Path:
        """The supervisor's configuration."""
        return self.folder / "config.json"

    def start(self, prefix: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        """Start the supervisor in the background."""
        argv = [*prefix, sys.executable, "-m", "humigence_supervise.cli", "start", str(self.config)]
        self.supervisor = subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        return self.supervisor

    def finish(self, process: subprocess.Popen[str] | None = None) -> tuple[int, str, str]:
        """Return exit code, standard output and standard error once it has ended."""
        process = process or self.start()
        out, err = process.communicate(timeout=150)
        return process.returncode, out, err

    def events(self) -> list[Record]:
        """Return the journal so far."""
        with suppress(FileNotFoundError):
            return [entry.record for entry in read_journal(self.run_dir / "journal.jsonl")]
        return []

    def status(self) -> dict[str, object]:
        """Return `status --json`."""
        argv = [sys.executable, "-m", "humigence_supervise.cli", "status", "--json"]
        done = subprocess.run([*argv, str(self.run_dir)], capture_output=True, check=True)
        document = json.loads(done.stdout)
        assert isinstance(document, dict)
        return document

    def wait_for_step(self, step: int) -> None:
        """Wait until rank 0 of some attempt has completed the step."""

        def reached() -> bool:
            files = self.run_dir.glob("attempts/*/progress/0.jsonl")
            lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
            return any(line["step"] >= step for line in lines)

        eventually(reached, f"step {step}", within_s=90)


def write(job: Job, *, worker: dict[str, object] | None = None, **settings: object) -> None:
    """Write the worker's and the supervisor's configuration, and a text to train on."""
    (job.folder / "text.txt").write_text(Path(json.__file__).read_text()[:6000])
    (job.folder / "worker.json").write_text(json.dumps({**WORKER, **(worker or {})}))
    document = {
        "name": job.name,
        "accelerator": "cpu",
        "worker": {"module": "humigence_worker.train", "args": ["--config", "worker.json"]},
        "batch": {"global": 8, "micro": 4},
        "ladder": LADDER,
        "policy": {"backoff": {"first_s": 0.2}},
        **settings,
    }
    job.config.write_text(json.dumps(document))


def names(events: list[Record]) -> list[str]:
    """Return what happened, as names."""
    return [record.event.value for record in events]


def in_order(events: list[Record], *wanted: Event) -> list[Record]:
    """Return the first events of these names that follow each other; fail if there are none."""
    found, rest = [], iter(events)
    for event in wanted:
        record = next((one for one in rest if one.event is event), None)
        assert record is not None, f"no {event.value} where it belongs: {names(events)}"
        found.append(record)
    return found


def assert_every_step_once(job: Job, redone: int) -> None:
    """Check from the raw progress files that the kept steps cover every sample exactly once."""
    kept: dict[int, list[int]] = {}
    executed = 0
    for progress_file in sorted(job.run_dir.glob("attempts/*/progress/0.jsonl")):
        for line in progress_file.read_text().splitlines():
            progress = json.loads(line)
            if progress["section"] == "train":
                kept[progress["step"]] = progress["samples"]
                executed += 1
    assert sorted(kept) == list(range(1, TARGET + 1))
    assert [kept[step] for step in sorted(kept)] == [[8 * n, 8 * n + 8] for n in range(TARGET)]
    assert executed - TARGET == redone
    status = job.status()
    assert (status["redone_steps"], status["samples_done"]) == (redone, TARGET * 8)
    assert status["ledger"]["clean"], status["ledger"]
    assert (status["state"], status["step"], status["target_step"]) == ("completed", TARGET, TARGET)
