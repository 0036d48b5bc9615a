"""Strict JSON text to plain values, with the line and column of everything in it.

The standard library's decoder reads the scalars, so agreement with `json.loads` is by
construction; objects and arrays are read here, because places, duplicate keys and a bounded
depth are needed. Stricter than `json.loads`: no NaN or infinity (also not as 1e400), integers
of 64 bits, at most `MAX_DEPTH` levels, no NUL and no half surrogate in a string (no path,
argument or variable can hold them).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

MAX_DEPTH: Final = 64
MAX_BYTES: Final = 4 * 1024 * 1024

JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]
JsonPath = tuple[str | int, ...]

_SPACE: Final = re.compile(r"[ \t\n\r]*")
_UNHOLDABLE: Final = re.compile("[\0\ud800-\udfff]")
_INT_BITS: Final = 63
_INT_DIGITS: Final = 20


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A place in a text. Both count from 1; columns are characters."""

    line: int
    column: int


class TextError(ValueError):
    """The text is no JSON document; `place` is None where no place can be named."""

    def __init__(self, what: str, place: Place | None = None) -> None:
        """Keep what is wrong, as one clause, and where."""
        super().__init__(what)
        self.what = what
        self.place = place


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A key that stands twice in one object."""

    path: JsonPath
    first: Place
    second: Place


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed text: its value, where each value and key starts, and the duplicate keys.

    Of a duplicate key the last value counts, as everywhere in JSON; the caller refuses it.
    """

    value: JsonValue
    text: str
    value_at: Mapping[JsonPath, int]
    key_at: Mapping[JsonPath, int]
    duplicates: tuple[Duplicate, ...]

    def place_of_value(self, path: JsonPath) -> Place:
        """Return where the value at `path` starts, or the nearest thing around it."""
        while path not in self.value_at:
            path = path[:-1]
        return place_at(self.text, self.value_at[path])

    def place_of_key(self, path: JsonPath) -> Place:
        """Return where the key of `path` starts, or its value where it has none."""
        if path in self.key_at:
            return place_at(self.text, self.key_at[path])
        return self.place_of_value(path)


def place_at(text: str, offset: int) -> Place:
    """Return the line and column of a character offset."""
    return Place(text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset))


def decode(data: bytes) -> str:
    """Return the text of UTF-8 bytes, without a byte order mark."""
    if len(data) > MAX_BYTES:
        raise TextError(f"is larger than {MAX_BYTES} bytes, which no configuration is")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TextError(
            f"is not UTF-8: byte 0x{error.object[error.start]:02x} at byte offset {error.start}; "
            f"save it as UTF-8"
        ) from error
    if not text.strip():
        raise TextError(
            'is empty; a small one is {"name": "demo", "worker": {"script": "train.py"}}'
        )
    return text


def parse(text: str) -> Document:
    """Parse one JSON document, or raise TextError with the place of the first fault."""
    reader = _Reader(text)
    value, end = reader.value(reader.skip(0), (), 0)
    end = reader.skip(end)
    if end != len(text):
        raise reader.error(
            f"text after the end of the document: {_show(text[end : end + 20])}", end
        )
    return Document(value, text, reader.value_at, reader.key_at, tuple(reader.duplicates))


def _show(fragment: str) -> str:
    return json.dumps(fragment, ensure_ascii=True)


class _RefusedNumberError(ValueError):
    """A number that JSON or this program does not have."""


def _constant(word: str) -> float:
    raise _RefusedNumberError(f"{word} is no JSON number; write an ordinary finite number")


def _integer(digits: str) -> int:
    if len(digits) <= _INT_DIGITS and (number := int(digits)).bit_length() <= _INT_BITS:
        return number
    shown = digits if len(digits) <= _INT_DIGITS else f"a number of {len(digits)} digits"
    raise _RefusedNumberError(f"{shown} is too large; integers have at most 64 bits")


def _float(digits: str) -> float:
    number = float(digits)
    if math.isfinite(number):
        return number
    raise _RefusedNumberError(f"{digits[:_INT_DIGITS]} is too large for a number")


_SCALARS: Final = json.JSONDecoder(
    parse_int=_integer, parse_float=_float, parse_constant=_constant, strict=True
)


@dataclass(slots=True)
class _Reader:
    """One pass over the text; recursion is bounded by MAX_DEPTH."""

    text: str
    value_at: dict[JsonPath, int] = field(default_factory=dict)
    key_at: dict[JsonPath, int] = field(default_factory=dict)
    duplicates: list[Duplicate] = field(default_factory=list)

    def error(self, what: str, offset: int) -> TextError:
        return TextError(what, place_at(self.text, offset))

    def skip(self, offset: int) -> int:
        match = _SPACE.match(self.text, offset)
        assert match is not None
        return match.end()

    def value(self, offset: int, path: JsonPath, depth: int) -> tuple[JsonValue, int]:
        self.value_at[path] = offset
        if depth > MAX_DEPTH:
            raise self.error(f"is nested deeper than {MAX_DEPTH} levels", offset)
        match self.text[offset : offset + 1]:
            case "{":
                return self.object(offset, path, depth)
            case "[":
                return self.array(offset, path, depth)
            case _:
                return self.scalar(offset)

    def object(self, offset: int, path: JsonPath, depth: int) -> tuple[JsonValue, int]:
        members: dict[str, JsonValue] = {}
        at = self.skip(offset + 1)
        if self.text[at : at + 1] == "}":
            return members, at + 1
        while True:
            key, end = self.key(at)
            here = (*path, key)
            if key in members:
                self.note_duplicate(here, at)
            self.key_at[here] = at
            at = self.skip(end)
            if self.text[at : at + 1] != ":":
                raise self.error(f'expected ":" after the key {_show(key)}, {self.found(at)}', at)
            members[key], end = self.value(self.skip(at + 1), here, depth + 1)
            at, done = self.after_item(end, "}")
            if done:
                return members, at

    def array(self, offset: int, path: JsonPath, depth: int) -> tuple[JsonValue, int]:
        items: list[JsonValue] = []
        at = self.skip(offset + 1)
        if self.text[at : at + 1] == "]":
            return items, at + 1
        while True:
            item, end = self.value(at, (*path, len(items)), depth + 1)
            items.append(item)
            at, done = self.after_item(end, "]")
            if done:
                return items, at

    def after_item(self, end: int, closing: str) -> tuple[int, bool]:
        """Return where the next item starts, or the end of the container and True."""
        at = self.skip(end)
        if self.text[at : at + 1] == closing:
            return at + 1, True
        if self.text[at : at + 1] != ",":
            raise self.error(f'expected "," or "{closing}", {self.found(at)}', at)
        following = self.skip(at + 1)
        if self.text[following : following + 1] == closing:
            raise self.error(f'a comma before "{closing}" is not allowed in JSON', at)
        return following, False

    def key(self, offset: int) -> tuple[str, int]:
        if self.text[offset : offset + 1] != '"':
            raise self.error(f"expected a key in double quotes, {self.found(offset)}", offset)
        key, end = self.scalar(offset)
        assert isinstance(key, str)
        return key, end

    def scalar(self, offset: int) -> tuple[JsonValue, int]:
        value: JsonValue
        try:
            value, end = _SCALARS.raw_decode(self.text, offset)
        except _RefusedNumberError as error:
            raise self.error(str(error), offset) from error
        except json.JSONDecodeError as error:
            raise self.scalar_error(error, offset) from error
        if isinstance(value, str) and _UNHOLDABLE.search(value):
            raise self.error("the string holds a NUL or half of a surrogate pair", offset)
        return value, end

    def scalar_error(self, error: json.JSONDecodeError, offset: int) -> TextError:
        if self.text[offset : offset + 1] != '"':
            return self.error(f"expected a value, {self.found(offset)}", offset)
        if error.msg.startswith("Invalid control character"):
            code = ord(self.text[error.pos])
            return self.error(
                f"control character 0x{code:02x} inside a string; write it as \\u{code:04x}",
                error.pos,
            )
        if error.msg.startswith("Unterminated"):
            return self.error("the string that starts here never ends", offset)
        return self.error("the string has a broken escape (after a backslash)", error.pos)

    def found(self, offset: int) -> str:
        """Say what stands at `offset`, with the advice for what people usually mean by it."""
        rest = self.text[offset : offset + 12]
        if not rest:
            return "found the end of the file"
        if rest.startswith(("//", "/*", "#")):
            return "found a comment; JSON has none"
        if rest.startswith("'"):
            return "found a single quote; JSON strings take double quotes"
        word = re.match(r"[A-Za-z0-9_.+-]+|.", rest, re.DOTALL)
        assert word is not None
        return f"found {_show(word.group())}"

    def note_duplicate(self, path: JsonPath, offset: int) -> None:
        first = place_at(self.text, self.key_at[path])
        self.duplicates.append(Duplicate(path, first, place_at(self.text, offset)))
