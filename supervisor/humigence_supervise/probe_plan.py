"""The plan of the collective probe that is run before a run goes back up to a rung."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from humigence_supervise.command import launch_command
from humigence_supervise.contract import ENV_RUN_ID, TORCHRUN_DIR
from humigence_supervise.domain import Launcher, LaunchPlan

PROBE_GRACE_S: Final = 2.0
"""A probe has nothing to save; torchrun needs a moment to end its ranks."""


def probe_plan(
    plan: LaunchPlan, worker_python: Path, port: int, script: Path, deadline_s: float
) -> LaunchPlan:
    """Return the plan of the probe for a rung, from the complete plan of an attempt on it.

    What decides whether the collectives work is the attempt's own: environment, GPUs, ranks, the
    worker's interpreter. The folder is that plan's too, and a folder is used once: the attempt
    itself takes a later number. `port` is a free TCP port of the probe alone. Each rank ends at
    the latest `deadline_s` seconds after its start, which torchrun's own start precedes.
    """
    run_id = next(change.value for change in plan.env if change.name == ENV_RUN_ID)
    return replace(
        plan,
        launcher=Launcher.TORCHRUN,
        argv=launch_command(
            worker_python,
            Launcher.TORCHRUN,
            (str(script), f"--deadline-s={deadline_s:g}"),
            ranks=plan.world_size,
            port=port,
            rendezvous_id=f"{run_id}-{plan.attempt}-probe",
            log_dir=plan.attempt_dir / TORCHRUN_DIR,
        ),
        resume_from=None,
        grace_s=PROBE_GRACE_S,
    )
