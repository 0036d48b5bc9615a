"""The worker's configuration: one flat JSON object, every key optional, nothing ignored.

Imports no torch, so that a mistake in the file is reported before three seconds of imports.
The environment is not read here.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

from humigence_worker.strict_json import JsonObject, WorkerConfigError, read_object
from humigence_worker.typed import Place, Range, parse_fields

__all__ = [
    "STDLIB",
    "FaultName",
    "FaultSetting",
    "LrSchedule",
    "WorkerConfigError",
    "WorkerSettings",
    "load_settings",
    "snapshot",
]

STDLIB: Final = "stdlib"
"""Value of `data` that means: the source code of the running interpreter's standard library."""


class LrSchedule(StrEnum):
    """How the learning rate falls from its peak, after the warm-up, to the final fraction."""

    COSINE = "cosine"
    LINEAR = "linear"
    CONSTANT = "constant"


class FaultName(StrEnum):
    """Faults a drill can ask for; what each does stands in faults.py."""

    NCCL_ERROR = "nccl_error"
    NCCL_INTERNAL = "nccl_internal"
    NCCL_TIMEOUT = "nccl_timeout"
    CUDA_OOM = "cuda_oom"
    SIGKILL = "sigkill"
    ABORT = "abort"
    SEGFAULT = "segfault"
    EXCEPTION = "exception"
    HANG = "hang"
    EXIT0 = "exit0"
    FILL_DISK = "fill_disk"
    CORRUPT_TRUNCATE = "corrupt_truncate"
    CORRUPT_FLIP = "corrupt_flip"
    DEAF = "deaf"


Count = Annotated[int, Range(1, 10**9)]
CountOrZero = Annotated[int, Range(0, 10**9)]
Fraction = Annotated[float, Range(0.0, 1.0)]


@dataclass(frozen=True, slots=True)
class FaultSetting:
    """One fault: before optimizer step `step` (from 1) on `rank`, once in the whole run.

    `rank` is None for whichever rank gets there first ("any" in the file). `folder` and
    `max_mib` belong to `fill_disk` alone.
    """

    name: FaultName
    step: Count
    rank: Annotated[int, Range(0, 65535)] | None = None
    folder: str | None = None
    max_mib: Count = 1024


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Everything a training job is; the defaults are a small job that runs on a laptop's CPU.

    `per_device_*` are samples per device and optimizer step on the *first* rung, which has
    `virtual_ranks` devices; one device alone does the work of all (CONTRACT, "The sums of a
    fallback"). `micro_batch` is samples per forward and backward. Exactly one of `max_steps` and
    `epochs` is set. `eval_steps` 0 means only at the end; `save_steps` 0 the same.
    An evaluation saves its step first. `group_timeout_s` is the longest wait of a process for the
    others: above the time of any save and evaluation, during which they wait for the first.
    """

    data: str = STDLIB
    heldout_fraction: Annotated[float, Range(0.001, 0.5)] = 0.05
    max_eval_samples: Count = 512
    seed: Annotated[int, Range(0, 2**63 - 1)] = 0

    seq_len: Annotated[int, Range(8, 65536)] = 256
    d_model: Annotated[int, Range(8, 16384)] = 128
    n_layers: Annotated[int, Range(1, 256)] = 4
    n_heads: Annotated[int, Range(1, 256)] = 4
    dropout: Annotated[float, Range(0.0, 0.9)] = 0.1

    per_device_train_batch_size: Count = 4
    per_device_eval_batch_size: Count = 8
    micro_batch: Count = 4
    virtual_ranks: Annotated[int, Range(1, 1024)] = 2

    max_steps: Count | None = 1000
    epochs: Count | None = None
    learning_rate: Annotated[float, Range(0.0, 10.0)] = 1e-3
    warmup_steps: CountOrZero = 20
    lr_schedule: LrSchedule = LrSchedule.COSINE
    final_lr_fraction: Fraction = 0.1
    weight_decay: Fraction = 0.1
    gradient_clip: Annotated[float, Range(0.0, 1e6)] = 1.0
    beta1: Annotated[float, Range(0.0, 0.9999)] = 0.9
    beta2: Annotated[float, Range(0.0, 0.999999)] = 0.95
    bf16: bool = False
    gradient_checkpointing: bool = False

    save_steps: CountOrZero = 100
    eval_steps: CountOrZero = 0
    log_steps: Count = 10
    keep: Annotated[int, Range(1, 10**6)] = 3
    group_timeout_s: Annotated[int, Range(1, 7 * 86400)] = 1800
    cpu_threads: Annotated[int, Range(1, 1024)] = 1
    faults: tuple[FaultSetting, ...] = ()


# Names people know from other trainers; only ever used to say which of our keys is meant.
_KNOWN_ELSEWHERE: Final = {
    "lr": "learning_rate",
    "batch_size": "per_device_train_batch_size",
    "eval_batch_size": "per_device_eval_batch_size",
    "gradient_accumulation_steps": "micro_batch",
    "max_grad_norm": "gradient_clip",
    "grad_clip": "gradient_clip",
    "num_train_epochs": "epochs",
    "num_epochs": "epochs",
    "max_iters": "max_steps",
    "steps": "max_steps",
    "logging_steps": "log_steps",
    "save_total_limit": "keep",
    "lr_scheduler_type": "lr_schedule",
    "adam_beta1": "beta1",
    "adam_beta2": "beta2",
    "block_size": "seq_len",
    "max_seq_length": "seq_len",
    "n_layer": "n_layers",
    "n_head": "n_heads",
    "n_embd": "d_model",
    "dataset": "data",
    "train_file": "data",
}


def load_settings(path: Path) -> WorkerSettings:
    """Read the configuration at `path`; a relative `data` or `folder` is relative to that file.

    `micro_batch` defaults to `per_device_train_batch_size`; with `epochs`, `max_steps` is None.

    Raises:
        WorkerConfigError: for every mistake, naming the file, line, key, and what is allowed.
    """
    raw, text = read_object(path)
    place = Place(path, text)
    given = parse_fields(_any_rank_dropped(raw), WorkerSettings, place, _KNOWN_ELSEWHERE)
    if "per_device_train_batch_size" in given:
        given.setdefault("micro_batch", given["per_device_train_batch_size"])
    if given.get("epochs") is not None:
        given.setdefault("max_steps", None)
    settings = WorkerSettings(**given)
    _check_together(settings, place)
    return _with_absolute_paths(settings, path.parent.absolute())


def snapshot(settings: WorkerSettings) -> dict[str, Any]:
    """Return the JSON object that `load_settings` reads back as equal settings."""
    values: dict[str, Any] = asdict(settings, dict_factory=_without_none)
    values["faults"] = list(values["faults"])
    return values


def _without_none(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {
        key: str(value) if isinstance(value, StrEnum) else value
        for key, value in pairs
        if value is not None
    }


def _any_rank_dropped(raw: JsonObject) -> JsonObject:
    """Return `raw` where a fault's rank "any" is left out, which means the same."""
    faults = raw.get("faults")
    if not isinstance(faults, list):
        return raw
    plain = [
        {key: value for key, value in fault.items() if (key, value) != ("rank", "any")}
        if isinstance(fault, dict)
        else fault
        for fault in faults
    ]
    return {**raw, "faults": plain}


def _with_absolute_paths(settings: WorkerSettings, base: Path) -> WorkerSettings:
    def absolute(given: str) -> str:
        return str(base / os.path.expanduser(given))  # noqa: PTH111 - unlike Path's, never raises

    return replace(
        settings,
        data=settings.data if settings.data == STDLIB else absolute(settings.data),
        faults=tuple(
            replace(fault, folder=absolute(fault.folder)) if fault.folder else fault
            for fault in settings.faults
        ),
    )


def _check_together(settings: WorkerSettings, place: Place) -> None:
    """Refuse values that are each allowed but not with each other."""
    if settings.epochs is not None and settings.max_steps is not None:
        raise place.key("epochs").error("given beside max_steps. Keep one of the two.")
    if settings.epochs is None and settings.max_steps is None:
        raise place.key("max_steps").error("is null, and epochs is not given. Give one of them.")
    per_head, rest = divmod(settings.d_model, settings.n_heads)
    if rest or per_head % 2:
        raise place.key("d_model").error(
            f"{settings.d_model} over {settings.n_heads} heads is not an even whole number a head. "
            f"Make d_model a multiple of {2 * settings.n_heads}."
        )
    if settings.per_device_train_batch_size % settings.micro_batch:
        raise place.key("micro_batch").error(
            f"{settings.micro_batch} does not divide per_device_train_batch_size "
            f"{settings.per_device_train_batch_size}. Choose a divisor of it."
        )
    for index, fault in enumerate(settings.faults):
        if (fault.folder is not None) != (fault.name is FaultName.FILL_DISK):
            raise (
                place.key("faults")
                .item(index)
                .error("folder belongs to fill_disk and to it alone: it is the folder to fill.")
            )
