"""How the ranks and the job of one log ended, put together from all reports in it (pure)."""

from __future__ import annotations

from collections.abc import Callable

from humigence_supervise.domain import ExitStatus, RankExit
from humigence_supervise.observe.launchers import ended_in, more_telling


class JobEnd:
    """Collects reports in the order of lines; one that comes twice changes nothing."""

    def __init__(self) -> None:
        """Know nothing."""
        self.exits: dict[int, RankExit] = {}
        self.first_dead: int | None = None
        self.job: ExitStatus | None = None

    @property
    def by_exception(self) -> bool:
        """Whether a process ended with a code, as one does that an exception ended."""
        statuses = [known.status for known in self.exits.values()]
        return any(status.code for status in (*statuses, self.job or ExitStatus()))

    def note(self, text: str, above: Callable[[], list[str]]) -> None:
        """Take in what a line says; `above` returns the lines right above it."""
        ended = ended_in(text, above)
        if ended is None:
            return
        if not ended.ranks:
            self.job = more_telling(self.job, ended.status)
        if not ended.pid and any(known.pid for known in self.exits.values()):
            return  # a scheduler counts tasks; a launcher that names pids knows the ranks
        for rank in [rank for rank, known in self.exits.items() if known.pid == ended.pid != 0]:
            del self.exits[rank]
        for rank in ended.ranks:
            self.exits[rank] = RankExit(rank, ended.pid, ended.status)
        if ended.is_first:
            self.first_dead = ended.ranks[0]
