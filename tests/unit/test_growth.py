"""When a reduced micro-batch is raised again, and which GPUs are better left alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from humigence_supervise.budgets import Policy
from humigence_supervise.decisions import Incident
from humigence_supervise.domain import Holder, Kind
from humigence_supervise.state import State
from humigence_supervise.way_up import growth_due, suspects


def failed(kind: Kind, *, gpu: str = "", holder: Holder | None = None) -> Incident:
    """Return a failure that names a GPU, or none."""
    return Incident(1, 0, kind, "x", 0.0, 10, 20, 10, gpu, holder)


# --- larger micro-batches ------------------------------------------------------------------------

SHRUNK = State(micro_samples=2, larger_micro=4, quiet_checkpoints=10)


@pytest.mark.parametrize(
    ("state", "configured", "due"),
    [
        (SHRUNK, 8, 4),
        (replace(SHRUNK, quiet_checkpoints=9), 8, None),
        (replace(SHRUNK, quiet_checkpoints=11), 8, 4),
        (replace(SHRUNK, grown=True), 8, None),
        (replace(SHRUNK, micro_samples=None), 8, None),
        # Nothing remembers what it was before: what the configuration says, if it says a batch.
        (replace(SHRUNK, larger_micro=None), 8, 8),
        (replace(SHRUNK, larger_micro=None), None, None),
        # The configuration asks for no more than there is.
        (replace(SHRUNK, larger_micro=None), 2, None),
        (replace(SHRUNK, larger_micro=1), 8, None),
    ],
)
def test_when_a_micro_batch_grows(state: State, configured: int | None, due: int | None) -> None:
    """One size up, once, after ten quiet checkpoints."""
    assert growth_due(state, Policy(), configured) == due


def test_growing_can_be_switched_off() -> None:
    """`policy.grow_after_checkpoints` 0 keeps a reduced micro-batch."""
    assert growth_due(SHRUNK, Policy(grow_after_checkpoints=0), 8) is None
    assert growth_due(SHRUNK, Policy(grow_after_checkpoints=1), 8) == 4


# --- suspects ------------------------------------------------------------------------------------


def test_suspects_are_the_gpus_that_failures_are_blamed_on() -> None:
    """Each once, in order; an error of the program blames no card, nor does one without a name."""
    blamed = (
        failed(Kind.NCCL_REMOTE, gpu="GPU-1"),
        failed(Kind.UNKNOWN),
        failed(Kind.USER_CODE, gpu="GPU-2"),
        failed(Kind.CUDA_OOM, gpu="GPU-2", holder=Holder.WORKLOAD),
        failed(Kind.GPU_FAULT, gpu="GPU-0"),
        failed(Kind.HANG, gpu="GPU-1"),
    )
    assert suspects(blamed) == ("GPU-1", "GPU-0")
    assert suspects(()) == ()
