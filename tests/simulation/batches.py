"""Random histories by their seeds. A module by itself: other processes play them, too."""

from __future__ import annotations

from collections.abc import Iterable

from simulation.histories import Told, play
from simulation.troubles import operator_of, world_of

from humigence_supervise.records import Event


def history(seed: int) -> Told:
    """Play the history of a seed; every fourth with a journal that is really written."""
    return play(world_of(seed), seed, persisted=seed % 4 == 0, operator=operator_of(seed))


def broken(seeds: Iterable[int], seen: set[str] | None = None) -> list[str]:
    """Play histories; return what broke, with seed and journal. What happened is put in `seen`."""
    found = []
    for seed in seeds:
        try:
            told = history(seed)
        except AssertionError as error:
            found.append("\n".join((f"seed {seed}: {error}", *error.__notes__)))
            continue
        if seen is not None:
            seen.update(one.event.value for one in told.events())
            seen.update(decisions(told))
    return found


def decisions(told: Told) -> list[str]:
    """Return what was decided, in order."""
    return [str(one.facts["decision"]) for one in told.events(Event.DECISION_MADE)]
