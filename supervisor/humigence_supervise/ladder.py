"""The ladder: rungs, world sizes, the sums of a step, and the plan of one attempt.

Everything is decided here, nothing is done: a LaunchPlan is a value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from humigence_supervise.allocator import defragmented
from humigence_supervise.batching import PlanError, batch_of_rung
from humigence_supervise.command import LOOPBACK, command_line, worker_arguments
from humigence_supervise.config_models import RungSettings, Settings
from humigence_supervise.contract import (
    ATTEMPTS_DIR,
    ENV_ATTEMPT,
    ENV_ATTEMPT_DIR,
    ENV_CHECKPOINT_DIR,
    ENV_GLOBAL_BATCH,
    ENV_GRAD_ACCUM,
    ENV_KEEP_CHECKPOINTS,
    ENV_MICRO_BATCH,
    ENV_PROGRESS_DIR,
    ENV_RESUME_FROM,
    ENV_RUN_DIR,
    ENV_RUN_ID,
    ENV_RUNG,
    ENV_VIRTUAL_RANKS,
    PROGRESS_DIR,
    TORCHRUN_DIR,
    attempt_name,
)
from humigence_supervise.domain import (
    Accelerator,
    Batch,
    Checkpoint,
    EnvChange,
    Gpu,
    Host,
    Launcher,
    LaunchPlan,
    Rung,
    RunPaths,
)
from humigence_supervise.environment import CONTRACT, foreign, hardened
from humigence_supervise.gpu_choice import select_gpus

__all__ = [
    "PlanError",
    "plan",
    "resolve_accelerator",
    "rungs",
    "select_gpus",
    "virtual_ranks",
    "world_size",
]

CPU_RANKS_OF_ALL: Final = 2
"""Ranks of `"gpus": "all"` on the CPU: enough for a real collective, few enough for a laptop."""


def rungs(settings: Settings) -> tuple[Rung, ...]:
    """Return the ladder, best rung first, with every launcher decided."""
    return tuple(
        Rung(
            name=rung.name,
            gpus=rung.gpus,
            launcher=_launcher(rung),
            env=tuple(rung.env.items()),
            args=rung.args,
        )
        for rung in settings.ladder
    )


def resolve_accelerator(settings: Settings, host: Host) -> tuple[Accelerator, str]:
    """Return the device type of the run, and the sentence that says why."""
    match settings.accelerator:
        case "cpu":
            return Accelerator.CPU, "cpu (gloo), as the configuration says"
        case "cuda":
            return Accelerator.CUDA, "cuda (nccl), as the configuration says"
        case "auto" if host.gpus:
            return Accelerator.CUDA, f"cuda (nccl): {len(host.gpus)} visible GPU(s)"
        case _:
            why = "; ".join(("no CUDA GPU is visible", *host.unread))
            return Accelerator.CPU, f"cpu (gloo): {why}"


def world_size(rung: Rung, host: Host, accelerator: Accelerator) -> int:
    """Return how many ranks the rung starts. "all" on the CPU is two, or one on one core."""
    match rung.gpus:
        case int():
            return rung.gpus
        case tuple():
            return len(rung.gpus)
        case _ if accelerator is Accelerator.CPU:
            return min(CPU_RANKS_OF_ALL, host.cpu_count)
        case _:
            return len(host.gpus)


def virtual_ranks(settings: Settings, host: Host) -> int:
    """Return the world size of the first rung: the number of virtual ranks of the run."""
    accelerator, _ = resolve_accelerator(settings, host)
    return world_size(rungs(settings)[0], host, accelerator)


def plan(
    settings: Settings,
    paths: RunPaths,
    rung_index: int,
    *,
    host: Host,
    attempt: int,
    resume_from: Checkpoint | None,
    port: int,
    inherited: Mapping[str, str],
    micro_samples: int | None = None,
    excluded_gpus: tuple[str, ...] = (),
    suspect_gpus: tuple[str, ...] = (),
    defragment: bool = False,
    run_virtual_ranks: int | None = None,
    run_accelerator: Accelerator | None = None,
    debug: bool = False,
) -> LaunchPlan:
    """Return the complete plan of one attempt on the rung with this index.

    `port` is a free TCP port, fresh for this attempt. `micro_samples` replaces the configured
    micro-batch. `excluded_gpus` are not used, `suspect_gpus` only without another choice.
    `defragment`: the allocator may join free pieces of GPU memory. `inherited` is the environment
    the attempt will inherit. `run_virtual_ranks` and `run_accelerator` are what the run began
    with: a GPU that is lost later must change neither the sums nor the device type. None: as this
    host says, for a run that begins.

    Raises:
        PlanError: too few GPUs, or a batch that cannot be split; says what would do.
    """
    rung = rungs(settings)[rung_index]
    accelerator = run_accelerator or resolve_accelerator(settings, host)[0]
    gpus = (
        ()
        if accelerator is Accelerator.CPU
        else select_gpus(rung, host, excluded_gpus, suspect_gpus)
    )
    ranks = world_size(rung, host, accelerator) if accelerator is Accelerator.CPU else len(gpus)
    virtual = run_virtual_ranks or virtual_ranks(settings, host)
    batch = batch_of_rung(settings, rung.name, ranks, virtual, micro_samples)
    attempt_dir = paths.run_dir / ATTEMPTS_DIR / attempt_name(attempt)
    hardening = hardened(
        host,
        accelerator,
        attempt_dir,
        run_id=paths.id,
        grace_s=settings.stop.grace_s,
        inherited=inherited,
        user=settings.worker.env,
        rung_env=dict(rung.env),
        debug=debug,
    )
    if defragment:
        hardening = defragmented(hardening, inherited, host.torch_version)
    own = (
        (ENV_RUN_DIR, str(paths.run_dir), "where everything of the run is"),
        (ENV_RUN_ID, paths.id, "the same in all attempts"),
        (ENV_ATTEMPT, str(attempt), "counted from 1"),
        (ENV_RUNG, rung.name, "the way of running"),
        (ENV_RESUME_FROM, _path_of(resume_from), "checkpoint to resume from; empty: none"),
        (ENV_CHECKPOINT_DIR, str(paths.checkpoint_dir), "where checkpoints go"),
        (ENV_PROGRESS_DIR, str(attempt_dir / PROGRESS_DIR), "where a step leaves its line"),
        (ENV_ATTEMPT_DIR, str(attempt_dir), "logs and records of this attempt"),
        (ENV_KEEP_CHECKPOINTS, _keep(settings), "newest good checkpoints to keep; empty: its own"),
        (
            ENV_VIRTUAL_RANKS,
            str(virtual),
            "ranks of the first rung; theirs is the work of a step",
        ),
        *_batch_env(batch),
    )
    env = (
        *hardening,
        *(EnvChange(name, value, CONTRACT, why) for name, value, why in own),
        _visible_devices(gpus),
        *(_process_env(port) if rung.launcher is Launcher.PYTHON else ()),
    )
    values = {
        "checkpoint": _path_of(resume_from),
        "micro_batch": str(batch.micro_samples) if batch else "",
        "grad_accum": str(batch.grad_accum) if batch else "",
        "world_size": str(ranks),
        "run_dir": str(paths.run_dir),
        "attempt": str(attempt),
    }
    return LaunchPlan(
        attempt=attempt,
        rung=rung.name,
        rung_index=rung_index,
        launcher=rung.launcher,
        world_size=ranks,
        argv=command_line(
            settings.worker,
            rung.launcher,
            worker_arguments(settings.worker, rung, batch, resume_from, values),
            ranks=ranks,
            port=port,
            rendezvous_id=f"{paths.id}-{attempt}",
            log_dir=attempt_dir / TORCHRUN_DIR,
        ),
        env=env,
        unset_env=foreign(inherited, frozenset(change.name for change in env)),
        cwd=settings.worker.cwd,
        attempt_dir=attempt_dir,
        gpus=gpus,
        batch=batch,
        resume_from=resume_from,
        grace_s=settings.stop.grace_s,
    )


def _launcher(rung: RungSettings) -> Launcher:
    one = rung.gpus == 1 or (isinstance(rung.gpus, tuple) and len(rung.gpus) == 1)
    return rung.launcher or (Launcher.PYTHON if one else Launcher.TORCHRUN)


def _keep(settings: Settings) -> str:
    given = "keep" in settings.checkpoints.model_fields_set
    return str(settings.checkpoints.keep) if given else ""


def _path_of(checkpoint: Checkpoint | None) -> str:
    return str(checkpoint.path) if checkpoint else ""


def _batch_env(batch: Batch | None) -> tuple[tuple[str, str, str], ...]:
    sums = (
        (str(batch.global_samples), str(batch.micro_samples), str(batch.grad_accum))
        if batch
        else ("", "", "")
    )
    return (
        (ENV_GLOBAL_BATCH, sums[0], "samples per optimizer step, on every rung"),
        (ENV_MICRO_BATCH, sums[1], "samples per forward and backward"),
        (ENV_GRAD_ACCUM, sums[2], "micro-batches of one rank in a step"),
    )


def _visible_devices(gpus: tuple[Gpu, ...]) -> EnvChange:
    why = (
        "the GPUs of this rung by UUID: the first is cuda:0"
        if gpus
        else "a run on the CPU never touches a GPU"
    )
    return EnvChange("CUDA_VISIBLE_DEVICES", ",".join(gpu.uuid for gpu in gpus), CONTRACT, why)


def _process_env(port: int) -> tuple[EnvChange, ...]:
    """Return what torchrun would set for the only rank of a world of one."""
    values = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(port),
    }
    why = "a world of one, as torchrun would say it"
    return tuple(EnvChange(name, value, CONTRACT, why) for name, value in values.items())
