"""`start`: take the run over, supervise it to its end."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from humigence_supervise import __version__, contract, ladder, launch
from humigence_supervise.batching import batch_of_rung
from humigence_supervise.catalogue import load_catalogue
from humigence_supervise.checkpoints.choose import owner
from humigence_supervise.config import ConfigError, Settings
from humigence_supervise.domain import Accelerator, RunPaths
from humigence_supervise.effects import Effects
from humigence_supervise.journal import Journal, open_journal
from humigence_supervise.loop import Loop
from humigence_supervise.observe.host import read_host
from humigence_supervise.phases import Ended
from humigence_supervise.preflight import check_ladder, preflight
from humigence_supervise.records import Entry, Event, Json
from humigence_supervise.report import write_report
from humigence_supervise.run import Run
from humigence_supervise.run_lock import RunHeldError, RunLock
from humigence_supervise.state import fold
from humigence_supervise.systemd import Notifier
from humigence_supervise.waiting import signals_awaited


def start(
    settings: Settings,
    config: Path,
    tell: Callable[[Entry], None],
    *,
    fresh: bool,
    debug: bool,
    readmit: tuple[str, ...] = (),
) -> int:
    """Supervise the run of `settings` until it has ended; return the exit code.

    `readmit` names GPUs that may be used again after the run excluded them, "all" for every one.

    Raises:
        ConfigError: something the run needs is missing, or `readmit` names a GPU that is not
            excluded; nothing was started.
        RunHeldError: another supervisor holds the run.
        JournalError: the journal is damaged; nothing was started.
        OSError: the journal cannot be written.
    """
    preflight(settings)
    run_dir = settings.run_dir
    lock = RunLock(run_dir)
    try:
        if fresh:
            if launch.lock_held(run_dir):
                raise RunHeldError(run_dir, None, "an attempt that still runs")
            archive(run_dir, settings.checkpoints.dir)
        journal, entries = _opened(run_dir / contract.JOURNAL_FILE, settings.name)
        state = fold(entry.record for entry in entries)
        _check_readmitted(readmit, state.excluded_gpus)
        if isinstance(state.phase, Ended) and state.phase.event is Event.RUN_COMPLETED:
            tell(entries[-1])
            return contract.EXIT_COMPLETED
        begun = entries[0].record.facts if entries else {}
        run, facts = make_run(settings, config, begun, debug=debug)
        hands = Effects(run, load_catalogue())
        notifier = Notifier.from_environ(os.environ)
        with signals_awaited() as outside:
            loop = Loop(run, journal, state, hands, outside, notifier=notifier, tell=tell)
            code = loop.until_ended(facts, readmit)
        with suppress(OSError):
            write_report(run_dir, run_dir / contract.REPORT_FILE)
        return code
    finally:
        lock.release()


ARCHIVE_DIR = "archive"
OUR_LAYOUTS = frozenset(("auto", "humigence"))
"""Other layouts are read from the configuration, and not yet from the disk."""


class GpusUnknownError(OSError):
    """The driver did not answer; another time it may."""


def make_run(
    settings: Settings, config: Path, begun: Mapping[str, Json], *, debug: bool
) -> tuple[Run, dict[str, Json]]:
    """Return the run and what `run.started` says of it.

    `begun` is what that event said when the run began, empty before it did: its id, its device
    type and its virtual ranks hold to the end, whatever GPUs are lost on the way.

    Raises:
        ConfigError: a rung cannot be planned on this machine.
        GpusUnknownError: the driver did not answer.
    """
    host = read_host(settings.worker.python)
    if settings.accelerator != "cpu" and not host.gpus_known:
        why = "; ".join(host.unread)
        raise GpusUnknownError(
            f"Which GPUs this machine has is not known: {why}. Nothing was started; try again when"
            ' nvidia-smi answers, or set "accelerator": "cpu".'
        )
    accelerator, why = ladder.resolve_accelerator(settings, host)
    if "accelerator" in begun:
        accelerator, why = Accelerator(str(begun["accelerator"])), "as the run began"
    known = begun.get("virtual_ranks")
    virtual = known if isinstance(known, int) else ladder.virtual_ranks(settings, host)
    if not begun:
        check_ladder(settings, host)
    rungs = ladder.rungs(settings)
    checkpoints = settings.checkpoints.dir
    run_id = begun.get("run_id") or _found_id(settings) or uuid.uuid4().hex
    batch = batch_of_rung(settings, rungs[0].name, virtual, virtual, None)
    run = Run(
        settings=settings,
        paths=RunPaths(settings.name, str(run_id), settings.run_dir, checkpoints, config),
        rungs=rungs,
        accelerator=accelerator,
        virtual_ranks=virtual,
        micro_samples=batch.micro_samples if batch else None,
        debug=debug,
    )
    facts: dict[str, Json] = {
        "not_acted_on": _not_acted_on(settings),
        "run_id": str(run_id),
        "config": str(config),
        "checkpoint_dir": str(checkpoints),
        "version": __version__,
        "accelerator": accelerator.value,
        "accelerator_why": why,
        "virtual_ranks": virtual,
        "ladder": [rung.name for rung in rungs],
        "torch": host.torch_version,
        "gpus": [gpu.name for gpu in host.gpus],
    }
    return run, facts


def _opened(path: Path, name: str) -> tuple[Journal, tuple[Entry, ...]]:
    try:
        return open_journal(path, name)
    except OSError as error:
        if error.filename is None:  # a write names no file
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def _check_readmitted(readmit: tuple[str, ...], excluded: tuple[str, ...]) -> None:
    unknown = [gpu for gpu in readmit if gpu != "all" and gpu not in excluded]
    if unknown:
        there = f"excluded are {', '.join(excluded)}" if excluded else "no GPU is excluded"
        raise ConfigError((f"--readmit-gpu {unknown[0]}: {there} in this run; or say all",))


def _found_id(settings: Settings) -> str | None:
    """Return the id under which the worker was used by hand in this run directory before."""
    checkpoints = settings.checkpoints.dir
    return owner(checkpoints) if checkpoints.is_relative_to(settings.run_dir) else None


def _not_acted_on(settings: Settings) -> list[Json]:
    """Return the parts of the configuration that were given and do nothing in this version."""
    found = {"hang", "notify"} & settings.model_fields_set
    if settings.metrics.textfile is not None or settings.metrics.port is not None:
        found.add("metrics")
    if settings.checkpoints.layout not in OUR_LAYOUTS:
        found.add("checkpoints.layout")
    return [*sorted(found)]


def archive(run_dir: Path, checkpoint_dir: Path) -> None:
    """Move what an earlier run left into ``archive/<time>``.

    The caller holds the run's lock and knows that no attempt is alive.

    Raises:
        OSError: something could not be moved; what was moved is in the archive.
    """
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    names = (
        contract.ATTEMPTS_DIR,
        contract.CHECKPOINTS_DIR,
        contract.FAULTS_DIR,
        contract.SNAPSHOT_FILE,
    )
    _move([run_dir / name for name in names], run_dir / ARCHIVE_DIR / stamp)
    if checkpoint_dir != run_dir / contract.CHECKPOINTS_DIR and checkpoint_dir.is_dir():
        # It may be another file system: what is in it stays on it.
        left = [path for path in checkpoint_dir.iterdir() if path.name != ARCHIVE_DIR]
        _move(left, checkpoint_dir / ARCHIVE_DIR / stamp)
    # The journal last: until it is gone, the old run is still the one that a start resumes.
    _move([run_dir / contract.JOURNAL_FILE], run_dir / ARCHIVE_DIR / stamp)


def _move(paths: list[Path], shelf: Path) -> None:
    for path in paths:
        if path.exists():
            shelf.mkdir(parents=True, exist_ok=True)
            path.rename(shelf / path.name)
