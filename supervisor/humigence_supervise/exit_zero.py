"""What exit code 0 proves of an attempt, and what it does not (pure)."""

from __future__ import annotations

from typing import Final

from humigence_supervise.causes import STRONG, row_of
from humigence_supervise.domain import Confidence, Evidence, Hit, Kind
from humigence_supervise.endings import known_ends
from humigence_supervise.findings import Finding, quoted

_NOTHING_DONE: Final = ("success.no_batches", "hang.first_collective")

_CRASH_SIGNALS: Final = (4, 7, 8, 11)
"""No want of a peer ends a rank so; its peers may well be told to end then, and do with code 0."""


def ended_well(evidence: Evidence) -> bool:
    """Return whether everything that is known of the end is exit code 0.

    A rank that was gone before anyone looked says nothing: then the launcher's word counts.
    """
    known = known_ends(evidence)
    return bool(known) and all(end.ok for end in known)


def from_success(evidence: Evidence, roots: list[Hit]) -> Finding:
    """Return what exit code 0 proves: a healthy end, or one that came too early."""
    last, target = evidence.last_step, evidence.target_step
    if target is not None and last is not None and last < target:
        means = f"The program ended with exit code 0 at step {last} of {target}"
        return Finding(Kind.PREMATURE_SUCCESS, Confidence.CERTAIN, means=means)
    if target is not None and last is None:
        return Finding(
            Kind.PREMATURE_SUCCESS,
            Confidence.LIKELY,
            means=f"The program ended with exit code 0, but no step of {target} was seen",
        )
    empty = next((hit for hit in evidence.hits if hit.signature in _NOTHING_DONE), None)
    if empty is not None and not evidence.progress_seen:
        means = "The program ended with exit code 0 and had trained nothing"
        return Finding(Kind.PREMATURE_SUCCESS, Confidence.LIKELY, empty, means=means)
    if evidence.success_unproven:
        means = f"The program ended with exit code 0, but {evidence.success_unproven}"
        return Finding(Kind.PREMATURE_SUCCESS, Confidence.LIKELY, means=means)
    if not evidence.ranks and roots and row_of(roots[0]).strength >= STRONG:
        return Finding(
            Kind.HEALTHY,
            Confidence.GUESS,
            means=f"The job ended with exit code 0, although its log says: {quoted(roots[0])}",
            advice="If the code is that of `tee` or of a launcher, give the program's own.",
        )
    return Finding(Kind.HEALTHY, Confidence.CERTAIN)


def left_early(evidence: Evidence) -> Finding | None:
    """A rank that ended with exit code 0 before the target: the others fail for want of it."""
    last, target = evidence.last_step, evidence.target_step
    if last is None or target is None or last >= target:
        return None
    rank = next((exit_.rank for exit_ in evidence.ranks if exit_.status.ok), None)
    if rank is None or any(exit_.status.signal in _CRASH_SIGNALS for exit_ in evidence.ranks):
        return None
    means = f"Rank {rank} ended with exit code 0 at step {last} of {target}"
    return Finding(Kind.PREMATURE_SUCCESS, Confidence.CERTAIN, rank=rank, means=means)
