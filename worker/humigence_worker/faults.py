"""Faults on demand, for drills: nothing happens unless the configuration lists it.

Each fault acts once in the whole run. A marker in the run directory is made durable *before* the
fault acts, so an attempt that starts again after it passes the same step unharmed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn, assert_never

import torch

from humigence_supervise.contract import CHECKPOINT_PREFIX, FAULTS_DIR, MANIFEST_FILE
from humigence_worker import fault_texts
from humigence_worker.settings import FaultName, FaultSetting, WorkerConfigError

BALLAST_FILE: Final = "humigence-drill-ballast.bin"

_MIB: Final = 1024 * 1024
_FOREVER_S: Final = 3600.0


class FaultPlan:
    """The faults of one rank. The trainer calls `at_step` before it computes a step."""

    def __init__(
        self, faults: Sequence[FaultSetting], run_dir: Path, checkpoint_dir: Path, rank: int
    ) -> None:
        """Keep the faults that can concern `rank`; touch nothing yet."""
        self._faults = [
            (index, fault) for index, fault in enumerate(faults) if fault.rank in (None, rank)
        ]
        self._markers = run_dir / FAULTS_DIR
        self._checkpoint_dir = checkpoint_dir
        self._rank = rank

    def at_step(self, step: int) -> None:
        """Let every fault due before optimizer step `step` act, where it has not acted before.

        `step` counts from 1: the step that is about to be computed, so `step - 1` are complete.

        Raises:
            torch.distributed.DistBackendError, torch.OutOfMemoryError, ValueError: the faults
                that are exceptions. Other faults end or block the process, or only prepare it.
            WorkerConfigError: when a fault cannot act (no checkpoint yet, no folder to fill).
        """
        for index, fault in self._faults:
            if fault.step == step and self._first_time(index, fault):
                self._say(f"fault {index} of the configuration acts before step {step}")
                self._act(fault)

    def _first_time(self, index: int, fault: FaultSetting) -> bool:
        """Make the marker; False where it is there already."""
        self._markers.mkdir(parents=True, exist_ok=True)
        marker = self._markers / f"{index}-{fault.name}.fired"
        try:
            descriptor = os.open(marker, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            return False
        try:
            os.write(descriptor, f"rank {self._rank}, before step {fault.step}\n".encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        _fsync_folder(self._markers)
        _fsync_folder(self._markers.parent)
        return True

    def _act(self, fault: FaultSetting) -> None:
        match fault.name:
            case FaultName.NCCL_ERROR:
                raise torch.distributed.DistBackendError(fault_texts.NCCL_REMOTE)
            case FaultName.NCCL_INTERNAL:
                raise torch.distributed.DistBackendError(fault_texts.NCCL_INTERNAL)
            case FaultName.NCCL_TIMEOUT:
                sys.stderr.write(fault_texts.nccl_timeout(self._rank, time.time()))
                _die(signal.SIGABRT)
            case FaultName.CUDA_OOM:
                raise torch.OutOfMemoryError(fault_texts.CUDA_OOM)
            case FaultName.SIGKILL:
                _die(signal.SIGKILL)
            case FaultName.ABORT:
                _die(signal.SIGABRT)
            case FaultName.SEGFAULT:
                _no_core_dump()
                ctypes.string_at(0)
            case FaultName.EXCEPTION:
                raise ValueError(fault_texts.USER_CODE)
            case FaultName.HANG:
                _hang()
            case FaultName.EXIT0:
                _flush()
                os._exit(0)
            case FaultName.FILL_DISK:
                self._fill_disk(fault)
            case FaultName.CORRUPT_TRUNCATE:
                target = _largest_file(self._newest_checkpoint())
                os.truncate(target, target.stat().st_size // 2)
                _die(signal.SIGKILL)
            case FaultName.CORRUPT_FLIP:
                _flip_middle_bit(_largest_file(self._newest_checkpoint()))
                _die(signal.SIGKILL)
            case FaultName.DEAF:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            case _:
                assert_never(fault.name)

    def _fill_disk(self, fault: FaultSetting) -> None:
        """Write a ballast file until the disk is full or it is `max_mib` large; it stays."""
        assert fault.folder is not None
        try:
            written, full = _write_until_full(Path(fault.folder) / BALLAST_FILE, fault.max_mib)
        except FileNotFoundError:
            raise WorkerConfigError(
                f"{fault.folder}: the folder that fill_disk is to fill does not exist. Create it."
            ) from None
        state = "no space is left" if full else "the limit max_mib is reached, space is left"
        self._say(f"wrote {written // _MIB} MiB into {fault.folder}: {state}")

    def _newest_checkpoint(self) -> Path:
        complete = sorted(self._checkpoint_dir.glob(f"{CHECKPOINT_PREFIX}*/{MANIFEST_FILE}"))
        if not complete:
            raise WorkerConfigError(
                f"{self._checkpoint_dir}: no checkpoint to corrupt yet. Give the fault a step "
                "after the first save."
            )
        return complete[-1].parent

    def _say(self, what: str) -> None:
        """Announce on stderr, without the fault's name: a drill must not give away its cause."""
        print(f"drill, rank {self._rank}: {what}", file=sys.stderr, flush=True)  # noqa: T201 - a worker's log is its output


def _die(how: signal.Signals) -> NoReturn:
    _flush()
    _no_core_dump()
    signal.signal(how, signal.SIG_DFL) if how is not signal.SIGKILL else None
    os.kill(os.getpid(), how)
    while True:  # the signal is on its way
        time.sleep(_FOREVER_S)


def _hang() -> NoReturn:
    """Never come back, in the place of the collective that the peers now wait in.

    Python handlers run but nothing looks at what they note, as in a collective.
    """
    while True:
        time.sleep(_FOREVER_S)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()


def _no_core_dump() -> None:
    """A drill leaves no core file: on a GPU box it would be as large as everything mapped."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def _write_until_full(path: Path, max_mib: int) -> tuple[int, bool]:
    """Return the bytes written and whether the disk is full.

    A write that meets the end of the space is cut short by the kernel, so it fills the last block.
    """
    written = 0
    with path.open("wb", buffering=0) as file:
        while written < max_mib * _MIB:
            try:
                written += file.write(bytes(_MIB))
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                return written, True
    return written, False


def _largest_file(checkpoint: Path) -> Path:
    return max(
        (path for path in checkpoint.rglob("*") if path.is_file()),
        key=lambda path: (path.stat().st_size, path.name),
    )


def _flip_middle_bit(path: Path) -> None:
    with path.open("r+b") as file:
        middle = path.stat().st_size // 2
        file.seek(middle)
        byte = file.read(1)[0]
        file.seek(middle)
        file.write(bytes([byte ^ 1]))
        file.flush()
        os.fsync(file.fileno())


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
