"""A journal in memory: what was appended survives the supervisor."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

from simulation.rules import hold
from simulation.rules_of_deciding import AT_APPEND
from simulation.world import JOURNAL_ROOM_MIB, World

from humigence_supervise.journal import decode, encode
from humigence_supervise.records import Entry, Record
from humigence_supervise.state import State, apply, fold

STAMP = "2026-01-01T00:00:00.000000Z"


class SimJournal:
    """The one file that survives. `folded` is what its entries mean."""

    def __init__(self, world: World, *, persisted: bool) -> None:
        """Begin empty; `persisted`: the lines are encoded, and read back after a crash."""
        self.path = Path("/sim/journal.jsonl")
        self.world = world
        self.persisted = persisted
        self.records: list[Record] = []
        self.lines: list[bytes] = []
        self.folded = State()
        self.ballast = True

    def append(self, records: Iterable[Record], *, decisive: bool = True) -> tuple[Entry, ...]:
        """Make records durable; who dies meanwhile leaves some of the lines."""
        together = tuple(records)
        if not together:
            return ()
        self.world.act()
        self._find_room(decisive=decisive)
        ns = int(self.world.now_s * 1e9)
        first, last = len(self.records) + 1, len(together) - 1
        entries = tuple(
            Entry(first + at, STAMP, ns, "sim", record, last - at)
            for at, record in enumerate(together)
        )
        for entry in entries:
            if self.persisted:
                self.lines.append(encode(entry).rstrip(b"\n"))
            if entry.more:
                self.world.act()
        for record in together:
            self._durable(record)
        self.world.act()
        return entries

    def reserve(self) -> None:
        """Put the ballast back where there is room."""
        self.ballast = self.ballast or self.world.disk_mib >= JOURNAL_ROOM_MIB

    def read_back(self) -> State:
        """Return the fold of what is on disk; lines written together count together or not."""
        if not self.persisted:
            return fold(self.records)
        entries = [decode(line) for line in self.lines]
        while entries and entries[-1].more:
            entries.pop()
        del self.lines[len(entries) :]
        return fold(entry.record for entry in entries)

    def _find_room(self, *, decisive: bool) -> None:
        if self.world.journal_broken:
            self.world.journal_broken -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if self.world.disk_mib >= JOURNAL_ROOM_MIB:
            return
        if decisive and self.ballast:
            self.ballast = False
            return
        self.world.notes.news_dropped |= not decisive
        self.world.notes.disk_full_at_s = self.world.now_s
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _durable(self, record: Record) -> None:
        self.records.append(record)
        self.folded = apply(self.folded, record)
        self.world.notes.journaled(record, self.world)
        hold(AT_APPEND, self.world, record)
