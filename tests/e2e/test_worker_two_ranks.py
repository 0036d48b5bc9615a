"""What two ranks do together: evaluate between steps, and add gradients as GPUs do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path

import pytest
from support import eventually, pids_marked

TINY = {
    "data": "text.txt",
    "seq_len": 16,
    "d_model": 16,
    "n_layers": 1,
    "n_heads": 2,
    "dropout": 0.2,
    "max_steps": 4,
    "save_steps": 0,
}

WATCHED_TRAINING = """
import gc, json, os, sys, time
from humigence_worker import train
from humigence_worker.gradients import DistributedDataParallel, Gradients
from humigence_worker.model import Transformer
from humigence_worker.optimizer import AdamW

rank = int(os.environ["RANK"])
folder = sys.argv.pop(1)

def note(**what):
    with open(f"{folder}/{rank}.jsonl", "a") as file:
        print(json.dumps({"at": time.monotonic(), **what}), file=file)

def evaluate(checkpoint, *rest, of=train.evaluate_checkpoint):
    parts = (Transformer, DistributedDataParallel, AdamW)
    alive = sum(isinstance(each, parts) for each in gc.get_objects())
    note(what="evaluation begins", checkpoint=checkpoint.name, alive=alive)
    result = of(checkpoint, *rest)
    time.sleep(0.5)
    note(what="evaluation ends")
    return result

def save(job, of=train.save):
    of(job)
    time.sleep(0.5 * rank)
    note(what="saved", step=job.step)

def compute(self, step, of=Gradients.compute):
    note(what="step begins", step=step + 1)
    return of(self, step)

train.evaluate_checkpoint, train.save, Gradients.compute = evaluate, save, compute
sys.exit(train.main())
"""

BOTH_HOOKS = """
import json, os, sys
import torch, torch.distributed as dist
from humigence_worker import gradients
from humigence_worker.batch import BatchPlan, Sampler
from humigence_worker.model import ModelShape, Transformer
from humigence_worker.samples import packed

torch.set_num_threads(1)
dist.init_process_group("gloo")
samples = packed(bytearray(range(128)) * 3, 8)
plan = BatchPlan(global_samples=16, micro_samples=2, virtual_ranks=4, world_size=2)
inputs = gradients.StepInputs(plan, Sampler(0, len(samples)), samples, 0, False)

def gradient(as_on_gpus):
    torch.manual_seed(0)
    model = Transformer(ModelShape(seq_len=8, d_model=16, n_layers=1, n_heads=2))
    own = gradients.Gradients(model, inputs, dist.get_rank(), torch.device("cpu"))
    if as_on_gpus:
        own._sum._keep_apart = False
    own.compute(0)
    return torch.cat([each.grad.flatten() for each in model.parameters()])

in_order = gradient(False)
gradients.gather_and_add = gradients.reduce_sums
summed = gradient(True)
if dist.get_rank() == 0:
    with open(sys.argv[1], "w") as file:
        json.dump([in_order.tolist(), summed.tolist()], file)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture
def two_ranks(tmp_path):
    """Return a function that runs a program under torchrun; nothing of it is alive at the end."""
    run_id = f"test-{uuid.uuid4().hex}"

    def run(program: str, *arguments: object) -> str:
        (tmp_path / "program.py").write_text(program)
        launcher = ["-m", "torch.distributed.run", "--nnodes=1", "--nproc-per-node=2"]
        launcher += ["--max-restarts=0", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"]
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("HUMIGENCE_")}
        own = {"HUMIGENCE_RUN_ID": run_id, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(
            [sys.executable, *launcher, str(tmp_path / "program.py"), *map(str, arguments)],
            env={**inherited, **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    yield run
    for pid in pids_marked(run_id):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    eventually(lambda: not pids_marked(run_id), "every process is gone")


def train(two_ranks, folder: Path, **settings: object) -> tuple[list[dict], list[dict], bytes]:
    """Train with two watched ranks; return what each of them noted, and the final weights."""
    folder.mkdir()
    (folder / "text.txt").write_text("a small text to learn from. " * 40)
    (folder / "config.snapshot.json").write_text(json.dumps({**TINY, **settings}))
    two_ranks(WATCHED_TRAINING, folder, "--config", folder / "config.snapshot.json")
    first, second = (
        [json.loads(line) for line in (folder / f"{rank}.jsonl").read_text().splitlines()]
        for rank in (0, 1)
    )
    weights = folder / "checkpoints" / "step-00000004" / "model.safetensors"
    return first, second, weights.read_bytes()


def test_an_evaluation_between_steps_is_of_the_saved_step_and_all_wait_for_it(two_ranks, tmp_path):
    """Step 2 is saved, all are there, the first evaluates, all go on: the weights are the same.

    At the end, where the group is left, nothing of the training is in memory beside it.
    """
    first, second, weights = train(two_ranks, tmp_path / "between", eval_steps=2)
    between, at_end = (note for note in first if note["what"] == "evaluation begins")
    assert between["checkpoint"] == "step-00000002"
    ended = next(note["at"] for note in first if note["what"] == "evaluation ends")
    saved = next(note["at"] for note in second if note["what"] == "saved")
    next_step = next(note["at"] for note in second if note.get("step") == 3)
    assert saved <= between["at"] < ended <= next_step
    assert (at_end["checkpoint"], at_end["alive"]) == ("step-00000004", 0)
    assert weights == train(two_ranks, tmp_path / "without", eval_steps=0)[2]


def test_the_gpus_hook_adds_every_virtual_rank_of_every_process(two_ranks, tmp_path):
    """Four virtual ranks on two processes: what the hook for GPUs adds is what the other adds."""
    two_ranks(BOTH_HOOKS, tmp_path / "gradients.json")
    in_order, summed = json.loads((tmp_path / "gradients.json").read_text())
    assert max(map(abs, in_order)) > 1e-3
    assert summed == pytest.approx(in_order, rel=1e-4, abs=1e-7)
