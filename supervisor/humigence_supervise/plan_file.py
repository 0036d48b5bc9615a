"""What plan.json says of a plan, and what of its words and variables may be shown.

plan.json has the true argv, because the keeper executes what stands there: the file is for its
owner alone (see durable.py). Whoever shows or journals an argv takes `public_argv` of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from humigence_supervise.domain import Batch, Checkpoint, EnvChange, LaunchPlan

REDACTED = "<redacted>"
_SECRET_NAME = re.compile(
    r"PASS|PWD|SECRET|TOKEN(?!IZ)|CRED(?:ENTIAL|S?(?:_|$))|AUTH(?!OR(?!IZ))|BEARER|JWT"
    r"|(?:API|ACCESS|PRIVATE|SIGNING|ENCRYPTION)_?KEY|KEYS(?:_|$)|(?:^|_)(?:KEY|PAT|DSN)(?:_|$)"
)
"""Over-hiding a name costs a look elsewhere; under-hiding one costs the secret."""
_NO_SECRET_NAME = re.compile(r"(?:OLD)?PWD|(?:HUMIGENCE|NCCL|TOKENIZERS)_.*|(?:PYTHON)?PATH")
_COUNTED_NAME = re.compile(r"TOKENS(?:_|$)")
_URL_CREDENTIALS = re.compile(r"(?<=://)[^/\s]+(?=@)")


def public_value(name: str, value: str) -> str:
    """Return a variable's or option's value, or what may be shown of it when it is a secret."""
    plain = re.sub(r"[^A-Z0-9]+", "_", name.upper()).strip("_")
    counts = value.isdecimal() and _COUNTED_NAME.search(plain) is not None
    if _SECRET_NAME.search(plain) and not _NO_SECRET_NAME.fullmatch(plain) and not counts:
        return REDACTED
    return _URL_CREDENTIALS.sub(REDACTED, value)


def public_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """Return a command line as it may be shown: the values of secret options are redacted.

    Read are `--name value ...`, `--name=value` and `NAME=value`, also one in the other.
    """
    shown: list[str] = []
    option = ""
    for word in argv:
        if word.startswith("-"):
            option = "" if "=" in word else word
            shown.append(_public_word(word))
        else:
            shown.append(_public_word(public_value(option, word)))
    return tuple(shown)


def _public_word(word: str) -> str:
    name, equals, value = _URL_CREDENTIALS.sub(REDACTED, word).partition("=")
    return f"{name}={_public_word(public_value(name, value))}" if equals else name


def public_plan(plan: LaunchPlan) -> dict[str, object]:
    """Return plan.json's content. The keeper reads attempt, argv, cwd and grace_s of it.

    `argv` is the true one, to be executed; everything else may be shown.
    """
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
        "gpus": [
            {"index": g.index, "uuid": g.uuid, "name": g.name, "bus_id": g.bus_id}
            for g in plan.gpus
        ],
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
