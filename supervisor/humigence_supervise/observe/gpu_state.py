"""The state of the GPUs after a failure, asked from children with one deadline for all.

NVML tells most and is asked first (the package nvidia-ml-py, where it is installed), nvidia-smi
where that gives nothing. What did not answer is told; a child the driver holds is left behind.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from humigence_supervise.domain import GpuProcess, GpuState
from humigence_supervise.kernel_lines import bus_id
from humigence_supervise.observe.child_output import NoAnswerError, ask
from humigence_supervise.observe.gpu_probe import NO_MODULE

PROBE: Final = Path(__file__).with_name("gpu_probe.py")
MOST_S: Final = 1.5
_QUERY: Final = (
    "--query-gpu=index,uuid,pci.bus_id,memory.total,memory.used,temperature.gpu,name",
    "--format=csv,noheader,nounits",
)
_QUERY_APPS: Final = (
    "--query-compute-apps=gpu_uuid,pid,used_memory",
    "--format=csv,noheader,nounits",
)
_LEAST_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class GpuStates:
    """What was told within the deadline, and what was not (`unread`, a sentence each)."""

    gpus: tuple[GpuState, ...] = ()
    unread: tuple[str, ...] = ()


def read_gpu_states(
    timeout_s: float = MOST_S,
    environ: Mapping[str, str] | None = None,
) -> GpuStates:
    """Return the state of every GPU of the machine; takes `timeout_s` (and 0.2 s) at most."""
    environ = os.environ if environ is None else environ
    deadline = time.monotonic() + timeout_s
    found = _from_nvml(timeout_s, environ)
    left_s = deadline - time.monotonic()
    program = shutil.which("nvidia-smi", path=environ.get("PATH"))
    if found.gpus or left_s < _LEAST_S:
        return found
    if program is None:
        return GpuStates(unread=(*found.unread, "nvidia-smi gave no answer: it is not in PATH"))
    environ = {**environ, "LC_ALL": "C"}
    try:
        gpus = parse_smi(ask((program, *_QUERY), left_s, environ))
    except NoAnswerError as error:
        return GpuStates(unread=(*found.unread, f"the state of the GPUs is unknown: {error}"))
    unread = list(found.unread)
    try:
        # With no time left, `ask` says so.
        apps = ask((program, *_QUERY_APPS), max(0.0, deadline - time.monotonic()), environ)
        gpus = with_processes(gpus, apps)
    except NoAnswerError as error:
        unread.append(f"the processes on the GPUs are unknown: {error}")
    return GpuStates(gpus, tuple(unread))


def _from_nvml(timeout_s: float, environ: Mapping[str, str]) -> GpuStates:
    try:
        return parse_probe(ask((sys.executable, "-P", str(PROBE)), timeout_s, environ))
    except NoAnswerError as error:
        told = parse_probe(error.output)
        why = f"NVML gave no answer: {error}"
        if error.code == NO_MODULE:
            why = "ECC errors and repairs due on the GPUs: nvidia-ml-py is not installed"
        return GpuStates(told.gpus, told.unread or (why,))


def parse_probe(text: str) -> GpuStates:
    """Read what the probe printed, as far as it came."""
    count = 0
    states: dict[int, GpuState] = {}
    unread: list[str] = []
    for line in text.splitlines():
        match _object(line):
            case {"count": int(number)}:
                count = min(number, _GPUS_MAX)
            case {"index": int(index), **facts}:
                states[index] = state_of(index, facts)
            case {"error": str(error)}:
                unread.append(f"NVML gave no answer: {error}")
            case _:
                pass
    silent = [str(index) for index in range(count) if index not in states]
    if silent:
        unread.append(f"NVML did not answer about GPU {', '.join(silent)} in time")
    return GpuStates(tuple(states[index] for index in sorted(states)), tuple(unread))


_GPUS_MAX: Final = 256


def _object(line: str) -> dict[str, Any]:
    with suppress(ValueError, RecursionError):
        value = json.loads(line)
        if isinstance(value, dict):
            return value
    return {}


def state_of(index: int, facts: Mapping[str, Any]) -> GpuState:
    """Return a state from JSON; what is missing or odd there is unknown."""
    processes = facts.get("processes")
    throttled = facts.get("throttled")
    return GpuState(
        index=index,
        uuid=_text(facts, "uuid") or "",
        bus_id=bus_id(_text(facts, "bus_id") or ""),
        name=_text(facts, "name") or "",
        total_mib=_number(facts, "total_mib"),
        used_mib=_number(facts, "used_mib"),
        processes=None if not isinstance(processes, list) else _processes(processes),
        ecc_uncorrected=_number(facts, "ecc_uncorrected"),
        recovery=_text(facts, "recovery"),
        throttled=None if not isinstance(throttled, list) else tuple(map(str, throttled)),
        temperature_c=_number(facts, "temperature_c"),
        error=_text(facts, "error") or "",
    )


def _processes(entries: list[Any]) -> tuple[GpuProcess, ...]:
    return tuple(
        GpuProcess(one["pid"], _number(one, "used_mib"))
        for one in entries
        if isinstance(one, dict) and isinstance(one.get("pid"), int)
    )


def _text(facts: Mapping[str, Any], name: str) -> str | None:
    value = facts.get(name)
    return value if isinstance(value, str) else None


def _number(facts: Mapping[str, Any], name: str) -> int | None:
    value = facts.get(name)
    return value if isinstance(value, int) else None


def parse_smi(text: str) -> tuple[GpuState, ...]:
    """Read what nvidia-smi says of each GPU."""
    return tuple(filter(None, map(_smi_line, text.splitlines())))


def _smi_line(line: str) -> GpuState | None:
    """Return the GPU in a line of nvidia-smi's answer, None where there is none."""
    match [field.strip() for field in line.split(",")]:
        case [index, uuid, bus, total, used, temperature, *name] if index.isdecimal():
            numbers = {"total_mib": total, "used_mib": used, "temperature_c": temperature}
            known = {key: int(text) for key, text in numbers.items() if text.isdecimal()}
            facts = {"uuid": uuid, "bus_id": bus, "name": ", ".join(name), **known}
            return state_of(int(index), facts)
        case _:
            return None


def with_processes(gpus: tuple[GpuState, ...], text: str) -> tuple[GpuState, ...]:
    """Return the GPUs with the processes that nvidia-smi says compute on each.

    A GPU without a line has none; one whose line holds no pid does not tell them.
    """
    processes: dict[str, list[GpuProcess]] = {}
    silent: set[str] = set()
    for line in text.splitlines():
        match [field.strip() for field in line.split(",")]:
            case [uuid, pid, used] if pid.isdecimal():
                one = GpuProcess(int(pid), int(used) if used.isdecimal() else None)
                processes.setdefault(uuid, []).append(one)
            case [uuid, *_]:
                silent.add(uuid)
    return tuple(
        gpu if gpu.uuid in silent else replace(gpu, processes=tuple(processes.get(gpu.uuid, ())))
        for gpu in gpus
    )
