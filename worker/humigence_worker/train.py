"""The training, in reading order: alone, under torchrun, or under the supervisor.

torchrun --nproc_per_node=2 worker/train.py --config runs/NAME/config.snapshot.json
python worker/train.py --config runs/NAME/config.snapshot.json --fallback_single_gpu
"""

from __future__ import annotations

import argparse
import io
import math
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import torch

from humigence_supervise import contract
from humigence_worker.checkpoint_folder import clear_asides
from humigence_worker.ending import crashed, misconfigured
from humigence_worker.evaluate import evaluate_checkpoint, format_result
from humigence_worker.faults import FaultPlan
from humigence_worker.gradients import Gradients, StepInputs
from humigence_worker.job import Job, prepare, save, write_snapshot
from humigence_worker.runtime import (
    Runtime,
    announce,
    check_same_step,
    leave_group,
    read_runtime,
    say,
    say_effective_configuration,
    start_group,
    wait_for_all,
)
from humigence_worker.settings import WorkerConfigError, WorkerSettings, load_settings
from humigence_worker.stopping import StopRequest, agree, exit_code


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the configuration says; return the process' exit code.

    0: the target is reached and evaluated. 78: the configuration is wrong. 143, 130: stopped by
    SIGTERM, SIGINT, after a save. Any other failure ends the process with 1 after a traceback.
    """
    _print_in_any_locale()
    stop = StopRequest()
    try:
        arguments = _arguments(argv)
        settings = load_settings(arguments.config)
        runtime = read_runtime(
            os.environ,
            arguments.config,
            arguments.run_dir,
            fallback_single_gpu=arguments.fallback_single_gpu,
        )
        return train(settings, runtime, stop)
    except WorkerConfigError as error:
        return misconfigured(error)
    except Exception as error:  # noqa: BLE001 - the end of the process, whatever it was
        crashed(error)


def train(settings: WorkerSettings, runtime: Runtime, stop: StopRequest) -> int:
    """Train from where the run stands to its target, then evaluate; return the exit code."""
    torch.set_num_threads(settings.cpu_threads)
    announce(runtime)
    job = prepare(settings, runtime)
    start_group(runtime, settings.group_timeout_s)
    check_same_step(runtime, job.step)
    say_effective_configuration(runtime, job.plan, settings)
    if runtime.is_first:
        write_snapshot(settings, runtime.run_dir)
        clear_asides(runtime.checkpoint_dir)

    with stop.saving_first():
        stopped_by = _run_steps(job, stop)
        leave_group(runtime)
    stopped_by = stopped_by or stop.asked
    if stopped_by is not None:
        say(f"{stopped_by.name}: stopped after step {job.step} of {job.target_step}")
        return exit_code(stopped_by)

    if runtime.is_first:
        job.release()
        _evaluate_saved(job)
    return contract.EXIT_COMPLETED


def _run_steps(job: Job, stop: StopRequest) -> signal.Signals | None:
    """Run the steps that are left; return the signal that stopped them, or None."""
    settings, runtime = job.settings, job.runtime
    if job.step >= job.target_step:
        return None
    faults = FaultPlan(settings.faults, runtime.run_dir, runtime.checkpoint_dir, runtime.rank)
    inputs = StepInputs(job.plan, job.sampler, job.corpus.train, settings.seed, settings.bf16)
    gradients = Gradients(job.model, inputs, runtime.rank, runtime.device)
    speed = _Speed(job.step)
    while True:
        faults.at_step(job.step + 1)
        own_loss = gradients.compute(job.step)
        loss, stopped_by = agree(own_loss, stop.asked, runtime.world_size)
        _change_weights(job, loss)
        epoch, samples = job.epoch, job.plan.step_samples(job.step)
        job.step += 1
        job.progress.train(job.step, epoch, samples, loss)

        at_end = job.step == job.target_step
        if runtime.is_first and (at_end or _due(job.step, settings.log_steps)):
            _log(job, loss, speed.samples_per_s(job))
        if at_end or stopped_by is not None or _due(job.step, settings.save_steps):
            save(job)
        if at_end or stopped_by is not None:
            return stopped_by
        if _due(job.step, settings.eval_steps):
            _evaluate_between(job)


def _change_weights(job: Job, loss: float) -> None:
    """Clip the gradient and let the optimizer take it.

    Raises:
        FloatingPointError: on all ranks alike, before the weights are spoiled.
    """
    limit = job.settings.gradient_clip or math.inf
    norm = float(torch.nn.utils.clip_grad_norm_(job.model.parameters(), limit))
    if not (math.isfinite(loss) and math.isfinite(norm)):
        raise FloatingPointError(
            f"training diverged at step {job.step + 1}: loss is {loss}, gradient norm is {norm}. "
            "Lower learning_rate, lengthen warmup_steps or look at the samples of this step."
        )
    job.optimizer.step(job.learning_rate(job.step))


def _evaluate_between(job: Job) -> None:
    """Save the step and evaluate it on the first rank; no other is in a collective meanwhile."""
    if job.saved_step != job.step:
        save(job)
    wait_for_all(job.runtime)
    if job.runtime.is_first:
        _evaluate_saved(job)
    else:
        job.progress.section("eval", job.step, job.epoch)
    wait_for_all(job.runtime)


def _evaluate_saved(job: Job) -> None:
    """Evaluate what was saved, in a model built for nothing else."""
    assert job.saved is not None
    job.progress.section("eval", job.step, job.epoch)
    result = evaluate_checkpoint(job.saved, job.corpus, _eval_settings(job), job.runtime.device)
    say(format_result(result, job.step))


def _eval_settings(job: Job) -> WorkerSettings:
    samples = job.settings.per_device_eval_batch_size * job.plan.share
    return replace(job.settings, per_device_eval_batch_size=samples)


class _Speed:
    """Samples per second since it was last asked."""

    def __init__(self, step: int) -> None:
        self._step = step
        self._at_s = time.monotonic()

    def samples_per_s(self, job: Job) -> float:
        now_s = time.monotonic()
        samples = (job.step - self._step) * job.plan.global_samples
        rate = samples / max(now_s - self._at_s, 1e-9)
        self._step, self._at_s = job.step, now_s
        return rate


def _log(job: Job, loss: float, samples_per_s: float) -> None:
    say(
        f"step {job.step}/{job.target_step} loss {loss:.4f} "
        f"lr {job.learning_rate(job.step - 1):.3e} {samples_per_s:.1f} samples/s"
    )


def _due(step: int, interval: int) -> bool:
    return interval > 0 and step % interval == 0


def _print_in_any_locale() -> None:
    """Let output escape what the locale's encoding lacks, rather than end the training."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


class _Arguments(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Report a wrong option as what it is: the command line belongs to the configuration."""
        raise WorkerConfigError(f"{message}. {self.format_usage().strip()}")


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = _Arguments(prog="train.py", description="Train a byte-level language model.")
    parser.add_argument("--config", type=Path, required=True, help="the JSON configuration")
    parser.add_argument(
        "--fallback_single_gpu",
        action="store_true",
        help="one process on cuda:0 does the work of all the devices that the run began with",
    )
    parser.add_argument(
        "--run-dir",
        type=Path,
        help="where checkpoints go; default: the folder of a config.snapshot.json, else runs/NAME",
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
