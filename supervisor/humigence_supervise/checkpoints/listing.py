"""`checkpoints`: every candidate of a run with its verdict."""

from __future__ import annotations

from pathlib import Path

from humigence_supervise.checkpoints.choose import candidates
from humigence_supervise.checkpoints.verify import verify
from humigence_supervise.records import Json


def checkpoint_rows(checkpoint_dir: Path, *, digests: bool) -> list[dict[str, Json]]:
    """Return one row a candidate, newest first; with `digests` every byte is read.

    Raises:
        OSError: the folder cannot be listed.
    """
    rows: list[dict[str, Json]] = []
    for candidate in candidates(checkpoint_dir):
        verdict = verify(candidate.path, digests=digests)
        rows.append(
            {
                "step": candidate.step,
                "path": str(candidate.path),
                "verdict": verdict.standing.value,
                "reason": verdict.reason,
            }
        )
    return rows


def rows_text(rows: list[dict[str, Json]]) -> str:
    """Return the rows for people."""
    if not rows:
        return "There is no checkpoint yet."
    return "\n".join(f"step {row['step']:>8}  {row['verdict']:<8} {row['reason']}" for row in rows)
