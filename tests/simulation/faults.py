"""What goes wrong in a simulated run, and what a reader of the evidence would call it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from humigence_supervise.domain import (
    Confidence,
    Diagnosis,
    ExitStatus,
    Holder,
    Kind,
    LaunchPlan,
    OomReading,
    Remedy,
)
from humigence_supervise.remedies import USUAL

FAILED = ExitStatus(code=1)
FOR_EVER = math.inf
"""A fault that comes back until somebody mends it."""


class Ending(Enum):
    """How an attempt with a fault is seen to end."""

    RANK_FIRST = "one rank dies, the others hang until the launcher gives up or all are killed"
    TOGETHER = "the launcher ends with exit code 1"
    LAUNCHER = "the launcher is killed, its keeper clears the ranks"
    KEEPER = "the keeper is killed, the ranks are left"
    EARLY = "the launcher ends with exit code 0, too early"
    STALL = "nothing moves for a while, then a watchdog aborts a rank"


@dataclass(slots=True)
class Fault:
    """One cause of failures; `left` is how often it still strikes.

    `at_step`: while this step is made; 0: before any; None: while the first step after the start.
    It strikes only attempts of several ranks, on a GPU, on a rung or with micro-batches above a
    size, where these are given.
    """

    kind: Kind
    at_step: int | None = None
    left: float = 1
    several_ranks: bool = False
    on_gpu: str | None = None
    on_rung: int | None = None
    micro_above: int | None = None
    ending: Ending = Ending.TOGETHER
    status: ExitStatus = FAILED
    fingerprint: str = ""
    named: str | None = None
    holder: Holder | None = None
    held_mib: int | None = None
    pid: int | None = None
    remedy: Remedy | None = None
    confidence: Confidence = Confidence.CERTAIN

    def strikes(self, plan: LaunchPlan, began: int, step: int) -> bool:
        """Say whether it ends an attempt that began after `began`, while `step` is made."""
        if self.left <= 0:
            return False
        at_step = began + 1 if self.at_step is None else self.at_step
        if at_step != step:
            return False
        micro = plan.batch.micro_samples if plan.batch else 0
        return (
            (not self.several_ranks or plan.world_size > 1)
            and (self.on_gpu is None or any(gpu.uuid == self.on_gpu for gpu in plan.gpus))
            and (self.on_rung is None or plan.rung_index == self.on_rung)
            and (self.micro_above is None or micro > self.micro_above)
        )

    def diagnosis(self) -> Diagnosis:
        """Return what the evidence of an attempt that it ended would say."""
        memory = None
        if self.kind is Kind.CUDA_OOM:
            memory = OomReading(self.holder or Holder.WORKLOAD, self.pid, self.held_mib)
        return diagnosis_of(
            self.kind,
            fingerprint=self.fingerprint or f"{self.kind.value}|row|train.py:0",
            gpu=self.named,
            memory=memory,
            remedy=self.remedy,
            confidence=self.confidence,
        )


def diagnosis_of(
    kind: Kind,
    *,
    fingerprint: str = "",
    gpu: str | None = None,
    memory: OomReading | None = None,
    remedy: Remedy | None = None,
    confidence: Confidence = Confidence.CERTAIN,
) -> Diagnosis:
    """Return a diagnosis as `diagnose` makes one of a text."""
    usual = USUAL[kind]
    return Diagnosis(
        kind,
        None,
        (),
        remedy or usual.remedy,
        usual.means,
        usual.advice,
        confidence,
        fingerprint or f"{kind.value}|-|",
        gpu=gpu,
        memory=memory,
    )
