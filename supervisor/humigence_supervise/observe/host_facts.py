"""What the host did while an attempt ran: noted when it starts, read and kept when it has ended.

`incident/start.json` says where the kernel's log and the cgroup's counter stood, so a supervisor
that came later knows too. `incident/host.json` and `incident/kernel.log` keep what was found: the
kernel forgets, and `diagnose` on the attempt's folder must say the same a month later.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from humigence_supervise import kernel_lines, proc
from humigence_supervise.contract import INCIDENT_DIR
from humigence_supervise.domain import Gpu
from humigence_supervise.durable import write_bytes, write_json
from humigence_supervise.observe import cgroup
from humigence_supervise.observe.disks import disks_of
from humigence_supervise.observe.gpu_state import read_gpu_states
from humigence_supervise.observe.kernel_log import KernelReading, KernelRecord, read_kernel
from humigence_supervise.small_json import read_small_json

START_FILE: Final = f"{INCIDENT_DIR}/start.json"
HOST_FILE: Final = f"{INCIDENT_DIR}/host.json"
KERNEL_LOG: Final = f"{INCIDENT_DIR}/kernel.log"

_FIRST_PID_NAMESPACE: Final = "pid:[4026531836]"
"""PROC_PID_INIT_INO of include/linux/proc_ns.h: the pids in the kernel's log are of this one."""

_CLOCKS_AGREE_S: Final = 1.0
"""If wall and monotonic clock moved apart by more, the machine slept or was set meanwhile."""


def note_start(attempt_dir: Path, gpus: Sequence[Gpu] = ()) -> None:
    """Note where things stand, before the first process of an attempt starts.

    For an attempt on `gpus`, the memory in use on every GPU of the machine is noted too, since the
    next attempt may take others. So note only once the dead of the last attempt have freed theirs.
    What cannot be read or written now is unknown, and told, when the attempt has ended.
    """
    unread: list[str] = []
    note: dict[str, Any] = {"unix_s": time.time(), "mono_s": time.monotonic()}
    with suppress(OSError):
        note["boot_id"] = proc.boot_id()
    try:
        reading = read_kernel(-1, lambda _: False)
        note["kernel_seq"] = reading.newest_seq if reading.whole else None
        if not reading.whole:
            unread.append("the kernel's log is too long to find its end in time")
    except OSError as error:
        unread.append(_no_kernel_log(error))
    try:
        counter = cgroup.own_counter()
        note["cgroup"] = {"file": str(counter.file), "oom_kill": counter.kills}
    except cgroup.NoCounterError as error:
        unread.append(f"kills for memory are not counted: {error}")
    if gpus:
        note["gpu_used_mib"] = _levels(gpus, unread)
    with suppress(OSError):
        (attempt_dir / INCIDENT_DIR).mkdir(parents=True, exist_ok=True)
        write_json(attempt_dir / START_FILE, note | {"unread": unread})


def _levels(gpus: Sequence[Gpu], unread: list[str]) -> dict[str, int]:
    """Return the MiB in use on each GPU by UUID; where one of `gpus` does not tell, say so."""
    found = read_gpu_states()
    levels = {gpu.uuid: gpu.used_mib for gpu in found.gpus if gpu.uuid and gpu.used_mib is not None}
    silent = [str(gpu.index) for gpu in gpus if gpu.uuid not in levels]
    if silent:
        why = "the driver does not tell" if found.gpus else "; ".join(found.unread)
        which = ", ".join(silent)
        unread.append(f"the memory in use on GPU {which} before the attempt is unknown: {why}")
    return levels


def started_at(attempt_dir: Path) -> float | None:
    """Return the Unix time noted before an attempt; None when unknown."""
    match read_small_json(attempt_dir / START_FILE):
        case {"unix_s": int() | float() as unix_s}:
            return float(unix_s)
        case _:
            return None


def _boot_id() -> str | None:
    with suppress(OSError):
        return proc.boot_id()
    return None


def noted_levels(attempt_dir: Path) -> dict[str, int]:
    """Return the MiB in use on each GPU (by UUID) before an attempt of this boot; {}: unknown."""
    match read_small_json(attempt_dir / START_FILE):
        case {"gpu_used_mib": dict(levels), "boot_id": str(boot)} if boot == _boot_id():
            return {uuid: mib for uuid, mib in levels.items() if type(mib) is int and mib >= 0}
        case _:
            return {}


def _no_kernel_log(error: OSError) -> str:
    return (
        f"the kernel's log was not read ({error.strerror}): `sudo dmesg` shows kills for memory, "
        "Xid errors and disk errors"
    )


def capture(
    attempt_dir: Path,
    gpus: Sequence[Gpu],
    disk: Path,
    *,
    failed: bool,
) -> tuple[str, ...]:
    """Read and keep what the host did to an attempt that has ended; once for each.

    `gpus` are those it used, `disk` where its checkpoints go. The GPUs are asked only where it
    `failed`. Takes 2 s at most. Returns what could not be kept, one sentence each.
    """
    if read_small_json(attempt_dir / HOST_FILE) is not None:
        return ()
    start = _Start.read(attempt_dir)
    unread = list(start.unread)
    facts: dict[str, Any] = {"oom_kills": start.oom_kills(unread)}
    lines = start.kernel_lines(gpus, disks_of(disk), facts, unread)
    if gpus and failed:
        states = read_gpu_states()
        facts["gpus"] = [asdict(state) for state in states.gpus]
        unread += states.unread
    facts["unread"] = unread
    try:
        (attempt_dir / INCIDENT_DIR).mkdir(parents=True, exist_ok=True)
        if lines:
            text = "".join(f"{line}\n" for line in lines)
            write_bytes(attempt_dir / KERNEL_LOG, text.encode(errors="replace"))
        write_json(attempt_dir / HOST_FILE, facts)
    except OSError as error:
        return (f"what the host did was not kept: {HOST_FILE}: {error.strerror}", *unread)
    return ()


@dataclass(frozen=True, slots=True)
class _Start:
    """The note made before the attempt; every field may be unknown."""

    unix_s: float | None = None
    mono_s: float | None = None
    kernel_seq: int | None = None
    counter: cgroup.OomCounter | None = None
    unread: tuple[str, ...] = ()

    @classmethod
    def read(cls, attempt_dir: Path) -> _Start:
        note = read_small_json(attempt_dir / START_FILE)
        if not isinstance(note, dict):
            return cls(unread=("where the host stood before the attempt was not noted",))
        with suppress(OSError):
            if note.get("boot_id") != proc.boot_id():
                return cls(unread=("the machine was booted anew since the attempt began",))
        counter = None
        match note.get("cgroup"):
            case {"file": str(file), "oom_kill": int(kills)}:
                counter = cgroup.OomCounter(Path(file), kills)
        return cls(
            _number(note.get("unix_s")),
            _number(note.get("mono_s")),
            seq if isinstance(seq := note.get("kernel_seq"), int) else None,
            counter,
            _texts(note.get("unread")),
        )

    def oom_kills(self, unread: list[str]) -> int | None:
        """Return how many of the cgroup were killed for memory since; None when unknown."""
        if self.counter is None:
            return None
        try:
            now = cgroup.read_kills(self.counter.file)
        except cgroup.NoCounterError as error:
            unread.append(f"kills for memory are not counted: {error}")
            return None
        return max(0, now - self.counter.kills)

    def kernel_lines(
        self,
        gpus: Sequence[Gpu],
        disks: frozenset[str],
        facts: dict[str, Any],
        unread: list[str],
    ) -> list[str]:
        """Return what the kernel wrote since about memory, crashes, these GPUs and disks."""
        if self.kernel_seq is None:
            return []
        buses = frozenset(gpu.bus_id for gpu in gpus if gpu.bus_id)

        def wanted(text: str) -> bool:
            bus = kernel_lines.named_bus(text)
            return (
                kernel_lines.is_oom(text)
                or kernel_lines.is_crash(text)
                or (bus in buses if buses else bus is not None and bool(gpus))
                or kernel_lines.is_disk_trouble(text, disks)
            )

        try:
            reading = read_kernel(self.kernel_seq, wanted)
        except OSError as error:
            unread.append(_no_kernel_log(error))
            return []
        facts["pids_comparable"] = in_first_pid_namespace()
        if reading.missed:
            unread.append(f"{reading.missed} records of the kernel's log were overwritten")
        if not reading.whole:
            unread.append("only the first part of the kernel's log was read")
        return self._stamped(reading)

    def _stamped(self, reading: KernelReading) -> list[str]:
        """Return lines with the wall clock's time, where it can be told, as dmesg has it else.

        printk's clock stands for CLOCK_MONOTONIC. It may be seconds off after weeks, so a time is
        never put outside of the attempt's own. After a suspend, or when the clock was set, no time
        is better than a wrong one.
        """
        offset_s = time.time() - time.monotonic()
        began_s, mono_s = self.unix_s, self.mono_s
        if began_s is None or mono_s is None or abs(began_s - mono_s - offset_s) > _CLOCKS_AGREE_S:
            return [f"[{one.local_us / 1e6:12.6f}] {one.text}" for one in reading.records]

        def at(record: KernelRecord) -> str:
            at_s = min(max(offset_s + record.local_us / 1e6, began_s), time.time())
            return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

        return [f"{at(one)} {one.text}" for one in reading.records]


def in_first_pid_namespace() -> bool:
    """Return whether pids in the kernel's log are pids as this process sees them.

    In a container they are the host's, and nothing in there tells which is whose: /proc shows a
    process's pids from its own namespace inwards only.
    """
    try:
        return os.readlink("/proc/self/ns/pid") == _FIRST_PID_NAMESPACE  # noqa: PTH115 - no path
    except OSError:
        return False


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()
