"""What plan.json says: all of a plan that may be read by anyone who can read the run."""

from __future__ import annotations

import re

from humigence_supervise.domain import Batch, Checkpoint, EnvChange, LaunchPlan

REDACTED = "<redacted>"
_SECRET_WORDS = frozenset(
    ("key", "apikey", "token", "secret", "password", "passwd", "passphrase", "credentials", "auth")
)
_URL_WITH_PASSWORD = re.compile(r"(?<=://)[^/\s@]*:[^/\s@]*(?=@)")


def public_value(name: str, value: str) -> str:
    """Return a variable's value, or what may be shown of it when it looks like a secret."""
    if _SECRET_WORDS.intersection(name.lower().split("_")):
        return REDACTED
    return _URL_WITH_PASSWORD.sub(REDACTED, value)


def public_plan(plan: LaunchPlan) -> dict[str, object]:
    """Return plan.json's content. The keeper reads attempt, argv, cwd and grace_s of it."""
    return {
        "attempt": plan.attempt,
        "rung": plan.rung,
        "rung_index": plan.rung_index,
        "launcher": str(plan.launcher),
        "world_size": plan.world_size,
        "argv": list(plan.argv),
        "cwd": str(plan.cwd),
        "env": [_public_change(change) for change in plan.env],
        "unset_env": list(plan.unset_env),
        "gpus": [{"index": g.index, "uuid": g.uuid, "name": g.name} for g in plan.gpus],
        "batch": _public_batch(plan.batch),
        "resume_from": _public_checkpoint(plan.resume_from),
        "grace_s": plan.grace_s,
    }


def _public_change(change: EnvChange) -> dict[str, str]:
    return {
        "name": change.name,
        "value": public_value(change.name, change.value),
        "setter": change.setter,
        "why": change.why,
        "source": change.source,
    }


def _public_batch(batch: Batch | None) -> dict[str, int] | None:
    if batch is None:
        return None
    return {
        "global": batch.global_samples,
        "micro": batch.micro_samples,
        "grad_accum": batch.grad_accum,
        "world_size": batch.world_size,
    }


def _public_checkpoint(checkpoint: Checkpoint | None) -> dict[str, object] | None:
    if checkpoint is None:
        return None
    return {"path": str(checkpoint.path), "step": checkpoint.step, "samples": checkpoint.samples}
