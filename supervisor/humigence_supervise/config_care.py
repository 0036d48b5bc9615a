"""The sections of the configuration about looking after a run: policy, hangs, checkpoints, news."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from humigence_supervise.config_overrides import overrides_schema
from humigence_supervise.config_types import Command, Count, EventName, Model, Seconds, Url
from humigence_supervise.domain import Kind, Remedy


class MaxAttempts(Model):
    """How many attempts a period may see, whatever their progress."""

    count: Count = 20
    """Attempts in any period."""
    period_s: Annotated[Seconds, Field(gt=0)] = 86_400.0
    """Length of the period in seconds."""


class BackoffSettings(Model):
    """Waiting before a retry: first_s, then times `factor`, up to max_s, each with jitter."""

    first_s: Seconds = 1.0
    """Seconds before the first retry."""
    max_s: Seconds = 300.0
    """Seconds a wait never exceeds."""
    factor: Annotated[float, Field(ge=1, le=100)] = 2.0
    """Each wait is this many times the one before."""
    jitter: Annotated[float, Field(ge=0, le=1)] = 0.2
    """Share of a wait by which it varies, so that runs do not retry in step."""

    @model_validator(mode="after")
    def _rising(self) -> Self:
        if self.first_s > self.max_s:
            raise ValueError(f'has "first_s" {self.first_s:g} above "max_s" {self.max_s:g}')
        return self


def _with_kinds(schema: dict[str, Any]) -> None:
    """Add the kinds that may stand beside the other keys of `policy`."""
    schema["properties"] |= overrides_schema()


class PolicySettings(Model):
    """What is done about failures."""

    model_config = ConfigDict(json_schema_extra=_with_kinds)

    overrides: dict[Kind, Remedy] = Field(default_factory=dict)
    """Action per kind of failure, in place of the default one. A kind may also stand beside the
    other keys: `"policy": {"cuda_oom": "stop_and_tell"}`."""
    retries: Annotated[int, Field(ge=0, le=1000)] = 1
    """Retries on one rung before the next is tried."""
    attempts_without_progress: Count = 3
    """Attempts in a row without a new checkpoint step that end the run."""
    max_attempts: MaxAttempts = Field(default_factory=MaxAttempts)
    backoff: BackoffSettings = Field(default_factory=BackoffSettings)
    grow_after_checkpoints: Annotated[int, Field(ge=0, le=1_000_000)] = 10
    """Checkpoints without a failure after which a reduced micro-batch is raised again, once; 0:
    never."""

    @model_validator(mode="before")
    @classmethod
    def _kinds_are_overrides(cls, value: object) -> object:
        """Take `{"cuda_oom": "stop_and_tell"}` as the override it is."""
        if not isinstance(value, dict) or not isinstance(value.get("overrides", {}), dict):
            return value
        kinds = {key: action for key, action in value.items() if key in set(Kind)}
        rest = {key: item for key, item in value.items() if key not in kinds}
        return {**rest, "overrides": {**value.get("overrides", {}), **kinds}} if kinds else value


class HangSections(Model):
    """Seconds that sections other than training may take without a sign of progress."""

    checkpoint_s: Seconds = 600.0
    """Writing a checkpoint."""
    eval_s: Seconds = 1800.0
    """Evaluating."""


class HangSettings(Model):
    """When a run that prints nothing and steps no more counts as hung."""

    enabled: bool = True
    """False: never suspect a hang."""
    startup_s: Seconds = 600.0
    """Seconds from the start of an attempt to its first step."""
    stall_factor: Annotated[float, Field(ge=1, le=1000)] = 5.0
    """A stall is this many times the run's own usual step time, plus `stall_min_s`."""
    stall_min_s: Seconds = 45.0
    """Seconds without a step that are never a stall."""
    sections: HangSections = Field(default_factory=HangSections)


class PromoteSettings(Model):
    """Going back up the ladder after a healthy while and a passing probe."""

    enabled: bool = True
    """False: stay on the rung once reached."""
    after_s: Seconds = 1800.0
    """Healthy seconds before the first try; doubled after each failed one."""
    max_promotions: Annotated[int, Field(ge=0, le=1000)] = 3
    """Tries in one run."""


class CheckpointSettings(Model):
    """Where checkpoints are and how they look."""

    dir: Path = Path("checkpoints")
    """Folder, relative to the run directory."""
    layout: Literal[
        "auto",
        "humigence",
        "hf_trainer",
        "accelerate",
        "lightning",
        "dcp",
        "torch",
        "megatron",
        "deepspeed",
    ] = "auto"
    """Whose layout they have; `auto` looks."""
    keep: Annotated[int, Field(ge=1, le=10_000)] = 3
    """Newest good ones the reference worker keeps."""
    min_free_mib: Annotated[int, Field(ge=0, le=1_000_000_000)] = 0
    """MiB that must be free there before an attempt; never less than one checkpoint takes."""


class SuccessSettings(Model):
    """When exit code 0 counts as success; at most one key.

    Default: with the worker's own target reached, or the one that its preset's output shows.
    """

    target_step: Count | None = None
    """Completed optimizer steps that must be reached, by progress files or by the output."""
    marker: Annotated[str, Field(min_length=1)] | None = None
    """Text that must stand in the output of a rank."""
    exit_code_only: bool = False
    """True: exit code 0 alone is success."""

    @model_validator(mode="after")
    def _one_rule(self) -> Self:
        rules = (self.target_step is not None) + (self.marker is not None) + self.exit_code_only
        if rules > 1:
            raise ValueError('takes one of "target_step", "marker" and "exit_code_only"')
        return self


class StopSettings(Model):
    """How a run is stopped."""

    grace_s: Annotated[float, Field(gt=0, le=86_400)] = 60.0
    """Seconds a worker has to save after SIGTERM before it is killed."""


class NotifySettings(Model):
    """One receiver of events: a URL that takes a POST, or a command that reads standard input."""

    url: Url | None = None
    """Where the event is posted as JSON."""
    command: Command | None = None
    """Program and arguments; no shell."""
    on: tuple[EventName, ...] = (
        "rung.changed",
        "run.completed",
        "run.gave_up",
        "run.failed",
    )
    """Event names."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.url is None) == (self.command is None):
            raise ValueError('needs one of "url" and "command"')
        return self


class MetricsSettings(Model):
    """Where metrics in Prometheus text go; at most one key."""

    textfile: Path | None = None
    """File, relative to the run directory, rewritten as a whole."""
    port: Annotated[int, Field(ge=1, le=65_535)] | None = None
    """TCP port on 127.0.0.1."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.textfile is not None and self.port is not None:
            raise ValueError('takes one of "textfile" and "port"')
        return self
