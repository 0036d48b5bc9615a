"""The sums of one optimizer step: the global batch never changes, whatever the rung."""

from __future__ import annotations

from typing import Final

from humigence_supervise.config_models import Settings
from humigence_supervise.domain import Batch
from humigence_supervise.presets import Preset

DEFAULT_MICRO: Final = 4


class PlanError(ValueError):
    """A rung that cannot be planned: what is missing, and what would do."""


def batch_of_rung(
    settings: Settings, rung: str, ranks: int, virtual_ranks: int, micro_samples: int | None
) -> Batch | None:
    """Return the batch of a rung with `ranks` ranks, or None when the configuration says none.

    `virtual_ranks` is the world size of the first rung; `micro_samples` replaces the micro-batch
    (after an out-of-memory), the global batch stays.

    Raises:
        PlanError: the global batch cannot be split so; says which numbers would do.
    """
    sums = _configured(settings, virtual_ranks)
    if sums is None:
        return None
    total, micro = sums
    if micro_samples is not None:
        micro = micro_samples
    if settings.worker.preset is Preset.HUMIGENCE:
        _check_virtual_ranks(rung, total, micro, ranks, virtual_ranks)
    if total % (micro * ranks) != 0:
        raise PlanError(_cannot_split(rung, total, micro, ranks))
    return Batch(total, micro, total // (micro * ranks), ranks)


def _configured(settings: Settings, virtual_ranks: int) -> tuple[int, int] | None:
    """Return (global, micro) with the missing one worked out; None when both are unknown."""
    total, micro = settings.batch.global_samples, settings.batch.micro_samples
    ours = settings.worker.preset is Preset.HUMIGENCE
    if micro is None and total is None:
        return (DEFAULT_MICRO * virtual_ranks, DEFAULT_MICRO) if ours else None
    if total is None:
        assert micro is not None
        return micro * virtual_ranks, micro
    if micro is None:
        share = max(total // virtual_ranks, 1)
        limit = DEFAULT_MICRO if ours else share
        micro = max(size for size in range(1, limit + 1) if share % size == 0)
    return total, micro


def _check_virtual_ranks(rung: str, total: int, micro: int, ranks: int, virtual: int) -> None:
    """Check what the reference worker needs: whole virtual ranks on each rank."""
    if virtual % ranks != 0:
        fits = ", ".join(str(n) for n in range(1, virtual + 1) if virtual % n == 0)
        raise PlanError(
            f'rung "{rung}" has {ranks} ranks, the first rung {virtual}: each rank must do the '
            f"work of a whole number of the first rung's ranks; {fits} ranks would do"
        )
    if total % (micro * virtual) != 0:
        raise PlanError(_cannot_split(rung, total, micro, virtual))


def _cannot_split(rung: str, total: int, micro: int, ranks: int) -> str:
    part = micro * ranks
    lower = total // part * part
    totals = " or ".join(str(fit) for fit in (lower, lower + part) if fit)
    share, rest = divmod(total, ranks)
    micros = [] if rest else [str(n) for n in range(1, min(share, 64) + 1) if share % n == 0]
    instead = f", or batch.micro one of {', '.join(micros)}" if micros else ""
    return (
        f'rung "{rung}": a global batch of {total} samples cannot be split over {ranks} ranks in '
        f"micro-batches of {micro}; batch.global {totals} would do{instead}"
    )
