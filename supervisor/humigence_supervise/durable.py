"""Files that appear whole or not at all, also across a loss of power."""

from __future__ import annotations

import json
import os
from pathlib import Path


def write_json(path: Path, value: object) -> None:
    """Write a JSON file as `write_bytes` does. Raises OSError."""
    write_bytes(path, json.dumps(value, indent=1).encode("ascii") + b"\n")


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file, for its owner alone: aside, synced, renamed, folder synced. Raises OSError."""
    part = path.with_name(path.name + ".part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        os.fchmod(descriptor, 0o600)  # one that was there keeps the mode it had
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    part.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder last. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
