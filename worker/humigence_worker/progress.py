"""What a rank tells the supervisor: one JSON line a step in ``$HUMIGENCE_PROGRESS_DIR``.

A heartbeat proves life, only progress proves work; so a line is written when a step is *done*.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from humigence_supervise import contract

_MAX_UNWRITTEN_BYTES: Final = 1 << 20


class ProgressWriter:
    """Appends `contract.ProgressLine` records of one rank; never raises into the training.

    Each line is one write to an O_APPEND descriptor, so two lines are never mixed. What a full
    disk refuses is kept and written once there is space, from the very byte where it was cut.
    Without HUMIGENCE_PROGRESS_DIR nothing is written.
    """

    def __init__(self, rank: int, environ: Mapping[str, str]) -> None:
        """Open ``<rank>.jsonl`` of the attempt's progress folder, if there is one."""
        self._fd: int | None = None
        self._complained = False
        self._unwritten = b""
        folder = environ.get(contract.ENV_PROGRESS_DIR, "")
        if not folder:
            return
        path = Path(folder) / f"{rank}.jsonl"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            self._complain(error)

    def init(self, step: int, epoch: int, target_step: int) -> None:
        """Say, before the first step, which step the process resumes at and where it goes."""
        self._write({**_line("init", step, epoch, range(0), loss=None), "target_step": target_step})

    def train(self, step: int, epoch: int, samples: range, loss: float) -> None:
        """Say that step `step` (counted from 1) is done, on the global batch `samples`."""
        self._write(_line("train", step, epoch, samples, loss))

    def section(self, section: contract.SectionName, step: int, epoch: int) -> None:
        """Say that something other than a step begins after step `step`."""
        self._write(_line(section, step, epoch, range(0), loss=None))

    def _write(self, line: contract.ProgressLine) -> None:
        if self._fd is None:
            return
        if len(self._unwritten) < _MAX_UNWRITTEN_BYTES:
            text = json.dumps(line, separators=(",", ":"), allow_nan=False)
            self._unwritten += text.encode() + b"\n"
        try:
            written = os.write(self._fd, self._unwritten)
        except OSError as error:
            self._complain(error)
        else:
            self._unwritten = self._unwritten[written:]

    def _complain(self, error: OSError) -> None:
        """Tell once: a full disk must not end the training, nor fill what is left of it."""
        if self._complained:
            return
        self._complained = True
        try:
            sys.stderr.write(
                f"progress: cannot be written ({error}). The training goes on; the supervisor "
                "sees no steps until there is space again.\n"
            )
            sys.stderr.flush()
        except OSError:
            return  # stderr is on the same full disk: nobody can be told


def _line(
    section: contract.SectionName, step: int, epoch: int, samples: range, loss: float | None
) -> contract.ProgressLine:
    return {
        "ts": round(time.time(), 3),
        "step": step,
        "epoch": epoch,
        "samples": [samples.start, samples.stop],
        "loss": loss if loss is not None and math.isfinite(loss) else None,
        "section": section,
    }
