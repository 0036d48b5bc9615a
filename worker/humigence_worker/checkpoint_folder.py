"""A checkpoint on the disk: a folder that is either whole or not there.

Files are written aside, flushed to the disk, listed with size and SHA-256 in a manifest that is
written last, and the folder appears by one rename. No torch here: only bytes.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from humigence_supervise import contract
from humigence_worker.checkpoint_manifest import (
    CheckpointDamagedError,
    Header,
    build,
    step_of,
    verify,
)

_ASIDE_PREFIX: Final = ".tmp-"
_QUARANTINE_DIR: Final = "quarantine"
_MIB: Final = 1024 * 1024
_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)


def write(checkpoint_dir: Path, header: Header, files: Mapping[str, bytes]) -> Path:
    """Write the checkpoint ``step-NNNNNNNN`` of `header.step` and return its folder.

    A folder of that name that is there already (an earlier attempt's, beyond the checkpoint
    this one resumed from) is moved into ``quarantine/``.

    Raises:
        OSError: nothing of this checkpoint is there then; a full disk was explained on stderr.
    """
    name = contract.checkpoint_name(header.step)
    aside = checkpoint_dir / f"{_ASIDE_PREFIX}{name}-{os.getpid()}"
    final = checkpoint_dir / name
    try:
        checkpoint_dir.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        for file_name, content in files.items():
            _write_file(aside / file_name, content)
        _write_file(aside / contract.MANIFEST_FILE, build(header, files))
        _sync_folder(aside)
        if final.exists():
            _quarantine(final)
        aside.rename(final)
        _sync_folder(checkpoint_dir)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        if error.errno in _NO_SPACE:
            _explain_no_space(checkpoint_dir, header.step, sum(map(len, files.values())), error)
        raise
    return final


def candidates(checkpoint_dir: Path) -> list[Path]:
    """Return the folders that call themselves checkpoints, highest step first; unverified."""
    if not checkpoint_dir.is_dir():
        return []
    found = [path for path in checkpoint_dir.iterdir() if step_of(path) is not None]
    return sorted(found, key=lambda path: step_of(path) or 0, reverse=True)


def newest_verified(checkpoint_dir: Path) -> Path | None:
    """Return the newest checkpoint whose every byte is what was written; say what is skipped."""
    for path in candidates(checkpoint_dir):
        try:
            verify(path)
        except (CheckpointDamagedError, OSError) as error:
            sys.stderr.write(f"{error}; trying the one before\n")
        else:
            return path
    return None


def prune(checkpoint_dir: Path, keep: int, newest: Path) -> list[Path]:
    """Remove good checkpoints older than the `keep` newest up to `newest`; return them.

    Nothing is removed before `newest` has been read back whole. Damaged folders count for
    nothing and stay: they are evidence.

    Raises:
        CheckpointDamagedError, OSError: `newest` is not good; nothing was removed.
    """
    verify(newest)
    limit = step_of(newest) or 0
    older = [path for path in candidates(checkpoint_dir) if (step_of(path) or 0) < limit]
    surplus = [path for path in older if _looks_whole(path)][keep - 1 :]
    for path in surplus:
        # One rename makes it no checkpoint any more; a half-removed one is never seen as one.
        gone = checkpoint_dir / f"{_ASIDE_PREFIX}old-{path.name}-{os.getpid()}"
        path.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
    return surplus


def clear_asides(checkpoint_dir: Path) -> None:
    """Remove what a save that was killed half-way left behind, unless its process is alive."""
    if not checkpoint_dir.is_dir():
        return
    for path in checkpoint_dir.iterdir():
        pid = path.name.rpartition("-")[2]
        if path.name.startswith(_ASIDE_PREFIX) and pid.isdecimal() and not _alive(int(pid)):
            shutil.rmtree(path, ignore_errors=True)


def _looks_whole(path: Path) -> bool:
    try:
        verify(path, digests=False)
    except (CheckpointDamagedError, OSError):
        return False
    return True


def _write_file(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _quarantine(path: Path) -> None:
    """Move `path` to ``quarantine/<name>-<n>/<name>``, with the first n that is free."""
    shelf = path.parent / _QUARANTINE_DIR
    number = 1
    while (shelf / f"{path.name}-{number}").exists():
        number += 1
    place = shelf / f"{path.name}-{number}"
    place.mkdir(parents=True)
    path.rename(place / path.name)
    _sync_folder(place)


def _explain_no_space(checkpoint_dir: Path, step: int, size: int, error: OSError) -> None:
    places = (checkpoint_dir, *checkpoint_dir.absolute().parents)
    status = os.statvfs(next(place for place in places if place.is_dir()))
    free = status.f_bavail * status.f_frsize // _MIB
    sys.stderr.write(
        f"checkpoint: step {step} cannot be saved in {checkpoint_dir}: {error.strerror}. "
        f"It needs {-(-size // _MIB)} MiB, {free} MiB are free. Free some space there; the run "
        "goes on from the checkpoint before.\n"
    )


def _alive(pid: int) -> bool:
    return pid != os.getpid() and Path(f"/proc/{pid}").exists()
