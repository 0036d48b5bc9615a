"""The nouns of the supervisor: frozen values without behaviour.

Numbers carry their unit in the name. `None` means unknown, never zero. Steps count *completed*
optimizer steps; sample ranges are half-open.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path


class Kind(StrEnum):
    """Root causes; the words of the contract."""

    HEALTHY = "healthy"
    NCCL_INIT = "nccl_init"
    NCCL_TIMEOUT = "nccl_timeout"
    NCCL_REMOTE = "nccl_remote"
    NCCL_INTERNAL = "nccl_internal"
    NVLINK_P2P = "nvlink_p2p"
    RENDEZVOUS = "rendezvous"
    CUDA_OOM = "cuda_oom"
    HOST_OOM = "host_oom"
    SHM = "shm"
    GPU_FAULT = "gpu_fault"
    GPU_UNSUPPORTED = "gpu_unsupported"
    DEVICE_ASSERT = "device_assert"
    DEVICE_MISMATCH = "device_mismatch"
    DATALOADER = "dataloader"
    CHECKPOINT_CORRUPT = "checkpoint_corrupt"
    DISK_FULL = "disk_full"
    NETWORK_HUB = "network_hub"
    PREEMPTED = "preempted"
    SEGFAULT = "segfault"
    NAN_DIVERGENCE = "nan_divergence"
    IMPORT_ERROR = "import_error"
    CONFIG_ERROR = "config_error"
    USER_CODE = "user_code"
    CUDA_INIT_FORK = "cuda_init_fork"
    HANG = "hang"
    PREMATURE_SUCCESS = "premature_success"
    UNKNOWN = "unknown"


class Remedy(StrEnum):
    """What a diagnosis proposes (`action` in the contract)."""

    FALLBACK_SINGLE_GPU = "fallback_single_gpu"
    RETRY_SAME = "retry_same"
    REDUCE_MICROBATCH = "reduce_microbatch"
    RESUME_OLDER_CHECKPOINT = "resume_older_checkpoint"
    WAIT_THEN_RETRY = "wait_then_retry"
    STOP_AND_TELL = "stop_and_tell"
    NONE = "none"


class Role(StrEnum):
    """What a matched line is: the cause, a consequence of some cause, or only context."""

    ROOT = "root"
    SYMPTOM = "symptom"
    CONTEXT = "context"


class Confidence(StrEnum):
    """How sure a diagnosis is: the host or the text proves it, most evidence says it, a guess."""

    CERTAIN = "certain"
    LIKELY = "likely"
    GUESS = "guess"


class Accelerator(StrEnum):
    """The device type all ranks train on."""

    CUDA = "cuda"
    CPU = "cpu"


class Launcher(StrEnum):
    """How the ranks of a rung are started."""

    TORCHRUN = "torchrun"
    PYTHON = "python"


class Section(StrEnum):
    """What a rank was doing when it wrote its last progress line."""

    INIT = "init"
    TRAIN = "train"
    CHECKPOINT = "checkpoint"
    EVAL = "eval"


# --- the host ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Gpu:
    """One visible GPU. Memory is None where only the kernel driver could be asked."""

    index: int
    uuid: str
    name: str
    total_mib: int | None
    free_mib: int | None
    bus_id: str = ""
    """Its PCI bus id as "0000:01:00"; "" where it is unknown."""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that computes on a GPU: a pid of the host, and what it holds (None: unknown)."""

    pid: int
    used_mib: int | None


@dataclass(frozen=True, slots=True)
class GpuState:
    """What the driver said of a GPU after an attempt; None (or "") is unknown.

    `ecc_uncorrected` counts since the driver was loaded. `recovery` is what the driver wants done,
    "" for nothing; `throttled` why it runs slower, as far as that is trouble. `error` is the
    driver's word when it cannot speak to the GPU ("GPU is lost").
    """

    index: int
    uuid: str = ""
    bus_id: str = ""
    name: str = ""
    total_mib: int | None = None
    used_mib: int | None = None
    processes: tuple[GpuProcess, ...] | None = None
    ecc_uncorrected: int | None = None
    recovery: str | None = None
    throttled: tuple[str, ...] | None = None
    temperature_c: int | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Host:
    """What was read from the machine before an attempt; `None` is unknown.

    `gpus` is empty on a machine without a visible NVIDIA GPU; not `gpus_known`: the driver was
    asked and did not answer. Versions are those the *worker's* interpreter would import, read
    without importing them. `unread` says what could not be read, and why, one sentence each.
    """

    gpus: tuple[Gpu, ...] = ()
    driver_version: str | None = None
    torch_version: str | None = None
    cpu_count: int = 1
    gpus_known: bool = True
    unread: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process for ever (within one boot): pid and start time in clock ticks since boot."""

    pid: int
    start_ticks: int


# --- a plan ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rung:
    """One way of running. `gpus`: "all", a count, or indices/UUIDs (ranks, on the CPU)."""

    name: str
    gpus: str | int | tuple[str, ...]
    launcher: Launcher
    env: tuple[tuple[str, str], ...] = ()
    args: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Batch:
    """The sums of one optimizer step: global_samples = micro_samples * grad_accum * world_size."""

    global_samples: int
    micro_samples: int
    grad_accum: int
    world_size: int


@dataclass(frozen=True, slots=True)
class EnvChange:
    """One variable a worker sees, and who set it: `why` for people, `source` a citation or setter.

    `setter` is one of "hardened", "config", "rung", "inherited", "contract".
    """

    name: str
    value: str
    setter: str
    why: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A verified checkpoint of `step` completed steps and `samples` consumed samples."""

    path: Path
    step: int
    samples: int


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """One attempt, completely decided: starting it needs nothing else.

    `argv` is executed as it stands, in `cwd`, with the supervisor's environment changed by `env`
    (a variable in `unset_env` is removed). `resume_from` is None for a start from scratch.
    """

    attempt: int
    rung: str
    rung_index: int
    launcher: Launcher
    world_size: int
    argv: tuple[str, ...]
    env: tuple[EnvChange, ...]
    unset_env: tuple[str, ...]
    cwd: Path
    attempt_dir: Path
    gpus: tuple[Gpu, ...]
    batch: Batch | None
    resume_from: Checkpoint | None
    grace_s: float


# --- what is observed --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a process ended: exactly one of `code` and `signal` is set, or neither when unknown."""

    code: int | None = None
    signal: int | None = None

    @property
    def ok(self) -> bool:
        """True for exit code 0 only."""
        return self.code == 0


@dataclass(frozen=True, slots=True)
class RankExit:
    """One rank's end. `error` is its torchelastic error file's message, where there was one."""

    rank: int
    pid: int
    status: ExitStatus
    error: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """One progress line of one rank (see `contract.ProgressLine`); `at_s` is Unix time."""

    rank: int
    at_s: float
    step: int
    epoch: int
    first_sample: int
    last_sample: int
    loss: float | None
    section: Section
    target_step: int | None = None


@dataclass(frozen=True, slots=True)
class Beginning:
    """The completed step a worker began at lies between these two, as its first lines tell.

    They are equal where a line says it (section init), and where two tell how often it reports.
    """

    least: int
    most: int


@dataclass(frozen=True, slots=True)
class Hit:
    """A catalogue row that matched one line of one file.

    `line` counts from 1. `rank` is the rank whose output this is, None where nothing tells.
    `at_s` is Unix time read from the line's own stamp, None where it has none. `frame` is the
    innermost frame of the user's own code above the line ("train.py:84 in forward"), or "".
    """

    signature: str
    kind: Kind
    role: Role
    rank: int | None
    file: str
    line: int
    text: str
    at_s: float | None = None
    frame: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is known of an attempt that ended, and what could not be read (`unread`).

    `first_step`/`last_step` are the completed steps at its start and end; `target_step` is None
    when nobody said it. `first_dead` is the rank the supervisor saw die first (pidfd order).
    `host_oom_pids` are pids the kernel's own record says it killed for memory, in the pid namespace
    of the ranks. `unnamed_oom_kills` counts the processes of the attempt's cgroup killed for memory
    while it ran that no such record names; None is unknown. `gpus` are the plan's, in order of
    rank; `gpu_states` what the driver said of the machine's GPUs afterwards. `context` is what else
    was found that proves nothing but helps a person, one sentence each.
    `progress_seen`: the output itself shows steps or losses (all there is, for a log without
    progress files).
    `stop_requested`: somebody ended the attempt on purpose; `left`: we did, to go on better.
    `not_started` is why there was no process at all, "" where there was one.
    `success_unproven` is why exit code 0 would prove nothing, "" where it may be believed.
    `resumed_wrongly` says how the worker did not begin at its checkpoint's step, "" if it did.
    """

    launcher: ExitStatus | None = None
    ranks: tuple[RankExit, ...] = ()
    hits: tuple[Hit, ...] = ()
    world_size: int | None = None
    first_dead: int | None = None
    first_step: int | None = None
    last_step: int | None = None
    target_step: int | None = None
    accelerator: Accelerator | None = None
    host_oom_pids: tuple[int, ...] = ()
    unnamed_oom_kills: int | None = None
    gpus: tuple[Gpu, ...] = ()
    gpu_states: tuple[GpuState, ...] = ()
    context: tuple[str, ...] = ()
    disk_free_mib: int | None = None
    stop_requested: bool = False
    left: bool = False
    hang_suspected: bool = False
    progress_seen: bool = False
    success_unproven: str = ""
    resumed_wrongly: str = ""
    not_started: str = ""
    unread: tuple[str, ...] = ()


class Holder(StrEnum):
    """Why an allocation on a GPU did not fit."""

    WORKLOAD = "workload"
    STRANGER = "stranger"
    SIBLING_RANK = "sibling rank"
    FRAGMENTATION = "fragmentation"
    ALLOCATOR = "allocator"
    NO_CARD = "no card"


@dataclass(frozen=True, slots=True)
class OomReading:
    """Who holds the memory. `pid` and `held_mib` name another process where one does."""

    holder: Holder
    pid: int | None = None
    held_mib: float | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The root cause, in one sentence, with what to do about it.

    `root` is the hit that shows it, None when it is read from exit codes alone. `fingerprint`
    is equal for two failures that are the same one (kind, signature, normalized frame). `gpu` is
    the GPU it is about or `rank` ran on: its UUID, else the index or PCI bus id that the text says.
    `memory` is what an out-of-memory's own numbers say. `context` and `unread`: see `Evidence`.
    """

    kind: Kind
    root: Hit | None
    symptoms: tuple[Hit, ...]
    remedy: Remedy
    reason: str
    advice: str
    confidence: Confidence
    fingerprint: str
    rank: int | None = None
    gpu: str | None = None
    memory: OomReading | None = None
    context: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunPaths:
    """Where a run lives. `id` is unique for ever, `name` is what people call it."""

    name: str
    id: str
    run_dir: Path
    checkpoint_dir: Path
    config_file: Path | None = field(default=None)
