"""Shared memory that NCCL's dead left in /dev/shm: /dev/shm/nccl-*, tens of MiB each, for ever.

NCCL unlinks a segment when all its ranks have opened it, so ranks that are killed while they start
leave theirs, until /dev/shm is full and no attempt can start. Nothing else there is touched.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from humigence_supervise import proc
from humigence_supervise.observe.host_facts import in_first_pid_namespace
from humigence_supervise.observe.uids import uids_of

SCAN_S: Final = 2.0
"""A machine on which the look at all processes takes longer keeps its segments, and hears so."""

_NAME: Final = "nccl-[A-Za-z0-9_-]+"
_LEAST_AGE_S: Final = 1.0
"""A younger one may be opened this moment by a process that was not there when we looked."""

_FOR_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_BLOCK_BYTES: Final = 512
"""The unit of st_blocks (stat(2))."""

_CLOCKS_AGREE_S: Final = 1.0
"""The clock of process starts and the wall clock are compared no finer than this."""

_READ_BYTES: Final = 1 << 16
_UNINTERRUPTIBLE: Final = "D"

_FIRST_IPC_NAMESPACE: Final = "ipc:[4026531839]"
"""PROC_IPC_INIT_INO of include/linux/proc_ns.h: the /dev/shm of the host comes with it."""

_GONE: Final = (FileNotFoundError, ProcessLookupError)


@dataclass(frozen=True, slots=True)
class Removed:
    """The segments that were removed, the bytes they held, and what was not seen (`unread`)."""

    names: tuple[str, ...] = ()
    bytes: int = 0
    unread: tuple[str, ...] = ()


class _UnseenError(Exception):
    """It cannot be told who uses the segments; says why."""


def remove_stale_segments(
    since_unix_s: float,
    folder: Path = Path("/dev/shm"),  # noqa: S108 - where NCCL makes them
) -> Removed:
    """Remove the segments, created since an attempt began, that no process uses any more.

    They are regular files of this user, closed to others, neither mapped nor open in any process.
    Not every process may be inspected. If one of this user cannot, and began since the attempt did,
    all segments stay; older ones (an ssh-agent, the init of a container) are none of the attempt.
    One of another user cannot have opened such a file, unless it is root's.
    """
    try:
        names = [name for name in os.listdir(folder) if re.fullmatch(_NAME, name)]  # noqa: PTH208 - names only
    except OSError as error:
        return Removed(unread=(f"{folder} was not searched for old segments: {error.strerror}",))
    stale = {name: told for name in names if (told := _stale(folder / name, since_unix_s))}
    if not stale:
        return Removed()
    try:
        if _others_are_hidden():
            raise _UnseenError("it is the host's, whose processes cannot be seen from here")  # noqa: TRY301
        used = _used(stale, since_unix_s)
    except _UnseenError as error:
        return Removed(unread=(f"{len(stale)} segments of NCCL stay in {folder}: {error}",))
    removed: list[str] = []
    unread: list[str] = []
    held_bytes = 0
    for name in sorted(stale.keys() - used):
        told = _stale(folder / name, since_unix_s)
        if told is None or told.st_ino != stale[name].st_ino:
            continue  # no longer the file whose users were looked for
        try:
            (folder / name).unlink()
        except OSError as error:
            unread.append(f"{folder / name} was not removed: {error.strerror}")
            continue
        removed.append(name)
        held_bytes += told.st_blocks * _BLOCK_BYTES
    return Removed(tuple(removed), held_bytes, tuple(unread))


def _others_are_hidden() -> bool:
    """Say whether processes we cannot see may use the folder, as in a container with --ipc=host."""
    if in_first_pid_namespace():
        return False
    try:
        return os.readlink("/proc/self/ns/ipc") == _FIRST_IPC_NAMESPACE  # noqa: PTH115 - no path
    except OSError:
        return True


def _stale(path: Path, since_unix_s: float) -> os.stat_result | None:
    """Return what a file is that may be removed when nobody uses it, None for any other.

    Linux's stat tells no time of creation; none of the times it tells is earlier.
    """
    try:
        told = path.lstat()
    except OSError:
        return None
    ours = (
        stat.S_ISREG(told.st_mode)
        and told.st_uid == os.geteuid()
        and not told.st_mode & _FOR_OTHERS
    )
    created_by_s = min(told.st_atime, told.st_mtime, told.st_ctime)
    age_s = time.time() - max(told.st_mtime, told.st_ctime)
    return told if ours and created_by_s >= since_unix_s and age_s >= _LEAST_AGE_S else None


def _used(segments: Mapping[str, os.stat_result], since_unix_s: float) -> set[str]:
    """Return which segments some process maps or has open. Raises _UnseenError.

    Recognized by device and inode, and by name too: where the folder lies on overlayfs or btrfs,
    maps and stat disagree about the device.
    """
    deadline = time.monotonic() + SCAN_S
    name_of = {told.st_ino: name for name, told in segments.items()}
    device = next(iter(segments.values())).st_dev
    inodes = re.compile(b" %02x:%02x (\\d+) " % (os.major(device), os.minor(device)))
    names = re.compile(b"/(%b)\n" % _NAME.encode())
    used: set[str] = set()
    seen: set[int] = set()
    # Until nobody is new: one may have been forked, or started, behind our back.
    while unseen := set(proc.all_pids()) - seen:
        for pid in unseen:
            if time.monotonic() > deadline:
                raise _UnseenError(f"the look at all processes took more than {SCAN_S:g} s")
            try:
                maps, opened = _look(pid)
            except _GONE:
                continue
            except OSError as error:
                if not _may_be_of_attempt(pid, since_unix_s):
                    continue
                why = f"process {pid} of this user cannot be inspected ({error.strerror})"
                raise _UnseenError(why) from error
            used.update(name_of.get(int(inode), "") for inode in inodes.findall(maps))
            used.update(map(os.fsdecode, names.findall(maps)), opened)
        seen |= unseen
    return used


def _look(pid: int) -> tuple[bytes, set[str]]:
    """Return what a process maps, and the last part of each path it has open.

    The links are read and never followed: a stat of a file on a dead server does not return.
    """
    found = proc.stat(pid)
    if found is not None and found.state == _UNINTERRUPTIBLE:
        # Its memory may be locked by the driver it waits for: whoever reads of it waits as well.
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
    opened: set[str] = set()
    maps = _read(f"/proc/{pid}/maps")
    for descriptor in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208 - names only, and often
        with suppress(*_GONE):
            link = os.readlink(f"/proc/{pid}/fd/{descriptor}")  # noqa: PTH115 - not a path
            opened.add(link.rpartition("/")[2])
    return maps, opened


def _read(path: str) -> bytes:
    """Return what a file of /proc says: in half the time of `read_bytes`, and there are many."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return b"".join(iter(lambda: os.read(descriptor, _READ_BYTES), b""))
    finally:
        os.close(descriptor)


def _may_be_of_attempt(pid: int, since_unix_s: float) -> bool:
    """Tell whether a hidden process may belong to the attempt, by its user and its start."""
    try:
        uids = uids_of(pid)
        if uids is None or os.geteuid() not in uids:
            return False
        ticks = proc.start_ticks(pid)
    except OSError:
        return True
    if ticks is None:
        return False
    since_boot_s = since_unix_s - time.time() + time.clock_gettime(time.CLOCK_BOOTTIME)
    return ticks / os.sysconf("SC_CLK_TCK") >= since_boot_s - _CLOCKS_AGREE_S
