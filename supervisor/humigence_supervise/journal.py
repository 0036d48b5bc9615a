"""The append-only journal: one JSON object a line, fsynced, each line with its own CRC-32.

The file is the run's only state. What was written last and is torn (the machine died meanwhile) is
cut off and kept aside: all that was written together, not only its last line. Damage anywhere else
is refused, because a decision built on a hole is worse than none.
"""

from __future__ import annotations

import errno
import json
import os
import time
import zlib
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from humigence_supervise.durable import sync_folder
from humigence_supervise.records import FIXED_COLUMNS, Entry, Event, Json, Level, Record

BALLAST_BYTES = 256 * 1024
"""Kept reserved beside the journal and given up when the disk is full, so that the decision
(and the message that the disk is full) can still be written. A decision's lines take < 16 KiB."""


class JournalError(ValueError):
    """The journal cannot be trusted or written; the message names file, line and remedy."""


class NewerJournalError(JournalError):
    """A whole line says something this version does not know."""


class Journal:
    """An open journal, positioned at its end; use `open_journal` to get one."""

    def __init__(self, path: Path, descriptor: int, run: str, next_seq: int) -> None:
        """Take over `descriptor` (append mode); entries are numbered from `next_seq`."""
        self.path = path
        self._descriptor = descriptor
        self._next_seq = next_seq
        self._ballast = path.with_name("journal.ballast")
        self.run = run
        self.reserve()

    def append(self, records: Iterable[Record], *, decisive: bool = True) -> tuple[Entry, ...]:
        """Write the records, make them durable, and return them as entries.

        On a full disk the ballast is given up for what is `decisive` only.

        Raises:
            JournalError: the file is no longer where it was; a run whose folder was moved or
                deleted must not be decided on any further.
            OSError: they could not be made durable; nothing may be done on their strength.
        """
        entries = []
        together = tuple(records)
        for offset, record in enumerate(together):
            more = len(together) - offset - 1
            now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
            entries.append(
                Entry(self._next_seq + offset, now, time.monotonic_ns(), self.run, record, more)
            )
        if entries:
            self._write(b"".join(encode(entry) for entry in entries), decisive=decisive)
            self._next_seq += len(entries)
        return tuple(entries)

    def _write(self, block: bytes, *, decisive: bool) -> None:
        end = self._size()
        try:
            self._write_or_cut(block, end)
        except OSError as problem:
            full = problem.errno in (errno.ENOSPC, errno.EDQUOT)
            if not (full and decisive and self._ballast.exists()):
                raise
            self._ballast.unlink()
            self._write_or_cut(block, end)
        os.fdatasync(self._descriptor)

    def _size(self) -> int:
        """Return how long the file is; it must still be the one at its path."""
        own = os.fstat(self._descriptor)
        try:
            there = self.path.stat()
        except FileNotFoundError:
            there = None
        if there is None or (there.st_dev, there.st_ino) != (own.st_dev, own.st_ino):
            raise JournalError(
                f"{self.path} was moved or deleted while the run was supervised. Put it back and"
                " start again; a living attempt goes on and will be adopted."
            )
        return own.st_size

    def _write_or_cut(self, block: bytes, end: int) -> None:
        """Write it all, or leave the file as long as it was."""
        try:
            _write_all(self._descriptor, block)
        except OSError:
            os.ftruncate(self._descriptor, end)
            raise

    def reserve(self) -> None:
        """Put the ballast (back) in place where there is room for it."""
        if self._ballast.exists():
            return
        try:
            descriptor = os.open(self._ballast, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError:
            return
        try:
            os.posix_fallocate(descriptor, 0, BALLAST_BYTES)
        except OSError:
            self._ballast.unlink(missing_ok=True)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Close the file; entries written are durable already."""
        os.close(self._descriptor)


def open_journal(path: Path, run: str) -> tuple[Journal, tuple[Entry, ...]]:
    """Open (or create) the journal for writing and replay what it holds.

    The caller holds the run's supervisor lock. A torn tail is moved to ``<name>.torn-<offset>``.

    Raises:
        JournalError: a line other than the last is damaged.
        OSError: the file cannot be opened.
    """
    entries, good_bytes, torn = _read(path)
    if torn:
        aside = path.with_name(f"{path.name}.torn-{good_bytes}")
        aside.write_bytes(torn)
        os.truncate(path, good_bytes)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.fdatasync(descriptor)
    sync_folder(path.parent)
    return Journal(path, descriptor, run, len(entries) + 1), entries


def read_journal(path: Path) -> tuple[Entry, ...]:
    """Read a journal that another process may be writing; a torn tail is passed over.

    Raises:
        JournalError: a line other than the last is damaged.
        OSError: the file cannot be read.
    """
    return _read(path)[0]


def encode(entry: Entry) -> bytes:
    """Return the entry as one line. The CRC is over the object as it stands without it."""
    record = entry.record
    taken = FIXED_COLUMNS & record.facts.keys()
    assert not taken, f"facts use fixed columns: {sorted(taken)}"
    body = json.dumps(
        {
            "seq": entry.seq,
            "ts": entry.ts,
            "mono_ns": entry.mono_ns,
            "event": record.event.value,
            "level": record.level.value,
            "run": entry.run,
            "attempt": record.attempt,
            "rung": record.rung,
            "message": record.message,
            **({"more": entry.more} if entry.more else {}),
            **record.facts,
        },
        ensure_ascii=False,
        separators=(",", ":"),
        allow_nan=False,
    ).encode("utf-8", "backslashreplace")
    return b'%s,"crc":"%08x"}\n' % (body[:-1], zlib.crc32(body))


def decode(line: bytes) -> Entry:
    """Return the entry of one line (without its newline).

    Raises:
        ValueError: it is not a line of ours, or its CRC does not match.
    """
    head, mark, tail = line.rpartition(b',"crc":"')
    if not mark or zlib.crc32(head + b"}") != int(tail.removesuffix(b'"}'), 16):
        raise ValueError("the CRC does not match")
    columns: dict[str, Json] = json.loads(head + b"}")
    facts = {key: value for key, value in columns.items() if key not in FIXED_COLUMNS}
    seq, mono_ns, attempt, rung = (columns[k] for k in ("seq", "mono_ns", "attempt", "rung"))
    more = columns.get("more", 0)
    if not (isinstance(seq, int) and isinstance(mono_ns, int) and isinstance(more, int)):
        raise ValueError("seq, mono_ns and more must be integers")  # noqa: TRY004 - callers expect this
    try:
        event = Event(str(columns["event"]))
    except ValueError:
        raise NewerJournalError(
            f"the event {columns['event']!r} is unknown: a newer version wrote this journal."
            " Nothing was started or changed; use that version, or begin anew with `start --fresh`."
        ) from None
    record = Record(
        event=event,
        message=str(columns["message"]),
        level=Level(str(columns["level"])),
        attempt=attempt if isinstance(attempt, int) else None,
        rung=rung if isinstance(rung, str) else None,
        facts=facts,
    )
    return Entry(seq, str(columns["ts"]), mono_ns, str(columns["run"]), record, more)


def _read(path: Path) -> tuple[tuple[Entry, ...], int, bytes]:
    """Return the entries, the bytes they take, and what follows them (a torn tail).

    Entries written together count together: the first lines of a torn block are torn with it, for
    a decision without what carries it out would be another one.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return (), 0, b""
    entries: list[Entry] = []
    whole = good = whole_bytes = 0
    while good < len(content):
        end = content.find(b"\n", good)
        if end < 0:
            break
        try:
            entry = decode(content[good:end])
        except NewerJournalError as problem:
            raise NewerJournalError(f"{path}:{len(entries) + 1}: {problem}") from None
        except (ValueError, KeyError) as problem:
            if end + 1 == len(content):
                break
            raise _damage(path, len(entries) + 1, str(problem)) from problem
        if entry.seq != len(entries) + 1:
            raise _damage(path, len(entries) + 1, f"its seq is {entry.seq}")
        entries.append(entry)
        good = end + 1
        if entry.more == 0:
            whole, whole_bytes = len(entries), good
    return tuple(entries[:whole]), whole_bytes, content[whole_bytes:]


def _damage(path: Path, line: int, what: str) -> JournalError:
    return JournalError(
        f"{path}:{line}: the journal is damaged in the middle ({what}). Nothing was started or"
        " changed. Restore the file from a backup, or begin anew with `start --fresh`, which"
        " keeps this one aside."
    )


def _write_all(descriptor: int, block: bytes) -> None:
    view = memoryview(block)
    while view:
        view = view[os.write(descriptor, view) :]
