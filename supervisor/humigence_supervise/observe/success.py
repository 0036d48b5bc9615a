"""What an exit code 0 still has to show before it counts as success."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from pathlib import Path

from humigence_supervise.config import DEFAULT_MODULE, Settings
from humigence_supervise.contract import RANKS_DIR


def unproven(settings: Settings, attempt_dir: Path, *, progress_seen: bool) -> str:
    """Return why exit code 0 would prove nothing here; "" where it may be believed.

    A foreign script need not report progress: its exit code is all there is.
    """
    rule = settings.success
    if rule.exit_code_only:
        return ""
    if rule.marker is not None:
        outputs = attempt_dir.glob(f"{RANKS_DIR}/*/std*.log")
        found = _contains(outputs, rule.marker.encode())
        return "" if found else f"the marker {rule.marker!r} stands in no rank's output"
    if settings.worker.module == DEFAULT_MODULE and not progress_seen:
        return "it never said that it was training"
    return ""


def _contains(files: Iterable[Path], marker: bytes) -> bool:
    for file in files:
        try:
            with file.open("rb") as stream:
                if not stream.seek(0, 2):
                    continue
                with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
                    if content.find(marker) >= 0:
                        return True
        except OSError:
            continue
    return False
