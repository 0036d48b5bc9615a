"""How many processes of a cgroup the kernel has killed for memory.

`oom_kill` counts every kill of a member, whoever's limit was reached: the cgroup's own, one above
it, or the machine's (kernel: mm/oom_kill.c, __oom_kill_process). So the cgroup the processes are
charged to is enough: theirs, or the nearest above that has the memory controller. A cgroup above
*that* would count kills of strangers as well. In version 2 it is a line of memory.events and counts
the cgroups below too; in version 1, from kernel 4.13 on, of memory.oom_control, for itself alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

PROC_SELF: Final = Path("/proc/self")
_FILES: Final = {"cgroup2": "memory.events", "cgroup": "memory.oom_control"}
_MOST_BYTES: Final = 1 << 20


class NoCounterError(ValueError):
    """No counter can be read; the message says why."""


@dataclass(frozen=True, slots=True)
class OomCounter:
    """A counter's file, and what it said."""

    file: Path
    kills: int


def own_counter(proc_self: Path = PROC_SELF) -> OomCounter:
    """Return the counter of the cgroup that this process, and what it starts, is charged to.

    Raises:
        NoCounterError: there is none that can be read.
    """
    try:
        cgroups = (proc_self / "cgroup").read_text(errors="surrogateescape")[:_MOST_BYTES]
        mounts = (proc_self / "mountinfo").read_text(errors="surrogateescape")[:_MOST_BYTES]
    except OSError as error:
        raise NoCounterError(f"the cgroup is unknown: {error.strerror}") from error
    for folder, top, name in _places(cgroups, mounts):
        for level in (folder, *folder.parents):
            try:
                return OomCounter(level / name, read_kills(level / name))
            except NoCounterError:
                if level == top:
                    break
    raise NoCounterError("no cgroup here counts kills for memory")


def read_kills(file: Path) -> int:
    """Return what a counter says now.

    Raises:
        NoCounterError: it cannot be read, or counts something else.
    """
    try:
        text = file.read_text(errors="replace")
    except OSError as error:
        raise NoCounterError(f"{file}: {error.strerror}") from error
    for line in text.splitlines():
        match line.split():
            case ["oom_kill", number] if number.isdecimal():
                return int(number)
    raise NoCounterError(f"{file} has no line oom_kill")


def _places(cgroups: str, mounts: str) -> list[tuple[Path, Path, str]]:
    """Return (the own cgroup's folder, its mount, the counter's file), version 1 before 2.

    The memory controller is in one hierarchy only; where version 1 has it, 2 has no counter.
    """
    own: dict[str, str] = {}
    for line in cgroups.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            own["cgroup"] = path
        elif number == "0" and not controllers:
            own["cgroup2"] = path
    places: list[tuple[Path, Path, str]] = []
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        kind, *options = after.split(" ")
        fields = before.split(" ")
        if kind not in own or len(fields) <= _MOUNT_POINT or not options:
            continue
        if kind == "cgroup" and "memory" not in options[-1].split(","):
            continue
        top = Path(_plain(fields[_MOUNT_POINT]))
        places.append((top / _below(own[kind], _plain(fields[_ROOT])), top, _FILES[kind]))
    return sorted(places, key=lambda place: place[2] != _FILES["cgroup"])


_ROOT, _MOUNT_POINT = 3, 4


def _plain(text: str) -> str:
    """Return a path of mountinfo without the escapes of blanks."""
    return text.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")


def _below(path: str, root: str) -> PurePosixPath:
    """Return a cgroup's path below what is mounted; the mount itself where it lies outside.

    A container sees its own cgroup mounted, and its path either from there or from the host's.
    """
    found = PurePosixPath(path)
    if ".." in found.parts or not found.is_relative_to(root):
        return PurePosixPath()
    return found.relative_to(root)
