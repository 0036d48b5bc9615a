"""The configurations that are simulated: read once a process, by the real reader."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path

from humigence_supervise import ladder
from humigence_supervise.actions import Means
from humigence_supervise.batching import batch_of_rung
from humigence_supervise.config import Settings, parse_settings
from humigence_supervise.contract import ATTEMPTS_DIR, attempt_name
from humigence_supervise.domain import Accelerator, Checkpoint, Gpu, Host, LaunchPlan, RunPaths
from humigence_supervise.run import Run

PATHS = RunPaths("sim", "run-id", Path("/sim"), Path("/sim/checkpoints"))

LADDERS = {
    "default": None,
    "one": [{"name": "only", "gpus": "all"}],
    "single": [{"name": "single", "gpus": 1}],
    "remedy": [
        {"name": "multi", "gpus": "all"},
        {"name": "multi_safe", "gpus": "all", "env": {"NCCL_SHM_DISABLE": "1"}},
        {"name": "single", "gpus": 1},
    ],
    "stairs": [
        {"name": "all", "gpus": "all"},
        {"name": "two", "gpus": 2},
        {"name": "one", "gpus": 1},
        {"name": "one_safe", "gpus": 1, "env": {"SAFE": "1"}},
    ],
    "named": [{"name": "both", "gpus": ["0", "1"]}, {"name": "single", "gpus": 1}],
}
POLICIES = {
    "default": {},
    "short": {
        "attempts_without_progress": 2,
        "max_attempts": {"count": 5, "period_s": 100000},
        "backoff": {"first_s": 0.5, "max_s": 20},
    },
    "retrying": {"retries": 2, "attempts_without_progress": 4, "backoff": {"max_s": 40}},
    "strict": {"retries": 0, "attempts_without_progress": 1, "backoff": {"max_s": 30}},
    "growing": {"grow_after_checkpoints": 1, "backoff": {"max_s": 30}},
    "periodic": {"max_attempts": {"count": 3, "period_s": 120}, "backoff": {"max_s": 30}},
    "overridden": {
        "nccl_remote": "retry_same",
        "segfault": "stop_and_tell",
        "nan_divergence": "resume_older_checkpoint",
    },
}
PROMOTES = {
    "default": {},
    "quick": {"after_s": 8, "max_promotions": 3},
    "twice": {"after_s": 3, "max_promotions": 2},
    "off": {"enabled": False},
}


@dataclass(frozen=True, slots=True)
class Setup:
    """Which of the tables' rows a run is configured with; `micro` None: nobody says a batch."""

    ladder: str = "default"
    policy: str = "default"
    promote: str = "quick"
    gpus: int = 2
    micro: int | None = 4
    grace_s: float = 10.0
    preset: str = "humigence"


@cache
def settings_of(setup: Setup) -> Settings:
    """Return the settings, through the reader of configurations."""
    config: dict[str, object] = {
        "name": "sim",
        "accelerator": "cuda" if setup.gpus else "cpu",
        "worker": {"script": "train.py", "preset": setup.preset},
        "policy": POLICIES[setup.policy],
        "promote": PROMOTES[setup.promote],
        "stop": {"grace_s": setup.grace_s},
    }
    if setup.micro is not None:
        config["batch"] = {"micro": setup.micro}
    if (rungs := LADDERS[setup.ladder]) is not None:
        config["ladder"] = rungs
    return parse_settings(json.dumps(config).encode(), Path("/sim/config.json"))


@cache
def run_of(setup: Setup) -> Run:
    """Return the run as `start` makes it on the machine at its best. Raises PlanError."""
    settings = settings_of(setup)
    host = Host(tuple(card(index) for index in range(setup.gpus)), "580.1", "2.13.0", 8)
    virtual = ladder.virtual_ranks(settings, host)
    rungs = ladder.rungs(settings)
    batch = batch_of_rung(settings, rungs[0].name, virtual, virtual, None)
    return Run(
        settings,
        PATHS,
        rungs,
        Accelerator.CUDA if setup.gpus else Accelerator.CPU,
        virtual,
        batch.micro_samples if batch else None,
    )


@cache
def card(index: int, free_mib: int = 32_000) -> Gpu:
    """Return a GPU as `read_host` describes it."""
    return Gpu(index, f"GPU-{index}", "RTX", 32_600, free_mib, f"0000:0{index + 1}:00")


def plan_of(
    setup: Setup, host: Host, means: Means, attempt: int, source: Checkpoint | None
) -> LaunchPlan:
    """Return the ladder's plan of an attempt; equal wishes are planned once. Raises PlanError."""
    plan = planned_once(setup, host, means)
    folder = PATHS.run_dir / ATTEMPTS_DIR / attempt_name(attempt)
    return replace(plan, attempt=attempt, attempt_dir=folder, resume_from=source)


@lru_cache(maxsize=8_000)
def planned_once(setup: Setup, host: Host, means: Means) -> LaunchPlan:
    """Return the ladder's plan but for what differs from attempt to attempt."""
    run = run_of(setup)
    return ladder.plan(
        run.settings,
        run.paths,
        means.rung_index,
        host=host,
        attempt=1,
        resume_from=None,
        port=29_500,
        inherited={},
        micro_samples=means.micro_samples,
        excluded_gpus=means.excluded_gpus,
        suspect_gpus=means.suspect_gpus,
        defragment=means.defragment,
        run_virtual_ranks=run.virtual_ranks,
        run_accelerator=run.accelerator,
    )
