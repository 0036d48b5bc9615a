"""What an exit code 0 still has to show before it counts as success."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Final

from humigence_supervise.config import DEFAULT_MODULE, Settings
from humigence_supervise.contract import RANKS_DIR
from humigence_supervise.observe.logs import BLOCK_BYTES, OpenLog

_SEARCHED_BYTES: Final = 256 << 20
"""Of each output only so much is searched, its end: some 0.1 s."""


def unproven(settings: Settings, attempt_dir: Path, *, progress_seen: bool) -> str:
    """Return why exit code 0 would prove nothing here; "" where it may be believed.

    A foreign script need not report progress: its exit code is all there is.
    """
    rule = settings.success
    if rule.exit_code_only:
        return ""
    if rule.marker is not None:
        return _search(attempt_dir, rule.marker)
    if settings.worker.module == DEFAULT_MODULE and not progress_seen:
        return "it never said that it was training"
    return ""


def _search(attempt_dir: Path, marker: str) -> str:
    """Return why the marker cannot be found in the ranks' outputs; "" when it is there."""
    unread = []
    for path in sorted(attempt_dir.glob(f"{RANKS_DIR}/*/std*.log")):
        try:
            with closing(OpenLog(path)) as log:
                found, left_out = _find(log.descriptor, marker.encode())
        except OSError as error:
            unread.append(f"{path.relative_to(attempt_dir)}: {error.strerror}")
            continue
        if found:
            return ""
        if left_out:
            unread.append(f"{path.relative_to(attempt_dir)}: only its end was searched")
    why = f"the marker {marker!r} stands in no rank's output"
    return f"{why} ({'; '.join(unread)})" if unread else why


def _find(descriptor: int, marker: bytes) -> tuple[bool, int]:
    """Return whether the end of a file holds the marker, and how many bytes before were not read.

    Raises OSError.
    """
    end = os.fstat(descriptor).st_size
    left_out = offset = max(0, end - _SEARCHED_BYTES)
    carry = b""
    while offset < end and (data := os.pread(descriptor, BLOCK_BYTES, offset)):
        if marker in carry + data:
            return True, left_out
        offset += len(data)
        carry = (carry + data)[-len(marker) :]
    return False, left_out
