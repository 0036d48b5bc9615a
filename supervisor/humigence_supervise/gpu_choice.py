"""Which GPUs a rung takes."""

from __future__ import annotations

from humigence_supervise.batching import PlanError
from humigence_supervise.domain import Gpu, Host, Rung


def select_gpus(rung: Rung, host: Host, excluded: frozenset[str]) -> tuple[Gpu, ...]:
    """Return the rung's GPUs, in order of rank. `excluded` are UUIDs not to be used.

    A count takes those with most free memory, so that the single rung gets the best one.

    Raises:
        PlanError: not enough GPUs; says how many are needed and which are seen.
    """
    usable = [gpu for gpu in host.gpus if gpu.uuid not in excluded]
    match rung.gpus:
        case int() as count:
            if len(usable) < count:
                raise PlanError(_too_few(rung, f"{count} GPU(s)", host, excluded))
            best = sorted(usable, key=lambda gpu: (-(gpu.free_mib or 0), gpu.index))[:count]
            return tuple(sorted(best, key=lambda gpu: gpu.index))
        case tuple() as names:
            return tuple(_named(rung, name, usable, host, excluded) for name in names)
        case _:
            if not usable:
                raise PlanError(_too_few(rung, "a GPU", host, excluded))
            return tuple(usable)


def _named(rung: Rung, name: str, usable: list[Gpu], host: Host, excluded: frozenset[str]) -> Gpu:
    for gpu in usable:
        if name in (str(gpu.index), gpu.uuid):
            return gpu
    raise PlanError(_too_few(rung, f"GPU {name}", host, excluded))


def _too_few(rung: Rung, needed: str, host: Host, excluded: frozenset[str]) -> str:
    seen = ", ".join(f"{gpu.index} {gpu.name} ({gpu.uuid})" for gpu in host.gpus)
    seen = seen or "; ".join(("none", *host.unread))
    out = len([gpu for gpu in host.gpus if gpu.uuid in excluded])
    note = f", {out} of them excluded" if out else ""
    return (
        f'rung "{rung.name}" needs {needed}, this machine shows {len(host.gpus)}{note}: '
        f'{seen}; change "gpus" of this rung, or set "accelerator": "cpu"'
    )
