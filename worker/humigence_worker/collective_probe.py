"""Do the GPUs work together? Real collectives of all ranks, every value checked, within a deadline.

A plain file for the interpreter of any worker: standard library and torch. torchrun executes it by
its path, one process a rank; its exit code is 0 only when every rank has verified everything.
It says nothing of the links between machines, and nothing of what a longer run meets.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import Work

SMALL_ELEMENTS = 1024
"""NCCL sends a few KiB by another protocol than many MiB: both are tried."""
REPEATS = 32
PERIOD = 1021
"""A prime, so that a shifted block never looks right; sums of it are exact in fp32."""
BYTES_OF_ELEMENT = 4
POLL_S = 0.001


class ProbeError(Exception):
    """What did not work, in one line."""


def main() -> NoReturn:
    """Probe, and end the process at once: the way out of a broken NCCL can hang for ever."""
    arguments = read_arguments()
    end_at_s = time.monotonic() + arguments.deadline_s
    # The watchdog of faulthandler is a thread in C. It needs neither the interpreter's lock nor the
    # main thread, which may be stuck in a driver, and ends the process as SIGALRM would; but
    # unlike SIGALRM it first prints where every thread is. Importing torch can hang too.
    faulthandler.dump_traceback_later(arguments.deadline_s, exit=True)
    leave_own_folder()
    try:
        said = probe(arguments.mib, end_at_s)
    except ProbeError as error:
        end(1, f"collective probe: rank {os.environ.get('RANK', '?')}: {error}")
    end(0, said)


def read_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Try the collectives of all ranks of torchrun.")
    parser.add_argument("--mib", type=int, default=64, help="size of the large all-reduce")
    parser.add_argument("--deadline-s", type=float, default=45.0, help="a rank ends after this")
    arguments = parser.parse_args()
    if arguments.mib < 1:
        parser.error("--mib must be 1 or more: nothing sent is nothing verified")
    return arguments


def leave_own_folder() -> None:
    """Forget the folder of this file, where any import would look first: it has a `model.py`."""
    folder = Path(__file__).resolve().parent
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != folder]


def probe(mib: int, end_at_s: float) -> str:
    """Let this rank take part in every collective; return what rank 0 says, "" on the others."""
    with during("importing torch"):
        import torch  # noqa: PLC0415 - within the deadline
        import torch.distributed as dist  # noqa: PLC0415
    with during("reading what torchrun says"):
        rank, local_rank, ranks = (
            int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")
        )
    with during("choosing a device"):
        backend, device = choose(torch, dist, local_rank)
    # The ranks may take half of what is left to meet, and then a third of it for a collective: so
    # it is words that tell what hangs, before the deadline ends it.
    left_s = end_at_s - time.monotonic()
    patience_s = max(left_s / 3, 1.0)
    with during(f"joining {ranks} ranks over {backend}"):
        dist.init_process_group(backend, timeout=timedelta(seconds=max(left_s / 2, 1.5)))

    with during(f"all-reduce of {SMALL_ELEMENTS} elements"):
        small = pattern(torch, SMALL_ELEMENTS, device)
        mine = small * (rank + 1)
        finish(dist.all_reduce(mine, async_op=True), patience_s)
        check(mine, small * sum_of_ranks(ranks))

    with during(f"all-reduce of {mib} MiB"):
        large = pattern(torch, mib * 2**20 // BYTES_OF_ELEMENT, device)
        mine = large * (rank + 1)
        check(mine[:1], large[:1] * (rank + 1))  # a GPU has made them when one is read
        begun_s = time.monotonic()
        finish(dist.all_reduce(mine, async_op=True), patience_s)
        took_s = time.monotonic() - begun_s
        check(mine, large * sum_of_ranks(ranks))

    with during("all-gather"):
        everyones = [torch.empty_like(small) for _ in range(ranks)]
        finish(dist.all_gather(everyones, small * (rank + 1), async_op=True), patience_s)
        for other, theirs in enumerate(everyones):
            check(theirs, small * (other + 1))

    with during("broadcast from the last rank"):
        mine = small * (rank + 1)
        finish(dist.broadcast(mine, ranks - 1, async_op=True), patience_s)
        check(mine, small * ranks)

    with during(f"{REPEATS} all-reduces at once"):
        several = [small * (rank + 1 + turn) for turn in range(REPEATS)]
        for work in [dist.all_reduce(each, async_op=True) for each in several]:
            finish(work, patience_s)
        for turn, each in enumerate(several):
            check(each, small * (sum_of_ranks(ranks) + turn * ranks))

    with during("barrier"):
        finish(dist.barrier(async_op=True), patience_s)
    with during("leaving the group"):
        dist.destroy_process_group()
    if rank != 0:
        return ""
    return f"collective probe: ok: {ranks} ranks, {backend}, {mib} MiB, {took_s:.2f} s all-reduce"


def choose(torch: ModuleType, dist: ModuleType, local_rank: int) -> tuple[str, str]:
    """Return the backend and the device of this rank, as a training would choose them.

    Raises:
        ProbeError: GPUs are named, and torch sees none for this rank: on the CPU everything would
            work, and would say nothing.
    """
    seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if (named or seen) and local_rank >= seen:
        raise ProbeError(
            f"local rank {local_rank} has no GPU: CUDA_VISIBLE_DEVICES is {named!r}, and torch"
            f" {torch.__version__} sees {seen} GPU(s)"
        )
    if not seen or not dist.is_nccl_available():
        return "gloo", "cpu"
    torch.cuda.set_device(local_rank)
    return "nccl", f"cuda:{local_rank}"


def pattern(torch: ModuleType, elements: int, device: str) -> Tensor:
    """Return 1, 2, ..., PERIOD over and over: no zeros, which any sum would leave alone."""
    ones_period = torch.arange(1, PERIOD + 1, dtype=torch.float32, device=device)
    repeated: Tensor = ones_period.repeat(-(-elements // PERIOD))[:elements]
    return repeated


def sum_of_ranks(ranks: int) -> int:
    """Return 1 + 2 + ... + ranks: what rank r adds is r + 1 times the pattern."""
    return ranks * (ranks + 1) // 2


def finish(work: Work | None, patience_s: float) -> None:
    """Wait for a collective without being stuck in it, as a wait for a GPU would be.

    Raises:
        ProbeError: it takes too long.
    """
    assert work is not None  # that is for a rank outside of the group
    until_s = time.monotonic() + patience_s
    while not work.is_completed():
        if time.monotonic() > until_s:
            raise ProbeError(
                f"not done after {patience_s:.0f} s: another rank does not take part, or data"
                " does not get through"
            )
        time.sleep(POLL_S)
    work.wait()


def check(got: Tensor, expected: Tensor) -> None:
    """Compare every element.

    Raises:
        ProbeError: says which is the first wrong one, and how many are.
    """
    wrong = (got != expected).nonzero()
    if len(wrong):
        first = int(wrong[0])
        raise ProbeError(
            f"element {first} is {float(got[first])}, expected {float(expected[first])}"
            f" ({len(wrong)} of {got.numel()} are wrong)"
        )


@contextmanager
def during(operation: str) -> Iterator[None]:
    """Name the operation in whatever goes wrong in it, in one line."""
    try:
        yield
    except ProbeError as error:
        raise ProbeError(f"{operation}: {error}") from error
    except Exception as error:
        said = " ".join(str(error).split())
        raise ProbeError(f"{operation}: {type(error).__name__}: {said}") from error


def end(code: int, line: str) -> NoReturn:
    """Say a line, if there is one, and end the process past the interpreter's own way out."""
    stream = sys.stderr if code else sys.stdout
    try:
        if line:
            stream.write(line + "\n")
        stream.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
