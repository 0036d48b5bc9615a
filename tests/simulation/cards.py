"""The GPUs of the simulated machine, and what is read of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from simulation.setups import card

from humigence_supervise.domain import Gpu, GpuProcess, GpuState, Host
from humigence_supervise.gpu_room import Tenant

OWN_MIB = 20_000
"""What a rank of ours takes."""
BASE_MIB = 400
"""A desktop."""
ALL_MIB = 32_000


@dataclass(slots=True)
class Card:
    """One GPU slot. A card that is ill fails what uses it; one that is out is not seen."""

    index: int
    ill: bool = False
    out: bool = False
    called: str | None = None
    stranger_mib: int = 0
    stranger_pid: int = 0
    lingers_until_s: float = 0.0

    @property
    def uuid(self) -> str:
        """Return its name for ever."""
        return f"GPU-{self.index}"

    def used_mib(self, now_s: float) -> int:
        """Return what is in use on it: a little always, a stranger's, and that of our dead."""
        lingering = OWN_MIB if self.lingers_until_s > now_s else 0
        return BASE_MIB + self.stranger_mib + lingering

    def is_crowded(self) -> bool:
        """Say whether what we need does not fit beside a stranger."""
        return self.stranger_mib > OWN_MIB // 2


def host_of(cards: Iterable[Card], now_s: float) -> Host:
    """Return what is read of the machine now."""
    seen: tuple[Gpu, ...] = tuple(
        card(one.index, ALL_MIB - one.used_mib(now_s)) for one in cards if not one.out
    )
    return Host(seen, "580.1", "2.13.0", 8)


def states_of(cards: Iterable[Card], now_s: float) -> tuple[GpuState, ...]:
    """Return what the driver says of the cards now."""
    return tuple(
        GpuState(
            one.index,
            one.uuid,
            f"0000:0{one.index + 1}:00",
            "RTX",
            ALL_MIB + 600,
            one.used_mib(now_s),
            (GpuProcess(one.stranger_pid, one.stranger_mib),) if one.stranger_mib else (),
        )
        for one in cards
        if not one.out
    )


def tenants_of(cards: Iterable[Card]) -> tuple[Tenant, ...]:
    """Return the strangers on the cards."""
    return tuple(
        Tenant(one.uuid, one.stranger_pid, "eve", "blender", one.stranger_mib)
        for one in cards
        if one.stranger_mib
    )
