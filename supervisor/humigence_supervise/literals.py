"""Which literal text every match of a pattern must contain (pure).

A line without that text cannot match, so a plain substring test decides most lines. Only the
part of the `re` syntax that the catalogue uses is understood; what is not understood ends a
literal, which can make the answer shorter but never wrong.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

_ZERO_WIDTH: Final = frozenset({r"\b", r"\B", r"\A", r"\Z", "^", "$"})
_LOOK_AROUND: Final = ("(?=", "(?!", "(?<=", "(?<!")
_MAX_TEXTS: Final = 128
"""A pattern that stands for more texts than this is cut into parts."""

_ORDINARY: Final = frozenset(
    {"DEBUG", "INFO", "WARNING", "loss", "step", "epoch", "train", "rank", "model", "GPU", "CUDA"}
)
"""Texts of ordinary training output: a literal only where a pattern has no other."""

_Texts = frozenset[str]
_EMPTY: Final = frozenset({""})


def required_literals(pattern: str) -> tuple[str, ...]:
    """Return texts of which every match contains at least one; empty when there are none."""
    found: set[str] = set()
    for branch in _split_branches(pattern):
        best = _best_of_branch(branch)
        if not best:
            return ()
        found |= best
    return tuple(sorted(found))


def _split_branches(pattern: str) -> list[str]:
    """Split at the alternation bars that stand outside groups and classes."""
    branches, start, at = [], 0, 0
    while at < len(pattern):
        if pattern[at] == "|":
            branches.append(pattern[start:at])
            start = at + 1
        at = _skip(pattern, at)
    branches.append(pattern[start:])
    return branches


def _skip(pattern: str, at: int) -> int:
    """Return the index behind the element (escape, class, group or character) at `at`."""
    match pattern[at]:
        case "\\":
            return at + 2
        case "[":
            first = at + 2 if pattern.startswith("[^", at) else at + 1
            end = first + (2 if pattern[first] == "\\" else 1)
            while pattern[end] != "]":
                end += 2 if pattern[end] == "\\" else 1
            return end + 1
        case "(":
            at += 1
            while pattern[at] != ")":
                at = _skip(pattern, at)
            return at + 1
        case _:
            return at + 1


def _elements(branch: str) -> list[tuple[str, str]]:
    """Return the branch's elements, each with its quantifier ("" for none)."""
    elements, at = [], 0
    while at < len(branch):
        end = _skip(branch, at)
        behind = _skip_quantifier(branch, end)
        elements.append((branch[at:end], branch[end:behind]))
        at = behind
    return elements


def _skip_quantifier(pattern: str, at: int) -> int:
    """Return the index behind a quantifier at `at`, or `at` where there is none."""
    if at < len(pattern) and pattern[at] in "?*+":
        at += 1
    elif at < len(pattern) and pattern[at] == "{":
        at = pattern.index("}", at) + 1
    else:
        return at
    return at + 1 if at < len(pattern) and pattern[at] == "?" else at


def _best_of_branch(branch: str) -> _Texts:
    """Return those alternatives whose shortest is longest, of all that the branch requires."""
    candidates: list[_Texts] = []
    run = _EMPTY
    for element, quantifier in _elements(branch):
        texts = _texts_of(element, quantifier)
        if texts and len(run) * len(texts) <= _MAX_TEXTS:
            run = frozenset(before + text for before in run for text in texts)
            continue
        candidates.append(run)
        run = texts or _EMPTY
        if not texts and element.startswith("(") and quantifier in {"", "+", "+?"}:
            candidates.append(frozenset(required_literals(_inside(element))))
    usable = [texts for texts in [*candidates, run] if texts and "" not in texts]
    best = max(usable, key=_rareness, default=frozenset[str]())
    return frozenset(text for text in best if not any(o in text for o in best - {text}))


def _rareness(texts: _Texts) -> tuple[bool, int]:
    """Order alternatives: long texts are rare, those of every training log are not."""
    return all(text.strip() not in _ORDINARY for text in texts), min(map(len, texts))


def _texts_of(element: str, quantifier: str) -> _Texts:
    """Return the few texts that an element stands for; none when they are many or unknown."""
    if quantifier not in {"", "?", "??"}:
        return frozenset()
    texts = _texts_of_one(element)
    return texts | _EMPTY if texts and quantifier else texts


def _texts_of_one(element: str) -> _Texts:
    if element in _ZERO_WIDTH or element.startswith(_LOOK_AROUND):
        return _EMPTY
    if element[0] == "[":
        characters = re.sub(r"\\(\W)", r"\1", element[1:-1])
        is_list = re.fullmatch(r"(?:[^\\^-]|\\\W)(?:[^\\-]|\\\W){0,3}", element[1:-1])
        return frozenset(characters) if is_list else frozenset()
    if element[0] == "(":
        branches = [_texts_of_branch(branch) for branch in _split_branches(_inside(element))]
        return frozenset[str]().union(*branches) if all(branches) else frozenset()
    if element[0] == "\\":
        return frozenset() if element[1].isalnum() else frozenset({element[1]})
    return frozenset() if element == "." else frozenset({element})


def _texts_of_branch(branch: str) -> _Texts:
    """Return the few texts that a whole branch stands for; none when they are many or unknown."""
    run = _EMPTY
    for element, quantifier in _elements(branch):
        run = frozenset(before + text for before in run for text in _texts_of(element, quantifier))
        if len(run) > _MAX_TEXTS:
            return frozenset()
    return run


def _inside(group: str) -> str:
    """Return what stands in a group; of a kind of group that is not understood, any text."""
    if group.startswith("(?:"):
        return group[3:-1]
    return group[1:-1] if not group.startswith("(?") else ".*"


class LiteralIndex:
    """Tells which of many literals a line holds, without looking for each."""

    def __init__(self, literals: Iterable[str]) -> None:
        """Take the literals."""
        wanted = frozenset(literals)
        short = frozenset(text for text in wanted if _is_short(_longest(text)))
        words = (*gate_words(wanted - short), *short)
        self._literals_of: dict[str, list[str]] = {word: [] for word in words}
        for literal in sorted(wanted):
            word = max((word for word in words if word in literal), key=len)
            self._literals_of[word].append(literal)

    def in_line(self, line: str) -> Iterator[str]:
        """Yield the literals that are in `line`, each once."""
        for word, literals in self._literals_of.items():
            if word in line:
                yield from (literal for literal in literals if literal in line)


# --- gate words --------------------------------------------------------------------------------

_GRAM = 5
"""Length of a gate word: short enough to serve many literals, long enough to be rare."""

_SHORTEST_BYTES = 2
"""One letter would open the gate for every line."""

_COMMON = frozenset(
    ("ation", "ction", "ected", "found", "train", "epoch", "total", "model", "batch")
)
"""Texts of ordinary training output, which would open the gate for nothing."""


def gate_words(literals: frozenset[str]) -> tuple[str, ...]:
    """Return few texts such that each literal contains at least one of them.

    They hold neither digits nor white space, so that they are found within the words of a line,
    whatever its numbers are.

    Raises:
        ValueError: a literal has no two neighbouring characters that are neither.
    """
    grams = {literal: _grams(literal) for literal in sorted(literals)}
    uses = Counter(gram for found in grams.values() for gram in found)
    words: set[str] = set()
    for literal, found in grams.items():
        if words.isdisjoint(found):
            words.add(max(found, key=lambda gram: (uses[gram], gram), default=_longest(literal)))
    if any(_is_short(word) for word in words):
        short = [text for text in grams if _is_short(_longest(text))]
        raise ValueError(f"too short to find lines by, make the pattern longer: {short}")
    return tuple(sorted(words))


def _grams(literal: str) -> set[str]:
    """Return the gate word candidates of a literal."""
    parts = _WITHOUT_DIGITS.findall(literal)
    grams = {part[at : at + _GRAM] for part in parts for at in range(len(part) - _GRAM + 1)}
    return grams - _COMMON


_WITHOUT_DIGITS = re.compile(r"[^\s\d]+")


def _is_short(word: str) -> bool:
    return len(word.encode()) < _SHORTEST_BYTES


def _longest(literal: str) -> str:
    return max(_WITHOUT_DIGITS.findall(literal), key=len, default="")
