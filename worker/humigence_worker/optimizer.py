"""AdamW and the learning rate, as far as a run needs them.

torch's own update rule, but not its `torch.optim.AdamW` class: constructing that imports
torch._dynamo, which costs a second or more at every start and is used for nothing here. The
functional form computes the same and imports nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, assert_never

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from humigence_worker.settings import LrSchedule, WorkerSettings

_EPS: Final = 1e-8
_MATRIX: Final = 2
_MOMENTS: Final = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True)
class _Group:
    """Parameters that share one weight decay, with their state in the same order."""

    names: list[str]
    parameters: list[Tensor]
    exp_avg: list[Tensor]
    exp_avg_sq: list[Tensor]
    steps: list[Tensor]
    weight_decay: float


class AdamW:
    """Decoupled weight decay on matrices only, as usual for transformers; gains do not decay."""

    def __init__(
        self, parameters: Iterable[tuple[str, nn.Parameter]], settings: WorkerSettings
    ) -> None:
        """Start with empty moments on the parameters' device."""
        named = list(parameters)
        self._betas = (settings.beta1, settings.beta2)
        self._groups = [
            _group([(n, p) for n, p in named if p.dim() >= _MATRIX], settings.weight_decay),
            _group([(n, p) for n, p in named if p.dim() < _MATRIX], 0.0),
        ]

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Change every parameter by its gradient."""
        for group in self._groups:
            adamw(
                group.parameters,
                [_gradient(parameter) for parameter in group.parameters],
                group.exp_avg,
                group.exp_avg_sq,
                [],
                group.steps,
                fused=True,
                amsgrad=False,
                beta1=self._betas[0],
                beta2=self._betas[1],
                lr=learning_rate,
                weight_decay=group.weight_decay,
                eps=_EPS,
                maximize=False,
            )

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the moments by ``<moment>.<parameter>``."""
        return {
            f"{moment}.{name}": tensor
            for group in self._groups
            for moment in _MOMENTS
            for name, tensor in zip(group.names, getattr(group, moment), strict=True)
        }

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor], steps: int) -> None:
        """Take over the moments of a checkpoint made after `steps` optimizer steps.

        Raises:
            KeyError, RuntimeError: the tensors are not those of these parameters.
        """
        for name, tensor in self.state_tensors().items():
            tensor.copy_(tensors[name])
        for group in self._groups:
            for count in group.steps:
                count.fill_(steps)

    def describe(self) -> dict[str, object]:
        """Return what a checkpoint writes down of the rule, for people and for later checks."""
        return {
            "name": "adamw",
            "betas": list(self._betas),
            "eps": _EPS,
            "weight_decay_of_matrices": self._groups[0].weight_decay,
        }


def learning_rate(settings: WorkerSettings, step: int, target_step: int) -> float:
    """Return the rate of step `step` (0-based): linear warm-up, then the schedule to the end."""
    peak = settings.learning_rate
    if step < settings.warmup_steps:
        return peak * (step + 1) / settings.warmup_steps
    progress = (step - settings.warmup_steps) / max(1, target_step - settings.warmup_steps)
    match settings.lr_schedule:
        case LrSchedule.CONSTANT:
            return peak
        case LrSchedule.LINEAR:
            left = 1.0 - progress
        case LrSchedule.COSINE:
            left = 0.5 * (1.0 + math.cos(math.pi * progress))
        case _:
            assert_never(settings.lr_schedule)
    return peak * (settings.final_lr_fraction + (1.0 - settings.final_lr_fraction) * left)


def _group(named: list[tuple[str, nn.Parameter]], weight_decay: float) -> _Group:
    parameters: list[Tensor] = [parameter for _, parameter in named]
    return _Group(
        names=[name for name, _ in named],
        parameters=parameters,
        exp_avg=[torch.zeros_like(parameter) for parameter in parameters],
        exp_avg_sq=[torch.zeros_like(parameter) for parameter in parameters],
        steps=[torch.zeros((), device=parameter.device) for parameter in parameters],
        weight_decay=weight_decay,
    )


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad
