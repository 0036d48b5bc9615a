"""The table of hardened variables: each with its value, its why and its source."""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from humigence_supervise.domain import Accelerator, Host

_TORCH_NAMES_ASYNC_HANDLING: Final = (2, 2)
_TORCH_NAMES_FLIGHT_RECORDER: Final = (2, 10)
_DRIVER_WITH_CUMEM_HOST: Final = 580
_RAS_PORTS: Final = (21_000, 10_000)  # first, count: below Linux's ephemeral ports


@dataclass(frozen=True, slots=True)
class Scene:
    """What the values of the table depend on. `given` is what the user's own layers say."""

    host: Host
    accelerator: Accelerator
    attempt_dir: Path
    run_id: str
    grace_s: float
    given: Mapping[str, str]
    debug: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One variable. `value` gives None where the variable is not needed in a scene."""

    name: str
    value: str | Callable[[Scene], str | None]
    why: str
    source: str
    pinned: bool = False


def version_of(text: str | None) -> tuple[int, int] | None:
    """Return (major, minor) of a version such as "2.13.0+cpu"; None when unknown."""
    match = re.match(r"(\d+)\.(\d+)", text or "")
    return (int(match[1]), int(match[2])) if match else None


def _if_torch_before(limit: tuple[int, int], value: str) -> Callable[[Scene], str | None]:
    """Give `value` to a torch older than `limit`, and to one of unknown version."""

    def choose(scene: Scene) -> str | None:
        version = version_of(scene.host.torch_version)
        return value if version is None or version < limit else None

    return choose


def _cumem_host(scene: Scene) -> str | None:
    """Give 0 on a driver before 580, or an unknown one, when there is no P2P."""
    if scene.accelerator is Accelerator.CPU or scene.given.get("NCCL_P2P_DISABLE", "1") == "0":
        return None
    driver = version_of(scene.host.driver_version)
    return "0" if driver is None or driver[0] < _DRIVER_WITH_CUMEM_HOST else None


def _ras_address(scene: Scene) -> str:
    """Give a port made from the folder of all attempts: the same in every attempt of a run."""
    first, count = _RAS_PORTS
    return f"localhost:{first + zlib.crc32(bytes(scene.attempt_dir.parent)) % count}"


def _if_debug(value: str) -> Callable[[Scene], str | None]:
    return lambda scene: value if scene.debug else None


_TORCH_NCCL: Final = "torch ProcessGroupNCCL.hpp"
_NCCL_ENV: Final = "NCCL user guide, environment variables"
_FLIGHT: Final = "torch FlightRecorder.hpp, 2.13"

TABLE: Final[tuple[Row, ...]] = (
    Row("NCCL_DEBUG", "INFO", "NCCL says what it does and why it fails", _NCCL_ENV),
    Row(
        "NCCL_DEBUG_SUBSYS",
        lambda scene: "INIT,ENV,GRAPH,TUNING,NET,P2P,SHM" if scene.debug else "INIT,ENV",
        "ALL logs every collective: an inherited ALL wrote 10 GB in half an hour",
        _NCCL_ENV,
        pinned=True,
    ),
    Row("NCCL_IB_DISABLE", "1", "one box has no InfiniBand; probing it can hang", _NCCL_ENV),
    Row("NCCL_P2P_DISABLE", "1", "consumer GPUs have no working peer-to-peer", _NCCL_ENV),
    Row(
        "NCCL_ASYNC_ERROR_HANDLING",
        "1",
        "a failed collective ends the rank instead of hanging it; the name before torch 2.2",
        _TORCH_NCCL,
        pinned=True,
    ),
    Row(
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        "3",
        "die at once: 1 aborts communicators first, which can hang; the name since torch 2.2",
        _TORCH_NCCL,
        pinned=True,
    ),
    Row(
        "TORCH_NCCL_BLOCKING_WAIT",
        "0",
        "1 would remove the watchdog; the name since torch 2.2",
        _TORCH_NCCL,
        pinned=True,
    ),
    Row(
        "NCCL_BLOCKING_WAIT",
        _if_torch_before(_TORCH_NAMES_ASYNC_HANDLING, "0"),
        "1 would remove the watchdog; the name before torch 2.2",
        _TORCH_NCCL,
        pinned=True,
    ),
    Row(
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC",
        "180",
        "a stuck watchdog ends its rank after 3 minutes, not 8",
        _TORCH_NCCL,
    ),
    Row(
        "TORCH_NCCL_DUMP_ON_TIMEOUT",
        "1",
        "the flight recorder shows which rank lags",
        _TORCH_NCCL,
    ),
    Row("TORCH_FR_BUFFER_SIZE", "2000", "collectives the flight recorder remembers", _FLIGHT),
    Row(
        "TORCH_NCCL_TRACE_BUFFER_SIZE",
        _if_torch_before(_TORCH_NAMES_FLIGHT_RECORDER, "2000"),
        "the same, the name before torch 2.10",
        _FLIGHT,
    ),
    Row(
        "TORCH_FR_DUMP_TEMP_FILE",
        lambda scene: str(scene.attempt_dir / "flight_rank_"),
        "flight-recorder dumps stay with the attempt; the rank is appended",
        _FLIGHT,
    ),
    Row(
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
        lambda scene: str(scene.attempt_dir / "flight_rank_"),
        "the same, the older name",
        _FLIGHT,
    ),
    Row(
        "NCCL_CUMEM_HOST_ENABLE",
        _cumem_host,
        "shared host memory through cuMem fails without P2P on drivers before 580",
        "NCCL issue 1838",
    ),
    Row(
        "NCCL_SOCKET_IFNAME",
        "lo",
        "all ranks are on this box; a VPN interface may be picked otherwise",
        _NCCL_ENV,
    ),
    Row(
        "GLOO_SOCKET_IFNAME",
        "lo",
        "all ranks are on this box; a VPN interface may be picked otherwise",
        "torch.distributed, choosing the network interface",
    ),
    Row(
        "NCCL_RAS_ADDR",
        _ras_address,
        "NCCL 2.24 and later name a lagging rank there; an own port for each run",
        _NCCL_ENV,
    ),
    Row("TOKENIZERS_PARALLELISM", "false", "a forked tokenizer can deadlock", "tokenizers"),
    Row(
        "CUDA_DEVICE_ORDER",
        "PCI_BUS_ID",
        "GPU indices are those of nvidia-smi",
        "CUDA programming guide",
    ),
    Row(
        "OMP_NUM_THREADS",
        "1",
        "torchrun sets it for several ranks; a single process must compute the same",
        "torch/distributed/run.py",
    ),
    Row(
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
        lambda scene: str(math.ceil(scene.grace_s)),
        "torchrun waits as long as stop.grace_s for ranks that save; an older one waits 30 s",
        "torch/distributed/launcher/api.py, 2.13",
        pinned=True,
    ),
    Row("PYTHONUNBUFFERED", "1", "lines arrive when they are printed", "Python command line"),
    Row("PYTHONFAULTHANDLER", "1", "fatal signals leave a Python stack", "Python faulthandler"),
    Row("WANDB_RUN_ID", lambda scene: scene.run_id, "one curve for all attempts", "wandb"),
    Row("WANDB_RESUME", "allow", "a later attempt continues the curve", "wandb"),
    # MLFLOW_RUN_ID would do it, but must name a run that exists: an invented one ends the worker.
    Row(
        "MLFLOW_RUN_CONTEXT",
        lambda scene: json.dumps({"humigence.run_id": scene.run_id}),
        "a tag that all attempts share",
        "mlflow system_environment_context.py",
    ),
    Row(
        "CUDA_LAUNCH_BLOCKING",
        _if_debug("1"),
        "--debug: an error shows at the call that caused it",
        "CUDA programming guide",
        pinned=True,
    ),
    Row(
        "TORCH_DISTRIBUTED_DEBUG",
        _if_debug("DETAIL"),
        "--debug: mismatched collectives are named",
        "torch.distributed, debugging",
        pinned=True,
    ),
)
