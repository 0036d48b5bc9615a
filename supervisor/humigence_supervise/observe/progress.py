"""Reading the progress files of an attempt: live in small bites, or all of it for the ledger.

The files are written by the worker, so nothing in them is trusted: a line that is not exactly a
`contract.ProgressLine` is skipped and counted.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from humigence_supervise.domain import Progress, Section
from humigence_supervise.observe.growing_file import GrowingFile

MAX_LINE_BYTES: Final = 16 * 1024
MAX_COUNT: Final = 10**18
MAX_RANK_DIGITS: Final = 5
READ_BYTES: Final = 64 * 1024
POLL_BYTES: Final = 512 * 1024
SECTIONS: Final = {section.value: section for section in Section}


def parse_line(rank: int, raw: bytes) -> Progress:
    """Return what one line of ``<rank>.jsonl`` says, or raise ValueError."""
    try:
        value = json.loads(raw.decode())
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - callers rely on ValueError alone
    first, last = _sample_range(value.get("samples"))
    loss, section, target = value.get("loss"), value.get("section"), value.get("target_step")
    at_s = _number(value.get("ts"))
    if not 0 <= at_s < MAX_COUNT:
        raise ValueError("'ts' is no time")
    if not isinstance(section, str) or section not in SECTIONS:
        raise ValueError("'section' is unknown")
    return Progress(
        rank=rank,
        at_s=at_s,
        step=_count(value.get("step")),
        epoch=_count(value.get("epoch")),
        first_sample=first,
        last_sample=last,
        loss=None if loss is None else _number(loss),
        section=SECTIONS[section],
        target_step=None if target is None else _count(target),
    )


def rank_files(progress_dir: Path) -> dict[int, Path]:
    """Return the progress file of each rank, by rank; empty while the folder does not exist.

    Raises:
        OSError: the folder is there but cannot be listed.
    """
    try:
        names = os.listdir(progress_dir)  # noqa: PTH208 - names are all we need, twice a second
    except FileNotFoundError:
        return {}
    stems = (name.removesuffix(".jsonl") for name in names if name.endswith(".jsonl"))
    ranks = sorted(int(stem) for stem in stems if _is_rank(stem))
    return {rank: progress_dir / f"{rank}.jsonl" for rank in ranks}


@dataclass(slots=True)
class RankReader:
    """One rank's file, cut into lines. `skipped` counts lines that were no progress."""

    rank: int
    file: GrowingFile
    skipped: int = 0
    _held: bytes = b""
    _overlong: bool = False
    _restarts: int = 0

    def read(self, most_bytes: int) -> list[Progress]:
        """Return the progress in the next bytes; the unfinished last line waits for its end.

        Raises:
            OSError: the file cannot be read.
        """
        data = self.file.read(most_bytes)
        if self.file.restarts != self._restarts:
            self._restarts = self.file.restarts
            self._held, self._overlong = b"", False
        if not data:
            return []
        *lines, self._held = (self._held + data).split(b"\n")
        found = [one for one in map(self._parse, lines) if one is not None]
        if len(self._held) > MAX_LINE_BYTES:
            self._held, self._overlong = b"", True
        return found

    def drain(self) -> Iterator[Progress]:
        """Yield the progress up to where the file ends now.

        Raises:
            OSError: the file cannot be read.
        """
        waiting = self.file.waiting_bytes()
        end = self.file.offset + waiting
        while self.file.offset < end:
            before = self.file.offset
            yield from self.read(READ_BYTES)
            if self.file.offset <= before:
                break

    def _parse(self, line: bytes) -> Progress | None:
        overlong, self._overlong = self._overlong, False
        if not overlong and not line.strip():
            return None
        if not overlong and len(line) <= MAX_LINE_BYTES:
            try:
                return parse_line(self.rank, line)
            except ValueError:
                pass
        self.skipped += 1
        return None


@dataclass(slots=True)
class ProgressTail:
    """The progress of a live attempt; `poll` it as often as you like.

    Nothing new costs one listing and one stat a rank. `unread` is why the last poll could not
    read something ("" when it could read everything): silence is then no sign of a hang.
    """

    progress_dir: Path
    unread: str = ""
    _readers: dict[int, RankReader] = field(default_factory=dict)
    _turn: int = 0

    @property
    def skipped(self) -> int:
        """Lines so far, over all ranks, that were no progress."""
        return sum(reader.skipped for reader in self._readers.values())

    def poll(self, most_bytes: int = POLL_BYTES) -> tuple[Progress, ...]:
        """Return what came since the last poll, in file order within a rank.

        Reads about `most_bytes` at most and goes on with the next rank at the next poll, so a
        flood in one file starves no other. Never raises OSError; see `unread`.
        """
        self.unread = ""
        self._find_files()
        ranks = sorted(self._readers)
        found: list[Progress] = []
        share = max(most_bytes // max(len(ranks), 1), MAX_LINE_BYTES)
        for _ in ranks:
            if most_bytes <= 0:
                break
            reader = self._readers[ranks[self._turn % len(ranks)]]
            self._turn = (self._turn + 1) % len(ranks)
            before = reader.file.offset
            found.extend(self._read(reader, min(share, most_bytes)))
            most_bytes -= max(reader.file.offset - before, 0)
        return tuple(found)

    def drain(self) -> Iterator[Progress]:
        """Yield everything that the files hold by now and no poll returned yet.

        Never raises OSError; see `unread`.
        """
        self.unread = ""
        self._find_files()
        for rank in sorted(self._readers):
            reader = self._readers[rank]
            try:
                yield from reader.drain()
            except OSError as error:
                self.unread = f"{reader.file.path} could not be read ({error.strerror})"

    def _find_files(self) -> None:
        try:
            files = rank_files(self.progress_dir)
        except OSError as error:
            self.unread = f"{self.progress_dir} could not be listed ({error.strerror})"
            return
        for rank, path in files.items():
            if rank not in self._readers:
                self._readers[rank] = RankReader(rank, GrowingFile(path))

    def _read(self, reader: RankReader, most_bytes: int) -> list[Progress]:
        try:
            return reader.read(most_bytes)
        except OSError as error:
            self.unread = f"{reader.file.path} could not be read ({error.strerror})"
            return []


def stream(progress_dir: Path) -> Iterator[Progress]:
    """Yield the progress of every rank of an attempt, rank after rank, in constant memory.

    An unfinished last line is left out. Lines appended while this runs may be left out.

    Raises:
        OSError: a file or the folder cannot be read.
    """
    for rank, path in rank_files(progress_dir).items():
        yield from RankReader(rank, GrowingFile(path)).drain()


def _is_rank(stem: str) -> bool:
    digits = stem.isascii() and stem.isdigit() and len(stem) <= MAX_RANK_DIGITS
    return digits and stem == str(int(stem))


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value < MAX_COUNT:
        raise ValueError("not a count")
    return value


def _number(value: object) -> float:
    """Return a float; NaN and infinity are facts about a loss and are passed on."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError("not a number")  # noqa: TRY004 - as above
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _sample_range(value: object) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2:  # noqa: PLR2004 - a range has two ends
        raise ValueError("'samples' is no range")
    first, last = _count(value[0]), _count(value[1])
    if first > last:
        raise ValueError("'samples' ends before it begins")
    return first, last
