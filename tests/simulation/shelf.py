"""The checkpoints of the simulated run, and what is true of their bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from simulation.setups import PATHS

from humigence_supervise.contract import checkpoint_name
from humigence_supervise.domain import Checkpoint

KEPT = 3


class Health(Enum):
    """What can be true of a checkpoint's bytes. `SILENT`: only the worker finds the damage."""

    GOOD = "good"
    TORN = "torn"
    FLIPPED = "flipped"
    SILENT = "silent"
    FOREIGN = "foreign"


REFUSED = {
    Health.TORN: "its manifest is missing",
    Health.FLIPPED: "a digest differs",
    Health.FOREIGN: "it is of another run",
}
"""What the supervisor finds by itself before an attempt, and what it says."""
NOT_WHOLE = frozenset((Health.TORN, Health.FOREIGN))
"""What a look without the digests finds."""


@dataclass(slots=True)
class Shelf:
    """The folder of checkpoints, by step, and those put aside; `unmovable`: none can be."""

    batch: int
    unmovable: bool = False
    steps: dict[int, Health] = field(default_factory=dict)
    aside: list[tuple[int, Health]] = field(default_factory=list)

    def save(self, step: int) -> None:
        """Put a checkpoint there, over a damaged one too; the newest good ones are kept."""
        self.steps[step] = Health.GOOD
        good = sorted(one for one, health in self.steps.items() if health is Health.GOOD)
        for old in good[:-KEPT]:
            del self.steps[old]

    def put_aside(self, step: int) -> None:
        """Move a checkpoint out of the way."""
        self.aside.append((step, self.steps.pop(step)))

    def newest_good(self, below: int | None = None) -> int:
        """Return the newest step to resume at as far as its bytes tell, 0 for none."""
        good = (one for one, health in self.steps.items() if health not in REFUSED)
        return max((one for one in good if below is None or one < below), default=0)

    def newest_whole(self) -> int:
        """Return the newest step that looks whole at a glance, 0 for none."""
        whole = (one for one, health in self.steps.items() if health not in NOT_WHOLE)
        return max(whole, default=0)

    def checkpoint(self, step: int) -> Checkpoint:
        """Return the checkpoint of a step as a value."""
        path = PATHS.checkpoint_dir / checkpoint_name(step)
        return Checkpoint(path, step, step * self.batch)

    def mend(self) -> None:
        """Mend what no one has noticed yet."""
        for step, health in self.steps.items():
            if health is Health.SILENT:
                self.steps[step] = Health.GOOD
