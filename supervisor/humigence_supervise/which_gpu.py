"""Which GPU a failure is about: the one its text names, else the one its rank ran on (pure)."""

from __future__ import annotations

import re
from typing import Final

from humigence_supervise.domain import Evidence, Hit
from humigence_supervise.kernel_lines import named_bus

_INDEX: Final = re.compile(
    r"\bcuda:(\d{1,3})\b|\bGPU (\d{1,3})(?: has a total capacity|;| ?[,)]| is )"
)


def which_gpu(evidence: Evidence, hit: Hit | None, rank: int | None) -> str | None:
    """Return a UUID; the index or bus id the text says where no plan tells more; None: unknown.

    An index is one of the worker's own view, which is the order of the plan's GPUs. A text that
    names two GPUs tells of neither.
    """
    named = _named(evidence, hit.text) if hit is not None else None
    if named is not None:
        return named
    if rank is not None and 0 <= rank < len(evidence.gpus):
        return evidence.gpus[rank].uuid
    return None


def _named(evidence: Evidence, text: str) -> str | None:
    bus = named_bus(text)
    if bus is not None:
        uuids = {gpu.bus_id: gpu.uuid for gpu in evidence.gpu_states}
        uuids |= {gpu.bus_id: gpu.uuid for gpu in evidence.gpus}
        return uuids.get(bus) or bus
    indices = {int(one or other) for one, other in _INDEX.findall(text)}
    if len(indices) != 1:
        return None
    (index,) = indices
    return evidence.gpus[index].uuid if index < len(evidence.gpus) else str(index)
