"""`events`: the journal as it grows, and its schema."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from humigence_supervise.journal import JournalError, decode
from humigence_supervise.observe.growing_file import GrowingFile
from humigence_supervise.records import FIXED_COLUMNS, Entry, Event, Json, Level

POLL_BYTES = 1 << 20
ENDS = frozenset((Event.RUN_COMPLETED, Event.RUN_STOPPED, Event.RUN_GAVE_UP, Event.RUN_FAILED))


class JournalTail:
    """Reads a journal from its beginning on; `ended` once the newest entry ended the run."""

    def __init__(self, path: Path, since: datetime | None) -> None:
        """Read entries from `since` on (aware), all of them without it."""
        self._file = GrowingFile(path)
        self._since = since
        self._held = b""
        self.ended = False

    def poll(self) -> list[Entry]:
        """Return the entries that were completed since the last poll.

        Raises:
            JournalError: a complete line is damaged.
            OSError: the journal cannot be read.
        """
        found: list[Entry] = []
        while data := self._file.read(POLL_BYTES):
            *lines, self._held = (self._held + data).split(b"\n")
            for line in lines:
                try:
                    found.append(decode(line))
                except (ValueError, KeyError) as problem:
                    raise JournalError(f"{self._file.path}: a line is damaged: {problem}") from None
        if found:
            self.ended = found[-1].record.event in ENDS
        return [e for e in found if self._since is None or _when(e) >= self._since]


def parse_since(text: str | None) -> datetime | None:
    """Return the time that `--since` means; without a zone it is UTC.

    Raises:
        SinceError: it is no ISO 8601 time.
    """
    if text is None:
        return None
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise SinceError(
            f"--since {text!r} is no time; write it like 2026-01-31T22:00 (UTC unless it says)"
        ) from None
    return when if when.tzinfo is not None else when.replace(tzinfo=UTC)


class SinceError(ValueError):
    """What was given to `--since` is no time."""


def event_schema() -> dict[str, Json]:
    """Return the JSON Schema (draft 2020-12) of a journal line. Facts stand beside the columns."""
    nullable_text: Json = {"type": ["string", "null"]}
    columns: dict[str, Json] = {
        "seq": {"type": "integer", "minimum": 1},
        "ts": {"type": "string", "format": "date-time"},
        "mono_ns": {"type": "integer"},
        "event": {"enum": [event.value for event in Event]},
        "level": {"enum": [level.value for level in Level]},
        "run": {"type": "string"},
        "attempt": {"type": ["integer", "null"], "minimum": 1},
        "rung": nullable_text,
        "message": {"type": "string"},
        "more": {"type": "integer", "minimum": 1},
        "crc": {"type": "string", "pattern": "^[0-9a-f]{8}$"},
    }
    assert columns.keys() == FIXED_COLUMNS
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A line of journal.jsonl",
        "type": "object",
        "properties": columns,
        "required": [name for name in columns if name != "more"],
        "additionalProperties": True,
    }


def _when(entry: Entry) -> datetime:
    return datetime.fromisoformat(entry.ts)
