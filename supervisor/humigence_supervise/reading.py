"""`diagnose FILE...`: any log, attempt folder or stdin -> evidence -> the public document (fs)."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from humigence_supervise.catalogue import load_catalogue
from humigence_supervise.contract import EXIT_FILE, LAUNCHER_LOG, PLAN_FILE, PROGRESS_DIR, RANKS_DIR
from humigence_supervise.domain import Diagnosis, Evidence, Hit, RankExit
from humigence_supervise.observe.evidence import gather, scan_file
from humigence_supervise.observe.launchers import status_of
from humigence_supervise.observe.logs import LogReader
from humigence_supervise.observe.progress import stream
from humigence_supervise.observe.scan import Scan, Scanner
from humigence_supervise.printable import for_people
from humigence_supervise.small_json import read_small_object
from humigence_supervise.surroundings import lines_around, marked

STDIN: Final = "-"
_ATTEMPT_FILES: Final = (PLAN_FILE, EXIT_FILE, LAUNCHER_LOG, RANKS_DIR)
_LOG_SUFFIXES: Final = (".log", ".out", ".err", ".txt", ".stderr", ".stdout")
_FILES_MAX: Final = 4_096
_RANKS_MAX: Final = 4096


class UnreadableError(ValueError):
    """What was named cannot be read at all; the message says why and what to name instead."""


def read_input(path: str, exit_code: int | None) -> Evidence:
    """Read a log file, a folder (an attempt's, or one of logs), or stdin ("-").

    `exit_code` is the job's, where a person knows it; a negative one is a signal. What cannot be
    read is named in the evidence, never raised, except:

    Raises:
        UnreadableError: the path is not there or cannot be opened; the message says why.
    """
    if not path:
        raise UnreadableError("A name is empty. Name a log file or folder, or - for stdin.")
    if path == STDIN:
        return _evidence([_scan_stdin()], [], exit_code)
    place = Path(path)
    try:
        is_folder = place.stat() and place.is_dir()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UnreadableError(
            f"{path} cannot be read: {reason}. Name a log file or folder."
        ) from error
    if not is_folder:
        unread: list[str] = []
        scan = scan_file(place, path, None, unread, None)
        if unread and not scan.lines:
            raise UnreadableError(f"{unread[0]}. Name a log file or folder.")
        if not scan.hits and _is_binary(place):
            unread.append(f"{path} is not text")
        return _evidence([scan], unread, exit_code)
    if any((place / name).exists() for name in _ATTEMPT_FILES):
        return _read_attempt(place, exit_code)
    return _read_folder(place, exit_code)


_SAMPLE_BYTES: Final = 1 << 16
_BINARY_SHARE: Final = 0.05
_CONTROLS: Final = bytes({*range(32), 127} - set(b"\0\t\n\r\b\f\x1b"))
"""Bytes that a log has none of; NUL is in those of a machine that crashed, and in UTF-16."""


def _is_binary(path: Path) -> bool:
    """Return whether a file begins like data, not like a log."""
    try:
        with path.open("rb") as file:
            sample = file.read(_SAMPLE_BYTES)
    except OSError:
        return False
    controls = len(sample) - len(sample.translate(None, _CONTROLS))
    return controls > _BINARY_SHARE * len(sample) or (bool(sample) and not sample.strip(b"\0\n"))


def _evidence(scans: list[Scan], unread: list[str], exit_code: int | None) -> Evidence:
    exits: dict[int, RankExit] = {}
    for scan in scans:
        exits |= scan.exits
    job = next((scan.job for scan in scans if scan.job is not None), None)
    first_dead = next((scan.first_dead for scan in scans if scan.first_dead is not None), None)
    return Evidence(
        launcher=job if exit_code is None else status_of(exit_code),
        ranks=tuple(exits[rank] for rank in sorted(exits)),
        hits=tuple(hit for scan in scans for hit in scan.hits),
        first_dead=first_dead,
        progress_seen=any(scan.progress_seen for scan in scans),
        unread=(*unread, *(() if any(scan.lines for scan in scans) else ("the input is empty",))),
    )


def _scan_stdin() -> Scan:
    scanner = Scanner(load_catalogue(), STDIN)
    reader = LogReader(sys.stdin.fileno(), "stdin", None)
    for block in reader.blocks():
        scanner.feed(block)
    return scanner.finish()


def _read_attempt(folder: Path, exit_code: int | None) -> Evidence:
    world_size = (read_small_object(folder / PLAN_FILE) or {}).get("world_size")
    stop_requested = (read_small_object(folder / EXIT_FILE) or {}).get("stop") == "graceful"
    steps = _Steps.read(folder / PROGRESS_DIR)
    evidence = gather(
        folder,
        world_size=world_size
        if isinstance(world_size, int) and 0 < world_size <= _RANKS_MAX
        else None,
        accelerator=None,
        first_dead=None,
        first_step=steps.first,
        last_step=steps.last,
        target_step=steps.target,
        rank_exits={},
        disk_free_mib=None,
        stop_requested=stop_requested,
        hang_suspected=False,
    )
    return evidence if exit_code is None else replace(evidence, launcher=status_of(exit_code))


@dataclass(frozen=True, slots=True)
class _Steps:
    """What the progress files say of an attempt: completed steps at its start and end."""

    first: int | None = None
    last: int | None = None
    target: int | None = None

    @classmethod
    def read(cls, progress_dir: Path) -> _Steps:
        """Read all of them; what cannot be read counts as not there."""
        found = cls()
        try:
            for line in stream(progress_dir):
                first = line.step if found.first is None else min(found.first, line.step)
                last = line.step if found.last is None else max(found.last, line.step)
                found = cls(first, last, line.target_step or found.target)
        except OSError:
            pass
        return found


def _read_folder(folder: Path, exit_code: int | None) -> Evidence:
    """Read a folder of logs together; a number in a file's name is taken for its rank."""
    unread: list[str] = []
    try:
        files = sorted(
            path
            for path in folder.rglob("*")
            if path.is_file() and (path.suffix in _LOG_SUFFIXES or path.name in _BARE_NAMES)
        )
    except OSError as error:
        raise UnreadableError(f"{folder} cannot be read: {error.strerror}") from error
    if len(files) > _FILES_MAX:
        unread.append(f"{len(files) - _FILES_MAX} of {len(files)} files were not read")
    scans = [
        scan_file(path, str(path), _rank_of(path, folder), unread, None)
        for path in files[:_FILES_MAX]
    ]
    if not scans:
        raise UnreadableError(f"{folder} holds no log files ({', '.join(_LOG_SUFFIXES)})")
    return _evidence(scans, unread, exit_code)


_BARE_NAMES: Final = ("stdout", "stderr")


def _rank_of(path: Path, folder: Path) -> int | None:
    """Return the rank a torchrun-like layout names: .../<rank>/stderr.log or ...rank3.log."""
    if path.parent != folder and path.parent.name.isdecimal():
        return int(path.parent.name)
    named = re.search(r"rank[-_ ]?(\d{1,5})\b", path.stem)
    return int(named[1]) if named else None


def diagnosis_document(source: str, diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the public JSON object of one input (docs: `diagnose --json`)."""
    return {
        "input": source,
        "kind": diagnosis.kind.value,
        "root": None if diagnosis.root is None else _root(diagnosis.root),
        "symptoms": [
            {
                "kind": hit.kind.value,
                "rank": hit.rank,
                "line": hit.line,
                "signature": hit.signature,
            }
            for hit in diagnosis.symptoms
        ],
        "action": diagnosis.remedy.value,
        "reason": diagnosis.reason,
        "remedy": diagnosis.advice,
        "confidence": diagnosis.confidence.value,
        "gpu": diagnosis.gpu,
        "context": list(diagnosis.context),
        "unread": list(diagnosis.unread),
    }


def _root(hit: Hit) -> dict[str, Any]:
    return {
        "rank": hit.rank,
        "file": hit.file,
        "line": hit.line,
        "text": hit.text,
        "signature": hit.signature,
    }


def diagnosis_text(source: str, diagnosis: Diagnosis) -> str:
    """Return the same for people, with the lines around the proof; foreign text is escaped."""
    lines = [
        f"{source}: {diagnosis.kind.value} ({diagnosis.confidence.value})",
        f"  cause     {diagnosis.reason}",
    ]
    if diagnosis.root is not None:
        hit = diagnosis.root
        lines.append(f"  evidence  {hit.file}:{hit.line}: {hit.text[:200]}")
        file = hit.file if hit.file.startswith(source) else f"{source}/{hit.file}"
        around = lines_around(Path(file), hit.line, hit.text)
        lines += [f"  {line}" for line in marked(around, hit.line)]
    if diagnosis.symptoms:
        named = sorted({hit.signature for hit in diagnosis.symptoms})
        lines.append(f"  symptoms  {', '.join(named)}")
    if diagnosis.gpu is not None:
        lines.append(f"  gpu       {diagnosis.gpu}")
    lines += [f"  also      {one}" for one in diagnosis.context]
    lines += [f"  not read  {one}" for one in diagnosis.unread]
    lines += [f"  action    {diagnosis.remedy.value}", f"  to do     {diagnosis.advice}"]
    return "\n".join(for_people(line) for line in lines)
