"""Which GPUs a rung takes."""

from __future__ import annotations

from humigence_supervise.batching import PlanError
from humigence_supervise.domain import Gpu, Host, Rung


def is_called(gpu: Gpu, name: str) -> bool:
    """Say whether a name means this GPU: its UUID, index or PCI bus id."""
    return name in (gpu.uuid, str(gpu.index)) or (bool(gpu.bus_id) and name == gpu.bus_id)


def select_gpus(
    rung: Rung, host: Host, excluded: tuple[str, ...] = (), suspect: tuple[str, ...] = ()
) -> tuple[Gpu, ...]:
    """Return the rung's GPUs, in order of rank. `excluded` ones are not used at all.

    A count takes those that are not `suspect`, and of them those with most free memory: the
    single rung gets the healthiest one.

    Raises:
        PlanError: not enough GPUs; says how many are needed and which are seen.
    """
    usable = [gpu for gpu in host.gpus if not _among(gpu, excluded)]
    match rung.gpus:
        case int() as count:
            if len(usable) < count:
                raise PlanError(_too_few(rung, f"{count} GPU(s)", host, excluded))
            best = sorted(
                usable, key=lambda gpu: (_among(gpu, suspect), -(gpu.free_mib or 0), gpu.index)
            )
            return tuple(sorted(best[:count], key=lambda gpu: gpu.index))
        case tuple() as names:
            return tuple(_named(rung, name, usable, host, excluded) for name in names)
        case _:
            if not usable:
                raise PlanError(_too_few(rung, "a GPU", host, excluded))
            return tuple(usable)


def _among(gpu: Gpu, names: tuple[str, ...]) -> bool:
    return any(is_called(gpu, name) for name in names)


def _named(rung: Rung, name: str, usable: list[Gpu], host: Host, excluded: tuple[str, ...]) -> Gpu:
    for gpu in usable:
        if is_called(gpu, name):
            return gpu
    raise PlanError(_too_few(rung, f"GPU {name}", host, excluded))


def _too_few(rung: Rung, needed: str, host: Host, excluded: tuple[str, ...]) -> str:
    seen = ", ".join(f"{gpu.index} {gpu.name} ({gpu.uuid})" for gpu in host.gpus)
    seen = seen or "; ".join(("none", *host.unread))
    out = [gpu for gpu in host.gpus if _among(gpu, excluded)]
    note = f", {len(out)} of them excluded after a fault" if out else ""
    advice = 'change "gpus" of this rung, or set "accelerator": "cpu"'
    if out:
        advice = "reset them (nvidia-smi -r) or reboot, then allow them: start --readmit-gpu all"
    return (
        f'rung "{rung.name}" needs {needed}, this machine shows {len(host.gpus)}{note}: '
        f"{seen}; {advice}"
    )
