"""Is there room on the GPUs for the next attempt: what must be free again, and who is in the way.

The measure is the level before the attempt, not zero: a desktop on the card delays nobody. What is
unknown never blocks, since it could block for ever; it is said, and `known` is false (pure).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from humigence_supervise.domain import GpuState

SLACK_MIB: Final = 256
"""A desktop's windows come and go within this; even an idle CUDA context of ours holds more."""

_SHARE_LEFT: Final = 0.5
"""A stranger is gone, or has given back what matters, if less than this share of its memory is in
use on the whole card. A small fall would be no proof, and an empty card is too much to ask."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """A living process, not ours, that computes on a GPU (its UUID); `held_mib` None: unknown."""

    gpu: str
    pid: int
    user: str
    command: str
    held_mib: int | None


@dataclass(frozen=True, slots=True)
class Room:
    """Whether the next attempt may start (`clear`), and why not, in one sentence for people.

    `above_mib` is how far each GPU that is in the way (its UUID) lies above its level before;
    `tenants` are those on these GPUs. Not `known`: nothing is in the way as far as was seen, but
    not all was seen; `says` tells what was not.
    """

    clear: bool
    says: str
    tenants: tuple[Tenant, ...] = ()
    above_mib: Mapping[str, int] = field(default_factory=dict)
    known: bool = True


def room(
    levels_before: Mapping[str, int],
    states: Sequence[GpuState],
    chosen: Sequence[str],
    tenants: Sequence[Tenant],
) -> Room:
    """Compare the chosen GPUs (UUIDs) with the MiB in use on each before the attempt that ended."""
    state_of = {state.uuid: state for state in states}
    above_mib: dict[str, int] = {}
    unknown: list[str] = []
    for uuid in chosen:
        state = state_of.get(uuid)
        level_mib = levels_before.get(uuid)
        if state is None or state.used_mib is None:
            why = f" ({state.error})" if state is not None and state.error else ""
            unknown.append(f"how much memory is in use on {_name(uuid, state)} is unknown{why}")
        elif level_mib is None:
            unknown.append(
                f"how much memory was in use on {_name(uuid, state)} before the attempt is unknown"
                f" (now {state.used_mib} MiB)"
            )
        elif state.used_mib > level_mib + SLACK_MIB:
            above_mib[uuid] = state.used_mib - level_mib
    in_the_way = [
        f"{mib} MiB more than before the attempt are in use on {_name(uuid, state_of[uuid])}: "
        + _whose(mib, state_of[uuid], [one for one in tenants if one.gpu == uuid])
        for uuid, mib in above_mib.items()
    ]
    return Room(
        clear=not above_mib,
        says="; ".join((*in_the_way, *unknown)),
        tenants=tuple(one for one in tenants if one.gpu in above_mib),
        above_mib=above_mib,
        known=not unknown,
    )


def _whose(above_mib: int, state: GpuState, tenants: Sequence[Tenant]) -> str:
    """Name who holds memory of a GPU; what the living do not explain is the dead attempt's."""
    if not tenants:
        return "no living process explains it, memory of the ended attempt is still being freed"
    named = [_says(one, state) for one in tenants]
    held = [one.held_mib for one in tenants if one.held_mib is not None]
    if len(held) == len(tenants) and sum(held) + SLACK_MIB < above_mib:
        named.append("the rest is memory of the ended attempt that is still being freed")
    return ", ".join(named)


def _says(tenant: Tenant, state: GpuState) -> str:
    who = f"pid {tenant.pid} ({tenant.user}, {tenant.command})"
    return f"{who} holds {_mib(tenant.held_mib)} on GPU {state.index}"


def _mib(amount: float | None) -> str:
    return "an unknown part" if amount is None else f"{amount:.0f} MiB"


def _name(uuid: str, state: GpuState | None) -> str:
    return f"GPU {uuid}" if state is None else f"GPU {state.index} ({uuid})"


# --- after an out-of-memory that named a stranger ------------------------------------------------


def stranger_left(
    states: Sequence[GpuState],
    pid: int | None,
    held_mib: float | None,
    gpu: str | None = None,
    tenants: Sequence[Tenant] = (),
) -> Room:
    """Tell whether the other process, which an out-of-memory named, has left the card.

    `pid` and `held_mib` are of `oom.OomReading`, `gpu` the UUID of the card (None, or one that is
    not there: all of them). May be asked again and again, since it remembers nothing: a card with
    far less in use in all than the stranger alone held has lost the stranger. That the use *fell*
    by as much would prove less, for our own dead give memory back at the same time.
    """
    cards = [state for state in states if state.uuid == gpu] or list(states)
    who = "the other process" if pid is None else f"pid {pid}"
    left = {card.index: _has_left(card, pid, held_mib) for card in cards}
    for card in cards:
        if left[card.index] is False:
            here = tuple(one for one in tenants if one.gpu == card.uuid)
            says = next((_says(one, card) for one in here if one.pid == pid), "") or (
                f"{who} held {_mib(held_mib)} on {_name(card.uuid, card)}, where "
                f"{_mib(card.used_mib)} are in use still"
            )
            return Room(clear=False, says=says, tenants=here)
    if not cards or None in left.values():
        says = f"whether {who} still holds memory of the GPU is unknown: the driver does not tell"
        return Room(clear=True, says=says, known=False)
    return Room(clear=True, says="")


def _has_left(card: GpuState, pid: int | None, held_mib: float | None) -> bool | None:
    """Return whether the stranger has left a card; None when the card tells too little."""
    listed = card.processes if pid is not None else None
    most_mib = None if held_mib is None else held_mib * _SHARE_LEFT
    if card.used_mib is not None and most_mib is not None and card.used_mib < most_mib:
        return True
    if listed is not None and any(one.pid == pid for one in listed):
        return False
    if card.used_mib is None or most_mib is None:
        return None if listed is None else True
    # In a container the list of processes is empty, so its word alone is no proof: memory as large
    # as the stranger's must not be in use by nobody.
    known_mib = [one.used_mib for one in listed or ()]
    explained_mib = sum(mib for mib in known_mib if mib is not None)
    return None in known_mib or card.used_mib - explained_mib < most_mib


# --- which card is to be trusted less ------------------------------------------------------------


def suspicion(state: GpuState) -> str:
    """Return why a GPU is suspect, "" where the driver says nothing against it."""
    reasons = []
    if state.error:
        reasons.append(f'the driver says "{state.error}"')
    if state.recovery:
        reasons.append(f"the driver wants this done: {state.recovery}")
    if state.ecc_uncorrected:
        reasons.append(
            f"{state.ecc_uncorrected} uncorrected memory errors since the driver was loaded"
        )
    return "; ".join(reasons)
