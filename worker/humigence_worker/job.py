"""A training as it stands: built from the configuration, resumed, saved."""

from __future__ import annotations

import gc
import json
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch

from humigence_supervise import contract
from humigence_worker import checkpoint, checkpoint_folder
from humigence_worker.batch import BatchPlan, Sampler, plan_batch, sums_line, target_step
from humigence_worker.checkpoint import Identity, TrainingState
from humigence_worker.data import Corpus, load_dataset
from humigence_worker.model import ModelShape, Transformer, model_shape
from humigence_worker.optimizer import AdamW, learning_rate
from humigence_worker.progress import ProgressWriter
from humigence_worker.runtime import SNAPSHOT_FILE, Runtime, say
from humigence_worker.settings import WorkerSettings, snapshot

_RNG_SCHEME: Final = "reseeded before every forward by (seed, step, virtual rank, micro-batch)"


@dataclass(slots=True)
class Job:
    """Everything a training needs. `step` counts completed steps; `saved` is its checkpoint."""

    settings: WorkerSettings
    runtime: Runtime
    corpus: Corpus
    plan: BatchPlan
    sampler: Sampler
    target_step: int
    model: Transformer
    optimizer: AdamW
    identity: Identity
    progress: ProgressWriter
    step: int = 0
    saved: Path | None = None
    saved_step: int | None = None

    @property
    def epoch(self) -> int:
        """The epoch (0-based) that the next sample is in."""
        return self.sampler.epoch(self.plan.step_samples(self.step).start)

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of step `step` (0-based)."""
        return learning_rate(self.settings, step, self.target_step)

    def release(self) -> None:
        """Give back the memory of the training, which is over; an evaluation needs none of it."""
        del self.model, self.optimizer
        gc.collect()  # DDP is part of a cycle


def prepare(settings: WorkerSettings, runtime: Runtime) -> Job:
    """Read the data, do the sums, build the model, and resume where there is a checkpoint.

    Raises:
        WorkerConfigError: data, sums or checkpoint do not fit the configuration.
        CheckpointDamagedError, OSError: the checkpoint to resume from is not usable.
    """
    corpus = load_dataset(settings)
    plan = plan_batch(settings, runtime.world_size, os.environ)
    shape = model_shape(settings)
    torch.manual_seed(settings.seed)
    model = Transformer(shape).to(runtime.device)
    job = Job(
        settings=settings,
        runtime=runtime,
        corpus=corpus,
        plan=plan,
        sampler=Sampler(settings.seed, len(corpus.train)),
        target_step=target_step(settings, plan, len(corpus.train)),
        model=model,
        optimizer=AdamW(model.named_parameters(), settings),
        identity=_identity(settings, runtime, plan, corpus, shape),
        progress=ProgressWriter(runtime.rank, os.environ),
    )
    _resume(job)
    job.progress.init(job.step, job.epoch, job.target_step)
    if runtime.is_first:
        say(f"data: {corpus.summary}")
        say(sums_line(plan))
        say(f"steps: {job.step} done, {job.target_step} to reach")
    return job


def save(job: Job) -> None:
    """Save the present step: the first rank writes, and then removes what is older than `keep`.

    The others do not wait here but in their next collective.

    Raises:
        OSError: it could not be saved; a full disk was explained on stderr.
        CheckpointDamagedError: what was just written reads back differently.
    """
    job.progress.section("checkpoint", job.step, job.epoch)
    job.saved = job.runtime.checkpoint_dir / contract.checkpoint_name(job.step)
    job.saved_step = job.step
    if not job.runtime.is_first:
        return
    began = time.monotonic()
    path = checkpoint.save(
        job.runtime.checkpoint_dir, _state(job), job.identity, job.runtime.world_size
    )
    checkpoint_folder.prune(job.runtime.checkpoint_dir, job.runtime.keep or job.settings.keep, path)
    say(f"checkpoint: step {job.step} saved in {path} ({time.monotonic() - began:.2f} s)")


def write_snapshot(settings: WorkerSettings, run_dir: Path) -> None:
    """Write the configuration into the run directory, if none is there."""
    path = run_dir / SNAPSHOT_FILE
    if path.exists():
        return
    run_dir.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{SNAPSHOT_FILE}.{os.getpid()}")
    with aside.open("w", encoding="utf-8") as file:
        json.dump(snapshot(settings), file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    aside.rename(path)


def _identity(
    settings: WorkerSettings, runtime: Runtime, plan: BatchPlan, corpus: Corpus, shape: ModelShape
) -> Identity:
    return Identity(
        run=runtime.run,
        data=corpus.fingerprint,
        model={
            "vocabulary": shape.vocabulary,
            "seq_len": shape.seq_len,
            "d_model": shape.d_model,
            "n_layers": shape.n_layers,
            "n_heads": shape.n_heads,
        },
        seed=settings.seed,
        virtual_ranks=plan.virtual_ranks,
        global_samples=plan.global_samples,
    )


def _resume(job: Job) -> None:
    """Take over the checkpoint that the supervisor chose, or by hand the newest good one."""
    path = job.runtime.resume_from
    if job.runtime.finds_own_checkpoint:
        path = checkpoint_folder.newest_verified(job.runtime.checkpoint_dir)
    if path is None:
        return
    state, run = checkpoint.load(path, job.identity)
    job.model.load_state_dict(dict(state.model))
    job.optimizer.load(state.optimizer, state.step)
    job.step = job.saved_step = state.step
    job.saved = path
    job.identity = replace(job.identity, run=run)
    say(f"resumed from {path}: {state.step} steps, {state.samples} samples done")


def _state(job: Job) -> TrainingState:
    next_samples = job.plan.step_samples(job.step)
    notes: dict[str, Any] = {
        "epoch": job.epoch,
        "data": {"next_sample": next_samples.start, "epoch_samples": job.sampler.size},
        "optimizer": {**job.optimizer.describe(), "steps": job.step},
        "schedule": {
            "kind": str(job.settings.lr_schedule),
            "warmup_steps": job.settings.warmup_steps,
            "target_step": job.target_step,
            "next_learning_rate": job.learning_rate(job.step),
        },
        "rng": {"scheme": _RNG_SCHEME, "seed": job.settings.seed, "next_step": job.step},
        "scaler": None,
    }
    return TrainingState(
        step=job.step,
        samples=next_samples.start,
        model=job.model.state_dict(),
        optimizer=job.optimizer.state_tensors(),
        notes=notes,
    )
