"""The reference worker by hand: a fallback changes no bit, and a stop loses no step.

Real torchrun, gloo, two ranks; tiny model and text, so that each start is dominated by imports.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from support import eventually, pids_marked

WORKER = Path(__file__).parents[2] / "worker" / "train.py"
TRAIN_SAMPLES = 20
TARGET_STEP = 12
"""Steps of 8 samples: epochs end inside step 3, exactly after step 5, and inside step 8."""

SETTINGS = {
    "data": "text.txt",
    "seq_len": 32,
    "d_model": 32,
    "n_layers": 2,
    "n_heads": 2,
    "dropout": 0.2,
    "per_device_train_batch_size": 4,
    "micro_batch": 2,
    "virtual_ranks": 2,
    "max_steps": TARGET_STEP,
    "warmup_steps": 4,
    "gradient_clip": 0.5,
    "save_steps": 4,
    "log_steps": 1,
}


class Job:
    """One run directory with its settings; every process it starts is gone at the end."""

    def __init__(self, folder: Path, **settings: object) -> None:
        """Write a text of exactly TRAIN_SAMPLES samples and the configuration beside it."""
        folder.mkdir()
        self.run_dir = folder / "run"
        self.progress_dir = folder / "progress"
        self.config = folder / "config.json"
        self.run_id = f"test-{uuid.uuid4().hex}"
        (folder / "text.txt").write_text(Path(json.__file__).read_text()[:673])
        self.config.write_text(json.dumps({**SETTINGS, **settings}))

    def start(self, ranks: int, **env: str) -> subprocess.Popen[str]:
        """Start the worker as a person would: torchrun for several ranks, python for one."""
        launcher = [sys.executable]
        if ranks > 1:
            launcher += ["-m", "torch.distributed.run", "--nnodes=1", f"--nproc-per-node={ranks}"]
            launcher += ["--max-restarts=0", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"]
        options = ["--config", str(self.config), "--run-dir", str(self.run_dir)]
        options += ["--fallback_single_gpu"] if ranks == 1 else []
        own = {
            "HUMIGENCE_RUN_ID": self.run_id,
            "HUMIGENCE_PROGRESS_DIR": str(self.progress_dir),
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("HUMIGENCE_")}
        return subprocess.Popen(
            [*launcher, str(WORKER), *options],
            env={**inherited, **own, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, ranks: int, **env: str) -> tuple[int, str]:
        """Run the worker to its end; return its exit code and everything it printed."""
        process = self.start(ranks, **env)
        output, _ = process.communicate(timeout=120)
        return process.returncode, output

    def steps(self, rank: int = 0) -> list[dict[str, object]]:
        """Return the lines of completed steps that a rank has written so far."""
        path = self.progress_dir / f"{rank}.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in map(json.loads, lines) if line["section"] == "train"]

    def checkpoints(self) -> list[str]:
        """Return the names of the checkpoints there are, in order of their steps."""
        return sorted(path.parent.name for path in self.run_dir.glob("checkpoints/*/MANIFEST.json"))

    def tensors(self) -> dict[str, bytes]:
        """Return the bytes of weights and moments at the target."""
        final = self.run_dir / "checkpoints" / f"step-{TARGET_STEP:08d}"
        return {path.name: path.read_bytes() for path in sorted(final.glob("*.safetensors"))}

    def end(self) -> None:
        """Kill whatever of this job is still alive."""
        for pid in pids_marked(self.run_id):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def job(tmp_path):
    """Make jobs; at the end nothing of them may be alive."""
    made = []

    def make(**settings):
        made.append(Job(tmp_path / f"job{len(made)}", **settings))
        return made[-1]

    yield make
    for each in made:
        each.end()
    eventually(lambda: not any(pids_marked(each.run_id) for each in made), "every process is gone")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Return weights and moments of two ranks that were never interrupted."""
    job = Job(tmp_path_factory.mktemp("reference") / "job")
    try:
        code, output = job.run(ranks=2)
    finally:
        job.end()
    assert code == 0, output
    assert f"{TRAIN_SAMPLES} samples to train on" in output
    assert set(job.tensors()) == {"model.safetensors", "optimizer.safetensors"}
    return job.tensors()


@pytest.mark.parametrize(
    ("save_steps", "killed_before", "resumed_at"),
    [
        pytest.param(4, 2, 0, id="early-before-the-first-checkpoint"),
        pytest.param(4, 7, 4, id="in-the-middle-of-an-epoch"),
        pytest.param(5, 9, 5, id="at-an-epochs-end-and-across-the-next"),
    ],
)
def test_one_process_finishes_what_two_began_bit_for_bit(
    job, uninterrupted, save_steps, killed_before, resumed_at
):
    """SIGKILL of a rank, then one process from the last checkpoint: the same final bytes."""
    own = job(
        save_steps=save_steps,
        faults=[{"name": "sigkill", "step": killed_before, "rank": 1}],
    )
    code, output = own.run(ranks=2)
    assert code != 0, output
    assert max(line["step"] for line in own.steps()) == killed_before - 1
    code, output = own.run(ranks=1)
    assert code == 0, output
    assert ("resumed from" in output) == bool(resumed_at)
    assert f"steps: {resumed_at} done, {TARGET_STEP} to reach" in output
    assert own.tensors() == uninterrupted
    samples = {line["step"]: tuple(line["samples"]) for line in own.steps()}
    assert samples == {step: ((step - 1) * 8, step * 8) for step in range(1, TARGET_STEP + 1)}


@pytest.mark.slow
def test_two_ranks_finish_what_one_process_began_bit_for_bit(job, uninterrupted):
    """The way back up the ladder changes nothing either."""
    own = job(faults=[{"name": "sigkill", "step": 7, "rank": 0}])
    code, output = own.run(ranks=1)
    assert code == -signal.SIGKILL, output
    code, output = own.run(ranks=2)
    assert code == 0, output
    assert own.tensors() == uninterrupted


@pytest.mark.slow
def test_two_processes_add_six_virtual_ranks_in_the_order_of_one(job):
    """Each process runs three virtual ranks; their gradients wait for those of the other one."""
    several, alone = (job(virtual_ranks=6, per_device_train_batch_size=2) for _ in range(2))
    for own, ranks in ((several, 2), (alone, 1)):
        code, output = own.run(ranks=ranks)
        assert code == 0, output
    assert several.tensors() == alone.tensors()


def test_a_stop_of_one_rank_is_agreed_on_and_saved(job):
    """SIGTERM to one rank: both finish the same step, the first saves it, both exit 143."""
    own = job(max_steps=1_000_000, save_steps=0)
    torchrun = own.start(ranks=2)
    eventually(lambda: len(own.steps(1)) > 2, "two steps are done", within_s=60)
    ranks = psutil.Process(torchrun.pid).children()
    second = next(rank for rank in ranks if rank.environ()["RANK"] == "1")
    second.send_signal(signal.SIGTERM)
    output, _ = torchrun.communicate(timeout=60)
    last = own.steps(1)[-1]["step"]
    assert own.steps(0)[-1]["step"] == last
    assert own.checkpoints() == [f"step-{last:08d}"]
    assert "exitcode  : 143" in output, output
    assert f'File "{WORKER}"' not in output  # no traceback of ours; torchrun has its own


def test_torchruns_own_stop_lets_both_ranks_save(job):
    """SIGTERM to torchrun, as by a keeper: the checkpoint of the last completed step is there."""
    own = job(max_steps=1_000_000, save_steps=0)
    torchrun = own.start(ranks=2)
    eventually(lambda: len(own.steps(1)) > 2, "two steps are done", within_s=60)
    torchrun.terminate()
    output, _ = torchrun.communicate(timeout=60)
    last = own.steps(0)[-1]["step"]
    assert own.steps(1)[-1]["step"] == last
    assert own.checkpoints() == [f"step-{last:08d}"], output
    assert f"SIGTERM: stopped after step {last} of 1000000" in output


def test_ctrl_c_saves_the_last_step_and_the_next_start_goes_on_from_it(job):
    """SIGINT to a single process: exit 130, and the checkpoint is the last completed step."""
    own = job(max_steps=1_000_000, save_steps=0)
    process = own.start(ranks=1)
    eventually(lambda: len(own.steps()) > 2, "two steps are done", within_s=60)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    last = own.steps()[-1]["step"]
    assert own.checkpoints() == [f"step-{last:08d}"]
    own.config.write_text(own.config.read_text().replace("1000000", str(last + 1)))
    code, output = own.run(ranks=1)
    assert code == 0, output
    assert own.steps()[-1]["step"] == last + 1


def test_a_second_signal_ends_a_process_that_cannot_finish_its_step(job):
    """A hung step: the first SIGTERM is noted, the second exits 143 at once, nothing is saved."""
    own = job(save_steps=0, faults=[{"name": "hang", "step": 3, "rank": 0}])
    process = own.start(ranks=1)
    assert process.stdout is not None
    printed = ""
    while "acts before step 3" not in printed:
        printed += process.stdout.readline()
    process.terminate()
    while "SIGTERM: saving after this step" not in printed:
        printed += process.stdout.readline()
    process.terminate()
    assert process.wait(timeout=10) == 143
    process.stdout.close()
    assert own.checkpoints() == []
