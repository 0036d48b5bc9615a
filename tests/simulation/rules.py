"""What must hold in every history: a rule is one small function with its sentence.

A rule takes the world and what is happening, and returns whether it holds. They are judged by
the bystander's notes and by the world itself, never by what the product remembers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulation.world import World

Rule = Callable[["World", Any], bool]


class BrokenError(AssertionError):
    """A rule does not hold; `rule` is its name."""

    def __init__(self, rule: str, sentence: str | None, about: str) -> None:
        """Say which rule broke over what."""
        self.rule = rule
        super().__init__(f"{rule}: {sentence} {about}")


def hold(rules: tuple[Rule, ...], world: World, subject: object) -> None:
    """Raise BrokenError unless every rule holds."""
    for rule in rules:
        if not rule(world, subject):
            about = f"t={world.now_s:.2f} s, {subject!r:.500}"
            raise BrokenError(rule.__name__, rule.__doc__, about)
