"""What `replay` is asked about, a journal or a log, and under which policy (fs)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from humigence_supervise import contract
from humigence_supervise.budgets import Policy
from humigence_supervise.config import Settings
from humigence_supervise.history import text
from humigence_supervise.journal import NewerJournalError, decode
from humigence_supervise.reading import STDIN
from humigence_supervise.records import Entry, Json
from humigence_supervise.run import policy_of
from humigence_supervise.run_ref import RunNotFoundError, resolve
from humigence_supervise.settings_file import read_settings
from humigence_supervise.small_json import read_small_object

_FIRST_LINE_BYTES = 1 << 20


def find_journal(source: str, cwd: Path) -> Path | None:
    """Return the journal that `source` means, None where it is a log or a folder of logs.

    Raises:
        RunNotFoundError: it is neither there, nor the name of a run.
    """
    if source == STDIN:
        return None
    path = Path(os.path.normpath(cwd / source.replace("\0", "")))
    there = bool(source) and _is_there(path)
    if there and path.is_file() and _is_journal(path):
        return path
    try:
        return resolve(source, cwd) / contract.JOURNAL_FILE
    except RunNotFoundError:
        if not there or "worker" in (read_small_object(path) or {}):
            raise  # the config of a run that was never started is no log
        return None


def _is_there(path: Path) -> bool:
    try:
        path.stat()
    except OSError:  # not there, not to be reached, or too long for a name
        return False
    return True


def _is_journal(path: Path) -> bool:
    """Say whether a file begins as a journal does; one with its name is, even a damaged one."""
    if path.name == contract.JOURNAL_FILE:
        return True
    try:
        with path.open("rb") as file:
            decode(file.readline(_FIRST_LINE_BYTES).removesuffix(b"\n"))
    except NewerJournalError:
        return True
    except (OSError, ValueError, KeyError):
        return False
    return True


@dataclass(frozen=True, slots=True)
class Chosen:
    """The policy, where it comes from, and the settings it stands in, if any."""

    policy: Policy
    says: dict[str, Json]
    settings: Settings | None = None

    @classmethod
    def of(cls, config: Path | None, entries: tuple[Entry, ...] = ()) -> Chosen:
        """Return the policy of the config named by the user, or by the journal, or the default."""
        if config is not None:
            return cls._read(config, "named on the command line")
        named = text(entries[0].record, "config") if entries else ""
        if not named:
            return cls._default("no config is named")
        try:
            return cls._read(Path(named), "the run was started with it; as it is now")
        except ValueError as problem:
            why = "; ".join(str(problem).splitlines())
            return cls._default(f"the run's config cannot be used now: {why}")

    @classmethod
    def _read(cls, config: Path, why: str) -> Chosen:
        settings = read_settings(config)
        says: dict[str, Json] = {"source": "config", "config": str(config), "why": why}
        return cls(policy_of(settings), says, settings)

    @classmethod
    def _default(cls, why: str) -> Chosen:
        return cls(Policy(), {"source": "default", "config": None, "why": why})
