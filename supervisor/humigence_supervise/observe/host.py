"""What the machine has: GPUs, driver, the worker's torch, cores. Asked from outside, with limits.

NVML calls can hang in the kernel, so nvidia-smi is a child with a deadline; where it gives no
answer, the driver's files in /proc still name the GPUs.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from humigence_supervise.domain import Gpu, Host
from humigence_supervise.kernel_lines import bus_id
from humigence_supervise.observe.child_output import NoAnswerError, ask

PROC_DRIVER: Final = Path("/proc/driver/nvidia")

_QUERY: Final = (
    "--query-gpu=index,uuid,name,memory.total,memory.free,driver_version,pci.bus_id",
    "--format=csv,noheader,nounits",
)
_TORCH_VERSION: Final = """
import importlib.metadata as metadata
try:
    print(metadata.version("torch"))
except metadata.PackageNotFoundError:
    pass
"""


@dataclass(frozen=True, slots=True)
class GpuReading:
    """The GPUs of the machine, before CUDA_VISIBLE_DEVICES. `unread`: why something is missing."""

    gpus: tuple[Gpu, ...] = ()
    driver_version: str | None = None
    unread: tuple[str, ...] = ()


def read_host(
    worker_python: Path,
    timeout_s: float = 5.0,
    *,
    environ: Mapping[str, str] | None = None,
    proc_driver: Path = PROC_DRIVER,
) -> Host:
    """Return what is visible now; each question takes at most `timeout_s`.

    CUDA_VISIBLE_DEVICES of `environ` (default: the supervisor's own) hides GPUs and orders them,
    as CUDA does it. What could not be read is told in `Host.unread`.
    """
    environ = os.environ if environ is None else environ
    reading = _read_gpus(timeout_s, environ, proc_driver)
    gpus, hidden = visible(reading.gpus, environ.get("CUDA_VISIBLE_DEVICES"))
    unread = [*reading.unread, *hidden]
    torch_version = None
    try:
        torch_version = _torch_version(str(worker_python), timeout_s)
    except NoAnswerError as error:
        unread.append(f"the worker's torch version is unknown: {error}")
    return Host(
        gpus=gpus,
        driver_version=reading.driver_version,
        torch_version=torch_version,
        cpu_count=len(os.sched_getaffinity(0)),
        gpus_known=bool(reading.gpus) or not reading.unread,
        unread=tuple(unread),
    )


def visible(gpus: tuple[Gpu, ...], selection: str | None) -> tuple[tuple[Gpu, ...], list[str]]:
    """Return the GPUs a CUDA_VISIBLE_DEVICES value leaves, in its order, and what it hides oddly.

    As CUDA reads it: indices or unambiguous UUID prefixes; the first one that names no GPU hides
    itself and all after it.
    """
    if selection is None:
        return gpus, []
    chosen: list[Gpu] = []
    for word in (part.strip() for part in selection.split(",")):
        found = [gpu for gpu in gpus if _is_called(gpu, word)]
        if len(found) != 1 or found[0] in chosen:
            odd = word not in ("", "-1", "NoDevFiles") and bool(gpus)
            note = f'CUDA_VISIBLE_DEVICES="{selection}": no GPU is called "{word}" here'
            return tuple(chosen), [note] if odd else []
        chosen.append(found[0])
    return tuple(chosen), []


def _is_called(gpu: Gpu, word: str) -> bool:
    if word.isdecimal():
        return gpu.index == int(word)
    return word.startswith("GPU-") and gpu.uuid.startswith(word)


def _read_gpus(timeout_s: float, environ: Mapping[str, str], proc_driver: Path) -> GpuReading:
    program = shutil.which("nvidia-smi", path=environ.get("PATH"))
    if program is None:
        return _from_proc(proc_driver, ())
    try:
        text = ask((program, *_QUERY), timeout_s, {**environ, "LC_ALL": "C"})
    except NoAnswerError as error:
        return _from_proc(proc_driver, (str(error),))
    reading = parse_query(text)
    if not reading.gpus and reading.unread:
        return _from_proc(proc_driver, reading.unread)
    return reading


def parse_query(text: str) -> GpuReading:
    """Return the GPUs in nvidia-smi's answer; lines that are none are told in `unread`."""
    gpus: list[Gpu] = []
    driver: str | None = None
    unread: list[str] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        fields = [field.strip() for field in line.split(",")]
        match fields:
            case [index, uuid, *name, total, free, version, bus] if (
                index.isdecimal() and uuid.startswith("GPU-") and name
            ):
                memory = (_mib(total), _mib(free))
                gpus.append(Gpu(int(index), uuid, ", ".join(name), *memory, bus_id(bus)))
                driver = version
            case _ if line.startswith("No devices"):
                pass
            case _:
                unread.append(f"nvidia-smi printed a line that names no GPU: {line[:100]!r}")
    return GpuReading(tuple(gpus), driver, tuple(unread[:1]))


def _mib(text: str) -> int | None:
    """Return a number of MiB; None for "[N/A]", as GPUs that share the host's memory say."""
    return int(text) if text.isdecimal() else None


def _from_proc(folder: Path, unread: tuple[str, ...]) -> GpuReading:
    """Return the GPUs the kernel driver lists, in the order of the bus, memory unknown."""
    try:
        texts = [
            (bus_id(bus.name), (bus / "information").read_text(errors="replace"))
            for bus in sorted((folder / "gpus").iterdir())
        ]
        version = re.search(r"Module.*?\s(\d+\.[\d.]+)\s", (folder / "version").read_text())
    except OSError:
        # No such folder: no NVIDIA driver, hence no GPU. That is an answer.
        return GpuReading(unread=unread)
    gpus = tuple(_proc_gpu(index, bus, text) for index, (bus, text) in enumerate(texts))
    return GpuReading(gpus, version[1] if version else None, unread)


def _proc_gpu(index: int, bus: str, text: str) -> Gpu:
    facts = {
        key.strip(): value.strip()
        for key, separator, value in (line.partition(":") for line in text.splitlines())
        if separator
    }
    uuid = facts.get("GPU UUID", "?")
    # A driver that has not met the GPU yet says "GPU-????...": CUDA takes the index as well.
    return Gpu(index, str(index) if "?" in uuid else uuid, facts.get("Model", "?"), None, None, bus)


@functools.cache
def _torch_version(python: str, timeout_s: float) -> str:
    """Return the version the worker would import; failures are not remembered."""
    version = ask((python, "-I", "-c", _TORCH_VERSION), timeout_s).strip()
    if not version:
        raise NoAnswerError(f"{python} has no torch")
    return version
