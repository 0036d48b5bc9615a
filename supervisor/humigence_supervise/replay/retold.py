"""What a journal tells of an incident, as policy wants it, and what it does not tell. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from humigence_supervise.decisions import Incident
from humigence_supervise.domain import Confidence, Diagnosis, Kind, OomReading, Remedy
from humigence_supervise.history import integer, text
from humigence_supervise.records import Event, Record
from humigence_supervise.state import State


class Missing(StrEnum):
    """What the policy looks at and a journal may not tell."""

    DIAGNOSIS = "diagnosis"
    HOLDER = "holder"
    MICRO_BATCH = "micro_batch"
    GPU = "gpu"
    GPUS_LEFT = "gpus_left"
    ACTION = "action"
    FREE_MIB = "free_mib"


NOT_IN_EVIDENCE: Final = frozenset((Missing.MICRO_BATCH, Missing.GPUS_LEFT, Missing.FREE_MIB))
"""What no reading of an attempt's logs brings back."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The configured micro-batch, as the plans tell it; not `known` where none of them says."""

    micro_samples: int | None = None
    known: bool = False

    @classmethod
    def of(cls, planned: Record, state: State, before: Batch) -> Batch:
        """Return what a plan says; one with reduced micro-batches says nothing of it."""
        if state.micro_samples is not None or "micro_batch" not in planned.facts:
            return before
        return cls(integer(planned, "micro_batch"), known=True)


def diagnosis_told(now: Incident, diagnosed: Record | None) -> Diagnosis:
    """Return the diagnosis of an incident, as far as the journal tells it."""
    action, confidence = text(diagnosed, "action"), text(diagnosed, "confidence")
    sure = confidence in {one.value for one in Confidence}
    return Diagnosis(
        kind=now.kind,
        root=None,
        symptoms=(),
        remedy=Remedy(action) if action in {one.value for one in Remedy} else Remedy.NONE,
        reason=text(diagnosed, "reason") or f"The journal says no more than {now.kind.value}.",
        advice=text(diagnosed, "advice"),
        confidence=Confidence(confidence) if sure else Confidence.GUESS,
        fingerprint=now.fingerprint,
        gpu=now.gpu or text(diagnosed, "gpu") or None,
        memory=None if now.holder is None else OomReading(now.holder),
    )


def missing_of(
    kind: Kind,
    decided: Record,
    diagnosed: Record | None,
    batch: Batch,
    room: tuple[int, int | None],
) -> frozenset[Missing]:
    """Return what the policy looks at for this kind, and the journal does not tell."""
    missing = set[Missing]() if diagnosed is not None else {Missing.DIAGNOSIS}
    match kind:
        case Kind.CUDA_OOM:
            missing |= {Missing.HOLDER} if "holder" not in decided.facts else set()
            missing |= {Missing.MICRO_BATCH} if not batch.known else set()
        case Kind.GPU_FAULT:
            missing |= {Missing.GPUS_LEFT}
            if not (text(decided, "gpu") or text(diagnosed, "gpu")):
                missing |= {Missing.GPU}
        case Kind.SHM if not text(diagnosed, "action"):
            missing |= {Missing.ACTION}
        case Kind.DISK_FULL if room[1] is None:
            missing |= {Missing.FREE_MIB}
        case _:
            pass
    return frozenset(missing)


def exit_code_told(what_followed: list[Record]) -> int | None:
    """Return what the run ended with, where the decision was its last."""
    for record in what_followed:
        if record.event in (Event.RUN_FAILED, Event.RUN_GAVE_UP):
            return integer(record, "exit_code")
    return None


def room_told(what_followed: list[Record]) -> tuple[int, int | None]:
    """Return (MiB needed, MiB free) on the disk; a run that waited for space had too little."""
    for record in what_followed:
        if record.event is Event.BACKOFF_STARTED and (need := integer(record, "need_mib")):
            return need, integer(record, "free_mib") or 0
    return 0, None
