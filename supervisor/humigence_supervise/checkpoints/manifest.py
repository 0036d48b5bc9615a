"""Our own layout: a folder ``step-NNNNNNNN`` whose ``MANIFEST.json`` was written last.

The manifest lists every file with size and SHA-256, so nothing has to be interpreted: a bit
flipped anywhere in a listed file is found. Symbolic links are never followed inside the folder.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from humigence_supervise.checkpoints.verdict import Standing, Verdict
from humigence_supervise.contract import MANIFEST_FILE, MANIFEST_FORMAT, ManifestFile
from humigence_supervise.domain import Checkpoint

MAX_MANIFEST_BYTES: Final = 16 * 1024 * 1024
MAX_COUNT: Final = 10**18
SHA256_HEX_LENGTH: Final = 64

# What an open says about the checkpoint itself; any other error is about the disk or the rights.
DAMAGE: Final = {
    errno.ENOENT: "is missing",
    errno.ENOTDIR: "is missing (a part of its path is no folder)",
    errno.ELOOP: "is a symbolic link, not a file",
    errno.ENXIO: "is no regular file",
}


@dataclass(frozen=True, slots=True)
class Contents:
    """A manifest whose every field has been checked for type and range."""

    run: str
    step: int
    samples: int
    files: tuple[ManifestFile, ...]


class _DamagedError(Exception):
    """The checkpoint is not whole; the message is the reason."""


def verify(path: Path, step: int, *, digests: bool, run: str | None) -> Verdict:
    """Verify the folder `path`, whose name says `step`; see `checkpoints.verify.verify`."""
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        return _unopened(path, error)
    try:
        contents = _read_manifest(folder)
        _check_step(contents, step)
        if run is not None and contents.run != run:
            reason = f"{path.name}: it belongs to the run {contents.run!r:.80}, not to {run!r}."
            return Verdict(Standing.FOREIGN, reason)
        for entry in contents.files:
            _check_file(folder, entry, digests=digests)
    except _DamagedError as damage:
        return Verdict(Standing.DAMAGED, f"{path.name}: {damage}.")
    except OSError as error:
        reason = f"{path.name} could not be read ({_name(error)}), so nothing is known about it"
        return Verdict(Standing.UNKNOWN, f"{reason}; check the disk and the permissions.")
    finally:
        os.close(folder)
    checked = "sizes and digests match" if digests else "sizes match, digests were not compared"
    reason = f"{path.name}: {len(contents.files)} files, {checked}."
    return Verdict(Standing.GOOD, reason, Checkpoint(path, contents.step, contents.samples))


def run_of(path: Path) -> str | None:
    """Return the run a checkpoint says it belongs to; None when it cannot be read."""
    try:
        return parse((path / MANIFEST_FILE).read_bytes()).run
    except (OSError, ValueError):
        return None


def parse(raw: bytes) -> Contents:
    """Return the checked contents of a manifest, or raise ValueError naming the first fault."""
    try:
        value = json.loads(raw.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{MANIFEST_FILE} is not valid JSON ({type(error).__name__})") from None
    if not isinstance(value, dict):
        raise ValueError(f"{MANIFEST_FILE} is not a JSON object")  # noqa: TRY004 - callers rely on ValueError alone
    if value.get("format") != MANIFEST_FORMAT:
        raise ValueError(f"{MANIFEST_FILE} has format {value.get('format')!r:.60}, not ours")
    run, files = value.get("run"), value.get("files")
    if not isinstance(run, str):
        raise ValueError(f"{MANIFEST_FILE} names no run")  # noqa: TRY004 - as above
    if not isinstance(files, list) or not files:
        raise ValueError(f"{MANIFEST_FILE} lists no files")
    _count(value, "world_size", least=1)
    entries = tuple(_entry(item) for item in files)
    if len({entry["path"] for entry in entries}) != len(entries):
        raise ValueError(f"{MANIFEST_FILE} lists a file twice")
    return Contents(run, _count(value, "step"), _count(value, "samples"), entries)


def _count(value: dict[str, object], key: str, *, least: int = 0) -> int:
    number = value.get(key)
    if type(number) is not int or not least <= number < MAX_COUNT:
        raise ValueError(f"{MANIFEST_FILE}: {key!r} is no number of at least {least}")
    return number


def _entry(item: object) -> ManifestFile:
    if not isinstance(item, dict):
        raise ValueError(f"{MANIFEST_FILE}: an entry of 'files' is no object")  # noqa: TRY004 - as above
    path, digest = item.get("path"), item.get("sha256")
    if not isinstance(path, str) or not _stays_inside(path):
        raise ValueError(f"{MANIFEST_FILE} lists {path!r:.80}, which is no path in the folder")
    if not isinstance(digest, str) or len(digest) != SHA256_HEX_LENGTH:
        raise ValueError(f"{MANIFEST_FILE}: {path!r:.80} has no SHA-256")
    return {"path": path, "size": _count(item, "size"), "sha256": digest}


def _stays_inside(path: str) -> bool:
    parts = path.split("/")
    printable = path.isprintable() and path != MANIFEST_FILE
    return printable and all(part not in {"", ".", ".."} for part in parts)


def _check_step(contents: Contents, step: int) -> None:
    if contents.step != step:
        raise _DamagedError(f"its name says step {step}, its manifest step {contents.step}")


def _read_manifest(folder: int) -> Contents:
    descriptor, size = _open(folder, MANIFEST_FILE)
    with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor, not a path
        if size > MAX_MANIFEST_BYTES:
            raise _DamagedError(f"{MANIFEST_FILE} is {size} bytes long, which no manifest is")
        raw = file.read(MAX_MANIFEST_BYTES)
    try:
        return parse(raw)
    except ValueError as error:
        raise _DamagedError(str(error)) from None


def _check_file(folder: int, entry: ManifestFile, *, digests: bool) -> None:
    name = entry["path"]
    descriptor, size = _open(folder, name)
    with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor, not a path
        if size != entry["size"]:
            raise _DamagedError(f"{name} has {size} bytes, its manifest says {entry['size']}")
        if digests and hashlib.file_digest(file, "sha256").hexdigest() != entry["sha256"]:
            raise _DamagedError(f"{name} is not what was written (SHA-256 differs)")


def _open(folder: int, name: str) -> tuple[int, int]:
    """Open a regular file below `folder`, following no link; return descriptor and size.

    O_NONBLOCK: a FIFO in the file's place must not hold us for ever.
    """
    *parents, last = name.split("/")
    base = os.dup(folder)
    try:
        for parent in parents:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            inner = os.open(parent, flags, dir_fd=base)
            os.close(base)
            base = inner
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(last, flags, dir_fd=base)
    except OSError as error:
        _raise_damage(name, error)
    finally:
        os.close(base)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise _DamagedError(f"{name} is no regular file")
    return descriptor, status.st_size


def _raise_damage(name: str, error: OSError) -> NoReturn:
    damage = DAMAGE.get(error.errno or 0)
    if damage is None:
        raise error
    if name == MANIFEST_FILE and error.errno == errno.ENOENT:
        raise _DamagedError(f"it has no {MANIFEST_FILE}: its save was cut short") from None
    raise _DamagedError(f"{name} {damage}") from None


def _unopened(path: Path, error: OSError) -> Verdict:
    match error.errno:
        case errno.ENOENT if not path.is_symlink():
            return Verdict(Standing.MISSING, f"{path.name} is not there any more.")
        case errno.ENOENT:
            return Verdict(Standing.DAMAGED, f"{path.name} is a link that leads nowhere.")
        case errno.ENOTDIR:
            return Verdict(Standing.DAMAGED, f"{path.name} is no folder.")
        case errno.ELOOP:
            return Verdict(Standing.DAMAGED, f"{path.name} is a link that leads to itself.")
        case _:
            reason = f"{path.name} could not be opened ({_name(error)}), so nothing is known"
            return Verdict(Standing.UNKNOWN, f"{reason}; check the disk and the permissions.")


def _name(error: OSError) -> str:
    return error.strerror or errno.errorcode.get(error.errno or 0, "unknown error")
