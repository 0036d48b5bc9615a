"""Which run a person means: a config file, a run directory, or a run's name."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Final

from humigence_supervise.contract import JOURNAL_FILE
from humigence_supervise.printable import for_people

RUNS_DIR: Final = "runs"
MAX_CONFIG_BYTES: Final = 4 * 1024 * 1024
MAX_LISTED_RUNS: Final = 10


class RunNotFoundError(ValueError):
    """No run is meant by what was typed; the message says what was tried and what there is."""


class _NotThisError(ValueError):
    """One way of reading the reference does not lead to a run; the message says why."""


def resolve(ref: str, cwd: Path) -> Path:
    """Return the run directory that `ref` means, seen from the folder `cwd` (absolute).

    Tried in this order: a config file, a run directory (it has a journal), a run's name below
    ``runs/``. Of a config only `name` and `run_dir` are read, so a run can be looked at while
    its config is being edited.

    Raises:
        RunNotFoundError: none of them is a run.
    """
    problems: list[str] = []
    for attempt in (_by_path, _by_name):
        try:
            return attempt(ref, cwd)
        except _NotThisError as error:
            problems.append(f"  {error}")
    message = [f"{ref!r} means no run. Tried:", *problems, _existing_runs(cwd / RUNS_DIR)]
    raise RunNotFoundError("\n".join(for_people(line) for line in message))


def _by_path(ref: str, cwd: Path) -> Path:
    if not ref or "\0" in ref:
        raise _NotThisError("a path: it is no path")
    path = Path(os.path.normpath(cwd / ref))
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise _NotThisError(f"a path: {path} ({error.strerror})") from None
    if stat.S_ISDIR(mode):
        return _with_journal(path, f"a run directory: {path}")
    if not stat.S_ISREG(mode):
        raise _NotThisError(f"a config file: {path} is no regular file")
    run_dir = _configured_run_dir(path)
    return _with_journal(run_dir, f"a config file: its run directory {run_dir}")


def _by_name(ref: str, cwd: Path) -> Path:
    if not ref or "/" in ref or "\0" in ref or ref in {".", ".."}:
        raise _NotThisError("a run's name: a name has no '/' and is not empty")
    path = cwd / RUNS_DIR / ref
    return _with_journal(path, f"a run's name: {path}")


def _with_journal(run_dir: Path, what: str) -> Path:
    try:
        (run_dir / JOURNAL_FILE).stat()
    except FileNotFoundError:
        exists = run_dir.exists()
        missing = f"has no {JOURNAL_FILE}, so no run was started there" if exists else "is missing"
        raise _NotThisError(f"{what} {missing}") from None
    except OSError as error:
        raise _NotThisError(f"{what} cannot be looked at ({error.strerror})") from None
    return run_dir


def _configured_run_dir(config: Path) -> Path:
    """Return where the config at this path puts its run, as `config.parse_settings` does."""
    try:
        with config.open("rb") as file:
            raw = file.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise _NotThisError(f"a config file: {config} ({error.strerror})") from None
    if len(raw) > MAX_CONFIG_BYTES:
        raise _NotThisError(f"a config file: {config} is larger than any config")
    try:
        value = json.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        raise _NotThisError(f"a config file: {config} is not valid JSON") from None
    name, run_dir = (value.get("name"), value.get("run_dir")) if isinstance(value, dict) else (0, 0)
    if run_dir is None and isinstance(name, str) and name:
        run_dir = f"{RUNS_DIR}/{name}"
    if not isinstance(run_dir, str) or not run_dir or "\0" in run_dir:
        raise _NotThisError(f"a config file: {config} says neither 'name' nor 'run_dir'")
    return Path(os.path.normpath(Path(os.path.realpath(config.parent)) / run_dir))


def _existing_runs(root: Path) -> str:
    try:
        runs = sorted(path.parent.name for path in root.glob(f"*/{JOURNAL_FILE}"))
    except OSError:
        runs = []
    if not runs:
        return f"There are no runs below {root}. Start one with: humigence-supervise start CONFIG"
    more = len(runs) - MAX_LISTED_RUNS
    names = ", ".join(runs[:MAX_LISTED_RUNS]) + (f" and {more} more" if more > 0 else "")
    return f"Runs below {root}: {names}."
