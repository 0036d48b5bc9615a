"""Whose process is this, also where its folder in /proc says root since it may not be inspected."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

_LINE: Final = re.compile(rb"^Uid:\t(\d+)\t(\d+)\t(\d+)\t(\d+)$", re.MULTILINE)


class Uids(NamedTuple):
    """The four user ids of a process (proc_pid_status(5)); files are made with `filesystem`."""

    real: int
    effective: int
    saved: int
    filesystem: int


def uids_of(pid: int) -> Uids | None:
    """Return a process's user ids, None when there is none.

    Raises OSError when the answer cannot be had.
    """
    try:
        found = _LINE.search(Path(f"/proc/{pid}/status").read_bytes())
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if found is None else Uids(*map(int, found.groups()))
