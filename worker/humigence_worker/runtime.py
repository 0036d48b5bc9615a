"""Which process this is, on which device, in which group.

Works under the supervisor, under a torchrun started by hand, and alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist

from humigence_supervise import contract
from humigence_worker.batch import BatchPlan
from humigence_worker.settings import WorkerConfigError, WorkerSettings

SNAPSHOT_FILE: Final = "config.snapshot.json"

_NO_GPU_LEFT: Final = "No CUDA GPUs are available"
"""torch's words (torch/csrc/cuda/Module.cpp) for a working CUDA that has no device to show."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """This process' place in the run. `run` and `resume_from` as the supervisor gave them.

    `run` is None where nobody named the run. `resume_from` is None to start from scratch;
    `finds_own_checkpoint` says that nobody decided, so the newest good one is meant. `keep` is
    how many checkpoints the supervisor wants kept, 0 where it leaves that to the settings.
    """

    rank: int
    local_rank: int
    world_size: int
    device: torch.device
    run_dir: Path
    checkpoint_dir: Path
    run: str | None
    resume_from: Path | None
    finds_own_checkpoint: bool
    keep: int

    @property
    def is_first(self) -> bool:
        """True on the rank that prints, saves and evaluates."""
        return self.rank == 0


def read_runtime(
    environ: Mapping[str, str], config: Path, run_dir: Path | None, *, fallback_single_gpu: bool
) -> Runtime:
    """Read torchrun's and the supervisor's variables; choose the device.

    By hand, the run directory is the folder of a ``config.snapshot.json``, else ``runs/<name of
    the configuration>`` below the current folder.

    Raises:
        WorkerConfigError: variables or options contradict each other or the machine.
        RuntimeError: CUDA_VISIBLE_DEVICES names GPUs, and torch does not see them.
    """
    rank, local_rank, world_size = (
        _number(environ, name, default)
        for name, default in (("RANK", 0), ("LOCAL_RANK", 0), ("WORLD_SIZE", 1))
    )
    if fallback_single_gpu and world_size > 1:
        raise WorkerConfigError(
            f"--fallback_single_gpu runs one process, but WORLD_SIZE is {world_size}. "
            "Start it with python, not with torchrun."
        )
    given = run_dir or _path(environ, contract.ENV_RUN_DIR) or _own_run_dir(config)
    resume = environ.get(contract.ENV_RESUME_FROM)
    return Runtime(
        rank=rank,
        local_rank=local_rank,
        world_size=world_size,
        device=_device(local_rank, world_size, environ.get("CUDA_VISIBLE_DEVICES", "")),
        run_dir=given,
        checkpoint_dir=_path(environ, contract.ENV_CHECKPOINT_DIR)
        or given / contract.CHECKPOINTS_DIR,
        run=environ.get(contract.ENV_RUN_ID) or None,
        resume_from=Path(resume) if resume else None,
        finds_own_checkpoint=resume is None,
        keep=_number(environ, contract.ENV_KEEP_CHECKPOINTS, 0),
    )


def say(text: str) -> None:
    """Print a line. A full disk below the log must not end the training."""
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except OSError:
        return


def announce(runtime: Runtime) -> None:
    """Print, before anything takes long, how the training runs."""
    on_gpu = runtime.device.type == "cuda"
    if not on_gpu and runtime.is_first:
        say("no CUDA GPU is visible: training on the CPU, with gloo between processes")
    if runtime.world_size > 1 and runtime.is_first:
        unit = "GPUs" if on_gpu else "CPU ranks"
        kind = "multi-GPU" if on_gpu else "multi-CPU"
        say(f"🚀 Starting {kind} training on {runtime.world_size} {unit}")
    elif runtime.world_size == 1:
        kind = "GPU" if on_gpu else "CPU"
        say(f"🚀 Starting single {kind} training on {runtime.device}")
        say(f"✅ Single {kind} Training: {runtime.device}")


def start_group(runtime: Runtime, timeout_s: int) -> None:
    """Join the process group, where there are several processes: NCCL on GPUs, gloo on CPUs.

    `timeout_s` is the longest wait for the others, here and in a collective.

    Raises:
        RuntimeError, ValueError, OSError: whatever torch says, after the banner that says so.
    """
    if runtime.device.type == "cuda":
        torch.cuda.set_device(runtime.device)
    if runtime.world_size == 1:
        return
    timeout = timedelta(seconds=timeout_s)
    try:
        if runtime.device.type == "cuda":
            # With the device named, NCCL connects now, and a broken link shows here.
            dist.init_process_group("nccl", timeout=timeout, device_id=runtime.device)
        else:
            dist.init_process_group("gloo", timeout=timeout)
    except Exception as error:
        say(f"❌ Distributed training initialization failed: {error}")
        raise
    say(
        f"✅ Distributed training initialized: rank {runtime.rank}, local rank "
        f"{runtime.local_rank}, world size {runtime.world_size}, device {runtime.device}"
    )


def check_same_step(runtime: Runtime, step: int) -> None:
    """Make sure that all ranks resume at the same step.

    Raises:
        RuntimeError: they do not; each reads the checkpoint by itself, and disks differ.
    """
    if runtime.world_size == 1:
        return
    mine = torch.tensor([step], device=runtime.device)
    everyones = [torch.empty_like(mine) for _ in range(runtime.world_size)]
    dist.all_gather(everyones, mine)
    steps = [int(each) for each in everyones]
    if len(set(steps)) > 1:
        raise RuntimeError(
            f"the ranks would resume at different steps: {steps} (rank 0 first). "
            "All of them must see the same checkpoint folder."
        )


def say_effective_configuration(
    runtime: Runtime, plan: BatchPlan, settings: WorkerSettings
) -> None:
    """Log, as one line of JSON, the part of the configuration that the worker sets itself."""
    configuration = {
        "distributed": runtime.world_size > 1,
        "rank": runtime.rank,
        "world_size": runtime.world_size,
        "local_rank": runtime.local_rank,
        "device": str(runtime.device),
        "per_device_train_batch_size": plan.per_device_samples,
        "per_device_eval_batch_size": settings.per_device_eval_batch_size * plan.share,
    }
    say(f"effective configuration: {json.dumps(configuration)}")


def wait_for_all(runtime: Runtime) -> None:
    """Wait until every rank is here."""
    if runtime.world_size > 1:
        dist.barrier()


def leave_group(runtime: Runtime) -> None:
    """Wait for every rank, then leave the group.

    The wait keeps a rank that is still saving from being killed because another one has ended.
    """
    wait_for_all(runtime)
    if runtime.world_size > 1:
        dist.destroy_process_group()


def _device(local_rank: int, world_size: int, asked_for: str) -> torch.device:
    """Return cuda:<local rank>, always cuda:0 for a single process; the CPU without a GPU.

    `asked_for` is CUDA_VISIBLE_DEVICES: whoever names GPUs does not want the CPU. On one box
    every rank is local, so all of them find the same mistake.
    """
    visible = torch.cuda.device_count() if torch.cuda.is_available() else 0
    named = 0 if asked_for.strip() in ("", "-1") else len(asked_for.split(","))
    if visible < min(named, world_size):
        raise _lost(visible, world_size, asked_for)
    if not visible:
        return torch.device("cpu")
    if world_size == 1:
        return torch.device("cuda", 0)
    if world_size > visible:
        raise WorkerConfigError(
            f"{world_size} processes, but only {visible} GPUs are visible. Start {visible} "
            "(torchrun --nproc_per_node), or make more GPUs visible (CUDA_VISIBLE_DEVICES)."
        )
    return torch.device("cuda", local_rank)


def _lost(visible: int, needed: int, asked_for: str) -> RuntimeError:
    """Return the error for GPUs that were asked for by name and are not there.

    Where CUDA itself does not work (no driver, too old a driver, a torch without CUDA), torch
    says so in its own words: those are other failures, with other cures. With a working CUDA a
    GPU is missing, and the words are the driver's for that.
    """
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        reason = f"torch sees {visible}"
    except (RuntimeError, AssertionError) as error:
        reason = str(error)
        if _NO_GPU_LEFT not in reason:
            return RuntimeError(f"CUDA_VISIBLE_DEVICES={asked_for}: {reason}")
    return RuntimeError(
        f"GPU is lost: {needed} needed of CUDA_VISIBLE_DEVICES={asked_for}, but {reason}. "
        "Look at nvidia-smi; a GPU that is missing there needs a reset or a reboot."
    )


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    given = environ.get(name, "")
    if not given:
        return default
    if not (given.isascii() and given.isdecimal()):
        raise WorkerConfigError(
            f"the environment variable {name} is {given!r}, not a number. "
            "Start with torchrun, which sets it, or unset it."
        )
    return int(given)


def _path(environ: Mapping[str, str], name: str) -> Path | None:
    given = environ.get(name)
    return Path(given) if given else None


def _own_run_dir(config: Path) -> Path:
    return config.parent if config.name == SNAPSHOT_FILE else Path("runs") / config.stem
