"""The gate before the detailed reading: which lines of a block could match anything (pure).

Two observations make it fast. Training output repeats itself: lines that differ only in their
digits have one *shape*, and a shape is judged once. And every catalogue row needs some literal
text, so a shape without any of the gate words cannot match a row.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

_MAX_SHAPES: Final = 50_000
"""Shapes remembered before starting afresh: bounds the memory at some tens of MB."""

_MAX_SHAPE_BYTES: Final = 512
"""Longer lines are judged each time: remembering them would cost more than it saves."""

_READINGS_OF_A_SHAPE: Final = 400
"""A flood of one message says nothing new: only its first lines are read in detail."""


class Gate:
    """Remembers judged shapes; otherwise without state that changes its answers."""

    def __init__(self, words: tuple[str, ...]) -> None:
        """Take the literal texts, without digits, of which every line of interest has one."""
        if any(character.isdigit() for word in words for character in word):
            raise ValueError("gate words must not contain digits: shapes have none")
        self._words = tuple(word.encode() for word in words)
        self._cold: set[bytes] = set()
        self._readings: Counter[bytes] = Counter()

    def hot_lines(self, lines: list[bytes]) -> list[int]:
        """Return the indices of the lines worth reading in detail, in order.

        These contain a gate word, and their shape has not come by some hundred times before.
        """
        shapes = b"\n".join(lines).translate(None, b"0123456789").split(b"\n")
        unseen = set(shapes) - self._cold
        if not unseen:
            return []
        hot = self._judge(unseen)
        if len(self._cold) > _MAX_SHAPES:
            self._cold.clear()
        self._cold.update(s for s in unseen - hot if len(s) <= _MAX_SHAPE_BYTES)
        return [
            index for index, shape in enumerate(shapes) if shape in hot and self._is_news(shape)
        ]

    def _is_news(self, shape: bytes) -> bool:
        if len(self._readings) > _MAX_SHAPES:
            self._readings.clear()
        self._readings[shape] += 1
        return self._readings[shape] <= _READINGS_OF_A_SHAPE

    def _judge(self, shapes: set[bytes]) -> set[bytes]:
        """Return those shapes that contain a gate word: one search per word over all of them."""
        text = b"\n".join(shapes)
        hot: set[bytes] = set()
        for word in self._words:
            at = text.find(word)
            while at >= 0:
                start = text.rfind(b"\n", 0, at) + 1
                end = text.find(b"\n", at)
                end = len(text) if end < 0 else end
                hot.add(text[start:end])
                at = text.find(word, end)
        return hot
