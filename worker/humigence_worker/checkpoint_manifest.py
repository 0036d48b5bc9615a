"""The manifest of a checkpoint folder: written last, compared with the files before any is used.

No torch here: only bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from humigence_supervise import contract


class CheckpointDamagedError(ValueError):
    """A checkpoint folder is not what was written; the message names folder and fault."""


@dataclass(frozen=True, slots=True)
class Header:
    """What the manifest says of the checkpoint as a whole; counts are since step 0."""

    run: str
    step: int
    samples: int
    world_size: int


def build(header: Header, files: Mapping[str, bytes]) -> bytes:
    """Return the manifest of `files` (name to content)."""
    manifest: contract.Manifest = {
        "format": contract.MANIFEST_FORMAT,
        "run": header.run,
        "step": header.step,
        "samples": header.samples,
        "world_size": header.world_size,
        "files": [
            {"path": name, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for name, content in files.items()
        ],
    }
    return json.dumps(manifest, indent=1).encode()


def read(path: Path) -> tuple[Header, dict[str, bytes]]:
    """Return what the manifest says and every file it lists, each compared with the manifest.

    Raises:
        CheckpointDamagedError: a file is missing, or is not what was written.
        OSError: the disk could not be read, which says nothing about the checkpoint.
    """
    manifest = _read_manifest(path)
    files = {}
    for entry in manifest["files"]:
        name = entry["path"]
        content = _read_file(path, name)
        _compare(path, entry, len(content), hashlib.sha256(content).hexdigest())
        files[name] = content
    header = Header(
        run=manifest["run"],
        step=manifest["step"],
        samples=manifest["samples"],
        world_size=manifest["world_size"],
    )
    return header, files


def verify(path: Path, *, digests: bool = True) -> None:
    """Compare the files at `path` with their manifest, without keeping them in memory.

    Raises:
        CheckpointDamagedError, OSError: as `read`.
    """
    for entry in _read_manifest(path)["files"]:
        try:
            with (path / entry["path"]).open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                digest = hashlib.file_digest(file, "sha256").hexdigest() if digests else None
        except FileNotFoundError:
            raise _missing(path, entry["path"]) from None
        _compare(path, entry, size, digest)


def step_of(path: Path) -> int | None:
    """Return the step of a folder that has a checkpoint's name, else None; nothing is opened."""
    digits = path.name.removeprefix(contract.CHECKPOINT_PREFIX)
    if not (digits.isascii() and digits.isdecimal()):
        return None
    return int(digits) if path.name == contract.checkpoint_name(int(digits)) else None


def _read_manifest(path: Path) -> contract.Manifest:
    raw = _read_file(path, contract.MANIFEST_FILE)
    try:
        manifest: contract.Manifest = json.loads(raw)
        problem = _problem(manifest, step_of(path))
    except (ValueError, TypeError, KeyError, RecursionError):
        problem = f"{contract.MANIFEST_FILE} is no manifest of ours"
    if problem:
        raise CheckpointDamagedError(f"checkpoint {path} is damaged: {problem}")
    return manifest


def _problem(manifest: contract.Manifest, named_step: int | None) -> str:
    """Return what is wrong, or ""; raises one of several errors where a field is missing."""
    if manifest["format"] != contract.MANIFEST_FORMAT or not isinstance(manifest["run"], str):
        return f"{contract.MANIFEST_FILE} is no manifest of ours"
    counts = (manifest["step"], manifest["samples"], manifest["world_size"])
    if any(type(count) is not int for count in counts):
        return f"a count in {contract.MANIFEST_FILE} is no whole number"
    if named_step not in (None, manifest["step"]):
        return f"its name says step {named_step}, its manifest step {manifest['step']}"
    entries = [(one["path"], one["size"], one["sha256"]) for one in manifest["files"]]
    if not entries or any(Path(name).name != name for name, _, _ in entries):
        return f"{contract.MANIFEST_FILE} lists no files, or some outside the folder"
    return ""


def _compare(path: Path, entry: contract.ManifestFile, size: int, digest: str | None) -> None:
    if size != entry["size"]:
        raise CheckpointDamagedError(
            f"checkpoint {path} is damaged: {entry['path']} has {size} bytes, "
            f"its manifest says {entry['size']}"
        )
    if digest is not None and digest != entry["sha256"]:
        raise CheckpointDamagedError(
            f"checkpoint {path} is damaged: {entry['path']} has SHA-256 {digest}, "
            f"its manifest says {entry['sha256']}"
        )


def _read_file(path: Path, name: str) -> bytes:
    try:
        return (path / name).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise _missing(path, name) from None


def _missing(path: Path, name: str) -> CheckpointDamagedError:
    return CheckpointDamagedError(f"checkpoint {path} is damaged: {name} is missing")
