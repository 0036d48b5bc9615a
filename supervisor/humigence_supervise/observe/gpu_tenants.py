"""Who holds memory of the GPUs now, apart from us: named for people, never touched."""

from __future__ import annotations

import os
import pwd
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from humigence_supervise import proc
from humigence_supervise.domain import GpuState
from humigence_supervise.gpu_room import Tenant
from humigence_supervise.observe.host_facts import in_first_pid_namespace
from humigence_supervise.observe.uids import uids_of
from humigence_supervise.plan_file import public_argv
from humigence_supervise.printable import for_people

UNKNOWN: Final = "unknown"
COMMAND_CHARS: Final = 80
_CMDLINE_BYTES: Final = 4096


def read_tenants(
    states: Sequence[GpuState],
    own_pids: Collection[int] = (),
    *,
    pids_comparable: bool | None = None,
) -> tuple[Tenant, ...]:
    """Return each living process on the GPUs that is not one of `own_pids`.

    The driver also lists the dead whose memory it is still freeing: they are nobody's tenants. Its
    pids are the host's. Where ours are not (`pids_comparable`, None: look), an equal number here is
    another process, so who it is stays unknown, and all that are listed count as living.
    """
    if pids_comparable is None:
        pids_comparable = in_first_pid_namespace()
    return tuple(
        Tenant(state.uuid, one.pid, *_who(one.pid, known=pids_comparable), one.used_mib)
        for state in states
        for one in state.processes or ()
        if one.pid not in own_pids and not (pids_comparable and _is_gone(one.pid))
    )


def _is_gone(pid: int) -> bool:
    """Tell whether there is no such process; one that /proc hides from us (hidepid) is there."""
    found = proc.stat(pid)
    if found is not None:
        return found.dead
    try:
        os.kill(pid, 0)  # asks only; nothing is sent
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        return False
    return False


def _who(pid: int, *, known: bool) -> tuple[str, str]:
    """Return the user's name and the command of a process, each "unknown" where it is hidden."""
    return (_user(pid), _command(pid)) if known else (UNKNOWN, UNKNOWN)


def _user(pid: int) -> str:
    """Return the name of the user a process acts as, which is the one that ps shows."""
    uids = None
    with suppress(OSError):
        uids = uids_of(pid)
    if uids is None:
        return UNKNOWN
    try:
        return for_people(pwd.getpwuid(uids.effective).pw_name)
    except KeyError:
        return str(uids.effective)


def _command(pid: int) -> str:
    """Return the first words of a command line without its secrets; the name of a bare thread.

    A process that sets its own title leaves one long word, so words are parted at blanks too.
    """
    found = proc.stat(pid)
    # The command line is in the process's own memory: the kernel may hold who asks for it together
    # with a process that sleeps in a driver. The name is the kernel's own.
    asleep = found is not None and found.state == "D"
    words = "" if asleep else _read(pid, "cmdline").replace("\0", " ")
    shown = " ".join(public_argv(words.split())) or _read(pid, "comm").strip() or UNKNOWN
    shown = for_people(shown)
    return shown if len(shown) <= COMMAND_CHARS else f"{shown[: COMMAND_CHARS - 3]}..."


def _read(pid: int, name: str) -> str:
    try:
        with Path(f"/proc/{pid}/{name}").open("rb") as stream:
            return os.fsdecode(stream.read(_CMDLINE_BYTES))
    except OSError:
        return ""
