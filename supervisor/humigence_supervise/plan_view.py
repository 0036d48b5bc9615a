"""`plan`: what each rung would run, exactly, with nothing started. A document, and its text."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from humigence_supervise import ladder
from humigence_supervise.checkpoints.choose import Choice, newest_good
from humigence_supervise.config import Settings
from humigence_supervise.contract import ATTEMPTS_DIR, JOURNAL_FILE
from humigence_supervise.domain import Accelerator, Batch, Checkpoint, Gpu, Host, Rung, RunPaths
from humigence_supervise.journal import read_journal
from humigence_supervise.observe.host import read_host
from humigence_supervise.plan_file import public_plan
from humigence_supervise.plan_text import plan_text
from humigence_supervise.preflight import problems
from humigence_supervise.state import fold

__all__ = ["describe", "plan_document", "plan_text"]

RUN_ID_SHOWN: Final = "RUN-ID"
PORT_SHOWN: Final = 0
"""Run id and port are chosen at the start; `plan` shows these in their place."""

ASSUMED_GPUS: Final = 2
"""GPUs assumed for `"gpus": "all"` on a machine that shows none."""


def plan_document(settings: Settings, config: Path) -> dict[str, object]:
    """Look at this machine and the run's checkpoints, and return what `plan --json` prints."""
    document = describe(
        settings,
        config,
        host=read_host(settings.worker.python),
        choice=newest_good(settings.checkpoints.dir, run=None),
        attempt=_next_attempt(settings.run_dir),
        inherited=os.environ,
        excluded_gpus=_excluded_gpus(settings.run_dir),
    )
    return {**document, "problems": list(problems(settings))}


def describe(
    settings: Settings,
    config: Path,
    *,
    host: Host,
    choice: Choice,
    attempt: int,
    inherited: Mapping[str, str],
    excluded_gpus: tuple[str, ...] = (),
) -> dict[str, object]:
    """Return the document for a host, a choice of checkpoint and an environment.

    `excluded_gpus` are those that the run has learned not to use.

    A rung that needs more GPUs than the host has is planned with placeholders in place of the
    missing ones, and its `problem` says so.
    """
    accelerator, why = ladder.resolve_accelerator(settings, host)
    rungs = ladder.rungs(settings)
    padded = host
    if accelerator is Accelerator.CUDA:
        padded = replace(host, gpus=_padded(rungs, host.gpus))
    paths = RunPaths(
        settings.name, RUN_ID_SHOWN, settings.run_dir, settings.checkpoints.dir, config
    )

    def planned(index: int, on: Host) -> dict[str, object]:
        plan = ladder.plan(
            settings,
            paths,
            index,
            host=on,
            attempt=attempt,
            resume_from=choice.checkpoint,
            port=PORT_SHOWN,
            inherited=inherited,
            excluded_gpus=excluded_gpus,
            run_virtual_ranks=ladder.virtual_ranks(settings, padded),
            run_accelerator=accelerator,
        )
        sums = _sums(plan.batch) if plan.batch else None
        return {**public_plan(plan), "sums": sums}

    def entry(index: int) -> dict[str, object]:
        # First as the machine is, then with placeholders, at last only with the problem.
        try:
            return {"problem": None, "placeholder_gpus": False, **planned(index, host)}
        except ladder.PlanError as error:
            problem = str(error)
        try:
            return {"problem": problem, "placeholder_gpus": True, **planned(index, padded)}
        except ladder.PlanError as error:
            return {"rung": rungs[index].name, "problem": str(error), "placeholder_gpus": False}

    return {
        "name": settings.name,
        "config": str(config),
        "run_dir": str(settings.run_dir),
        "accelerator": accelerator.value,
        "accelerator_why": why,
        "host": _host(host),
        "excluded_gpus": list(excluded_gpus),
        "problems": [],
        "checkpoint": _checkpoint(choice.checkpoint),
        "checkpoint_note": choice.note,
        "rungs": [entry(index) for index in range(len(rungs))],
    }


def _excluded_gpus(run_dir: Path) -> tuple[str, ...]:
    """Return the GPUs that the run does not use any more; none where its journal cannot be read."""
    with suppress(OSError, ValueError):
        entries = read_journal(run_dir / JOURNAL_FILE)
        return fold(entry.record for entry in entries).excluded_gpus
    return ()


def _next_attempt(run_dir: Path) -> int:
    """Return the number the next attempt would have; 1 where nothing can be seen."""
    try:
        names = [entry.name for entry in (run_dir / ATTEMPTS_DIR).iterdir()]
    except OSError:
        return 1
    return max((int(name) for name in names if name.isdecimal()), default=0) + 1


def _padded(rungs: tuple[Rung, ...], gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """Return the GPUs with as many placeholders as the neediest rung lacks."""
    named = [name for rung in rungs if isinstance(rung.gpus, tuple) for name in rung.gpus]
    missing = [
        name
        for name in dict.fromkeys(named)
        if not any(name in (str(g.index), g.uuid) for g in gpus)
    ]
    padded = [*gpus, *(_placeholder(name) for name in missing)]
    counts = [rung.gpus for rung in rungs if isinstance(rung.gpus, int)]
    if not gpus and any(rung.gpus == "all" for rung in rungs):
        counts.append(ASSUMED_GPUS)
    while len(padded) < max(counts, default=0):
        padded.append(_placeholder(str(_free_index(padded))))
    return tuple(padded)


def _free_index(gpus: list[Gpu]) -> int:
    return max((gpu.index for gpu in gpus), default=-1) + 1


def _placeholder(name: str) -> Gpu:
    index = int(name) if name.isdecimal() else 0
    uuid = f"GPU-PLACEHOLDER-{index}" if name.isdecimal() else name
    return Gpu(index, uuid, "placeholder, not in this machine", None, None)


def _sums(batch: Batch) -> str:
    """Return the arithmetic of a step: "8 = 2 ranks x 1 x micro-batch 4"."""
    return (
        f"{batch.global_samples} = {batch.world_size} rank{'s' * (batch.world_size != 1)} x "
        f"{batch.grad_accum} x micro-batch {batch.micro_samples}"
    )


def _host(host: Host) -> dict[str, object]:
    return {
        "gpus": [
            {
                "index": gpu.index,
                "uuid": gpu.uuid,
                "name": gpu.name,
                "total_mib": gpu.total_mib,
                "free_mib": gpu.free_mib,
            }
            for gpu in host.gpus
        ],
        "driver": host.driver_version,
        "torch": host.torch_version,
        "cpu_count": host.cpu_count,
        "unread": list(host.unread),
    }


def _checkpoint(checkpoint: Checkpoint | None) -> dict[str, object] | None:
    if checkpoint is None:
        return None
    return {"path": str(checkpoint.path), "step": checkpoint.step, "samples": checkpoint.samples}
