"""Choosing the newest good checkpoint, setting bad ones aside, and the room a save needs."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from humigence_supervise.checkpoints import manifest
from humigence_supervise.checkpoints.layouts import Candidate, recognise
from humigence_supervise.checkpoints.verdict import Standing
from humigence_supervise.checkpoints.verify import verify
from humigence_supervise.domain import Checkpoint

MIB: Final = 1024 * 1024
SIZED_CHECKPOINTS: Final = 3
FILES_OF_ONE: Final = 16
"""Inodes that a small checkpoint takes; file systems that make them as needed count none."""
QUARANTINE_DIR: Final = "quarantine"
REASON_FILE: Final = "REASON.txt"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A candidate that was not taken. Only a DAMAGED one may be quarantined."""

    path: Path
    step: int
    standing: Standing
    reason: str


@dataclass(frozen=True, slots=True)
class Choice:
    """The checkpoint to resume from, and the newer ones that were refused, newest first.

    `checkpoint` None with `folder_read` False does *not* mean that there is none: the folder
    could not be listed, and starting from scratch would be wrong. `note` says so for people.
    """

    checkpoint: Checkpoint | None
    refused: tuple[Refusal, ...] = ()
    folder_read: bool = True
    note: str = ""


def candidates(checkpoint_dir: Path) -> tuple[Candidate, ...]:
    """Return what calls itself a checkpoint, highest step first; a missing folder has none.

    Raises:
        OSError: the folder cannot be listed, or is a link to a disk that is not mounted.
    """
    try:
        names = os.listdir(checkpoint_dir)  # noqa: PTH208 - names are all we need
    except FileNotFoundError:
        if checkpoint_dir.is_symlink():
            raise
        return ()
    found = (recognise(checkpoint_dir / name) for name in names)
    return tuple(sorted(filter(None, found), key=lambda one: one.step, reverse=True))


def newest_good(checkpoint_dir: Path, *, run: str | None, below: int | None = None) -> Choice:
    """Verify the candidates, newest first, and return the first good one.

    `run` as in `verify`. Those of step `below` and later are passed over. Never raises OSError.
    """
    try:
        found = candidates(checkpoint_dir)
    except OSError as error:
        note = f"The checkpoint folder {checkpoint_dir} could not be listed ({error.strerror})"
        note = f"{note}, so nothing is known of its checkpoints; make it readable."
        return Choice(None, folder_read=False, note=note)
    refused: list[Refusal] = []
    for candidate in found:
        if below is not None and candidate.step >= below:
            continue
        verdict = verify(candidate.path, run=run)
        if verdict.checkpoint is not None:
            note = f"Step {candidate.step} is the newest good checkpoint."
            return Choice(verdict.checkpoint, tuple(refused), note=note)
        refused.append(Refusal(candidate.path, candidate.step, verdict.standing, verdict.reason))
    return Choice(None, tuple(refused), note=_none_note(checkpoint_dir, refused))


def owner(checkpoint_dir: Path) -> str | None:
    """Return the run that the newest whole checkpoint belongs to; None where there is none.

    A run that begins where the worker was used by hand goes on under the id found there. Sizes
    are compared and no digests: whoever resumes reads every byte. Never raises OSError.
    """
    try:
        found = candidates(checkpoint_dir)
    except OSError:
        return None
    whole = (one.path for one in found if verify(one.path, digests=False).good)
    newest = next(whole, None)
    return None if newest is None else manifest.run_of(newest)


def quarantine(path: Path, reason: str) -> Path:
    """Move a damaged checkpoint out of the way and return the folder that now holds it.

    ``step-00000120`` becomes ``quarantine/step-00000120-1/step-00000120`` beside a REASON.txt,
    in the same checkpoint folder. Nothing is deleted and nothing overwritten. Of a link the link
    is moved, wherever it leads.

    Raises:
        OSError: it could not be moved (then it is where it was), or the disk does not say that
            the move is durable.
    """
    if not os.path.lexists(path):  # else a reason for nothing would be shelved
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    shelf = path.parent / QUARANTINE_DIR
    shelf.mkdir(exist_ok=True)
    place = _new_folder(shelf, path.name)
    _write_reason(place / REASON_FILE, reason)
    path.rename(place / path.name)
    _sync_folders((place, shelf, path.parent))
    return place


def needed_mib(checkpoint_dir: Path) -> int | None:
    """Return how much room one more save needs, in MiB, rounded up; None when nothing tells.

    It is the size of the largest of the newest checkpoints: a torn one is smaller than the next.
    """
    try:
        newest = candidates(checkpoint_dir)[:SIZED_CHECKPOINTS]
    except OSError:
        return None
    sizes = [_bytes_below(candidate.path) for candidate in newest]
    return -(-max(sizes) // MIB) if sizes else None


def free_mib(path: Path) -> int | None:
    """Return the space an ordinary user may still write at `path`, in MiB; None is unknown.

    A path that does not exist yet is answered for the nearest folder above it that does. A disk
    that cannot hold the files of one more checkpoint has no room, whatever space is left.
    """
    for place in (path, *path.parents):
        try:
            status = os.statvfs(place)
        except FileNotFoundError:
            continue
        except OSError:
            return None
        if status.f_files and status.f_favail < FILES_OF_ONE:
            return 0
        return status.f_bavail * status.f_frsize // MIB
    return None


def _none_note(folder: Path, refused: list[Refusal]) -> str:
    if refused:
        return f"None of the {len(refused)} checkpoints in {folder} is good."
    if not folder.exists():
        return f"The checkpoint folder {folder} does not exist, so there is no checkpoint."
    return f"There is no checkpoint in {folder}."


def _new_folder(shelf: Path, name: str) -> Path:
    """Create ``<name>-<n>`` with the first n that is free; mkdir itself is the reservation."""
    number = 1
    while True:
        place = shelf / f"{name}-{number}"
        try:
            place.mkdir()
        except FileExistsError:
            number += 1
        else:
            return place


def _write_reason(path: Path, reason: str) -> None:
    """Write the reason for people. The journal has it too, so a full disk may not stop us here."""
    try:
        with path.open("x", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{reason}\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        return


def _sync_folders(folders: Iterable[Path]) -> None:
    for folder in folders:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _bytes_below(path: Path) -> int:
    """Return the sizes of all files below; what vanishes or cannot be read counts nothing."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size  # noqa: PTH118 - os.walk's own strings
            except OSError:
                continue
    return total
