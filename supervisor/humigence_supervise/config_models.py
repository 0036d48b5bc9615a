"""The configuration: what a user may say, with its defaults, as frozen values.

The descriptions are the documentation that `humigence-supervise schema config` prints.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from humigence_supervise.config_care import (
    CheckpointSettings,
    HangSettings,
    MetricsSettings,
    NotifySettings,
    PolicySettings,
    PromoteSettings,
    StopSettings,
    SuccessSettings,
)
from humigence_supervise.config_types import (
    Args,
    Count,
    Env,
    Gpus,
    Model,
    ModuleName,
    Name,
    StepPattern,
)
from humigence_supervise.domain import Launcher
from humigence_supervise.presets import Preset, placeholders_in


class ProgressSettings(Model):
    """How steps are read from the log of a worker that writes no progress files."""

    pattern: StepPattern | None = None
    """Regular expression with one group, the completed step; default: the preset's."""


class WorkerSettings(Model):
    """The training program. Its argument lists may hold placeholders in braces."""

    script: Path | None = None
    """Python script, relative to this file. Not together with `module`."""
    module: ModuleName | None = None
    """Python module, as after `python -m`. Default: `humigence_worker.train`."""
    args: Args = ()
    """Arguments in every attempt. Relative paths in them are seen from `cwd`."""
    python: Path = Field(default_factory=lambda: Path("python3"))
    """Interpreter: a path relative to this file, or a bare name; default: the supervisor's own."""
    cwd: Path = Field(default_factory=Path)
    """Working folder, relative to this file; default: this file's folder."""
    env: Env = Field(default_factory=dict)
    """Environment variables; they win over the hardened ones."""
    preset: Preset = Preset.HUMIGENCE
    """Which kind of program it is: gives defaults for the keys below."""
    resume_args: Args | None = None
    """Arguments added when there is a checkpoint to resume from; default: the preset's."""
    batch_args: Args | None = None
    """Arguments that carry the batch to the worker; default: the preset's."""
    progress: ProgressSettings = Field(default_factory=ProgressSettings)

    @model_validator(mode="after")
    def _one_program(self) -> Self:
        if self.script is not None and self.module is not None:
            raise ValueError('has both "script" and "module"; keep one of them')
        if self.script is None and self.module is None and self.preset is not Preset.HUMIGENCE:
            raise ValueError(f'needs "script" or "module" with preset "{self.preset}"')
        return self


class BatchSettings(Model):
    """The sums of one optimizer step; `global` never changes, on whatever rung."""

    global_samples: Count | None = Field(default=None, alias="global")
    """Samples per optimizer step, over all ranks; default: a micro-batch a rank of rung one."""
    micro_samples: Count | None = Field(default=None, alias="micro")
    """Samples per forward/backward of one rank. Default: 4 for the preset `humigence`."""


class RungSettings(Model):
    """One way of running."""

    name: Name
    """What journal and status call it."""
    gpus: Gpus = "all"
    """`"all"`, a number of GPUs, or a list of indices or UUIDs; on the CPU: the number of ranks."""
    env: Env = Field(default_factory=dict)
    """Environment variables on this rung only; they win over those of `worker.env`."""
    args: Args = ()
    """Arguments on this rung only."""
    launcher: Launcher | None = None
    """`torchrun`, or `python` for a single process; default: python for one GPU, else torchrun."""

    @model_validator(mode="after")
    def _one_process(self) -> Self:
        one = self.gpus == 1 or (isinstance(self.gpus, tuple) and len(self.gpus) == 1)
        if self.launcher is Launcher.PYTHON and not one:
            raise ValueError('has launcher "python", which starts one process: set "gpus": 1')
        return self


def _check_ladder(ladder: tuple[RungSettings, ...]) -> tuple[RungSettings, ...]:
    if not ladder:
        raise ValueError("must not be empty; leave it out for the default ladder")
    names = [rung.name for rung in ladder]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f'has two rungs called "{name}"; names are unique')
    return ladder


Ladder = Annotated[tuple[RungSettings, ...], AfterValidator(_check_ladder)]


class Settings(Model):
    """One run of humigence-supervise. Paths are absolute once read."""

    schema_url: str | None = Field(default=None, alias="$schema")
    """For editors only."""
    name: Name
    """The run's name: lower-case letters, digits, ".", "_" and "-"."""
    run_dir: Path = Path("runs/<name>")
    """Everything about the run, relative to this file."""
    accelerator: Literal["auto", "cuda", "cpu"] = "auto"
    """`auto` is cuda if a CUDA GPU is visible, else cpu."""
    worker: WorkerSettings = Field(default_factory=WorkerSettings)
    batch: BatchSettings = Field(default_factory=BatchSettings)
    ladder: Ladder = Field(default_factory=tuple)
    """Ways of running, best first. Default: all GPUs, then a single one."""
    policy: PolicySettings = Field(default_factory=PolicySettings)
    hang: HangSettings = Field(default_factory=HangSettings)
    promote: PromoteSettings = Field(default_factory=PromoteSettings)
    checkpoints: CheckpointSettings = Field(default_factory=CheckpointSettings)
    success: SuccessSettings = Field(default_factory=SuccessSettings)
    stop: StopSettings = Field(default_factory=StopSettings)
    notify: tuple[NotifySettings, ...] = ()
    """Receivers of events."""
    metrics: MetricsSettings = Field(default_factory=MetricsSettings)

    @model_validator(mode="after")
    def _batch_is_known(self) -> Self:
        """Refuse arguments that carry a batch nobody stated."""
        batch = self.batch
        if self.worker.preset is Preset.HUMIGENCE or batch.global_samples or batch.micro_samples:
            return self
        lists = (self.worker.args, self.worker.batch_args or (), *(r.args for r in self.ladder))
        used = {name for args in lists for arg in args for name in placeholders_in(arg)}
        for name in ("micro_batch", "grad_accum"):
            if name in used:
                raise ValueError(f'uses {{{name}}} in arguments: set "batch.global" too')
        return self
