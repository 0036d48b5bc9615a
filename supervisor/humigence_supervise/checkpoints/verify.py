"""Is this a complete, undamaged checkpoint? Answered without unpickling and without torch."""

from __future__ import annotations

from pathlib import Path
from typing import assert_never

from humigence_supervise.checkpoints import manifest
from humigence_supervise.checkpoints.layouts import Layout, recognise
from humigence_supervise.checkpoints.verdict import Standing, Verdict


def verify(path: Path, *, digests: bool = True, run: str | None = None) -> Verdict:
    """Read the checkpoint at `path` and say whether a worker may resume from it.

    `run` is the run it must belong to (None: any). Without `digests` only presence, kind and
    size of the files are compared, and the reason says so. Never raises OSError: what cannot be
    read is `Standing.UNKNOWN`.
    """
    candidate = recognise(path)
    if candidate is None:
        reason = f"{path.name} is not the name of a checkpoint (expected step-00000120 and alike)"
        return Verdict(Standing.DAMAGED, reason)
    match candidate.layout:
        case Layout.HUMIGENCE:
            return manifest.verify(path, candidate.step, digests=digests, run=run)
        case _:
            assert_never(candidate.layout)
