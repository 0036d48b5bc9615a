"""What is decided on other ladders, other machines and under other policies.

As in `test_decision_tables.py`: the decisions in short until the run ends with 75 or 93.
"""

from __future__ import annotations

import pytest
from policy_play import NEED_MIB, Between, Failure, Play

from humigence_supervise.budgets import Policy
from humigence_supervise.decisions import Stop
from humigence_supervise.domain import Kind, Remedy

REMEDIES = 4
"""A ladder with remedies: multi, multi without cumem, multi without shared memory, single."""


@pytest.mark.parametrize(
    ("kind", "decisions"),
    [
        (Kind.UNKNOWN, "retry down*3 75"),
        (Kind.NCCL_INIT, "down*3 75"),
        (Kind.NCCL_TIMEOUT, "down*3 75"),
        (Kind.NCCL_REMOTE, "down*3 75"),
        (Kind.NCCL_INTERNAL, "down*3 75"),
        (Kind.NVLINK_P2P, "down*3 75"),
        (Kind.HANG, "down*3 75"),
        (Kind.SHM, "down*3 93"),
    ],
)
def test_a_ladder_with_remedies_is_gone_down_to_its_end(kind: Kind, decisions: str) -> None:
    """NCCL that fails on each rung tries all of them before the attempts are spent."""
    assert Play(rungs=REMEDIES).until_it_ends(Failure(kind)) == decisions


def test_a_remedy_that_works_ends_the_descent() -> None:
    """NCCL without cumem trains: the next failure there is a matter of that rung."""
    play = Play(rungs=REMEDIES)
    play.fail(Failure(Kind.NCCL_INIT))
    play.fail(Failure(Kind.NCCL_INIT), Between.CHECKPOINT)
    assert play.rung == 2
    play.fail(Failure(Kind.UNKNOWN), Between.CHECKPOINT)
    assert play.rung == 2


def test_faulty_gpus_are_done_without_as_long_as_there_are_others() -> None:
    """Four GPUs, one rung for all and one for a single one: each is lost once."""
    play = Play(rungs=2, gpus=4)
    assert play.until_it_ends(Failure(Kind.GPU_FAULT)) == "down elsewhere*2 75"
    assert play.excluded == ("GPU-0", "GPU-1", "GPU-2", "GPU-3")


def test_a_fault_of_no_known_gpu_excludes_none() -> None:
    """Nothing tells which card it was: the lower rung is all there is to try."""
    play = Play(rungs=2, gpus=2)
    assert play.until_it_ends(Failure(Kind.GPU_FAULT, blames_gpu=False)) == "down 75"
    assert play.excluded == ()


@pytest.mark.parametrize(
    ("micro", "decisions"),
    [(None, "down 93"), (1, "down 93"), (7, "down shrink 93"), (12, "down shrink*3 93")],
)
def test_a_micro_batch_shrinks_by_divisors(micro: int | None, decisions: str) -> None:
    """7 to 1; 12 to 6, 3, 1; nothing where nobody said a batch."""
    assert Play(micro=micro).until_it_ends(Failure(Kind.CUDA_OOM)) == decisions


@pytest.mark.parametrize(
    ("free_mib", "decisions"),
    [
        (0, "wait_space*16 75"),
        (NEED_MIB - 1, "wait_space*16 75"),
        (NEED_MIB, "wait*16 75"),
        (None, "wait*16 75"),
    ],
)
def test_a_disk_with_room_is_not_waited_for(free_mib: int | None, decisions: str) -> None:
    """It was full for a while, or another one is: the same rung after a longer pause."""
    assert Play(free_mib=free_mib).until_it_ends(Failure(Kind.DISK_FULL)) == decisions


def test_no_checkpoint_left_ends_the_run() -> None:
    """One bad checkpoint and none before it: what starts from scratch cannot use an older one."""
    play = Play(checkpoints=(20,))
    assert play.until_it_ends(Failure(Kind.CHECKPOINT_CORRUPT)) == "older 93"


@pytest.mark.parametrize(
    ("action", "decisions"),
    [
        (Remedy.FALLBACK_SINGLE_GPU, "down retry 75"),
        (Remedy.RETRY_SAME, "retry down 75"),
        (Remedy.REDUCE_MICROBATCH, "shrink*3 75"),
        (Remedy.RESUME_OLDER_CHECKPOINT, "older*2 75"),
        (Remedy.WAIT_THEN_RETRY, "wait*8 75"),
        (Remedy.STOP_AND_TELL, "75"),
    ],
)
def test_an_override_takes_the_rows_place(action: Remedy, decisions: str) -> None:
    """`policy: {"unknown": action}`, for each action there is."""
    policy = Policy(overrides={Kind.UNKNOWN: action})
    assert Play(policy=policy).until_it_ends(Failure(Kind.UNKNOWN)) == decisions


def test_more_retries_repeat_the_retry_alone() -> None:
    """`policy.retries` 2 and attempts enough: two on each rung."""
    policy = Policy(retries=2, attempts_without_progress=99)
    unknown = Failure(Kind.UNKNOWN)
    assert Play(policy=policy).until_it_ends(unknown) == "retry*2 down retry*2 75"
    repeated = Failure(Kind.UNKNOWN, same=True)
    repeats = (Between.STEPS, Between.AGAIN)
    assert Play(policy=policy).until_it_ends(repeated, *repeats) == "retry down 93"


def test_a_spent_period_is_not_hopeless_however_often_it_was_the_same() -> None:
    """Back on the higher rung after a promotion: what is below it was not the end of the tries."""
    play = Play(policy=Policy(max_attempts=2))
    again = Failure(Kind.NCCL_REMOTE, same=True)
    play.fail(again, Between.STEPS)
    play.rung = 0
    end = play.fail(again, Between.AGAIN)
    assert isinstance(end, Stop)
    assert not end.hopeless
    assert "policy.max_attempts allows 2" in end.reason
