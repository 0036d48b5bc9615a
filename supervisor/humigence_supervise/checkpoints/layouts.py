"""Which names in a checkpoint folder are checkpoints, and of which step.

Names and folders only: nothing is opened here. A family of checkpoints is a member of `Layout`,
a pattern in `recognise` and a file of its own beside this one (`manifest.py` is ours).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from humigence_supervise.contract import CHECKPOINT_PREFIX, checkpoint_name

MAX_STEP_DIGITS: Final = 18
"""Step numbers stay below 10**18: a forged name cannot make an integer of a megabyte."""


class Layout(StrEnum):
    """A family of checkpoints."""

    HUMIGENCE = "humigence"


@dataclass(frozen=True, slots=True)
class Candidate:
    """Something that calls itself the checkpoint of `step` completed steps; not verified."""

    path: Path
    step: int
    layout: Layout


def recognise(path: Path) -> Candidate | None:
    """Return the candidate this path is by its name, or None.

    Asides of a save in progress (``.tmp-*`` and whatever else is not exactly a checkpoint's
    name) are no candidates: only their writer may touch them.
    """
    digits = path.name.removeprefix(CHECKPOINT_PREFIX)
    if not (digits.isascii() and digits.isdigit()) or len(digits) > MAX_STEP_DIGITS:
        return None
    step = int(digits)
    if path.name != checkpoint_name(step):
        return None
    return Candidate(path=path, step=step, layout=Layout.HUMIGENCE)
