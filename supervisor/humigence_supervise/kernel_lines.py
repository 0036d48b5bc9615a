"""What a line of the kernel's log names: a killed process, a GPU, a crashed task, a disk (pure).

Sources: mm/oom_kill.c from 2.6 to 6.18, arch/x86/mm/fault.c, NVIDIA's Xid messages,
block/blk-core.c, fs/ext4/super.c, fs/xfs, fs/btrfs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_KILLED: Final = re.compile(
    r"^(?:(?:Out of memory|Memory cgroup out of memory|Out of memory \([^)]{1,60}\)): )?"
    r"Killed process (\d{1,10})\b"
)
_REAPED: Final = re.compile(r"^oom_reaper: (?:reaped process|unable to reap pid:) ?(\d{1,10})\b")
_CHOSEN: Final = re.compile(r"^oom-kill:constraint=.{0,4000},pid=(\d{1,10}),uid=\d{1,10}\s*$")
_SPARED: Final = re.compile(r"\bOOM victim (\d{1,10}) \(.{0,40}\) is already exiting")

_CRASHED: Final = re.compile(
    r"^(?:traps: )?.{1,64}\[(\d{1,10})\]:? (?:segfault at |general protection |trap |bad frame |"
    r"unhandled |undefined instruction)"
)
_BUS: Final = r"(?P<domain>[0-9a-fA-F]{4,8}):(?P<rest>[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.[0-7])?"
_GPU: Final = re.compile(r"^NVRM: .{0,20}?\b(?:PCI:)?" + _BUS)
_XID_PID: Final = re.compile(r"^NVRM: Xid \([^)]{1,40}\): \d{1,4}, pid=(\d{1,10})\b")
_BUS_ALONE: Final = re.compile(_BUS)
_DISK: Final = re.compile(
    r"I/O error|I/O Error|I/O Cmd|I/O timeout|I/O \d+ .{0,40}timeout|[Rr]emounting filesystem"
    r"|EXT4-fs (?:error|warning)|forced readonly|[Ss]hut(?:ting)? ?down|ritical medium error"
    r"|[Mm]etadata corruption|not responding"
)
_NAME: Final = re.compile(r"[A-Za-z][\w-]*")


def oom_victims(texts: Iterable[str]) -> tuple[int, ...]:
    """Return the pids the kernel says it killed for memory, in its own (the first) namespace.

    "Kill process N ... or sacrifice child" of old kernels is no kill yet: the line after it tells
    who was. A chosen victim that was "already exiting" was not killed.
    """
    killed: dict[int, None] = {}
    chosen: dict[int, None] = {}
    spared: set[int] = set()
    for text in texts:
        if found := _KILLED.search(text) or _REAPED.search(text):
            killed[int(found[1])] = None
        elif found := _CHOSEN.search(text):
            chosen[int(found[1])] = None
        elif found := _SPARED.search(text):
            spared.add(int(found[1]))
    return tuple(killed | {pid: None for pid in chosen if pid not in spared})


def named_pid(text: str) -> int | None:
    """Return the pid a line is about: killed, crashed (of a *thread*), or of an Xid."""
    patterns = (_KILLED, _REAPED, _CHOSEN, _CRASHED, _XID_PID)
    found = next((m for pattern in patterns if (m := pattern.search(text))), None)
    return int(found[1]) if found else None


def named_bus(text: str) -> str | None:
    """Return the PCI bus id in a line of the NVIDIA driver, as `bus_id` writes it."""
    found = _GPU.search(text)
    return f"{int(found['domain'], 16):04x}:{found['rest'].lower()}" if found else None


def bus_id(text: str) -> str:
    """Return a PCI bus id in one spelling, "0000:01:00"; "" where there is none.

    The kernel, NVML and nvidia-smi write 4 or 8 digits of the domain, and the function or not.
    """
    found = _BUS_ALONE.search(text)
    return f"{int(found['domain'], 16):04x}:{found['rest'].lower()}" if found else ""


def is_oom(text: str) -> bool:
    """Return whether a line tells of a kill for memory."""
    return any(pattern.search(text) for pattern in (_KILLED, _REAPED, _CHOSEN, _SPARED))


def is_crash(text: str) -> bool:
    """Return whether a line tells of a task that crashed (segmentation fault and the like)."""
    return _CRASHED.search(text) is not None


def is_disk_trouble(text: str, disks: frozenset[str]) -> bool:
    """Return whether a line tells of an error on one of these block devices."""
    return bool(disks) and bool(_DISK.search(text)) and not disks.isdisjoint(_NAME.findall(text))
