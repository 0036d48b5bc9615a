"""The kernel's own log, /dev/kmsg: the records written after a mark.

One read() gives one record, "priority,sequence,microseconds,flags;text" (kernel:
Documentation/ABI/testing/dev-kmsg). Which records belong to an attempt is told by the sequence
number, which counts from boot and never back. The stamp is printk's local clock: no NTP corrects
it, so that within weeks it is seconds off CLOCK_MONOTONIC, and it stands still in suspend.

Records of user space are left out: who may write to /dev/kmsg could forge any text, but the
kernel never lets it have the facility of the kernel itself (0).
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

KMSG: Final = Path("/dev/kmsg")

_NUMBER: Final = os.makedev(1, 11)
"""LXC and others put a console or /dev/null in the place of the log."""

_RECORD_BYTES: Final = 16_384
"""Twice what the kernel gives at most (PRINTK_MESSAGE_MAX 2048, escaped; 8192 before 6.4)."""

_MOST_S: Final = 0.25
"""Some 100,000 records; a usual buffer holds 2,000."""

KEPT_RECORDS: Final = 200
_KERNEL_FACILITY: Final = 0
_ESCAPED: Final = re.compile(r"\\x([0-9a-fA-F]{2})")


def _printable(found: re.Match[str]) -> str:
    """Return an escaped character; a control character stays escaped: it must not cut a line."""
    code = int(found[1], 16)
    return chr(code) if code >= ord(" ") else found[0]


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """One record. `local_us` is printk's local clock in microseconds since boot."""

    seq: int
    local_us: int
    text: str
    from_kernel: bool = True
    continues: bool = False


@dataclass(frozen=True, slots=True)
class KernelReading:
    """The wanted records after a mark, and what is missing.

    `missed` were overwritten before they could be read. `whole` is False where reading was given
    up for its length; what was kept is true all the same.
    """

    records: tuple[KernelRecord, ...]
    newest_seq: int
    missed: int = 0
    whole: bool = True


def read_kernel(
    after_seq: int,
    wanted: Callable[[str], bool],
    device: Path = KMSG,
) -> KernelReading:
    """Return the wanted records after `after_seq` (-1: all); takes 0.25 s at most, never waits.

    Raises:
        OSError: there is no such log, it may not be read, or something else stands in its place.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = os.open(device, flags)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISCHR(found.st_mode) or found.st_rdev != _NUMBER:
            raise OSError(errno.ENODEV, "it is not the kernel's log", str(device))
        return collect(lambda: os.read(descriptor, _RECORD_BYTES), after_seq, wanted)
    finally:
        os.close(descriptor)


def collect(
    read: Callable[[], bytes],
    after_seq: int,
    wanted: Callable[[str], bool],
    most_s: float = _MOST_S,
) -> KernelReading:
    """Take record after record from `read` until it would block.

    Raises:
        OSError: `read` failed in another way than a log does that ends or was overwritten.
    """
    deadline = time.monotonic() + most_s
    kept: list[KernelRecord] = []
    last: KernelRecord | None = None
    newest, missed, whole = after_seq, 0, False

    def keep() -> None:
        if last is not None and last.from_kernel and wanted(last.text):
            kept.append(last)

    while time.monotonic() < deadline and len(kept) < KEPT_RECORDS:
        try:
            raw = read()
        except BlockingIOError:
            raw = b""
        except BrokenPipeError:  # overwritten meanwhile; the next read goes on with the oldest
            continue
        if not raw:
            whole = True
            break
        record = parse_record(raw)
        if record is None or record.seq <= newest:
            continue
        missed += record.seq - newest - 1 if newest >= 0 else 0
        newest = record.seq
        if record.continues and last is not None and last.from_kernel == record.from_kernel:
            last = replace(last, text=last.text + record.text)
        else:
            keep()
            last = record
    keep()
    return KernelReading(tuple(kept), newest, missed, whole)


def parse_record(raw: bytes) -> KernelRecord | None:
    """Return one record; None for bytes that are none.

    The lines after the first, which begin with a blank, are the dictionary of a device: left out.
    """
    head, found, rest = raw.decode(errors="replace").partition(";")
    fields = head.split(",")
    if not found or len(fields) < len(("priority", "seq", "time", "flags")):
        return None
    priority, seq, local_us, flags = fields[:4]
    with suppress(ValueError):
        return KernelRecord(
            seq=int(seq),
            local_us=int(local_us),
            text=_ESCAPED.sub(_printable, rest.partition("\n")[0]),
            from_kernel=int(priority) >> 3 == _KERNEL_FACILITY,
            continues=flags == "+",
        )
    return None
