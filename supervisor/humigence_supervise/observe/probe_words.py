"""Why a collective probe failed, in the words of one of its ranks."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Final

from humigence_supervise.contract import RANKS_DIR
from humigence_supervise.observe.logs import OpenLog
from humigence_supervise.printable import for_people

SAID: Final = b"collective probe: rank "
"""So begins what a failed rank says; worker/humigence_worker/collective_probe.py writes it."""

_LAST_BYTES: Final = 64 * 1024


def probe_words(attempt_dir: Path) -> str:
    """Return what a rank said ("rank 1: large all-reduce: ..."), "" where none said why.

    Where several did, the lowest is quoted.
    """
    for path in sorted(attempt_dir.glob(f"{RANKS_DIR}/*/std*.log")):
        try:
            with closing(OpenLog(path)) as log:
                start = max(0, os.fstat(log.descriptor).st_size - _LAST_BYTES)
                lines = os.pread(log.descriptor, _LAST_BYTES, start).splitlines()
        except OSError:
            continue
        said = [line for line in lines if line.startswith(SAID)]
        if said:
            return for_people(
                said[-1].removeprefix(b"collective probe: ").decode(errors="replace")
            )[:300]
    return ""
