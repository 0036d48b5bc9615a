"""The policy's specification: what is decided when the same failure happens again and again.

Each row is a kind of failure and, in short, the decisions until the run ends; `word*n` is a word
n times in a row, the number at the end the exit code (75: later may help, 93: it cannot).
`two` is a machine with two GPUs (ladder: multi_gpu, single_gpu), `one` one GPU and one rung.
A micro-batch is 8 samples, so it can be halved three times.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from policy_play import Between, Failure, Play

from humigence_supervise.domain import Holder, Kind


class Row(NamedTuple):
    """One line of a table."""

    failure: Failure
    two: str
    one: str


def row(kind: str, *, two: str, one: str, same: bool = False) -> Row:
    """Return a row; `kind` may be "cuda_oom/STRANGER" to say who holds the memory."""
    name, _, holder = kind.partition("/")
    failure = Failure(Kind(name), Holder[holder] if holder else None, same=same)
    return Row(failure, two, one)


def same(kind: str, *, two: str, one: str) -> Row:
    """Return a row of failures that all have the same fingerprint."""
    return row(kind, two=two, one=one, same=True)


NO_PROGRESS = (
    # Several GPUs are the trouble: without them, then once more, then enough.
    row("nccl_init", two="down retry 75", one="retry 75"),
    row("nccl_timeout", two="down retry 75", one="retry 75"),
    row("nccl_remote", two="down retry 75", one="retry 75"),
    row("nccl_internal", two="down retry 75", one="retry 75"),
    row("nvlink_p2p", two="down retry 75", one="retry 75"),
    row("hang", two="down retry 75", one="retry 75"),
    # Mostly cured by fresh processes.
    row("rendezvous", two="retry down 75", one="retry 75"),
    row("host_oom", two="retry down 75", one="retry 75"),
    row("dataloader", two="retry down 75", one="retry 75"),
    row("segfault", two="retry down 75", one="retry 75"),
    row("preempted", two="retry down 75", one="retry 75"),
    row("unknown", two="retry down 75", one="retry 75"),
    row("premature_success", two="retry 93", one="retry 93"),
    # GPU memory, by who holds it.
    row("cuda_oom", two="down shrink*3 93", one="shrink*3 93"),
    row("cuda_oom/WORKLOAD", two="down shrink*3 93", one="shrink*3 93"),
    row("cuda_oom/FRAGMENTATION", two="defragment down shrink*3 93", one="defragment shrink*3 93"),
    row("cuda_oom/STRANGER", two="wait_memory down wait_memory*17 75", one="wait_memory*17 75"),
    row("cuda_oom/SIBLING_RANK", two="down 93", one="93"),
    row("cuda_oom/ALLOCATOR", two="93", one="93"),
    row("cuda_oom/NO_CARD", two="93", one="93"),
    # The machine.
    row("gpu_fault", two="down 75", one="75"),
    row("shm", two="down 93", one="93"),
    row("device_mismatch", two="down 93", one="93"),
    row("disk_full", two="wait_space*16 75", one="wait_space*16 75"),
    row("network_hub", two="wait*8 75", one="wait*8 75"),
    row("checkpoint_corrupt", two="older*2 93", one="older*2 93"),
    # What only a person can mend.
    row("user_code", two="93", one="93"),
    row("import_error", two="93", one="93"),
    row("config_error", two="93", one="93"),
    row("gpu_unsupported", two="93", one="93"),
    row("device_assert", two="93", one="93"),
    row("cuda_init_fork", two="93", one="93"),
    row("nan_divergence", two="93", one="93"),
    row("healthy", two="complete", one="complete"),
)
"""No attempt gets anything done, and each fails in its own way (another fingerprint)."""

REPEATED = (
    # The rest of the rung is skipped; where no rung is left, 93.
    same("nccl_init", two="down 93", one="retry 93"),
    same("nccl_timeout", two="down 93", one="retry 93"),
    same("nccl_remote", two="down 93", one="retry 93"),
    same("nccl_internal", two="down 93", one="retry 93"),
    same("nvlink_p2p", two="down 93", one="retry 93"),
    same("hang", two="down 93", one="retry 93"),
    same("rendezvous", two="retry down 93", one="retry 93"),
    same("host_oom", two="retry down 93", one="retry 93"),
    same("dataloader", two="retry down 93", one="retry 93"),
    same("segfault", two="retry down 93", one="retry 93"),
    same("unknown", two="retry down 93", one="retry 93"),
    same("premature_success", two="retry 93", one="retry 93"),
    same("user_code", two="retry 93", one="retry 93"),
    # What is changed from attempt to attempt is not the same attempt again.
    same("cuda_oom/WORKLOAD", two="down shrink*3 93", one="shrink*3 93"),
    same("cuda_oom/FRAGMENTATION", two="defragment down shrink*3 93", one="defragment shrink*3 93"),
    same("checkpoint_corrupt", two="older*2 93", one="older*2 93"),
    same("gpu_fault", two="down 75", one="75"),
    # Who ends an attempt from outside need not be deterministic.
    same("preempted", two="retry down retry 75", one="retry 75"),
    # What is waited for does not depend on us.
    same("cuda_oom/STRANGER", two="wait_memory down wait_memory*17 75", one="wait_memory*17 75"),
    same("disk_full", two="wait_space*16 75", one="wait_space*16 75"),
    same("network_hub", two="wait*8 75", one="wait*8 75"),
)
"""Each attempt makes one step and then fails in exactly the same way there: deterministic."""

REPEATED_AT_START = (
    # What keeps an attempt from its first step may be gone in an hour: not more tries, but 75.
    same("nccl_init", two="down 75", one="retry 75"),
    same("hang", two="down 75", one="retry 75"),
    same("rendezvous", two="retry down 75", one="retry 75"),
    same("preempted", two="retry down 75", one="retry 75"),
    same("unknown", two="retry down 75", one="retry 75"),
    same("premature_success", two="retry 93", one="retry 93"),
    same("user_code", two="93", one="93"),
    same("gpu_fault", two="down 75", one="75"),
    same("disk_full", two="wait_space*16 75", one="wait_space*16 75"),
)
"""No attempt comes to a first step, and each fails in exactly the same way."""

PROGRESS = (
    # A rung is left once, attempts are given back: only the period's 20 end such a run.
    row("nccl_init", two="down retry*18 75", one="retry*19 75"),
    row("nccl_timeout", two="down retry*18 75", one="retry*19 75"),
    row("nccl_remote", two="down retry*18 75", one="retry*19 75"),
    row("nccl_internal", two="down retry*18 75", one="retry*19 75"),
    row("nvlink_p2p", two="down retry*18 75", one="retry*19 75"),
    row("hang", two="down retry*18 75", one="retry*19 75"),
    row("rendezvous", two="retry*19 75", one="retry*19 75"),
    row("host_oom", two="retry*19 75", one="retry*19 75"),
    row("dataloader", two="retry*19 75", one="retry*19 75"),
    row("segfault", two="retry*19 75", one="retry*19 75"),
    row("preempted", two="retry*19 75", one="retry*19 75"),
    row("unknown", two="retry*19 75", one="retry*19 75"),
    row("premature_success", two="retry*19 75", one="retry*19 75"),
    row("user_code", two="retry*19 75", one="retry*19 75"),
    same("user_code", two="retry*19 75", one="retry*19 75"),
    same("unknown", two="retry*19 75", one="retry*19 75"),
    # What made an attempt impossible is not undone by what it got done before.
    row("cuda_oom", two="down shrink*3 93", one="shrink*3 93"),
    row("cuda_oom/WORKLOAD", two="down shrink*3 93", one="shrink*3 93"),
    row("cuda_oom/FRAGMENTATION", two="defragment down shrink*3 93", one="defragment shrink*3 93"),
    row("cuda_oom/SIBLING_RANK", two="down 93", one="93"),
    row("cuda_oom/ALLOCATOR", two="93", one="93"),
    row("cuda_oom/NO_CARD", two="93", one="93"),
    row("gpu_fault", two="down 75", one="75"),
    row("shm", two="down 93", one="93"),
    row("device_mismatch", two="down 93", one="93"),
    # Waiting costs nothing, and a run that gets on may wait as often as it has to.
    row("cuda_oom/STRANGER", two="wait_memory*200 ...", one="wait_memory*200 ..."),
    row("disk_full", two="wait_space*200 ...", one="wait_space*200 ..."),
    row("network_hub", two="wait*200 ...", one="wait*200 ..."),
    row("import_error", two="93", one="93"),
    row("config_error", two="93", one="93"),
    row("gpu_unsupported", two="93", one="93"),
    row("device_assert", two="93", one="93"),
    row("cuda_init_fork", two="93", one="93"),
    row("nan_divergence", two="93", one="93"),
    row("healthy", two="complete", one="complete"),
)
"""Each attempt gets further than all before it; a new step counts as a new checkpoint does."""

PROGRESS_BUT_CORRUPT = {
    Between.STEPS: row("checkpoint_corrupt", two="older*4 93", one="older*4 93"),
    Between.CHECKPOINT: row("checkpoint_corrupt", two="older*19 75", one="older*19 75"),
}
"""Each attempt costs a checkpoint: the four there are, or as many as are made."""


def _id(one: Row) -> str:
    return f"{one.failure}{'-same' if one.failure.same else ''}"


def check(one: Row, *between: Between) -> None:
    """Play the row on both machines."""
    assert Play(rungs=2, gpus=2).until_it_ends(one.failure, *between) == one.two
    assert Play(rungs=1, gpus=1).until_it_ends(one.failure, *between) == one.one


@pytest.mark.parametrize("one", NO_PROGRESS, ids=_id)
def test_without_progress(one: Row) -> None:
    """The row of the policy is gone through once, within three attempts of our own making."""
    check(one, Between.NOTHING)


@pytest.mark.parametrize("one", REPEATED, ids=_id)
def test_the_same_failure_at_the_same_step(one: Row) -> None:
    """What is deterministic is not tried again on a rung, and ends as hopeless."""
    check(one, Between.STEPS, Between.AGAIN)


@pytest.mark.parametrize("one", REPEATED_AT_START, ids=_id)
def test_the_same_failure_before_any_step(one: Row) -> None:
    """Not tried again either, and hopeless only where it is a matter of the program."""
    check(one, Between.NOTHING)


@pytest.mark.parametrize("between", [Between.STEPS, Between.CHECKPOINT], ids=lambda b: b.name)
@pytest.mark.parametrize("one", PROGRESS, ids=_id)
def test_with_progress(one: Row, between: Between) -> None:
    """A newer checkpoint, or a step nobody had completed, gives the attempts back."""
    check(one, between)


@pytest.mark.parametrize("between", PROGRESS_BUT_CORRUPT, ids=lambda b: b.name)
def test_checkpoints_that_cannot_be_read(between: Between) -> None:
    """Each is used once and put aside; none left ends the run."""
    check(PROGRESS_BUT_CORRUPT[between], between)


def test_the_tables_leave_out_nothing() -> None:
    """Every kind has its row without and with progress, every holder of GPU memory too."""
    for table, missing in ((NO_PROGRESS, set()), (PROGRESS, {Kind.CHECKPOINT_CORRUPT})):
        assert {one.failure.kind for one in table} == set(Kind) - missing
        assert {one.failure.holder for one in table} == {None, *Holder}
