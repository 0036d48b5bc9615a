"""Everything a live attempt shows, as happenings: exits, progress, checkpoints, log lines."""

from __future__ import annotations

import select
from collections.abc import Iterable
from pathlib import Path

from humigence_supervise import contract
from humigence_supervise.catalogue import Catalogue
from humigence_supervise.checkpoints.choose import candidates
from humigence_supervise.checkpoints.verify import verify
from humigence_supervise.domain import Beginning, Progress, RankExit, Role, Section
from humigence_supervise.gate import Gate
from humigence_supervise.happenings import (
    CheckpointSeen,
    Happening,
    LogSampled,
    ProgressMade,
    RankDied,
    SignatureSeen,
)
from humigence_supervise.observe.exits import RankWatch
from humigence_supervise.observe.logs import LogTail
from humigence_supervise.observe.progress import ProgressTail
from humigence_supervise.records import Json

STDERR_LOG = "stderr.log"
SIGNATURES_MAX = 20
"""Distinct root signatures journaled of one attempt while it lives; the diagnosis reads all."""


class AttemptWatch:
    """The eyes on one attempt. `poll` is cheap where nothing changed and never blocks.

    Nothing that a worker leaves lying about stops them: what the last poll could not read stands
    in `unread`, one sentence each, and the rest was read all the same.
    """

    def __init__(
        self, attempt_dir: Path, world_size: int, checkpoint_dir: Path, catalogue: Catalogue
    ) -> None:
        """Watch the attempt that writes into `attempt_dir`."""
        self._ranks = RankWatch(attempt_dir, world_size)
        self._progress = ProgressTail(attempt_dir / contract.PROGRESS_DIR)
        self._checkpoint_dir = checkpoint_dir
        self._seen_checkpoint = -1
        self._catalogue = catalogue
        gate = Gate(catalogue.literals)  # one for all: what it remembers is true of every rank
        self._tails = {
            rank: LogTail(attempt_dir / contract.RANKS_DIR / str(rank) / STDERR_LOG, gate)
            for rank in range(world_size)
        }
        self._said_skipped = dict.fromkeys(self._tails, 0)
        self._matched: set[tuple[int, str]] = set()
        self.exits: dict[int, RankExit] = {}
        self.first_dead: int | None = None
        self.last_progress: Progress | None = None
        self.began: Beginning | None = None
        self._first_line: Progress | None = None
        self._second_seen = False
        self.target_step: int | None = None
        self.unread: tuple[str, ...] = ()

    def descriptors(self) -> tuple[int, ...]:
        """Return what becomes readable when a rank ends."""
        return self._ranks.fds

    def poll(self) -> list[Happening]:
        """Return what happened since the last poll; never raises OSError, see `unread`."""
        unread: list[str] = []
        happenings = [
            *self._progressed(self._progress.poll(), unread),
            *self._saved(unread),
            *self._spoke(unread),
            *self._died(unread),
        ]
        self.unread = tuple(unread)
        return happenings

    def drain(self) -> list[Happening]:
        """Read the progress to where it ends now, however much there is; never raises OSError."""
        unread: list[str] = []
        happenings = self._progressed(self._progress.drain(), unread)
        self.unread = tuple(dict.fromkeys((*self.unread, *unread)))
        return happenings

    def close(self) -> None:
        """Let go of the pidfds and the logs."""
        self._ranks.close()
        for tail in self._tails.values():
            tail.close()

    def _died(self, unread: list[str]) -> list[Happening]:
        happenings: list[Happening] = []
        gone = self._ranks.discover()
        unread += self._ranks.unread
        readable = select.select(self._ranks.fds, [], [], 0)[0]
        for exit_ in (*gone, *self._ranks.exits(readable)):
            self.exits[exit_.rank] = exit_
            if self.first_dead is None and not exit_.status.ok:
                self.first_dead = exit_.rank
            happenings.append(RankDied(exit_))
        return happenings

    def _progressed(self, lines: Iterable[Progress], unread: list[str]) -> list[Happening]:
        newest = self.last_progress
        for progress in lines:
            self._notice_beginning(progress)
            if progress.target_step is not None:
                self.target_step = progress.target_step
            if progress.section in (Section.INIT, Section.TRAIN) and (
                newest is None or progress.step >= newest.step
            ):
                newest = progress
        if self._progress.unread:
            unread.append(self._progress.unread)
        if newest is self.last_progress or newest is None:
            return []
        self.last_progress = newest
        return [ProgressMade(newest, self.began)]

    def _notice_beginning(self, line: Progress) -> None:
        """Learn from the first lines of the rank heard first at which step the worker began.

        A worker that reports every k-th step began up to k steps before the first it reports.
        """
        first = self._first_line
        if first is None and line.section in (Section.INIT, Section.TRAIN):
            self._first_line = line
            told = line.section is Section.INIT
            self.began = Beginning(line.step if told else 0, line.step - (not told))
        elif first is None or first.section is Section.INIT or self._second_seen:
            return
        elif line.section is Section.TRAIN and line.rank == first.rank:
            self._second_seen = True
            stride = max(1, line.step - first.step)
            self.began = Beginning(max(0, first.step - stride), first.step - 1)

    def _saved(self, unread: list[str]) -> list[Happening]:
        try:
            newest = candidates(self._checkpoint_dir)[:1]
        except OSError as error:
            unread.append(f"{self._checkpoint_dir} could not be listed ({error.strerror})")
            return []
        for candidate in newest:
            if candidate.step > self._seen_checkpoint:
                verdict = verify(candidate.path, digests=False)
                if verdict.checkpoint is not None:
                    self._seen_checkpoint = candidate.step
                    return [CheckpointSeen(verdict.checkpoint)]
        return []

    def _spoke(self, unread: list[str]) -> list[Happening]:
        happenings: list[Happening] = []
        for rank, tail in self._tails.items():
            try:
                lines = tail.poll()
            except OSError as error:
                unread.append(f"the log of rank {rank} could not be read ({error.strerror})")
                continue
            if tail.skipped_bytes > 2 * self._said_skipped[rank]:  # thinned: said when it doubled
                self._said_skipped[rank] = tail.skipped_bytes
                file = f"{contract.RANKS_DIR}/{rank}/{STDERR_LOG}"
                happenings.append(LogSampled(rank, file, tail.skipped_bytes))
            for line in lines:
                row = self._catalogue.match(line.text)
                if row is None or row.role is not Role.ROOT:
                    continue
                key = (rank, row.id)
                if key in self._matched or len(self._matched) >= SIGNATURES_MAX:
                    continue
                self._matched.add(key)
                facts: dict[str, Json] = {
                    "rank": rank,
                    "signature": row.id,
                    "kind": row.kind.value,
                    "text": line.text[:500],
                }
                happenings.append(SignatureSeen(facts, f"Rank {rank}: {row.means}"))
        return happenings
