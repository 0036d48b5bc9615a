"""Small JSON files that other processes write: read without ever waiting, whatever stands there."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path

SMALL_BYTES = 1 << 20


def load_small_json(path: Path, most_bytes: int = SMALL_BYTES) -> object:
    """Return what a JSON file says.

    A link is followed: what it leads to is judged. Opened with O_NONBLOCK, so that a FIFO in the
    file's place holds nobody.

    Raises:
        OSError: there is no such file, it cannot be read, or it is no regular file.
        ValueError: it is longer than `most_bytes`, or not JSON.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    # Looked at before it is wrapped: open() refuses a folder's descriptor and leaves it open.
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    with open(descriptor, "rb") as stream:  # noqa: PTH123 - a descriptor, not a path
        raw = stream.read(most_bytes + 1)
    if len(raw) > most_bytes:
        raise ValueError(f"longer than {most_bytes} bytes")
    try:
        return json.loads(raw)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_small_json(path: Path, most_bytes: int = SMALL_BYTES) -> object | None:
    """Return what a JSON file says; None when it is not there or cannot be read as one."""
    try:
        return load_small_json(path, most_bytes)
    except (OSError, ValueError):
        return None


def read_small_object(path: Path) -> dict[str, object] | None:
    """Return what a file says that holds a JSON object; None when it cannot be read as one."""
    value = read_small_json(path)
    return value if isinstance(value, dict) else None
