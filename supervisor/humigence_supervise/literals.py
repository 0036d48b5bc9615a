"""Which literal text every match of a pattern must contain (pure).

A line without that text cannot match, so a plain substring test decides most lines. Only the
part of the `re` syntax that the catalogue uses is understood; what is not understood ends a
literal, which can make the answer shorter but never wrong.
"""

from __future__ import annotations

import re
from collections import Counter

_CLASS_ESCAPES = frozenset("dDwWsSbBAZ")


def required_literals(pattern: str) -> tuple[str, ...]:
    """Return texts of which every match contains at least one; empty when there are none."""
    found: list[str] = []
    for branch in _split_branches(pattern):
        best = _best_of_branch(branch)
        if not best:
            return ()
        found.extend(best)
    return tuple(dict.fromkeys(found))


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


def _best_of_branch(branch: str) -> tuple[str, ...]:
    """Return the alternatives with the longest shortest text that this branch requires."""
    candidates: list[tuple[str, ...]] = []
    run, at = "", 0
    while at < len(branch):
        end = _skip(branch, at)
        element = branch[at:end]
        optional = end < len(branch) and (branch[end] in "?*" or branch.startswith("{0", end))
        literal = _literal_of(element)
        if literal and not optional:
            run += literal
        else:
            candidates.append((run,))
            run = ""
            if element.startswith("(") and not optional:
                candidates.append(_of_group(element))
        at = _skip_quantifier(branch, end)
        if at != end:
            candidates.append((run,))
            run = ""
    candidates.append((run,))
    usable = [alternatives for alternatives in candidates if alternatives and all(alternatives)]
    return max(usable, key=lambda texts: min(map(len, texts)), default=())


def _literal_of(element: str) -> str:
    """Return the character an element stands for, "" when it stands for several."""
    if element[0] == "\\":
        return "" if element[1] in _CLASS_ESCAPES else element[1]
    return "" if element[0] in "[(.^$" else element


def _of_group(group: str) -> tuple[str, ...]:
    """Return what a mandatory group requires; nothing for a look-around."""
    if group.startswith(("(?!", "(?=", "(?<")):
        return ()
    return required_literals(group[3:-1] if group.startswith("(?:") else group[1:-1])


def _skip_quantifier(pattern: str, at: int) -> int:
    """Return the index behind a quantifier at `at`, or `at` where there is none."""
    if at < len(pattern) and pattern[at] in "?*+":
        at += 1
    elif at < len(pattern) and pattern[at] == "{":
        at = pattern.index("}", at) + 1
    else:
        return at
    return at + 1 if at < len(pattern) and pattern[at] == "?" else at


# --- gate words --------------------------------------------------------------------------------

_GRAM = 5
"""Length of a gate word: short enough to serve many literals, long enough to be rare."""

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
    return tuple(sorted(words))


def _grams(literal: str) -> set[str]:
    """Return the gate word candidates of a literal."""
    parts = _WITHOUT_DIGITS.findall(literal)
    grams = {part[at : at + _GRAM] for part in parts for at in range(len(part) - _GRAM + 1)}
    return grams - _COMMON


_WITHOUT_DIGITS = re.compile(r"[^\s\d]+")


def _longest(literal: str) -> str:
    word = max(_WITHOUT_DIGITS.findall(literal), key=len, default="")
    if len(word) < 2:  # noqa: PLR2004 - one character would open the gate for every line
        raise ValueError(f"{literal!r} is too short to find lines by; make the pattern longer")
    return word
