"""The gate before the detailed reading: which lines of a block could match anything (pure).

Every catalogue row needs some literal text, so a line that holds none of these texts matches no
row. The gate finds the lines that hold one, and thins out a flood of one message.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from typing import Final

from humigence_supervise.fast_search import fast_search
from humigence_supervise.literals import gate_words

Search = Callable[[bytes], Iterable[int]]
"""Finds literal texts: returns an offset within each line that holds one, in any order."""

_DIGITS: Final = b"0123456789"

_HEXADECIMAL: Final = b"0123456789abcdefABCDEF-"

_COLOUR: Final = re.compile(
    rb"(?:\x1b|\^\[|#033|\\{1,4}(?:u001[bB]|x1[bB]|033|e))\[[0-9;?]{0,40}[A-Za-z]"
    rb"|\[[0-9;]{1,40}m",
)
"""Colours, also where the escape character is written as text or was lost."""

_LARGE_BYTES: Final = 1 << 18
"""So much is read before the fast search is worth its start: 15 ms and 10 MB."""

_READINGS_OF_A_SHAPE: Final = 400
"""A flood of one message says nothing new: only its first lines are read in detail."""

_MAX_SHAPES: Final = 20_000
"""Shapes of messages counted before starting afresh: bounds the memory at some 2 MB."""


class Gate:
    """Finds the lines worth reading in detail. Its memory is bounded whatever it is given."""

    def __init__(self, literals: tuple[str, ...], *, large: bool = False) -> None:
        """Take the texts of which every line of interest holds one.

        `large` inputs are searched by a compiled library where it is installed; it finds the
        same lines, but a process that must stay small does without it.
        """
        self._literals = literals
        self._large = large
        self._searched_bytes = 0
        self._search: Search = VocabularySearch(literals)
        self._readings: Counter[int] = Counter()

    def hot_lines(self, lines: list[bytes]) -> list[int]:
        """Return the indices of the lines worth reading in detail, in order.

        These hold a literal, and their shape has not come by some hundred times before.
        """
        text = b"\n".join(lines)
        if b"\x1b" in text or b"[0m" in text:
            text = _COLOUR.sub(b"", text)
        self._grow_fast(len(text))
        return [at for at in line_numbers(text, self._search(text)) if self._is_news(lines[at])]

    def _grow_fast(self, more_bytes: int) -> None:
        self._searched_bytes += more_bytes
        if self._large and self._searched_bytes > _LARGE_BYTES:
            self._large = False
            self._search = fast_search(self._literals) or self._search

    def _is_news(self, line: bytes) -> bool:
        """Count lines that differ in numbers and hexadecimal names only, by a hash of the rest."""
        if len(self._readings) > _MAX_SHAPES:
            self._readings.clear()
        shape = hash(line.translate(None, _HEXADECIMAL))
        self._readings[shape] += 1
        return self._readings[shape] <= _READINGS_OF_A_SHAPE


def line_numbers(text: bytes, offsets: Iterable[int]) -> list[int]:
    """Return which lines of `text`, counted from 0, the offsets are in; each once, in order."""
    numbers: list[int] = []
    number = counted = end = 0
    for offset in sorted(offsets):
        if offset < end:
            continue
        number += text.count(b"\n", counted, offset)
        counted = offset
        end = text.find(b"\n", offset)
        end = len(text) if end < 0 else end
        numbers.append(number)
    return numbers


# --- the search without a library --------------------------------------------------------------

_MAX_WORDS: Final = 20_000
"""Words remembered before starting afresh: bounds the memory at some 3 MB."""

_MAX_WORD_BYTES: Final = 64
"""Longer words are judged each time: remembering them would cost more than it saves."""

_WORD: Final = re.compile(r"[^\s\d]+")


@cache
def _index(
    literals: tuple[str, ...],
) -> tuple[dict[bytes, list[tuple[bytes, bytes]]], dict[bytes, frozenset[bytes]]]:
    """Return the literals by a part of their longest word, and the words inside each.

    Made once for a catalogue: it takes some 15 ms. Nobody changes what is returned.
    """
    longest = {literal: max(_WORD.findall(literal), key=len) for literal in literals}
    parts = gate_words(frozenset(longest.values()))
    literals_of: dict[bytes, list[tuple[bytes, bytes]]] = {part.encode(): [] for part in parts}
    inner_words: dict[bytes, frozenset[bytes]] = {}
    for literal, word in longest.items():
        part = max((part for part in parts if part in word), key=len)
        literals_of[part.encode()].append((word.encode(), literal.encode()))
        inner = ("x" + literal + "x").encode().translate(None, _DIGITS).split()[1:-1]
        inner_words[literal.encode()] = frozenset(inner)
    return literals_of, inner_words


class VocabularySearch:
    """Searches a text only for those literals that its vocabulary allows.

    Training output repeats itself: lines differ in digits, and without these the words of a log
    are few. Each new word is judged once: which literals could be where it stands?
    """

    def __init__(self, literals: tuple[str, ...]) -> None:
        """Take the texts to be found; raises ValueError when one is too short."""
        self._literals_of, self._inner_words = _index(literals)
        self._cold: set[bytes] = set()
        self._hot: dict[bytes, set[bytes]] = {}

    def __call__(self, text: bytes) -> Iterable[int]:
        """Return an offset in each line that holds a literal; some lines come several times."""
        shapes = set(text.translate(None, _DIGITS).split(b"\n"))
        words = set(b" ".join(shapes).split())
        for literal in self._possible(words):
            at = text.find(literal)
            while at >= 0:
                yield at
                end = text.find(b"\n", at)
                at = text.find(literal, end) if end >= 0 else -1

    def _possible(self, words: set[bytes]) -> set[bytes]:
        """Return the literals that a text of these words could hold."""
        if len(self._cold) + len(self._hot) > _MAX_WORDS:
            self._cold.clear()
            self._hot.clear()
        new = words - self._cold - self._hot.keys()
        hot = self._judge(new)
        self._cold.update(word for word in new - hot.keys() if len(word) <= _MAX_WORD_BYTES)
        possible = set[bytes]().union(
            *hot.values(), *(self._hot[word] for word in self._hot.keys() & words)
        )
        self._hot.update((word, hot[word]) for word in hot if len(word) <= _MAX_WORD_BYTES)
        return {literal for literal in possible if self._inner_words[literal] <= words}

    def _judge(self, words: set[bytes]) -> dict[bytes, set[bytes]]:
        """Return, for those words where literals may stand, which ones."""
        text = b" ".join(words)
        found: dict[bytes, set[bytes]] = {}
        for part, literals in self._literals_of.items():
            at = text.find(part)
            while at >= 0:
                start = text.rfind(b" ", 0, at) + 1
                end = text.find(b" ", at)
                end = len(text) if end < 0 else end
                word = text[start:end]
                if possible := [literal for longest, literal in literals if longest in word]:
                    found.setdefault(word, set()).update(possible)
                at = text.find(part, end)
        return found
