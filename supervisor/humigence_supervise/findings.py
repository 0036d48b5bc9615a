"""What a text or an ending means: a diagnosis before it is put into words (pure)."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from humigence_supervise.causes import STRONG, row_of
from humigence_supervise.domain import (
    Confidence,
    Evidence,
    Hit,
    Holder,
    Kind,
    OomReading,
    Remedy,
)
from humigence_supervise.oom import read_oom


@dataclass(frozen=True, slots=True)
class Finding:
    """A diagnosis before it is put into words."""

    kind: Kind
    confidence: Confidence
    hit: Hit | None = None
    rank: int | None = None
    means: str = ""
    advice: str = ""
    remedy: Remedy | None = None
    signature: str = ""
    memory: OomReading | None = None


def from_text(evidence: Evidence, hit: Hit) -> Finding:
    """Return what the chosen text means, with what its numbers and the run tell beyond it."""
    row = row_of(hit)
    strong = row.strength >= STRONG
    certain = Confidence.CERTAIN if row.strength >= 100 else Confidence.LIKELY  # noqa: PLR2004 - scale of `strength`
    kind = hit.kind
    if row.kind_at_start is not None and not _trained(evidence):
        kind = row.kind_at_start
    finding = Finding(
        kind,
        certain if strong else Confidence.LIKELY,
        hit,
        means=row.means,
        advice=row.advice,
        remedy=row.remedy,
    )
    match kind:
        case Kind.CUDA_OOM:
            return _explain_oom(finding, hit, evidence)
        case Kind.HOST_OOM if row.remedy is None and not _trained(evidence):
            return replace(finding, remedy=Remedy.STOP_AND_TELL)
        case Kind.SEGFAULT if hit.frame and not evidence.progress_seen:
            return replace(finding, remedy=Remedy.STOP_AND_TELL)
        case Kind.DEVICE_MISMATCH if _between_gpus(hit.text):
            return replace(finding, remedy=Remedy.FALLBACK_SINGLE_GPU)
        case Kind.USER_CODE | Kind.IMPORT_ERROR | Kind.CONFIG_ERROR:
            return replace(finding, means=quoted(hit) or row.means)
        case _:
            return finding


def _trained(evidence: Evidence) -> bool:
    """Return whether the attempt made a step, as far as anything tells."""
    first, last = evidence.first_step, evidence.last_step
    return evidence.progress_seen or (last is not None and last > (first or 0))


def _between_gpus(text: str) -> bool:
    """Return whether a device mismatch names two GPUs and no cpu."""
    two = len(set(re.findall(r"cuda:\d+", text))) > 1 and not re.search(r"\bcpu\b", text)
    return two or "different GPUs" in text or "on devices[0]" in text


def quoted(hit: Hit | None) -> str:
    """Return the text of a hit as a sentence, "" without one."""
    return hit.text.strip()[:300] if hit else ""


def _explain_oom(finding: Finding, hit: Hit, evidence: Evidence) -> Finding:
    own = frozenset(exit_.pid for exit_ in evidence.ranks)
    reading = read_oom(hit.text, own)
    finding = replace(finding, memory=reading)
    match reading.holder:
        case Holder.WORKLOAD:
            return finding
        case Holder.FRAGMENTATION:
            return replace(
                finding,
                means="The GPU's memory was full, much of it reserved in pieces that did not fit",
                advice="Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (torch 2.10 and "
                "newer: PYTORCH_ALLOC_CONF), or use smaller micro-batches.",
            )
        case Holder.ALLOCATOR:
            return replace(
                finding,
                means="A small allocation was refused although most of the card was free: the "
                "allocator or the driver is at fault",
                advice="Smaller batches will not help; update driver and torch, check for a "
                "memory limit (set_per_process_memory_fraction, MIG, ulimit).",
                remedy=Remedy.STOP_AND_TELL,
            )
        case Holder.NO_CARD:
            return replace(
                finding,
                means="A single allocation was asked for that no card could hold: a size is wrong",
                advice="Look at the shapes in the frame above; smaller batches will not help.",
                remedy=Remedy.STOP_AND_TELL,
            )
        case Holder.STRANGER:
            return _held_by_stranger(finding, reading)
        case Holder.SIBLING_RANK:
            return replace(
                finding,
                means=f"Several ranks share one GPU (pid {reading.pid} is another rank)",
                advice="Call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) first.",
                remedy=Remedy.STOP_AND_TELL,
            )


def _held_by_stranger(finding: Finding, reading: OomReading) -> Finding:
    held = f"{(reading.held_mib or 0) / 1024:.1f} GiB"
    who, see = f" (pid {reading.pid})", f"ps -fp {reading.pid}"
    if reading.pid is None:
        who, see = "", "nvidia-smi"
    return replace(
        finding,
        means=f"Another process{who} holds {held} of the GPU's memory",
        advice=f"See what it is (`{see}`) and wait for it or end it yourself.",
        remedy=Remedy.WAIT_THEN_RETRY,
    )
