"""Files that appear whole or not at all, also across a loss of power."""

from __future__ import annotations

import json
import os
from pathlib import Path


def write_json(path: Path, value: object) -> None:
    """Write a JSON file aside, sync it, rename it, sync its folder. Raises OSError."""
    part = path.with_name(path.name + ".part")
    with part.open("wb") as stream:
        stream.write(json.dumps(value, indent=1).encode("ascii") + b"\n")
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
