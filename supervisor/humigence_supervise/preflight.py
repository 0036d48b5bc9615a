"""Is everything there that the first attempt needs? Looked at before anything is started."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from humigence_supervise import ladder
from humigence_supervise.config import ConfigError, Settings
from humigence_supervise.domain import Host, RunPaths

_FULL = (errno.ENOSPC, errno.EDQUOT)


def preflight(settings: Settings) -> None:
    """Check the files and folders a run needs; make its run directory, closed to other users.

    Raises:
        ConfigError: what is missing, one sentence each, with the key that names it.
    """
    found = problems(settings) or tuple(_run_dir(settings.run_dir))
    if found:
        raise ConfigError(found)


def problems(settings: Settings) -> tuple[str, ...]:
    """Return what is missing of the files and folders a run needs; only looks."""
    return (*_program(settings), *_folders(settings))


def check_ladder(settings: Settings, host: Host) -> None:
    """Check that every rung can be planned on this host: a fallback must not fail on its sums.

    Raises:
        ConfigError: which rungs cannot, and what would do, one sentence each.
    """
    paths = RunPaths(settings.name, "check", settings.run_dir, settings.checkpoints.dir)
    found: list[str] = []
    for index in range(len(settings.ladder)):
        try:
            ladder.plan(
                settings,
                paths,
                index,
                host=host,
                attempt=1,
                resume_from=None,
                port=1,
                inherited={},
            )
        except ladder.PlanError as error:
            found.append(f"ladder[{index}]: {error}")
    if found:
        raise ConfigError(tuple(found))


def _program(settings: Settings) -> Iterator[str]:
    worker = settings.worker
    if worker.script is not None:
        yield from _readable_file("worker.script", worker.script)
    python = worker.python
    if len(python.parts) == 1:
        # A bare name that was found in PATH is a whole path by now.
        yield f'worker.python: "{python}" is not in PATH; name the interpreter with its path'
    elif not python.exists():
        yield f"worker.python: {python} does not exist; name the interpreter of the worker"
    elif not (python.is_file() and os.access(python, os.X_OK)):
        yield f"worker.python: {python} cannot be executed by this user; name an interpreter"


def _readable_file(key: str, path: Path) -> Iterator[str]:
    try:
        exists = path.exists()
    except OSError as error:
        yield f"{key}: {path} cannot be looked at: {error.strerror}"
        return
    if not exists:
        yield f"{key}: {path} does not exist; paths are seen from the configuration's folder"
    elif not path.is_file():
        yield f"{key}: {path} is not a file; name the training script itself"
    elif not os.access(path, os.R_OK):
        yield f"{key}: {path} may not be read by this user; change its permissions"


def _folders(settings: Settings) -> Iterator[str]:
    cwd = settings.worker.cwd
    if not cwd.is_dir():
        what = "is not a folder" if cwd.exists() else "does not exist"
        yield f"worker.cwd: {cwd} {what}; name the folder the worker shall run in"
    elif not os.access(cwd, os.X_OK):
        yield f"worker.cwd: {cwd} may not be entered by this user; change its permissions"
    yield from _can_hold("run_dir", settings.run_dir)
    if not settings.checkpoints.dir.is_relative_to(settings.run_dir):
        yield from _can_hold("checkpoints.dir", settings.checkpoints.dir)


def _can_hold(key: str, folder: Path) -> Iterator[str]:
    """Say why `folder` cannot be written, or made in the nearest folder above it that exists."""
    there = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    make = "" if there == folder else f" (to make {folder} there)"
    if not there.exists():
        yield f"{key}: {there} is a link to nothing; mount its disk or remove the link"
    elif not there.is_dir():
        yield f"{key}: {there} is a file where a folder is needed{make}; move it or choose another"
    elif not os.access(there, os.W_OK | os.X_OK):
        yield f"{key}: {there} may not be written by this user{make}; choose another folder"


def _run_dir(folder: Path) -> Iterator[str]:
    """Make the folder and write in it: permissions alone do not tell. A full disk is no fault."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"?")
    except OSError as error:
        if error.errno not in _FULL or not folder.is_dir():
            yield f"run_dir: {folder} cannot be written: {error.strerror}; choose another folder"
