"""From JSON values to typed ones: a frozen dataclass's annotations are the schema.

Understands what the worker's settings use: bool, str, bounded numbers (`Annotated[int,
Range(...)]`), enums, "or not given" (`X | None`), and tuples of further dataclasses.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from enum import StrEnum
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from humigence_worker.strict_json import JsonObject, WorkerConfigError, json_type, line_of_key


@dataclass(frozen=True, slots=True)
class Range:
    """Bounds of a number, both included."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value stands: the file, its text, the top-level key, and the keys below it."""

    path: Path
    text: str
    top: str = ""
    inner: str = ""

    def key(self, name: str) -> Place:
        """Return the place of `name` inside this one."""
        return replace(self, inner=f"{self.inner}.{name}") if self.top else replace(self, top=name)

    def item(self, index: int) -> Place:
        """Return the place of the item at `index` (from 0) inside this one."""
        return replace(self, inner=f"{self.inner}[{index}]")

    def error(self, problem: str) -> WorkerConfigError:
        """Return the error that says `problem` about this place."""
        line = line_of_key(self.text, self.top) if self.top else None
        at = f"line {line}: " if line else ""
        return WorkerConfigError(f"{self.path}: {at}{self.top}{self.inner}: {problem}")


def parse_fields(
    raw: JsonObject, into: type[Any], place: Place, aliases: Mapping[str, str]
) -> dict[str, Any]:
    """Return the keyword arguments that `raw` gives for the dataclass `into`.

    `aliases` maps names known from elsewhere to ours; they only help to say what was meant.

    Raises:
        WorkerConfigError: for an unknown key, a wrong type, a value out of bounds, or a missing
            key that has no default.
    """
    hints = get_type_hints(into, include_extras=True)
    for key in raw:
        if key not in hints:
            raise place.key(key).error(_unknown(key, sorted(hints), aliases))
    for each in fields(into):
        if each.default is MISSING and each.name not in raw:
            raise place.key(each.name).error("is missing and has no default. Add it.")
    return {key: _convert(value, hints[key], place.key(key), aliases) for key, value in raw.items()}


def _unknown(key: str, known: list[str], aliases: Mapping[str, str]) -> str:
    meant = aliases.get(key, "")
    near = [meant] if meant in known else difflib.get_close_matches(key, known, 1, 0.6)
    if near:
        return f'unknown key. Did you mean "{near[0]}"?'
    return f"unknown key. Remove it; known are: {', '.join(known)}."


def _convert(value: object, hint: Any, place: Place, aliases: Mapping[str, str]) -> object:  # noqa: ANN401 - a type form has no type of its own
    if NoneType in get_args(hint):
        if value is None:
            return None
        hint = next(each for each in get_args(hint) if each is not NoneType)
    if get_origin(hint) is Annotated:
        base, bounds = get_args(hint)
        return _number(value, base, bounds, place)
    if get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise place.error(f"must be a list, not {json_type(value)}.")
        of = get_args(hint)[0]
        return tuple(_convert(v, of, place.item(i), aliases) for i, v in enumerate(value))
    if isinstance(hint, type) and is_dataclass(hint):
        if not isinstance(value, dict):
            raise place.error(f"must be an object, not {json_type(value)}.")
        return hint(**parse_fields(value, hint, place, aliases))
    if issubclass(hint, StrEnum):
        return _word(value, hint, place)
    return _plain(value, hint, place)


def _plain(value: object, hint: type, place: Place) -> object:
    if hint is bool:
        if not isinstance(value, bool):
            raise place.error(f"must be true or false, not {json_type(value)}.")
    elif not isinstance(value, str):
        raise place.error(f"must be a string, not {json_type(value)}.")
    elif not value or "\0" in value or not _encodable(value):
        raise place.error("must not be empty, nor hold NUL or half a surrogate pair.")
    return value


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _number(value: object, base: type, bounds: Range, place: Place) -> int | float:
    whole = base is int
    allowed = f"{'a whole number' if whole else 'a number'} from {bounds.low:g} to {bounds.high:g}"
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        given = json.dumps(value) if isinstance(value, float) else json_type(value)
        raise place.error(f"must be {allowed}, not {given}.")
    if not bounds.low <= value <= bounds.high:
        raise place.error(f"must be {allowed}, not {value}.")
    return value if whole else float(value)


def _word(value: object, words: type[StrEnum], place: Place) -> StrEnum:
    allowed = [str(each) for each in words]
    if not isinstance(value, str):
        raise place.error(f"must be one of {', '.join(allowed)}, not {json_type(value)}.")
    if value not in allowed:
        near = difflib.get_close_matches(value, allowed, 1, 0.6)
        hint = f' Did you mean "{near[0]}"?' if near else ""
        raise place.error(f'must be one of {", ".join(allowed)}, not "{value}".{hint}')
    return words(value)
