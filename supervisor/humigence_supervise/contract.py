"""Names that the supervisor, its keeper and the worker share.

Standard library only, no I/O, no behaviour: the worker imports this module (and nothing else
of the supervisor). What stands here is public; it changes only with a major version.
"""

from __future__ import annotations

from typing import Final, Literal, NotRequired, TypedDict

# --- exit codes of `humigence-supervise start` ------------------------------------------------

EXIT_COMPLETED: Final = 0
EXIT_USAGE: Final = 64
EXIT_RUN_HELD: Final = 69
EXIT_INTERNAL: Final = 70
EXIT_GAVE_UP: Final = 75
EXIT_CONFIG: Final = 78
EXIT_HOPELESS: Final = 93
EXIT_SIGINT: Final = 130
EXIT_SIGTERM: Final = 143

# --- environment of every worker process -------------------------------------------------------

ENV_RUN_DIR: Final = "HUMIGENCE_RUN_DIR"
ENV_RUN_ID: Final = "HUMIGENCE_RUN_ID"
ENV_ATTEMPT: Final = "HUMIGENCE_ATTEMPT"
ENV_RUNG: Final = "HUMIGENCE_RUNG"
ENV_RESUME_FROM: Final = "HUMIGENCE_RESUME_FROM"
ENV_CHECKPOINT_DIR: Final = "HUMIGENCE_CHECKPOINT_DIR"
ENV_PROGRESS_DIR: Final = "HUMIGENCE_PROGRESS_DIR"
ENV_ATTEMPT_DIR: Final = "HUMIGENCE_ATTEMPT_DIR"
ENV_GLOBAL_BATCH: Final = "HUMIGENCE_GLOBAL_BATCH"
ENV_MICRO_BATCH: Final = "HUMIGENCE_MICRO_BATCH"
ENV_GRAD_ACCUM: Final = "HUMIGENCE_GRAD_ACCUM"
ENV_KEEP_CHECKPOINTS: Final = "HUMIGENCE_KEEP_CHECKPOINTS"
"""How many newest good checkpoints to keep; empty where the worker's own configuration decides."""
ENV_VIRTUAL_RANKS: Final = "HUMIGENCE_VIRTUAL_RANKS"
"""World size of the ladder's first rung: how many ranks' micro-batches make one optimizer step."""

# --- files of a run directory ------------------------------------------------------------------

JOURNAL_FILE: Final = "journal.jsonl"
REPORT_FILE: Final = "report.html"
SUPERVISOR_LOCK: Final = "supervisor.lock"
KEEPER_LOCK: Final = "keeper.lock"
ATTEMPTS_DIR: Final = "attempts"
CHECKPOINTS_DIR: Final = "checkpoints"
SNAPSHOT_FILE: Final = "config.snapshot.json"
"""The worker's effective configuration, written by its first rank."""
FAULTS_DIR: Final = "faults"
"""Markers of drills that have acted; a drill acts once in a run."""

PLAN_FILE: Final = "plan.json"
KEEPER_FILE: Final = "keeper.json"
EXIT_FILE: Final = "exit.json"
LAUNCHER_LOG: Final = "launcher.log"
RANKS_DIR: Final = "ranks"
PROGRESS_DIR: Final = "progress"
TORCHRUN_DIR: Final = "torchrun"
INCIDENT_DIR: Final = "incident"
RANK_PROCESS_FILE: Final = "process.json"
RANK_ERROR_FILE: Final = "error.json"

MANIFEST_FILE: Final = "MANIFEST.json"
MANIFEST_FORMAT: Final = "humigence-checkpoint-1"
CHECKPOINT_PREFIX: Final = "step-"


def attempt_name(attempt: int) -> str:
    """Return the folder name of an attempt, counted from 1: ``0001``."""
    return f"{attempt:04d}"


def checkpoint_name(step: int) -> str:
    """Return the folder name of the checkpoint of a completed step: ``step-00000120``."""
    return f"{CHECKPOINT_PREFIX}{step:08d}"


class ManifestFile(TypedDict):
    """One file of a checkpoint: path relative to its folder, size in bytes, hex SHA-256."""

    path: str
    size: int
    sha256: str


class Manifest(TypedDict):
    """``MANIFEST.json``, written last: what makes a folder a checkpoint.

    `step` counts completed optimizer steps; `samples` those consumed since step 0.
    """

    format: str
    run: str
    step: int
    samples: int
    world_size: int
    files: list[ManifestFile]


SectionName = Literal["init", "train", "checkpoint", "eval"]


class ProgressLine(TypedDict):
    """One line of ``progress/<rank>.jsonl``; one line a completed optimizer step.

    `ts` is Unix time in seconds. `step` counts completed steps. `samples` is the half-open range
    of the *global* batch of that step, the same on every rank. A line of section `init` is
    written once, before the first step, with the step the process resumes at, an empty range,
    and `target_step`; sections `checkpoint` and `eval` are written when they begin (the next
    `train` line ends them).
    """

    ts: float
    step: int
    epoch: int
    samples: list[int]
    loss: float | None
    section: SectionName
    target_step: NotRequired[int]


class RankProcess(TypedDict):
    """``ranks/<rank>/process.json``: which process is this rank.

    `start_ticks` is field 22 of ``/proc/<pid>/stat``; with `pid` it names one process for ever
    (within one boot).
    """

    rank: int
    local_rank: int
    pid: int
    start_ticks: int


class KeeperRecord(TypedDict):
    """``keeper.json``, written before the launcher starts and once more when it has."""

    attempt: int
    pid: int
    start_ticks: int
    boot_id: str
    launcher_pid: int | None
    launcher_start_ticks: int | None


class ReapedProcess(TypedDict):
    """A process the keeper reaped. Exactly one of `code` and `signal` is an integer."""

    pid: int
    rank: int | None
    code: int | None
    signal: int | None


class ExitRecord(TypedDict):
    """``exit.json``: written when the launcher has ended, again when the whole tree has.

    `launcher` is null when it could not be started (`error` says why). `stop` tells what the
    keeper was asked to do. `survivors` are pids that did not die (D state) although killed.
    """

    attempt: int
    launcher: ReapedProcess | None
    error: str | None
    reaped: list[ReapedProcess]
    stop: Literal["none", "graceful", "kill"]
    ended: str
    cleared: bool
    survivors: list[int]
