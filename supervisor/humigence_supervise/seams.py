"""What the loop needs of the world: hands, a journal, and somebody who waits.

`effects.Effects`, `journal.Journal` and `waiting.Waiter` are the real ones; a simulated world
has its own, under the same loop and the same machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from humigence_supervise.actions import Consider, Prepare, Probe
from humigence_supervise.domain import LaunchPlan
from humigence_supervise.happenings import Happening, StopRequested
from humigence_supervise.records import Entry, Record
from humigence_supervise.state import State


class Hands(Protocol):
    """They act, and see what came of it; they hold at most one attempt at a time."""

    def prepare(self, wanted: Prepare) -> Happening:
        """Plan the next attempt."""
        ...

    def quarantine(self, path: Path, reason: str) -> None:
        """Put a bad checkpoint aside."""
        ...

    def consider(self, wanted: Consider) -> Happening:
        """Look whether a higher rung could be planned now."""
        ...

    def probe(self, wanted: Probe) -> Happening:
        """Start the probe of a higher rung."""
        ...

    def launch(self, plan: LaunchPlan) -> Happening:
        """Start a planned attempt."""
        ...

    def recover(self, attempt: int) -> Happening:
        """Find the attempt that a supervisor before this one started."""
        ...

    def terminate(self) -> None:
        """Ask the attempt to save and exit."""
        ...

    def clear(self) -> None:
        """Have everything of the attempt killed."""
        ...

    def gather(self, state: State) -> Happening:
        """Read the evidence of the ended attempt and diagnose it."""
        ...

    def descriptors(self) -> tuple[int, ...]:
        """Return what becomes readable when a process of the attempt ends."""
        ...

    def observe(self, attempt: int) -> Iterator[Happening]:
        """Yield the attempt's news and, once it is gone, its end."""
        ...

    def step(self) -> int | None:
        """Return the newest completed step of the living attempt, where it is known."""
        ...


class JournalWriter(Protocol):
    """Makes records durable, in order."""

    path: Path

    def append(self, records: Iterable[Record], *, decisive: bool = True) -> tuple[Entry, ...]:
        """Write all or nothing; raises OSError."""
        ...

    def reserve(self) -> None:
        """Keep room for a decision on a full disk."""
        ...


class Outside(Protocol):
    """Time, chance, and what people ask for by signals."""

    def now_s(self) -> float:
        """Return Unix time."""
        ...

    def chance(self) -> float:
        """Return one draw in [0, 1)."""
        ...

    def wait(self, descriptors: Iterable[int], timeout_s: float) -> list[StopRequested]:
        """Sleep until a descriptor is readable, somebody asks for a stop, or the time is over."""
        ...
