"""Everything an ended attempt left behind, as one value (fs).

Bounded by bytes, so that reading takes a fraction of a second whatever the workers wrote. What
could not be read is named in `Evidence.unread`: it is unknown, not absent.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from humigence_supervise.catalogue import load_catalogue
from humigence_supervise.contract import EXIT_FILE, LAUNCHER_LOG, RANKS_DIR
from humigence_supervise.domain import Accelerator, Evidence, ExitStatus, RankExit
from humigence_supervise.observe.error_files import error_file_hits, read_object
from humigence_supervise.observe.host_evidence import with_host_facts
from humigence_supervise.observe.host_facts import KERNEL_LOG
from humigence_supervise.observe.logs import LogReader, OpenLog
from humigence_supervise.observe.scan import READINGS, Scan, Scanner
from humigence_supervise.printable import for_people

_BYTES_IN_ALL: Final = 24 << 20
_READINGS_IN_ALL: Final = 12_000
"""Lines that are looked at closely; what quiet files leave of it is for the later ones."""


def gather(
    attempt_dir: Path,
    *,
    world_size: int | None,
    accelerator: Accelerator | None,
    first_dead: int | None,
    first_step: int | None,
    last_step: int | None,
    target_step: int | None,
    rank_exits: Mapping[int, RankExit],
    disk_free_mib: int | None,
    stop_requested: bool,
    hang_suspected: bool,
) -> Evidence:
    """Read an attempt's folder; never raises OSError. `rank_exits`: seen by the supervisor."""
    unread: list[str] = []
    ranks = _rank_numbers(attempt_dir / RANKS_DIR, world_size, unread)
    files: list[tuple[str, int | None]] = [(LAUNCHER_LOG, None)]
    for rank in ranks:
        files += [(f"{RANKS_DIR}/{rank}/{name}", rank) for name in ("stderr.log", "stdout.log")]
    scans: list[Scan] = []
    max_bytes, left = _BYTES_IN_ALL // len(files), _READINGS_IN_ALL
    for at, (name, of_rank) in enumerate(files):
        share = left // (len(files) - at)
        path = attempt_dir / name
        scans.append(scan_file(path, name, of_rank, unread, max_bytes, most_readings=share))
        left -= scans[-1].readings
    hits = [hit for scan in scans for hit in scan.hits]
    for rank in ranks:
        hits += error_file_hits(attempt_dir, rank, hits, unread)
    launcher, reaped = _read_exits(attempt_dir / EXIT_FILE, unread)
    exits = _merge_exits(reaped, scans[0].exits, dict(rank_exits))
    kernel = scan_file(attempt_dir / KERNEL_LOG, KERNEL_LOG, None, unread, _BYTES_IN_ALL)
    evidence = Evidence(
        launcher=launcher,
        ranks=tuple(exits[rank] for rank in sorted(exits)),
        hits=tuple(hits),
        world_size=world_size,
        first_dead=scans[0].first_dead if first_dead is None else first_dead,
        first_step=first_step,
        last_step=last_step,
        target_step=target_step,
        accelerator=accelerator,
        disk_free_mib=disk_free_mib,
        stop_requested=stop_requested,
        hang_suspected=hang_suspected,
        progress_seen=any(scan.progress_seen for scan in scans),
        unread=tuple(unread),
    )
    return with_host_facts(evidence, attempt_dir, kernel.hits)


def scan_file(
    path: Path,
    name: str,
    rank: int | None,
    unread: list[str],
    max_bytes: int | None,
    *,
    most_readings: int = READINGS,
) -> Scan:
    """Scan one log; a file that is not there is empty, one that cannot be read goes to `unread`."""
    # The supervisor itself reads bounded parts of logs, and stays small.
    scanner = Scanner(
        load_catalogue(),
        name,
        rank,
        _year_of(path),
        large=max_bytes is None,
        most_readings=most_readings,
    )
    try:
        with closing(OpenLog(path)) as log:
            reader = LogReader(log.descriptor, name, max_bytes)
            for block in reader.blocks():
                scanner.feed(block)
            if reader.unread:
                unread.append(reader.unread)
    except FileNotFoundError:
        pass
    except OSError as error:
        unread.append(f"{name}: {error.strerror or error}")
    return scanner.finish()


def _year_of(path: Path) -> int:
    """Return the year a file was last written: glog stamps have none."""
    try:
        return time.gmtime(path.stat().st_mtime).tm_year
    except (OSError, ValueError, OverflowError):
        return 1970


def _rank_numbers(folder: Path, world_size: int | None, unread: list[str]) -> list[int]:
    if world_size is not None:
        return list(range(world_size))
    try:
        return sorted(int(entry.name) for entry in folder.iterdir() if entry.name.isdecimal())
    except FileNotFoundError:
        return []
    except OSError as error:
        unread.append(f"{RANKS_DIR}: {error.strerror}")
        return []


def _read_exits(path: Path, unread: list[str]) -> tuple[ExitStatus | None, dict[int, RankExit]]:
    """Return the launcher's end and those of the ranks the keeper itself reaped."""
    record = read_object(path, EXIT_FILE, unread)
    if error := record.get("error"):
        unread.append(f"the launcher could not be started: {for_people(str(error))}")
    launcher = record.get("launcher")
    status = _status(launcher) if isinstance(launcher, dict) else None
    reaped: dict[int, RankExit] = {}
    entries = record.get("reaped")
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict) and isinstance(rank := entry.get("rank"), int):
            pid = entry.get("pid")
            reaped[rank] = RankExit(rank, pid if isinstance(pid, int) else 0, _status(entry))
    return status, reaped


def _status(entry: dict[str, Any]) -> ExitStatus:
    code, signal = entry.get("code"), entry.get("signal")
    return ExitStatus(
        code if isinstance(code, int) else None,
        signal if isinstance(signal, int) else None,
    )


def _merge_exits(*sources: dict[int, RankExit]) -> dict[int, RankExit]:
    """Merge what is known of each rank; a later source wins where it knows the status."""
    merged: dict[int, RankExit] = {}
    for source in sources:
        for rank, exit_ in source.items():
            known = merged.get(rank)
            if known is None or exit_.status != ExitStatus():
                merged[rank] = exit_
            elif not known.error:
                merged[rank] = replace(known, error=exit_.error)
    return merged
