"""What an attempt's folder says of its host -> evidence (fs): plan, kernel log, GPUs, dumps."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from humigence_supervise.contract import EXIT_FILE, PLAN_FILE
from humigence_supervise.domain import Evidence, Gpu, GpuState, Hit
from humigence_supervise.host_record import loader_pids
from humigence_supervise.kernel_lines import (
    is_crash,
    is_oom,
    named_bus,
    named_pid,
    oom_victims,
)
from humigence_supervise.observe.gpu_state import state_of
from humigence_supervise.observe.host_facts import HOST_FILE, KERNEL_LOG
from humigence_supervise.observe.logs import OpenLog
from humigence_supervise.small_json import read_small_json

_STAMP: Final = re.compile(r"^(?:\[ *\d+\.\d+\]|\d{4}-\S+Z) ")
_CRASH_SIGNALS: Final = frozenset((4, 5, 7, 8, 11))
_TOLD_LINES: Final = 5
_LINE_MAX: Final = 300
_KERNEL_LOG_BYTES: Final = 1 << 20
_DUMP: Final = re.compile(r"flight_rank_(\d{1,5})")
_DUMPS_TOLD: Final = 8
_OTHER_PIDS = (
    "the kernel's log names killed processes by pids of the host, unknown in this container"
)


def planned_gpus(attempt_dir: Path) -> tuple[Gpu, ...]:
    """Return the GPUs an attempt was planned with, in order of rank; () when nothing tells."""
    plan = read_small_json(attempt_dir / PLAN_FILE)
    entries = plan.get("gpus") if isinstance(plan, dict) else None
    return tuple(
        Gpu(one["index"], one["uuid"], str(one.get("name")), None, None, str(one.get("bus_id", "")))
        for one in (entries if isinstance(entries, list) else [])
        if isinstance(one, dict)
        and isinstance(one.get("index"), int)
        and isinstance(one.get("uuid"), str)
    )


def with_host_facts(evidence: Evidence, attempt_dir: Path, kernel_hits: Sequence[Hit]) -> Evidence:
    """Add what the host's records say of this attempt. `kernel_hits`: rows found in KERNEL_LOG."""
    found = read_small_json(attempt_dir / HOST_FILE)
    facts = found if isinstance(found, dict) else {}
    gpus = planned_gpus(attempt_dir)
    states = _states(facts, gpus)
    lines = _kernel_lines(attempt_dir)
    comparable = facts.get("pids_comparable") is True
    victims = oom_victims(lines)
    unread = [str(one) for one in _list(facts.get("unread"))]
    if victims and not comparable:
        unread.append(_OTHER_PIDS)
        victims = ()
    kills = facts.get("oom_kills")
    ranks = _rank_of_pid(evidence, attempt_dir) if comparable else {}
    hits = [replace(hit, rank=_rank_of(hit.text, ranks, gpus)) for hit in kernel_hits]
    hits = [hit for hit in hits if _concerns(hit.text, ranks, gpus)]
    return replace(
        evidence,
        hits=(*evidence.hits, *hits),
        host_oom_pids=victims,
        unnamed_oom_kills=max(0, kills - len(victims)) if isinstance(kills, int) else None,
        gpus=gpus,
        gpu_states=states,
        context=(
            *evidence.context,
            *_told_lines(lines, evidence, ranks, frozenset(hit.line for hit in hits)),
            *_told_gpus(states, gpus),
            *_told_dumps(attempt_dir),
        ),
        unread=(*evidence.unread, *unread),
    )


# --- the kernel's log -------------------------------------------------------------------------


def _kernel_lines(attempt_dir: Path) -> list[str]:
    """Return the kept lines without their stamps; capture bounds the file."""
    try:
        with closing(OpenLog(attempt_dir / KERNEL_LOG)) as log:
            text = os.read(log.descriptor, _KERNEL_LOG_BYTES).decode(errors="replace")
    except OSError:  # usual: nothing of interest was written
        return []
    return [_STAMP.sub("", line, count=1) for line in text.split("\n")]


def _rank_of_pid(evidence: Evidence, attempt_dir: Path) -> dict[int, int | None]:
    """Return the pids that are the attempt's own: ranks, DataLoader workers, the launcher."""
    own: dict[int, int | None] = {pid: hit.rank for pid, hit in loader_pids(evidence.hits)}
    match read_small_json(attempt_dir / EXIT_FILE):
        case {"launcher": {"pid": int(pid)}}:
            own[pid] = None
    own |= {exit_.pid: exit_.rank for exit_ in evidence.ranks if exit_.pid}
    return own


def _concerns(text: str, own: Mapping[int, int | None], gpus: Sequence[Gpu]) -> bool:
    """Return whether a line is about this attempt: its processes, its GPUs, or its disk."""
    bus, pid = named_bus(text), named_pid(text)
    if bus is not None:
        return pid in own or any(gpu.bus_id == bus for gpu in gpus)
    return pid in own if is_oom(text) or is_crash(text) else True


def _rank_of(text: str, own: Mapping[int, int | None], gpus: Sequence[Gpu]) -> int | None:
    pid, bus = named_pid(text), named_bus(text)
    if pid is not None and pid in own:
        return own[pid]
    return next((rank for rank, gpu in enumerate(gpus) if bus and gpu.bus_id == bus), None)


def _told_lines(
    lines: Iterable[str],
    evidence: Evidence,
    own: Mapping[int, int | None],
    in_hits: frozenset[int],
) -> list[str]:
    """Return the lines that no row of the catalogue matched, but a person should see.

    A crash names the pid of a *thread*, so it may be a rank's although no rank has that pid.
    """
    crashed = any(exit_.status.signal in _CRASH_SIGNALS for exit_ in evidence.ranks)
    told = [
        f"The kernel's log says ({KERNEL_LOG}:{number}): {text[:_LINE_MAX]}"
        for number, text in enumerate(lines, start=1)
        if text
        and number not in in_hits
        and not is_oom(text)
        and (not is_crash(text) or crashed or named_pid(text) in own)
    ]
    return told[:_TOLD_LINES]


# --- the GPUs ---------------------------------------------------------------------------------


def _states(facts: Mapping[str, Any], gpus: Sequence[Gpu]) -> tuple[GpuState, ...]:
    """Return the states kept; a lost GPU does not tell its UUID, but the plan knows its index."""
    uuids = {gpu.index: gpu.uuid for gpu in gpus}
    states = [
        state_of(one["index"], one)
        for one in _list(facts.get("gpus"))
        if isinstance(one, dict) and isinstance(one.get("index"), int)
    ]
    return tuple(
        replace(state, uuid=uuids.get(state.index, "")) if state.error and not state.uuid else state
        for state in states
    )


def _told_gpus(states: Iterable[GpuState], gpus: Sequence[Gpu]) -> list[str]:
    """Return what is out of the ordinary on the attempt's GPUs, after all of it was gone."""
    ours = {gpu.uuid for gpu in gpus}
    return [
        f"GPU {state.index} ({state.uuid}) after the attempt: {'; '.join(odd)}."
        for state in states
        if state.uuid in ours and (odd := _oddities(state))
    ]


def _oddities(state: GpuState) -> list[str]:
    odd = [state.error] if state.error else []
    if state.processes:
        holders = ", ".join(
            f"pid {one.pid}" + ("" if one.used_mib is None else f" ({one.used_mib} MiB)")
            for one in state.processes
        )
        odd.append(f"{state.used_mib} of {state.total_mib} MiB used, by {holders}")
    if state.ecc_uncorrected:
        odd.append(f"{state.ecc_uncorrected} uncorrected ECC errors since the driver was loaded")
    if state.recovery:
        odd.append(f"the driver wants: {state.recovery}")
    if state.throttled:
        odd.append(f"slowed down: {', '.join(state.throttled)}, {state.temperature_c} degrees C")
    return odd


# --- flight-recorder dumps --------------------------------------------------------------------


def _told_dumps(attempt_dir: Path) -> list[str]:
    """Return where the dumps are: pickles, which are never loaded here."""
    found: list[tuple[int, str]] = []
    try:
        for path in attempt_dir.iterdir():
            if named := _DUMP.fullmatch(path.name):
                stat = path.stat()
                when = datetime.fromtimestamp(stat.st_mtime, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
                found.append((int(named[1]), f"{path.name}: {stat.st_size} bytes, {when}"))
    except (OSError, ValueError, OverflowError):
        pass
    if not found:
        return []
    found.sort()
    ranks = ", ".join(str(rank) for rank, _ in found)
    which = "; ".join(text for _, text in found[:_DUMPS_TOLD])
    return [f"Flight-recorder dumps of ranks {ranks} are in {attempt_dir} ({which})."]


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
