"""The command line of an attempt."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from humigence_supervise.config_models import WorkerSettings
from humigence_supervise.domain import Batch, Checkpoint, Launcher, Rung
from humigence_supervise.presets import PRESETS, fill

RANK_ENTRY: Final = Path(__file__).with_name("rank_entry.py")
LOOPBACK: Final = "127.0.0.1"


def command_line(
    worker: WorkerSettings,
    launcher: Launcher,
    worker_args: tuple[str, ...],
    *,
    ranks: int,
    port: int,
    rendezvous_id: str,
    log_dir: Path,
) -> tuple[str, ...]:
    """Return what is executed for an attempt: the user's worker with its arguments."""
    target = (str(worker.script),) if worker.script else ("-m", str(worker.module))
    return launch_command(
        worker.python,
        launcher,
        (*target, *worker_args),
        ranks=ranks,
        port=port,
        rendezvous_id=rendezvous_id,
        log_dir=log_dir,
    )


def launch_command(
    python: Path,
    launcher: Launcher,
    program: tuple[str, ...],
    *,
    ranks: int,
    port: int,
    rendezvous_id: str,
    log_dir: Path,
) -> tuple[str, ...]:
    """Return what is executed: a program behind the doorway, under torchrun or alone.

    `program` is a script, or -m and a module, with its arguments. `port` and `rendezvous_id` are
    fresh for each attempt, so that no store is met again. Into `log_dir` torchrun puts its error
    files, which it would leave in /tmp otherwise.
    """
    behind_the_doorway = (str(RANK_ENTRY), *program)
    if launcher is Launcher.PYTHON:
        return (str(python), *behind_the_doorway)
    return (
        str(python),
        "-m",
        "torch.distributed.run",
        "--nnodes=1",
        f"--nproc-per-node={ranks}",
        "--max-restarts=0",
        "--rdzv-backend=static",
        f"--master-addr={LOOPBACK}",
        f"--master-port={port}",
        f"--rdzv-id={rendezvous_id}",
        f"--log-dir={log_dir}",
        *behind_the_doorway,
    )


def worker_arguments(
    worker: WorkerSettings,
    rung: Rung,
    batch: Batch | None,
    resume_from: Checkpoint | None,
    values: Mapping[str, str],
) -> tuple[str, ...]:
    """Return all arguments with their placeholders filled from `values`.

    Where a parser takes the last of equal options, those of batch and resume win.
    """
    facts = PRESETS[worker.preset]
    batch_args = facts.batch_args if worker.batch_args is None else worker.batch_args
    resume_args = facts.resume_args if worker.resume_args is None else worker.resume_args
    arguments = (
        *worker.args,
        *rung.args,
        *(batch_args if batch else ()),
        *(resume_args if resume_from else ()),
    )
    return tuple(fill(argument, values) for argument in arguments)
