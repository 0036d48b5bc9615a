"""What a verification found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from humigence_supervise.domain import Checkpoint


class Standing(StrEnum):
    """How a checkpoint stands. Only DAMAGED ones may be quarantined.

    FOREIGN: it belongs to another run, to which it may be worth everything. MISSING: it went away
    (a worker removes its old ones). UNKNOWN: it could not be read, which says something about the
    disk or the permissions and nothing about the checkpoint.
    """

    GOOD = "good"
    DAMAGED = "damaged"
    FOREIGN = "foreign"
    MISSING = "missing"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`checkpoint` is set exactly when the standing is GOOD; `reason` is one sentence always."""

    standing: Standing
    reason: str
    checkpoint: Checkpoint | None = None

    @property
    def good(self) -> bool:
        """True only for a checkpoint that was read and is whole."""
        return self.standing is Standing.GOOD
