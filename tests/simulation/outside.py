"""Virtual time, chance, and the signals that people send."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import TYPE_CHECKING

from simulation.rules import hold
from simulation.rules_of_waiting import AT_WAIT
from simulation.world import World

from humigence_supervise.happenings import StopRequested

if TYPE_CHECKING:
    from humigence_supervise.loop import Loop


class SimOutside:
    """The outside of one supervisor. `loop` is set once it is made, for the invariants."""

    def __init__(self, world: World, chance: random.Random) -> None:
        """Read the clock of `world`."""
        self.world = world
        self._chance = chance
        self.loop: Loop | None = None

    def now_s(self) -> float:
        """Return what the wall clock says."""
        return self.world.wall_s

    def chance(self) -> float:
        """Return a draw."""
        return self._chance.random()

    def wait(self, descriptors: Iterable[int], timeout_s: float) -> list[StopRequested]:
        """Let virtual time pass."""
        world = self.world
        world.act()
        watched = [world.trainers[number] for number in descriptors]
        acting = self.loop_is_acting()
        if self.loop is not None and not acting:
            hold(AT_WAIT, world, self.loop)
        since_s = world.now_s
        try:
            world.sleep(watched[0] if watched else None, timeout_s)
        finally:
            if acting:  # nothing can be decided meanwhile
                world.notes.down_s += world.now_s - since_s
        stops, world.signals = world.signals, []
        if stops:
            world.notes.told_to_stop(world.now_s, late=acting)
        return stops

    def loop_is_acting(self) -> bool:
        """Say whether the loop waits inside of an action: for the disk of its journal."""
        return self.world.disk_mib < 1
