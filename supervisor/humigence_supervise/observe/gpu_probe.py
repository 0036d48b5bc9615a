"""Ask NVML for the state of every GPU: a program of its own, since a call may hang for ever.

Prints one JSON object a line, each as soon as it is known: `{"count": N}`, then one a GPU. So
whoever gives up waiting knows which GPU did not answer. Started as `python -P gpu_probe.py`, with
the module pynvml (the package nvidia-ml-py) where Python finds it; without it, ends with code 3.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from typing import Any, Final

NO_MODULE: Final = 3
_RECOVERY: Final = {
    1: "reset the GPU",
    2: "reboot the machine",
    3: "drain P2P traffic",
    4: "drain, then reset the GPU",
    5: "recover the IMEX domain",
    6: "reset the bus",
    7: "reboot the system",
}
"""nvmlGpuRecoveryAction_t of NVML 13 (0: none)."""

_THROTTLED: Final = {
    0x08: "hardware slowdown",
    0x20: "too hot (software)",
    0x40: "too hot (hardware)",
    0x80: "power brake",
}
"""nvmlClocksThrottleReason*: only what tells of trouble; idling and power caps are usual."""

_LOST: Final = ("lost", "restart", "reset")
"""In the words of nvmlErrorString for NVML_ERROR_GPU_IS_LOST and NVML_ERROR_RESET_REQUIRED."""

_MIB: Final = 1 << 20


def main() -> int:
    """Print what NVML says; return the exit code."""
    try:
        pynvml = importlib.import_module("pynvml")
    except ImportError:
        return NO_MODULE
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        _say({"error": str(error)})
        return 0
    _say({"count": count})
    for index in range(count):
        _say({"index": index, **_gpu(pynvml, index)})
    return 0


def _say(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


def _gpu(nvml: Any, index: int) -> dict[str, Any]:  # noqa: ANN401 - a module without types
    """Return each fact that one GPU tells; one it refuses is left out."""
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        return {"error": str(error)}
    told: dict[str, Any] = {}
    errors: list[str] = []

    def ask(name: str, question: Callable[[], Any]) -> None:
        # AttributeError: an older pynvml without the call. OverflowError: a field of another size.
        try:
            told[name] = question()
        except nvml.NVMLError as error:
            errors.append(str(error))
        except (AttributeError, ValueError, TypeError, OverflowError):
            pass

    ask("uuid", lambda: _text(nvml.nvmlDeviceGetUUID(handle)))
    ask("bus_id", lambda: _text(nvml.nvmlDeviceGetPciInfo(handle).busId))
    ask("name", lambda: _text(nvml.nvmlDeviceGetName(handle)))
    ask("total_mib", lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total // _MIB)
    ask("used_mib", lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used // _MIB)
    ask("processes", lambda: _processes(nvml.nvmlDeviceGetComputeRunningProcesses(handle)))
    ask("ecc_uncorrected", lambda: _ecc(nvml, handle))
    ask("recovery", lambda: _recovery(nvml, handle))
    ask("throttled", lambda: _throttled(nvml, handle))
    ask("temperature_c", lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
    lost = next((text for text in errors if any(word in text for word in _LOST)), None)
    return told if lost is None else {**told, "error": lost}


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _processes(found: list[Any]) -> list[dict[str, int | None]]:
    return [
        {
            "pid": one.pid,
            "used_mib": None if one.usedGpuMemory is None else one.usedGpuMemory // _MIB,
        }
        for one in found
    ]


def _ecc(nvml: Any, handle: Any) -> int:  # noqa: ANN401 - a module without types
    uncorrected = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    return int(nvml.nvmlDeviceGetTotalEccErrors(handle, uncorrected, nvml.NVML_VOLATILE_ECC))


def _recovery(nvml: Any, handle: Any) -> str:  # noqa: ANN401 - a module without types
    """Return what the driver wants done, "" for nothing; raises ValueError where it cannot say."""
    field = nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
    (value,) = nvml.nvmlDeviceGetFieldValues(handle, [field])
    if value.nvmlReturn != 0:
        raise ValueError(value.nvmlReturn)
    action = int(value.value.uiVal)
    return _RECOVERY.get(action, f"action {action}") if action else ""


def _throttled(nvml: Any, handle: Any) -> list[str]:  # noqa: ANN401 - a module without types
    bits = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    return [name for bit, name in _THROTTLED.items() if bits & bit]


if __name__ == "__main__":
    sys.exit(main())
