"""The gradient of one optimizer step: the sum over the virtual ranks, in their order.

Floating-point addition is not associative, so the order is part of the result. Every virtual
rank's gradient is formed by itself and then added to those before it: g0 + g1 + g2 ..., whether
one process computes them all or each process one. On the CPU the weights of a run that lost its
processes and was finished by one are therefore those of the run that never did, bit for bit.
(No `from __future__ import annotations` here: DDP looks at the hook's real annotations.)
"""

import gc
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

from humigence_worker.batch import BatchPlan, Sampler, forward_seed
from humigence_worker.data import SampleSet


class VirtualRankSum:
    """Adds up gradients that lie in the parameters' ``.grad`` one virtual rank after the other."""

    def __init__(self, parameters: Sequence[nn.Parameter], *, keep_apart: bool) -> None:
        """With `keep_apart`, partial gradients stay apart until all processes' are together.

        Without it they are added at once, which needs the memory of one gradient (what DDP's
        buckets take in a distributed run).
        """
        self._parameters = parameters
        self._keep_apart = keep_apart
        self._aside: list[dict[Tensor, Tensor]] = []

    def set_aside(self) -> None:
        """Move the gradient of a finished virtual rank out of the way of the next one."""
        gradient: dict[Tensor, Tensor] = {each: _taken(each) for each in self._parameters}
        if self._aside and not self._keep_apart:
            torch._foreach_add_(list(self._aside[0].values()), list(gradient.values()))
        else:
            self._aside.append(gradient)

    def restore(self) -> None:
        """Put the sum of everything set aside into the parameters' ``.grad``."""
        assert len(self._aside) == 1
        for parameter, gradient in self._aside.pop().items():
            parameter.grad = gradient

    def parts(self, bucket: GradBucket) -> Tensor:
        """Return this process' gradients for `bucket`, [parts, values]; forget nothing yet."""
        last = bucket.buffer()
        earlier = [
            torch.cat([gradient[parameter].flatten() for parameter in bucket.parameters()])
            for gradient in self._aside
        ]
        return torch.stack([*earlier, last])

    def forget(self) -> None:
        """Drop what was set aside: the hook has added it."""
        self._aside.clear()


def gather_and_add(state: VirtualRankSum, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """DDP communication hook for the CPU: every virtual rank's gradient, added in order.

    An all-reduce would add in an order of its own from three processes on. Between two it moves
    the same number of bytes.
    """
    mine = state.parts(bucket)
    everyones = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    work = dist.all_gather(everyones, mine, async_op=True)

    def added(done: torch.futures.Future[list[Tensor]]) -> Tensor:
        done.value()  # raises what the collective failed of
        first, *others = torch.cat(everyones).unbind()
        for gradient in others:
            first.add_(gradient)
        return first

    result: torch.futures.Future[Tensor] = work.get_future().then(added)
    return result


def reduce_sums(state: VirtualRankSum, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """DDP communication hook for GPUs: the processes' sums, added by NCCL (no averaging)."""
    mine = state.parts(bucket).sum(dim=0)
    work = dist.all_reduce(mine, async_op=True)
    result: torch.futures.Future[Tensor] = work.get_future().then(lambda done: done.value()[0])
    return result


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What decides the samples and random numbers of a step."""

    plan: BatchPlan
    sampler: Sampler
    samples: SampleSet
    seed: int
    bf16: bool


class Gradients:
    """Computes the gradient of one step over all processes into the model's ``.grad``."""

    def __init__(
        self, model: nn.Module, inputs: StepInputs, rank: int, device: torch.device
    ) -> None:
        """Wrap `model` for the processes there are; it keeps its parameters."""
        self._inputs = inputs
        self._rank = rank
        self._device = device
        self._model = model
        self._parameters = list(model.parameters())
        distributed = inputs.plan.world_size > 1
        on_cpu = device.type == "cpu"
        self._sum = VirtualRankSum(self._parameters, keep_apart=distributed and on_cpu)
        self._ddp: DistributedDataParallel | None = None
        if distributed:
            with _no_garbage_collection():
                self._ddp = DistributedDataParallel(
                    model, device_ids=None if on_cpu else [device.index]
                )
            # The buffers are constants. (As an argument of the constructor it warns since 2.13.)
            self._ddp.broadcast_buffers = False
            self._ddp.register_comm_hook(self._sum, gather_and_add if on_cpu else reduce_sums)

    def compute(self, step: int) -> Tensor:
        """Run this process' micro-batches of `step` (0-based); return its part of the mean loss."""
        plan = self._inputs.plan
        owned = plan.owned(self._rank)
        loss = torch.zeros((), dtype=torch.float64, device=self._device)
        for parameter in self._parameters:
            parameter.grad = None
        for virtual_rank in owned:
            for micro in range(plan.accum):
                is_last = virtual_rank == owned[-1] and micro == plan.accum - 1
                loss += self._backward(step, virtual_rank, micro, communicate=is_last)
            if virtual_rank != owned[-1]:
                self._sum.set_aside()
        if self._ddp is None:
            self._sum.set_aside()
            self._sum.restore()
        else:
            self._sum.forget()
        return loss

    def _backward(
        self, step: int, virtual_rank: int, micro: int, *, communicate: bool
    ) -> torch.Tensor:
        """One forward and backward, with random numbers of its own; return the scaled loss."""
        own = self._inputs
        indices = own.sampler.indices(own.plan.micro_batch(step, virtual_rank, micro))
        tokens, targets = own.samples.batch(indices)
        torch.manual_seed(forward_seed(own.seed, step, virtual_rank, micro))
        with self._quiet_unless(communicate=communicate):
            with torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=own.bf16):
                model = self._ddp or self._model
                loss: Tensor = model(tokens.to(self._device), targets.to(self._device))[1]
            # Scaled before and not averaged after, so that no division depends on who adds.
            loss = loss * own.plan.loss_scale
            loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach().double()

    def _quiet_unless(self, *, communicate: bool) -> AbstractContextManager[None]:
        return nullcontext() if communicate or self._ddp is None else self._ddp.no_sync()


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """DDP imports torch._dynamo when it is built: a third of that second is garbage collection."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _taken(parameter: nn.Parameter) -> Tensor:
    gradient = parameter.grad
    assert gradient is not None
    parameter.grad = None
    return gradient
