"""What a preset says about a worker: how it takes a checkpoint, how it prints its steps.

A preset is only a set of defaults for keys the configuration leaves out; every one of them is
shown by `plan`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Preset(StrEnum):
    """Which kind of training program the worker is; `torchrun` assumes nothing."""

    HUMIGENCE = "humigence"
    HF_TRAINER = "hf_trainer"
    ACCELERATE = "accelerate"
    LIGHTNING = "lightning"
    NANOGPT = "nanogpt"
    TORCHRUN = "torchrun"


class TrainingBar(StrEnum):
    """Which of the progress bars in the output counts optimizer steps, and so shows the target."""

    FIRST = "first"
    """The first one without a description. Data sets and checkpoint shards are loaded under bars
    that have one, and evaluation comes later."""
    ANNOUNCED = "announced"
    """The one whose total the program stated before; any other may count the batches of an epoch
    that is left when the steps are done."""


@dataclass(frozen=True, slots=True)
class PresetFacts:
    """Defaults of one preset.

    `step_pattern` has one group, the completed step, or is None when nothing is known. Where
    `training_bar` is set, only that bar is read. `summary` is a text that stands in the output of
    a training that returned, before its last step as well; "" where there is none.
    """

    resume_args: tuple[str, ...] = ()
    batch_args: tuple[str, ...] = ()
    step_pattern: str | None = None
    training_bar: TrainingBar | None = None
    summary: str = ""


PRESETS: Final[Mapping[Preset, PresetFacts]] = {
    # The reference worker reads HUMIGENCE_RESUME_FROM and its batch variables itself.
    Preset.HUMIGENCE: PresetFacts(),
    # transformers.TrainingArguments; the progress bar prints "120/1000 [00:31<03:50".
    Preset.HF_TRAINER: PresetFacts(
        resume_args=("--resume_from_checkpoint", "{checkpoint}"),
        batch_args=(
            "--per_device_train_batch_size",
            "{micro_batch}",
            "--gradient_accumulation_steps",
            "{grad_accum}",
        ),
        step_pattern=r"\b(\d+)/\d+ \[",
        training_bar=TrainingBar.FIRST,
        summary="train_runtime",
    ),
    # The *_no_trainer.py examples of transformers and accelerate.
    Preset.ACCELERATE: PresetFacts(
        resume_args=("--resume_from_checkpoint", "{checkpoint}"),
        batch_args=(
            "--per_device_train_batch_size",
            "{micro_batch}",
            "--gradient_accumulation_steps",
            "{grad_accum}",
        ),
        step_pattern=r"\b(\d+)/\d+ \[",
        training_bar=TrainingBar.ANNOUNCED,
    ),
    # LightningCLI's `fit`; the batch is a property of the user's DataModule, so none is assumed.
    # Its bar counts the batches of an epoch, which are neither steps nor a target.
    Preset.LIGHTNING: PresetFacts(resume_args=("--ckpt_path={checkpoint}",)),
    # configurator.py takes --key=value; it resumes from its own out_dir. Its accumulation is
    # counted over all ranks and divided by the world size, so it keeps the global batch itself.
    Preset.NANOGPT: PresetFacts(
        resume_args=("--init_from=resume",),
        step_pattern=r"\biter (\d+): loss",
    ),
    Preset.TORCHRUN: PresetFacts(),
}

PLACEHOLDERS: Final = (
    "checkpoint",
    "micro_batch",
    "grad_accum",
    "world_size",
    "run_dir",
    "attempt",
)
_PLACEHOLDER: Final = re.compile(r"\{\{([a-z_]+)\}\}|\{([a-z_]+)\}")


def placeholders_in(text: str) -> tuple[str, ...]:
    """Return the names in single braces: `{checkpoint}`, but not `{{checkpoint}}` or `{"a": 1}`."""
    return tuple(match[2] for match in _PLACEHOLDER.finditer(text) if match[2])


def fill(text: str, values: Mapping[str, str]) -> str:
    """Replace `{name}` by its value and `{{name}}` by `{name}`; other braces stay as they are."""

    def one(match: re.Match[str]) -> str:
        return f"{{{match[1]}}}" if match[1] else values[match[2]]

    return _PLACEHOLDER.sub(one, text)
