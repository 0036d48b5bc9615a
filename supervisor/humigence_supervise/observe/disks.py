"""The names the kernel's log gives the block devices under a folder."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

SYS: Final = Path("/sys")
MOUNTS: Final = Path("/proc/self/mountinfo")
_DEPTH: Final = 4
_NVME: Final = re.compile(r"(nvme\d+)(?:c\d+)?n\d+")


def disks_of(folder: Path, sys: Path = SYS, mounts: Path = MOUNTS) -> frozenset[str]:
    """Return the device, its whole disk, and those it is made of: sda1, sda; dm-0, nvme0n1, nvme0.

    Empty where no block device carries the folder (NFS, tmpfs) or it cannot be told.
    """
    try:
        number = folder.stat().st_dev
        device = sys / "dev" / "block" / f"{os.major(number)}:{os.minor(number)}"
        if not device.exists():  # btrfs and overlayfs: the mount names its device
            device = sys / "class" / "block" / _mounted_device(folder, mounts)
        names = _names(device.resolve(strict=True), _DEPTH)
    except (OSError, ValueError):
        return frozenset()
    return frozenset(names | {found[1] for name in names if (found := _NVME.fullmatch(name))})


def _mounted_device(folder: Path, mounts: Path) -> str:
    """Return the block device behind the mount a folder is in; raises ValueError without one."""
    place = folder.resolve()
    best, device = -1, ""
    for line in mounts.read_text(errors="replace").splitlines():
        before, _, after = line.partition(" - ")
        fields, source = before.split(" "), after.split(" ")
        point = Path(fields[4]) if len(fields) > 4 else Path()  # noqa: PLR2004 - proc(5)
        if place.is_relative_to(point) and len(point.parts) >= best and len(source) > 1:
            best, device = len(point.parts), source[1]
    if not device.startswith("/dev/"):
        raise ValueError(f"{folder} is on no block device")
    return Path(device).resolve().name


def _names(device: Path, depth: int) -> set[str]:
    names = {device.name}
    if (device / "partition").exists():
        names.add(device.parent.name)
    slaves = device / "slaves"
    if depth and slaves.is_dir():
        for slave in slaves.iterdir():
            names |= _names(slave.resolve(), depth - 1)
    return names
