"""One clock for all hits of a file, so that only comparable times are compared (pure)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Final

from humigence_supervise.domain import Hit
from humigence_supervise.observe.stamps import Stamp

_HALF_A_YEAR_S: Final = 180 * 86_400.0
"""Stamps without a year that lie further apart belong to two years."""


def with_times(found: list[tuple[Hit, tuple[Stamp, ...]]]) -> list[Hit]:
    """Return the hits with `at_s` from the one clock that stamped most of them.

    A hit which that clock did not stamp has no time: none is better than a wrong one.
    """
    stamped = [{stamp.clock: stamp.at_s for stamp in stamps} for _, stamps in found]
    votes = Counter(clock for clocks in stamped for clock in reversed(clocks))
    if not votes:
        return [hit for hit, _ in found]
    clock = votes.most_common(1)[0][0]
    times_s = [clocks[clock] for clocks in stamped if clock in clocks]
    if max(times_s) - min(times_s) > _HALF_A_YEAR_S:
        return [hit for hit, _ in found]
    return [
        replace(hit, at_s=clocks.get(clock))
        for (hit, _), clocks in zip(found, stamped, strict=True)
    ]
