"""What the host itself recorded -> a finding no text is needed for (pure).

The kernel's own word that it killed a process of ours is proof. That it killed *some* process of
our cgroup is nearly so, together with a rank that died of SIGKILL and that nobody of ours killed.
That the driver has lost a GPU of ours is proof, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from humigence_supervise.domain import Confidence, Evidence, Hit, Kind, RankExit, Role
from humigence_supervise.findings import Finding

_SIGKILL: Final = 9
_SHELL_SIGKILL: Final = 137
_LOADER_PIDS: Final = re.compile(r"DataLoader worker \(pid\(?s?\)? ?([\d, ]+)\)")
_LOADER_KILLED: Final = "is killed by signal: Killed"
_LOST: Final = re.compile(r"lost|re(?:start|set)")
"""NVML's words for a GPU that needs a reset or is gone; others ("Insufficient Permissions") are
no fault of it.
"""

_COUNTED: Final = (
    "and the kernel counts a process of this job's cgroup that it killed for memory meanwhile "
    "(oom_kill)"
)


def from_record(evidence: Evidence) -> Finding | None:
    """Return the finding that the host's records prove, None where they prove nothing."""
    return _killed_by_name(evidence) or _killed_unnamed(evidence) or _lost_gpu(evidence)


def _killed_by_name(evidence: Evidence) -> Finding | None:
    for exit_ in evidence.ranks:
        if exit_.pid and exit_.pid in evidence.host_oom_pids:
            means = f"The kernel killed rank {exit_.rank} (pid {exit_.pid}) for memory"
            hit = _kernel_line(evidence, exit_.pid)
            if hit is not None:
                means = f"The kernel killed process {exit_.pid} for memory"
            return Finding(Kind.HOST_OOM, Confidence.CERTAIN, hit, rank=exit_.rank, means=means)
    for pid, hit in loader_pids(evidence.hits):
        if pid in evidence.host_oom_pids:
            means = f"The kernel killed process {pid}, a DataLoader worker, for memory"
            return Finding(Kind.HOST_OOM, Confidence.CERTAIN, hit, rank=hit.rank, means=means)
    return None


def _kernel_line(evidence: Evidence, pid: int) -> Hit | None:
    """Return the kernel's line about a pid; of several, the one that says what was done."""
    named = re.compile(rf"\b{pid}\b")
    lines = [hit for hit in evidence.hits if hit.kind is Kind.HOST_OOM and named.search(hit.text)]
    return next((hit for hit in lines if "Killed process" in hit.text), next(iter(lines), None))


def loader_pids(hits: Iterable[Hit]) -> Iterator[tuple[int, Hit]]:
    """Yield the pids of DataLoader workers that texts say have ended, unless it was survived."""
    for hit in hits:
        if hit.role is Role.CONTEXT:
            continue
        for found in _LOADER_PIDS.finditer(hit.text):
            yield from ((int(pid), hit) for pid in re.findall(r"\d{1,10}", found[1]))


def _killed_unnamed(evidence: Evidence) -> Finding | None:
    if not evidence.unnamed_oom_kills or evidence.stop_requested or evidence.hang_suspected:
        return None
    if rank := _killed_first(evidence):
        means = f"Rank {rank.rank} was killed (SIGKILL), {_COUNTED}"
        return Finding(Kind.HOST_OOM, Confidence.LIKELY, rank=rank.rank, means=means)
    killed = (hit for _, hit in loader_pids(evidence.hits) if _LOADER_KILLED in hit.text)
    hit = next(killed, None)
    if hit is None:
        return None
    means = f"A DataLoader worker was killed (SIGKILL), {_COUNTED}"
    return Finding(Kind.HOST_OOM, Confidence.LIKELY, hit, rank=hit.rank, means=means)


def _killed_first(evidence: Evidence) -> RankExit | None:
    """Return the rank whose SIGKILL began it all: launchers then kill the others the same way."""
    killed = [
        exit_
        for exit_ in evidence.ranks
        if exit_.status.signal == _SIGKILL or exit_.status.code == _SHELL_SIGKILL
    ]
    if evidence.first_dead is not None:
        return next((exit_ for exit_ in killed if exit_.rank == evidence.first_dead), None)
    alone = len(killed) == len([exit_ for exit_ in evidence.ranks if not exit_.status.ok])
    return killed[0] if killed and alone else None


def _lost_gpu(evidence: Evidence) -> Finding | None:
    if evidence.stop_requested:
        return None
    ours = {gpu.uuid: rank for rank, gpu in enumerate(evidence.gpus)}
    at = {gpu.index: rank for rank, gpu in enumerate(evidence.gpus)}
    for state in evidence.gpu_states:
        rank = ours.get(state.uuid) if state.uuid else at.get(state.index)
        if rank is not None and _LOST.search(state.error):
            uuid = evidence.gpus[rank].uuid
            return Finding(
                Kind.GPU_FAULT,
                Confidence.CERTAIN,
                next((hit for hit in evidence.hits if hit.kind is Kind.GPU_FAULT), None),
                rank=rank,
                means=f"The driver cannot speak to GPU {state.index} ({uuid}): {state.error}",
            )
    return None
