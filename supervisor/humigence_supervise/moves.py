"""The table of the policy: for each kind of failure the moves, in the order they are tried. Pure.

A row is gone through while the run makes no progress; progress begins it anew. A move that is
impossible (no lower rung, a micro-batch of 1 already) is passed over.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from humigence_supervise.domain import Confidence, Diagnosis, Holder, Kind, Remedy


class Move(StrEnum):
    """One cell of the table."""

    RETRY = "retry"
    DOWN = "down"
    ELSEWHERE = "elsewhere"
    """The same rung on other GPUs than the one that failed."""
    DEFRAGMENT = "defragment"
    SHRINK = "shrink"
    OLDER = "older"
    WAIT = "wait"
    """The same rung after a longer while."""
    WAIT_SPACE = "wait_space"
    WAIT_MEMORY = "wait_memory"
    STOP = "stop"


_OFTEN: Final = 16
"""More repetitions of a move than there are halvings of a micro-batch, or GPUs in a box."""

_RETRY_DOWN: Final = (Move.RETRY, Move.DOWN, Move.STOP)
_DOWN_RETRY: Final = (Move.DOWN, Move.RETRY, Move.STOP)
_STOP: Final = (Move.STOP,)
_SHRINK: Final = (Move.SHRINK,) * _OFTEN
_OLDER: Final = (Move.OLDER, Move.OLDER, Move.STOP)
"""Twice: a program that cannot read three checkpoints in a row has another trouble than them."""
_WAIT: Final = (*(Move.WAIT,) * 8, Move.STOP)

MOVES: Final[Mapping[Kind, tuple[Move, ...]]] = {
    Kind.NCCL_INIT: _DOWN_RETRY,
    Kind.NCCL_TIMEOUT: _DOWN_RETRY,
    Kind.NCCL_REMOTE: _DOWN_RETRY,
    Kind.NCCL_INTERNAL: _DOWN_RETRY,
    Kind.NVLINK_P2P: _DOWN_RETRY,
    Kind.HANG: _DOWN_RETRY,
    Kind.CUDA_OOM: (Move.DOWN, *_SHRINK, Move.STOP),
    Kind.RENDEZVOUS: _RETRY_DOWN,
    Kind.GPU_FAULT: (Move.DOWN, *(Move.ELSEWHERE,) * _OFTEN, Move.STOP),
    Kind.HOST_OOM: _RETRY_DOWN,
    Kind.DATALOADER: _RETRY_DOWN,
    Kind.SEGFAULT: _RETRY_DOWN,
    Kind.PREEMPTED: _RETRY_DOWN,
    Kind.UNKNOWN: _RETRY_DOWN,
    Kind.SHM: (Move.DOWN, Move.STOP),
    Kind.CHECKPOINT_CORRUPT: _OLDER,
    Kind.DISK_FULL: (*(Move.WAIT_SPACE,) * _OFTEN, Move.STOP),
    Kind.NETWORK_HUB: _WAIT,
    Kind.USER_CODE: (Move.RETRY, Move.STOP),
    Kind.IMPORT_ERROR: _STOP,
    Kind.CONFIG_ERROR: _STOP,
    Kind.GPU_UNSUPPORTED: _STOP,
    Kind.DEVICE_ASSERT: _STOP,
    Kind.CUDA_INIT_FORK: _STOP,
    Kind.NAN_DIVERGENCE: _STOP,
    Kind.DEVICE_MISMATCH: (Move.DOWN, Move.STOP),
    Kind.PREMATURE_SUCCESS: (Move.RETRY, Move.STOP),
}

HELD_BY: Final[Mapping[Holder, tuple[Move, ...]]] = {
    Holder.WORKLOAD: MOVES[Kind.CUDA_OOM],
    Holder.STRANGER: (Move.WAIT_MEMORY, Move.DOWN, *(Move.WAIT_MEMORY,) * _OFTEN, Move.STOP),
    Holder.SIBLING_RANK: (Move.DOWN, Move.STOP),
    Holder.FRAGMENTATION: (Move.DEFRAGMENT, *MOVES[Kind.CUDA_OOM]),
    Holder.ALLOCATOR: _STOP,
    Holder.NO_CARD: _STOP,
}
"""The rows of an out-of-memory whose text says who holds the memory."""

OVERRIDES: Final[Mapping[Remedy, tuple[Move, ...]]] = {
    Remedy.FALLBACK_SINGLE_GPU: _DOWN_RETRY,
    Remedy.RETRY_SAME: _RETRY_DOWN,
    Remedy.REDUCE_MICROBATCH: (*_SHRINK, Move.STOP),
    Remedy.RESUME_OLDER_CHECKPOINT: _OLDER,
    Remedy.WAIT_THEN_RETRY: _WAIT,
    Remedy.STOP_AND_TELL: _STOP,
}
"""What `policy: {kind: action}` in the configuration puts in a row's place."""

STOP_IF_TOLD: Final = frozenset((Kind.SHM,))
"""Kinds of two causes: NCCL's shared memory is avoided below, a data loader's has to be mended."""

TRANSIENT: Final = frozenset(
    kind for kind, row in MOVES.items() if {Move.RETRY, Move.WAIT} & set(row)
) - {Kind.USER_CODE, Kind.PREMATURE_SUCCESS} | {Kind.GPU_FAULT, Kind.DISK_FULL}
"""Kinds that another hour may cure: giving up on them is not hopeless (75, not 93)."""

PATIENT: Final = frozenset((Move.WAIT, Move.WAIT_SPACE, Move.WAIT_MEMORY))
"""Moves that wait for the world to change: what they wait through is no failed attempt of ours."""

SELF_LIMITED: Final = PATIENT | {
    Move.DOWN,
    Move.ELSEWHERE,
    Move.DEFRAGMENT,
    Move.SHRINK,
    Move.OLDER,
}
"""Moves that can be made only so often; attempts without progress do not forbid them."""


def is_hardware(diagnosis: Diagnosis) -> bool:
    """Say whether a GPU itself is at fault for certain, and not perhaps a program on it.

    The driver and the kernel tell of broken hardware; an illegal access may be either's fault.
    """
    return diagnosis.kind is Kind.GPU_FAULT and diagnosis.confidence is Confidence.CERTAIN


def row_of(diagnosis: Diagnosis, overrides: Mapping[Kind, Remedy]) -> tuple[Move, ...]:
    """Return the moves: the operator's, else what the evidence itself says, else the table's."""
    override = overrides.get(diagnosis.kind)
    if override is Remedy.WAIT_THEN_RETRY and diagnosis.kind is Kind.DISK_FULL:
        return MOVES[Kind.DISK_FULL]
    if override is not None:
        return OVERRIDES[override]
    if diagnosis.remedy is Remedy.STOP_AND_TELL and diagnosis.kind in STOP_IF_TOLD:
        return _STOP
    if diagnosis.kind is Kind.GPU_FAULT and not is_hardware(diagnosis):
        return _DOWN_RETRY
    if diagnosis.kind is Kind.CUDA_OOM and diagnosis.memory is not None:
        return HELD_BY[diagnosis.memory.holder]
    return MOVES[diagnosis.kind]
