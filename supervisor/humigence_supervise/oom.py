"""What a GPU out-of-memory text says beyond "full": who holds the memory (pure).

The allocator prints sizes and other processes; they tell a batch that is too large from a
stranger on the card, from all ranks on one GPU, from fragmentation, and from a broken allocator.
"""

from __future__ import annotations

import re
from typing import Final

from humigence_supervise.domain import Holder, OomReading

_MIB_OF_UNIT: Final = {
    "B": 1 / (1 << 20),
    "bytes": 1 / (1 << 20),
    "KiB": 1 / 1024,
    "MiB": 1.0,
    "GiB": 1024.0,
    "TiB": 1024.0 * 1024,
}
_SIZE: Final = r"(\d+(?:\.\d+)?) (B|bytes|KiB|MiB|GiB|TiB)\b"
_REQUESTED: Final = re.compile(rf"Tried to allocate {_SIZE}")
_TOTAL: Final = re.compile(rf"total capaci?ty of {_SIZE}|{_SIZE} total capacity")
_FREE: Final = re.compile(rf"of which {_SIZE} is free|{_SIZE} free")
_RESERVED: Final = re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated")
_RESERVED_IN_ALL: Final = re.compile(rf"{_SIZE} reserved in total by PyTorch")
_OTHER: Final = re.compile(rf"Process (\d+) has {_SIZE} memory in use")
_THIS: Final = re.compile(rf"this process has {_SIZE} memory in use")

_FREE_MANIFOLD: Final = 8
_FREE_AT_LEAST_MIB: Final = 4096
_SHARE_OF_STRANGER: Final = 0.3
_SHARE_UNEXPLAINED: Final = 0.5
_FRAGMENTS: Final = 0.2
_CARDS: Final = 8
"""A request larger than so many cards is a broken size, not a batch that is too large."""


def read_oom(text: str, own_pids: frozenset[int]) -> OomReading:
    """Read an allocator's message; `own_pids` are the ranks of the attempt, where known."""
    requested = _mib(_REQUESTED.search(text))
    total = _mib(_TOTAL.search(text))
    free = _mib(_FREE.search(text))
    if requested and free and free > max(_FREE_AT_LEAST_MIB, _FREE_MANIFOLD * requested):
        return OomReading(Holder.ALLOCATOR)
    if requested and total and requested > _CARDS * total:
        return OomReading(Holder.NO_CARD)
    if other := _largest_other(text, total, own_pids):
        return other
    own = _mib(_RESERVED_IN_ALL.search(text))
    if total and own is not None and free is not None:
        # torch before 2.1 names nobody, but what is neither free nor its own is another's.
        held = total - free - own
        if held > _SHARE_UNEXPLAINED * total:
            return OomReading(Holder.STRANGER, None, held)
    reserved = _mib(_RESERVED.search(text))
    if reserved and requested and total and reserved > max(requested, _FRAGMENTS * total):
        return OomReading(Holder.FRAGMENTATION)
    return OomReading(Holder.WORKLOAD)


def _largest_other(
    text: str,
    total: float | None,
    own_pids: frozenset[int],
) -> OomReading | None:
    """Return the other process that holds a good part of the card, None when there is none.

    Without a "this process has" part, the one process that is named is this one itself (inside
    a container pids differ), so nothing is concluded.
    """
    if total is None or not _THIS.search(text):
        return None
    others = [(int(m[1]), float(m[2]) * _MIB_OF_UNIT[m[3]]) for m in _OTHER.finditer(text)]
    if not others:
        return None
    pid, held = max(others, key=lambda other: other[1])
    if held < _SHARE_OF_STRANGER * total:
        return None
    return OomReading(Holder.SIBLING_RANK if pid in own_pids else Holder.STRANGER, pid, held)


def _mib(found: re.Match[str] | None) -> float | None:
    if found is None:
        return None
    number, unit = [group for group in found.groups() if group is not None][:2]
    return float(number) * _MIB_OF_UNIT[unit]
