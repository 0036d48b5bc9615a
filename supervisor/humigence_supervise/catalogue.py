"""The catalogue of failure texts: rows of data, and which row a line matches (pure).

Reading the packaged `signatures/*.toml` is the only I/O. A row says what its text *means* and
what it does *not* prove; adding a text to the catalogue needs no code.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Final

from humigence_supervise.domain import Kind, Remedy, Role
from humigence_supervise.literals import LiteralIndex, required_literals

HINT: Final = 9
"""Strength up to which a text only hints at some failure: it is believed when nothing else is."""

_STRENGTH_OF_ROLE: Final = {Role.ROOT: 100, Role.SYMPTOM: 40, Role.CONTEXT: 0}

_REQUIRED: Final = frozenset(
    {"id", "kind", "role", "pattern", "means", "not_proof_of", "source", "match", "near_miss"},
)
_OPTIONAL: Final = frozenset(
    {"strength", "remedy", "advice", "above", "at_end", "fallback", "kind_at_start"},
)


@dataclass(frozen=True, slots=True)
class Row:
    """One text and what it means.

    `strength` orders causes (0 to 120): the strongest hit of an attempt is its root cause, among
    equals the earliest. `remedy` replaces the kind's usual one. `above`: the row counts only
    where this pattern is found in the traceback or lines right above. `at_end`: only where the
    log ends with the line. `fallback`: only where no other row matches. `kind_at_start` is the
    kind where the program had not trained yet: the same NCCL text means another thing there.
    """

    id: str
    kind: Kind
    role: Role
    pattern: re.Pattern[str]
    literals: tuple[str, ...]
    strength: int
    means: str
    not_proof_of: str
    source: str
    match: tuple[str, ...]
    near_miss: tuple[str, ...]
    remedy: Remedy | None = None
    advice: str = ""
    above: re.Pattern[str] | None = None
    at_end: bool = False
    fallback: bool = False
    kind_at_start: Kind | None = None

    def matches(self, line: str) -> bool:
        """Return whether the row's pattern is in `line`, wherever the line stands."""
        return any(literal in line for literal in self.literals) and bool(
            self.pattern.search(line),
        )


def _nothing_above() -> str:
    return ""


class Catalogue:
    """All rows, strongest first, and the texts of which every matching line holds one."""

    def __init__(self, rows: Iterable[Row]) -> None:
        """Order the rows; raises ValueError for two rows with one id."""
        ordered = sorted(rows, key=lambda row: (row.fallback, -row.strength, row.id))
        self.rows: Final = tuple(ordered)
        self.by_id: Final = {row.id: row for row in ordered}
        if len(self.by_id) != len(ordered):
            raise ValueError("two catalogue rows have the same id")
        literals = {literal for row in ordered for literal in row.literals}
        # The end of a log is read without the gate.
        anywhere = {literal for row in ordered if not row.at_end for literal in row.literals}
        self.literals: Final = tuple(sorted(anywhere))
        self._index = LiteralIndex(literals)
        self._rows_of: dict[str, list[int]] = {literal: [] for literal in literals}
        for at, row in enumerate(ordered):
            for literal in row.literals:
                self._rows_of[literal].append(at)

    def match(self, line: str, above: Callable[[], str] = _nothing_above) -> Row | None:
        """Return the strongest row that matches a normalized line, None when there is none.

        `above` is called at most once, and only when a row needs it: it returns the lines right
        above (a traceback's frames), joined by newlines.
        """
        possible: set[int] = set()
        for literal in self._index.in_line(line):
            possible.update(self._rows_of[literal])
        context: str | None = None
        for at in sorted(possible):
            row = self.rows[at]
            if not row.pattern.search(line):
                continue
            if row.above is None:
                return row
            context = above() if context is None else context
            if row.above.search(context):
                return row
        return None


@cache
def load_catalogue() -> Catalogue:
    """Read the packaged rows once. Raises ValueError when a row is malformed."""
    folder = resources.files("humigence_supervise") / "signatures"
    rows: list[Row] = []
    for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if file.name.endswith(".toml"):
            table = tomllib.loads(file.read_text(encoding="utf-8"))
            rows.extend(parse_row(entry) for entry in table["row"])
    return Catalogue(rows)


def parse_row(entry: dict[str, Any]) -> Row:
    """Turn one TOML table into a row. Raises ValueError naming the row and what is wrong."""
    name = entry.get("id", "?")
    if missing := _REQUIRED - entry.keys():
        raise ValueError(f"catalogue row {name}: missing {', '.join(sorted(missing))}")
    if unknown := entry.keys() - _REQUIRED - _OPTIONAL:
        raise ValueError(f"catalogue row {name}: unknown {', '.join(sorted(unknown))}")
    literals = required_literals(entry["pattern"])
    if not literals:
        raise ValueError(f"catalogue row {name}: its pattern requires no literal text")
    role = Role(entry["role"])
    return Row(
        id=name,
        kind=Kind(entry["kind"]),
        role=role,
        pattern=re.compile(entry["pattern"]),
        literals=literals,
        strength=entry.get("strength", _STRENGTH_OF_ROLE[role]),
        means=entry["means"],
        not_proof_of=entry["not_proof_of"],
        source=entry["source"],
        match=tuple(entry["match"]),
        near_miss=tuple(entry["near_miss"]),
        remedy=Remedy(entry["remedy"]) if "remedy" in entry else None,
        advice=entry.get("advice", ""),
        above=re.compile(entry["above"]) if "above" in entry else None,
        at_end=entry.get("at_end", False),
        fallback=entry.get("fallback", False),
        kind_at_start=Kind(entry["kind_at_start"]) if "kind_at_start" in entry else None,
    )
