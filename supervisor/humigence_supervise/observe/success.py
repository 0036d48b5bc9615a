"""What an exit code 0 still has to show before it counts as success."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Final

from humigence_supervise.config import DEFAULT_MODULE, Settings
from humigence_supervise.contract import RANKS_DIR
from humigence_supervise.observe.log_steps import read_log_steps
from humigence_supervise.observe.logs import BLOCK_BYTES, OpenLog
from humigence_supervise.presets import PRESETS

_SEARCHED_BYTES: Final = 256 << 20
"""Of each output only so much is searched, its end: some 0.1 s."""


def unproven(settings: Settings, attempt_dir: Path, *, progress_seen: bool) -> str:
    """Return why exit code 0 would prove nothing here; "" where it may be believed.

    `progress_seen`: the worker wrote progress files. They say more than its output, which is read
    only where there are none; see `log_steps` for what is concluded from it.
    """
    rule = settings.success
    if rule.exit_code_only:
        return ""
    if rule.marker is not None:
        return _missing(attempt_dir, rule.marker)
    if progress_seen:
        return ""
    if settings.worker.module == DEFAULT_MODULE:
        return "it never said that it was training"
    return _short_of_target(settings, attempt_dir)


def _short_of_target(settings: Settings, attempt_dir: Path) -> str:
    """Return how far from the target the output of a foreign script ends, "" if it does not."""
    steps = read_log_steps(attempt_dir, settings)
    target = settings.success.target_step or steps.target
    if target is None or not steps.ends_before(target):
        return ""
    summary = PRESETS[settings.worker.preset].summary
    if summary and settings.success.target_step is None:
        # A training that returned said so: it was stopped by its own rule, such as early stopping.
        found, unread = _search(attempt_dir, summary)
        if found or unread:
            return ""
    return f"its output shows step {steps.last}, the target is {target}"


def _missing(attempt_dir: Path, marker: str) -> str:
    """Return why the marker cannot be found in the ranks' outputs; "" when it is there."""
    found, unread = _search(attempt_dir, marker)
    if found:
        return ""
    why = f"the marker {marker!r} stands in no rank's output"
    return f"{why} ({'; '.join(unread)})" if unread else why


def _search(attempt_dir: Path, text: str) -> tuple[bool, list[str]]:
    """Return whether a text stands in a rank's output, and what could not be searched."""
    unread = []
    for path in sorted(attempt_dir.glob(f"{RANKS_DIR}/*/std*.log")):
        try:
            with closing(OpenLog(path)) as log:
                found, left_out = _find(log.descriptor, text.encode())
        except OSError as error:
            unread.append(f"{path.relative_to(attempt_dir)}: {error.strerror}")
            continue
        if found:
            return True, []
        if left_out:
            unread.append(f"{path.relative_to(attempt_dir)}: only its end was searched")
    return False, unread


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
