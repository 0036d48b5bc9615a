"""What usually helps against each kind of failure: the table behind a diagnosis (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from humigence_supervise.domain import Kind, Remedy


@dataclass(frozen=True, slots=True)
class Usual:
    """A kind's usual remedy, what it means in one sentence, and what a person can do."""

    remedy: Remedy
    means: str
    advice: str


_FALLBACK = Remedy.FALLBACK_SINGLE_GPU
_RETRY = Remedy.RETRY_SAME
_STOP = Remedy.STOP_AND_TELL
_WAIT = Remedy.WAIT_THEN_RETRY

USUAL: Final[dict[Kind, Usual]] = {
    Kind.HEALTHY: Usual(Remedy.NONE, "Nothing failed.", "Nothing to do."),
    Kind.NCCL_INIT: Usual(
        _FALLBACK,
        "The ranks could not set up NCCL.",
        "One GPU works without NCCL; the NCCL WARN lines name what failed.",
    ),
    Kind.NCCL_TIMEOUT: Usual(
        _RETRY,
        "A collective timed out.",
        "Look at what the rank that stayed away was doing; a slow save needs a longer timeout.",
    ),
    Kind.NCCL_REMOTE: Usual(
        _RETRY,
        "A rank lost its connection to another one.",
        "Look at why the other rank went away; if it did not, check the network.",
    ),
    Kind.NCCL_INTERNAL: Usual(
        _FALLBACK,
        "NCCL failed.",
        "Run once with NCCL_DEBUG=INFO; one GPU works without NCCL.",
    ),
    Kind.NVLINK_P2P: Usual(
        _FALLBACK,
        "The GPUs cannot talk to each other directly.",
        "Run on one GPU, or set NCCL_P2P_DISABLE=1.",
    ),
    Kind.RENDEZVOUS: Usual(
        _RETRY,
        "The ranks could not meet.",
        "Try again with a fresh port; check MASTER_ADDR.",
    ),
    Kind.CUDA_OOM: Usual(
        Remedy.REDUCE_MICROBATCH,
        "The GPU ran out of memory.",
        "Use smaller micro-batches (batch.micro); the global batch can stay.",
    ),
    Kind.HOST_OOM: Usual(
        _RETRY,
        "The machine ran out of memory (RAM).",
        "Use fewer DataLoader workers and smaller caches, or more RAM.",
    ),
    Kind.SHM: Usual(
        _STOP,
        "Shared memory (/dev/shm) ran out.",
        "Give the container a larger /dev/shm (docker --shm-size=16g, or --ipc=host).",
    ),
    Kind.GPU_FAULT: Usual(
        _STOP,
        "A GPU failed.",
        "Reset the GPU (nvidia-smi -r) or reboot; leave the card out if it returns.",
    ),
    Kind.GPU_UNSUPPORTED: Usual(
        _STOP,
        "torch cannot use this GPU.",
        "Install a matching driver and torch build.",
    ),
    Kind.DEVICE_ASSERT: Usual(
        _STOP,
        "A check inside a GPU kernel failed.",
        "Compare token ids and labels with the sizes of embedding and head.",
    ),
    Kind.DEVICE_MISMATCH: Usual(
        _STOP,
        "One operation got tensors of different devices.",
        "Move all tensors to one device.",
    ),
    Kind.DATALOADER: Usual(
        _RETRY,
        "Loading data failed.",
        "Use fewer workers; run with num_workers=0 to see the error.",
    ),
    Kind.CHECKPOINT_CORRUPT: Usual(
        Remedy.RESUME_OLDER_CHECKPOINT,
        "A checkpoint is damaged.",
        "Resume from an older one.",
    ),
    Kind.DISK_FULL: Usual(_WAIT, "The disk is full.", "Free space where the checkpoints go."),
    Kind.NETWORK_HUB: Usual(
        _WAIT,
        "A service on the network failed.",
        "Wait and try again; work from the local cache (HF_HUB_OFFLINE=1).",
    ),
    Kind.PREEMPTED: Usual(
        _RETRY,
        "The job was told to end from outside.",
        "Start it again when the machine is free.",
    ),
    Kind.SEGFAULT: Usual(
        _RETRY,
        "A process crashed in native code.",
        "If it repeats, suspect the extension named in the innermost frame.",
    ),
    Kind.NAN_DIVERGENCE: Usual(
        _STOP,
        "The training diverged.",
        "Lower the learning rate, clip gradients, look for bad samples.",
    ),
    Kind.IMPORT_ERROR: Usual(
        _STOP,
        "The program cannot be imported.",
        "Fix the import or install the package; trying again cannot help.",
    ),
    Kind.CONFIG_ERROR: Usual(
        _STOP,
        "The settings are wrong.",
        "Correct what the message names; trying again cannot help.",
    ),
    Kind.USER_CODE: Usual(_STOP, "The program raised an exception.", "Fix the line named above."),
    Kind.CUDA_INIT_FORK: Usual(
        _STOP,
        "CUDA was used before a fork.",
        "Start processes with the 'spawn' method.",
    ),
    Kind.HANG: Usual(
        _FALLBACK,
        "The training stood still.",
        "Look at the ranks' stacks; one GPU has no collectives to hang in.",
    ),
    Kind.PREMATURE_SUCCESS: Usual(
        _RETRY,
        "The program ended with success before it reached its target.",
        "Check what ends the training early; exit 0 must mean the target was reached.",
    ),
    Kind.UNKNOWN: Usual(
        _RETRY,
        "Nothing that was read shows the cause.",
        "Look at the last lines of each rank (`humigence-supervise logs RUN`), or run it once with "
        "`start --debug`.",
    ),
}
