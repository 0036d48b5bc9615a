"""Typed access to the facts of a journaled record. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

from humigence_supervise.records import Record

E = TypeVar("E", bound=StrEnum)


class FactError(ValueError):
    """A fact is missing or of the wrong type."""


class Facts:
    """A record's facts by name; what is not of the wanted type is refused.

    The `optional_` ones return None for a fact that is null or that an older version did not
    write.
    """

    def __init__(self, record: Record) -> None:
        """Read the facts of `record`."""
        self._record = record

    def attempt(self) -> int:
        """Return the record's attempt."""
        if self._record.attempt is None:
            raise FactError(f"{self._record.event.value} has no attempt")
        return self._record.attempt

    def integer(self, key: str) -> int:
        """Return a whole number."""
        value = self._record.facts.get(key)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._bad(key, "an integer")
        return value

    def optional_integer(self, key: str) -> int | None:
        """Return a whole number, where there is one."""
        return None if self._record.facts.get(key) is None else self.integer(key)

    def number(self, key: str) -> float:
        """Return a number."""
        value = self._record.facts.get(key)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self._bad(key, "a number")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        """Return a number, where there is one."""
        return None if self._record.facts.get(key) is None else self.number(key)

    def text(self, key: str) -> str:
        """Return a text."""
        value = self._record.facts.get(key)
        if not isinstance(value, str):
            raise self._bad(key, "a string")
        return value

    def optional_text(self, key: str) -> str | None:
        """Return a text, where there is one."""
        return None if self._record.facts.get(key) is None else self.text(key)

    def member(self, key: str, kinds: type[E]) -> E:
        """Return a text that is a member of an enumeration."""
        value = self.text(key)
        try:
            return kinds(value)
        except ValueError:
            raise self._bad(key, f"a {kinds.__name__.lower()} known to this version") from None

    def optional_member(self, key: str, kinds: type[E]) -> E | None:
        """Return a member of an enumeration, where there is one."""
        return None if self._record.facts.get(key) is None else self.member(key, kinds)

    def boolean(self, key: str) -> bool:
        """Return true or false."""
        value = self._record.facts.get(key)
        if not isinstance(value, bool):
            raise self._bad(key, "true or false")
        return value

    def optional_boolean(self, key: str) -> bool | None:
        """Return true or false, where it was said."""
        return None if self._record.facts.get(key) is None else self.boolean(key)

    def texts(self, key: str) -> tuple[str, ...] | None:
        """Return a list of texts, where there is one."""
        value = self._record.facts.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._bad(key, "a list of strings")
        return tuple(map(str, value))

    def _bad(self, key: str, wanted: str) -> FactError:
        return FactError(f"{self._record.event.value}: the fact {key!r} is not {wanted}")
