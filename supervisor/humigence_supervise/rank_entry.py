"""The doorway of every rank: give it its own log files, say who it is, become the worker.

A plain file for any Python >= 3.8 of any venv: it imports nothing of this package and as little
as can be, for it stands on the way of every restart. Arguments: ``script args...`` or
``-m module args...``. The rank keeps its pid, its environment and its working directory.
"""

from __future__ import annotations

import os
import sys

EXIT_NO_DOORWAY = 70  # contract.EXIT_INTERNAL; a test compares the two
ENV_ATTEMPT_DIR = "HUMIGENCE_ATTEMPT_DIR"
STAT_START_TICKS = 19  # field 22 of /proc/<pid>/stat, counted from 0 after the command name


def main(arguments: list[str]) -> int:
    """Redirect, record, and execute the worker; return an exit code where that failed."""
    if not arguments:
        return refuse(2, "no worker was named", "pass a script, or -m and a module")
    try:
        rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
        folder = os.path.join(os.environ[ENV_ATTEMPT_DIR], "ranks", str(rank))
    except (KeyError, ValueError) as error:
        what = f"RANK, LOCAL_RANK or {ENV_ATTEMPT_DIR} is missing or wrong: {error!r}"
        return refuse(2, what, "start ranks through humigence-supervise")
    inherited = os.dup(2)  # closes itself when the worker is executed
    try:
        out = open_log(folder, "stdout.log")
        err = open_log(folder, "stderr.log")
        write_process(folder, rank, local_rank)
    except OSError as error:
        what = f"rank {rank} cannot use its folder {folder}: {error.strerror}"
        return refuse(inherited, what, "make room there, or see who removed it")
    os.environ["TORCHELASTIC_ERROR_FILE"] = os.path.join(folder, "error.json")
    os.dup2(out, 1)
    os.dup2(err, 2)
    try:
        os.execv(sys.executable, [sys.executable, "-u", *arguments])  # noqa: S606 - argv, no shell
    except OSError as error:
        what = f"rank {rank} cannot execute {sys.executable}: {error.strerror}"
        return refuse(inherited, what, "repair the worker's Python environment")


def open_log(folder: str, name: str) -> int:
    """Return a descriptor that appends, so that a log truncated by others stays readable."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    return os.open(os.path.join(folder, name), flags, 0o644)


def write_process(folder: str, rank: int, local_rank: int) -> None:
    """Write process.json by rename; not synced, for it means nothing after the machine fell."""
    with open("/proc/self/stat", "rb") as stat:
        start_ticks = int(stat.read().rpartition(b")")[2].split()[STAT_START_TICKS])
    said = f'"rank": {rank}, "local_rank": {local_rank}, "pid": {os.getpid()}'
    text = f'{{{said}, "start_ticks": {start_ticks}}}\n'
    final = os.path.join(folder, "process.json")
    with open(final + ".part", "wb") as stream:
        stream.write(text.encode("ascii"))
    os.replace(final + ".part", final)


def refuse(descriptor: int, what: str, advice: str) -> int:
    """Say on `descriptor` what failed and what to do; return the exit code."""
    text = f"humigence-supervise: {what}. To do: {advice}.\n"
    os.write(descriptor, text.encode("utf-8", "backslashreplace"))
    return EXIT_NO_DOORWAY


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
