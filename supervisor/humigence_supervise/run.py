"""One run as the supervisor knows it before anything is started: settings, places, policy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from humigence_supervise import contract
from humigence_supervise.budgets import Backoff, Policy
from humigence_supervise.config import Settings
from humigence_supervise.domain import Accelerator, Rung, RunPaths
from humigence_supervise.presets import Preset
from humigence_supervise.way_up import Promoting


@dataclass(frozen=True, slots=True)
class Run:
    """Everything constant while a supervisor lives.

    `virtual_ranks` is the world size of the first rung when the run began. `micro_samples` is
    the configured micro-batch, None without a batch.
    """

    settings: Settings
    paths: RunPaths
    rungs: tuple[Rung, ...]
    accelerator: Accelerator
    virtual_ranks: int
    micro_samples: int | None
    debug: bool = False

    def attempt_dir(self, attempt: int) -> Path:
        """Return the folder of an attempt."""
        return self.paths.run_dir / contract.ATTEMPTS_DIR / contract.attempt_name(attempt)


def policy_of(settings: Settings) -> Policy:
    """Return the policy section as the value that `policy.decide` takes."""
    chosen = settings.policy
    return Policy(
        overrides=chosen.overrides,
        retries=chosen.retries,
        attempts_without_progress=chosen.attempts_without_progress,
        max_attempts=chosen.max_attempts.count,
        period_s=chosen.max_attempts.period_s,
        backoff=Backoff(
            chosen.backoff.first_s,
            chosen.backoff.max_s,
            chosen.backoff.factor,
            chosen.backoff.jitter,
        ),
        grow_after_checkpoints=chosen.grow_after_checkpoints,
    )


def promoting_of(settings: Settings) -> Promoting:
    """Return the promote section as the value that `way_up` takes."""
    chosen = settings.promote
    return Promoting(chosen.enabled, chosen.after_s, chosen.max_promotions)


def counts_from_scratch(settings: Settings) -> bool:
    """Say whether the worker is known to begin at step 0 when it is given no checkpoint.

    The reference worker is; a foreign one may find its own.
    """
    return settings.worker.preset is Preset.HUMIGENCE
