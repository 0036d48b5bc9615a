"""What stands around an interesting line: Python frames, launcher blocks (pure)."""

from __future__ import annotations

import re
import signal
from typing import Final

from humigence_supervise.domain import ExitStatus

_FRAME: Final = re.compile(
    r'File "(?P<path>[^"]{1,500})", line (?P<line>\d+)(?:,? in (?P<name>\S+))?',
)
_NOTEBOOK_FRAME: Final = re.compile(r"-+> ?\d+ ")
_LIBRARY: Final = re.compile(
    r"(?:site|dist)-packages|[/\\]lib[/\\]python\d|<frozen |<string>|importlib"
    r"|/bin/(?:torchrun|accelerate|deepspeed)$",
)
_TRACEBACK: Final = "Traceback (most recent call"
_RANK_ROW: Final = re.compile(r"rank *:? *(\d+) *\(local.rank: *(\d+)\)")
_EXIT_ROW: Final = re.compile(r"exitcode *: *(-?\d+) *\(pid: *(\d+)\)")
_EXIT_LINE: Final = re.compile(r"\(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: (\d+)\)")
_SPAWN_LINE: Final = re.compile(
    r"[Pp]rocess (\d+) terminated with (?:signal (SIG[A-Z]+)|exit code (\d+))",
)
_JOB_CODE: Final = re.compile(
    r"(?:exits with return code =|finished with exit code|returned non-zero exit status) (-?\d+)",
)
_JOB_SIGNAL: Final = re.compile(r"died with <Signals\.(SIG[A-Z]+)|^(Killed)$|: +\d+ (Killed)  ")
_SPAWNED: Final = re.compile(r"-- Process (\d+) terminated with the following error")


def user_frame(above: list[str]) -> str:
    """Return the innermost frame of the user's own code ("train.py:84 in forward"), or "".

    `above` are the lines over an exception, oldest first; only the last traceback counts.
    """
    frames: list[re.Match[str]] = []
    for text in reversed(above):
        if _TRACEBACK in text:
            break
        if found := _FRAME.search(text):
            frames.append(found)
    return _innermost(frames)


def is_in_traceback(above: list[str]) -> bool:
    """Return whether a traceback, or a part of one, stands over a line."""
    return any(
        _TRACEBACK in text or _FRAME.search(text) or _NOTEBOOK_FRAME.match(text) for text in above
    )


def crash_frame(below: list[str]) -> str:
    """Return the innermost user frame of a faulthandler stack, which stands below its title."""
    frames: list[re.Match[str]] = []
    for text in below:
        if "Current thread" in text:
            frames.clear()
        if found := _FRAME.search(text):
            frames.append(found)
    return _innermost(frames)


def _innermost(frames: list[re.Match[str]]) -> str:
    """Choose from frames that stand innermost first."""
    own = next((frame for frame in frames if not _LIBRARY.search(frame["path"])), None)
    if own is None:
        return ""
    file = re.split(r"[/\\]", own["path"])[-1]
    name = own["name"]
    return f"{file}:{own['line']} in {name}" if name else f"{file}:{own['line']}"


def spawned_rank(above: list[str]) -> int | None:
    """Return the rank that torch.multiprocessing.spawn names over a traceback, None if none."""
    named = [found for text in above if (found := _SPAWNED.search(text))]
    return int(named[-1][1]) if named else None


def exit_of_rank(line: str, above: list[str]) -> tuple[int, int, ExitStatus] | None:
    """Return (rank, pid, status) from a launcher's line about an ended rank, None if it is none.

    pid is 0 where the launcher does not print it. `above` holds the lines right above, among
    them the rank in torchrun's ChildFailedError block.
    """
    if found := _EXIT_LINE.search(line):
        return int(found[2]), int(found[3]), status_of(int(found[1]))
    if found := _SPAWN_LINE.search(line):
        status = _named_signal(found[2]) if found[2] else ExitStatus(code=int(found[3]))
        return int(found[1]), 0, status
    if found := _EXIT_ROW.search(line):
        ranks = [row for text in (*above[-4:], line) if (row := _RANK_ROW.search(text))]
        return (int(ranks[-1][1]), int(found[2]), status_of(int(found[1]))) if ranks else None
    return None


def exit_of_job(line: str) -> ExitStatus | None:
    """Return how the job as a whole ended, where a launcher or shell says so."""
    if found := _JOB_CODE.search(line):
        return status_of(int(found[1]))
    if found := _JOB_SIGNAL.search(line):
        return _named_signal(found[1] or "SIGKILL")
    return None


def is_root_failure(above: list[str]) -> bool:
    """Return whether a ChildFailedError entry stands in its "Root Cause" part."""
    return any(text.lstrip().startswith("Root Cause") for text in above[-12:])


def status_of(code: int) -> ExitStatus:
    """Turn a code as Python's subprocess counts it (negative: signal) into a status."""
    return ExitStatus(code=code) if code >= 0 else ExitStatus(signal=-code)


def _named_signal(name: str) -> ExitStatus:
    known = signal.Signals.__members__.get(name)
    return ExitStatus(signal=int(known)) if known else ExitStatus()
