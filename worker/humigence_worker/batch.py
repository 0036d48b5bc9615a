"""The sums of an optimizer step: how many samples, whose they are, and which ones.

Everything here is a function of the seed, the step, and the number of *virtual ranks* (the
devices of the first rung). The number of processes only decides who does which part, so that a
run which lost a device goes on with the same samples, in the same order, in the same groups.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from humigence_supervise import contract
from humigence_worker.settings import WorkerConfigError, WorkerSettings

_SEED_BITS: Final = 63
_MAX_DIGITS: Final = 10


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """One optimizer step: `global_samples` over `virtual_ranks`, run by `world_size` processes.

    Every virtual rank owns `global_samples / virtual_ranks` samples of a step and cuts them into
    `accum` micro-batches of `micro_samples`.
    """

    global_samples: int
    micro_samples: int
    virtual_ranks: int
    world_size: int

    @property
    def accum(self) -> int:
        """Micro-batches of one virtual rank in one step."""
        return self.global_samples // (self.virtual_ranks * self.micro_samples)

    @property
    def share(self) -> int:
        """Virtual ranks of one process: how many devices of the first rung it stands for."""
        return self.virtual_ranks // self.world_size

    @property
    def per_device_samples(self) -> int:
        """Samples of one process in one optimizer step."""
        return self.global_samples // self.world_size

    @property
    def loss_scale(self) -> float:
        """What each micro-batch's mean loss counts for in the mean over the global batch."""
        return 1.0 / (self.virtual_ranks * self.accum)

    def owned(self, rank: int) -> range:
        """Return the virtual ranks that process `rank` runs, in order."""
        return range(rank * self.share, (rank + 1) * self.share)

    def step_samples(self, step: int) -> range:
        """Return the samples of step `step` (0-based), counted from the start of the run."""
        return range(step * self.global_samples, (step + 1) * self.global_samples)

    def micro_batch(self, step: int, virtual_rank: int, micro: int) -> range:
        """Return the samples of micro-batch `micro` of `virtual_rank` in step `step`."""
        position = virtual_rank * self.accum + micro
        first = step * self.global_samples + position * self.micro_samples
        return range(first, first + self.micro_samples)


def plan_batch(settings: WorkerSettings, world_size: int, environ: Mapping[str, str]) -> BatchPlan:
    """Work out the sums for `world_size` processes; the supervisor's environment overrides.

    Raises:
        WorkerConfigError: when the numbers do not divide, with the sums and numbers that do.
    """
    virtual_ranks = _override(environ, contract.ENV_VIRTUAL_RANKS, settings.virtual_ranks)
    global_samples = _override(
        environ,
        contract.ENV_GLOBAL_BATCH,
        settings.per_device_train_batch_size * virtual_ranks,
    )
    micro_samples = _override(environ, contract.ENV_MICRO_BATCH, settings.micro_batch)
    if virtual_ranks % world_size:
        raise WorkerConfigError(
            f"{virtual_ranks} virtual ranks cannot be shared evenly by {world_size} processes. "
            f"Start {_nearest_divisors(virtual_ranks, world_size)} processes, or set "
            f"virtual_ranks to a multiple of {world_size} (possible only for a new run)."
        )
    share, rest = divmod(global_samples, virtual_ranks)
    if rest:
        below = share * virtual_ranks
        fitting = f"{below} or " * (below > 0) + str(below + virtual_ranks)
        raise WorkerConfigError(
            f"a global batch of {global_samples} samples is no whole number for each of "
            f"{virtual_ranks} virtual ranks. A global batch of {fitting} is."
        )
    if share % micro_samples:
        raise WorkerConfigError(
            f"{share} samples for each virtual rank ({global_samples} / {virtual_ranks}) cannot "
            f"be cut into micro-batches of {micro_samples}. "
            f"Set micro_batch to {_nearest_divisors(share, micro_samples)}."
        )
    return BatchPlan(global_samples, micro_samples, virtual_ranks, world_size)


@dataclass(frozen=True, slots=True)
class Sampler:
    """Which samples of the data set the run takes, in which order, for ever.

    Sample `i` of the run is in epoch ``i // size``, at position ``i % size`` of that epoch's own
    permutation. A step may cross the end of an epoch.
    """

    seed: int
    size: int

    def indices(self, samples: range) -> list[int]:
        """Return the data set's indices of the run's `samples`."""
        return [
            int(_permutation(self.seed, i // self.size, self.size)[i % self.size]) for i in samples
        ]

    def epoch(self, sample: int) -> int:
        """Return the epoch (0-based) of the run's sample number `sample`."""
        return sample // self.size


def target_step(settings: WorkerSettings, plan: BatchPlan, train_samples: int) -> int:
    """Return the number of optimizer steps of the whole run.

    With `epochs`, the last step is a full one too: it takes a few samples of one more epoch
    rather than leave any out or change the global batch.
    """
    if settings.max_steps is not None:
        return settings.max_steps
    assert settings.epochs is not None
    return -(-settings.epochs * train_samples // plan.global_samples)


def forward_seed(seed: int, step: int, virtual_rank: int, micro: int) -> int:
    """Return the seed of one forward pass: the same wherever and whenever that pass runs."""
    return _hashed("forward", seed, step, virtual_rank, micro)


def sums_line(plan: BatchPlan) -> str:
    """Return one line that shows the sums of `plan` to a person."""
    return (
        f"batch: {plan.global_samples} samples per optimizer step = {plan.world_size} process(es) "
        f"x {plan.share} virtual rank(s) x {plan.accum} micro-batch(es) "
        f"of {plan.micro_samples}"
    )


@lru_cache(maxsize=2)  # a step that crosses an epoch's end needs two
def _permutation(seed: int, epoch: int, size: int) -> npt.NDArray[np.intp]:
    """Return epoch `epoch`'s order of ``range(size)``.

    The rank order of raw 64-bit draws: numpy promises the raw stream of a bit generator for ever
    (NEP 19), but not that of ``permutation`` or ``shuffle``; an upgrade must not change the
    order of a run that resumes.
    """
    draws = np.random.PCG64(_hashed("epoch", seed, epoch)).random_raw(size)
    return np.argsort(np.asarray(draws, dtype=np.uint64), kind="stable")


def _hashed(*parts: str | int) -> int:
    """Return a seed below 2**63 that differs for different `parts`, on any machine."""
    text = ":".join(str(part) for part in parts)
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - _SEED_BITS)


def _override(environ: Mapping[str, str], name: str, own: int) -> int:
    given = environ.get(name, "").strip()
    if not given:
        return own
    if not (given.isascii() and given.isdecimal() and len(given) < _MAX_DIGITS and int(given)):
        raise WorkerConfigError(
            f"the environment variable {name} is {given[:40]!r}, not a whole number from 1 to "
            f"{10 ** (_MAX_DIGITS - 1) - 1}. Unset it or correct it."
        )
    return int(given)


def _nearest_divisors(number: int, asked: int) -> str:
    """Return the divisors of `number` next below and next above `asked`, as text."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    divisors = sorted({*small, *(number // n for n in small)})
    below = max(n for n in divisors if n < asked)
    above = [n for n in divisors if n > asked]
    return f"{below} or {above[0]}" if above else str(below)
