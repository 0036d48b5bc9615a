"""The rules around the table of the policy: repetition, the user's code, what decisions name.

What each kind leads to is in `test_decision_tables.py`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from policy_play import NEED_MIB, STRANGER_MIB, STRANGER_PID, Between, Failure, Play

from humigence_supervise.budgets import Backoff, Policy
from humigence_supervise.decisions import (
    Complete,
    Retry,
    StepDown,
    Stop,
    Stranger,
    UseOlderCheckpoint,
    WaitForMemory,
    WaitForSpace,
)
from humigence_supervise.domain import Holder, Kind, Remedy
from humigence_supervise.moves import HELD_BY, MOVES, OVERRIDES, Move

UNKNOWN = Failure(Kind.UNKNOWN)
SAME = Failure(Kind.UNKNOWN, same=True)
CODE = Failure(Kind.USER_CODE)
CODE_SAME = Failure(Kind.USER_CODE, same=True)
NCCL = Failure(Kind.NCCL_REMOTE)
DISK = Failure(Kind.DISK_FULL)
STRANGER = Failure(Kind.CUDA_OOM, Holder.STRANGER)


# --- the table itself ----------------------------------------------------------------------------


def test_every_kind_and_every_holder_has_a_row() -> None:
    """No diagnosis can leave the supervisor without an answer."""
    assert set(MOVES) == set(Kind) - {Kind.HEALTHY}
    assert set(HELD_BY) == set(Holder)
    assert set(OVERRIDES) == set(Remedy) - {Remedy.NONE}


@pytest.mark.parametrize("row", [*MOVES.values(), *HELD_BY.values(), *OVERRIDES.values()])
def test_every_row_ends_with_a_stop_and_has_it_nowhere_else(row: tuple[Move, ...]) -> None:
    """A row is finite, and nothing stands behind its end."""
    assert row[-1] is Move.STOP
    assert row.count(Move.STOP) == 1


# --- repetition ----------------------------------------------------------------------------------


def test_the_same_failure_at_the_same_step_skips_a_rung_then_stops_with_93() -> None:
    """Deterministic failures are not repeated, even where a retry would be the next move."""
    play = Play(policy=Policy(retries=5, attempts_without_progress=99))
    assert isinstance(play.fail(SAME, Between.STEPS), Retry)
    down = play.fail(SAME, Between.AGAIN)
    assert isinstance(down, StepDown)
    assert "deterministic" in down.reason
    end = play.fail(SAME, Between.AGAIN)
    assert isinstance(end, Stop)
    assert end.hopeless
    assert "deterministic" in end.reason


def test_another_step_or_another_fingerprint_is_another_failure() -> None:
    """Neither the place alone nor the error alone makes it deterministic."""
    generous = Policy(retries=9, attempts_without_progress=99)
    for failure, between in ((UNKNOWN, Between.NOTHING), (SAME, Between.STEPS)):
        play = Play(policy=generous)
        for _ in range(5):
            assert isinstance(play.fail(failure, between), Retry)


def test_repetition_is_seen_through_other_failures() -> None:
    """A bug at step 21 comes back there, whatever happened in between."""
    play = Play(rungs=1)
    assert isinstance(play.fail(CODE_SAME, Between.STEPS), Retry)
    assert isinstance(play.fail(DISK), WaitForSpace)
    end = play.fail(CODE_SAME, Between.AGAIN)
    assert isinstance(end, Stop)
    assert end.hopeless


# --- the user's own code -------------------------------------------------------------------------


def test_code_that_fails_before_any_new_step_stops_at_once() -> None:
    """Nothing the supervisor can change would let it get further."""
    end = Play().fail(CODE)
    assert isinstance(end, Stop)
    assert end.hopeless
    assert "before any new step" in end.reason


def test_code_that_fails_at_the_start_is_hopeless_with_a_spent_budget_too() -> None:
    """A scheduler must not requeue it: 93 goes before the 75 of the attempts."""
    play = Play()
    play.fail(Failure(Kind.RENDEZVOUS))
    play.fail(Failure(Kind.SEGFAULT))
    end = play.fail(CODE)
    assert isinstance(end, Stop)
    assert end.hopeless


def test_code_that_fails_after_progress_has_one_retry() -> None:
    """The same again, or anything without getting further: 93. Further on: another retry."""
    repeated = Play()
    assert isinstance(repeated.fail(CODE_SAME, Between.STEPS), Retry)
    end = repeated.fail(CODE_SAME, Between.AGAIN)
    assert isinstance(end, Stop)
    assert end.hopeless
    other = Play()
    assert isinstance(other.fail(CODE, Between.STEPS), Retry)
    end = other.fail(CODE, Between.AGAIN)
    assert isinstance(end, Stop)
    assert end.hopeless
    further = Play()
    for _ in range(3):
        assert isinstance(further.fail(CODE_SAME, Between.CHECKPOINT), Retry)


def test_an_override_lets_code_try_again_at_the_start() -> None:
    """The operator knows better: `policy: {"user_code": "retry_same"}`."""
    policy = Policy(overrides={Kind.USER_CODE: Remedy.RETRY_SAME})
    assert isinstance(Play(policy=policy).fail(CODE), Retry)


# --- what the decisions say ----------------------------------------------------------------------


def test_healthy_completes() -> None:
    """A reached target ends the run, and needs no grounds."""
    play = Play()
    assert isinstance(play.fail(Failure(Kind.HEALTHY)), Complete)
    assert (play.verdicts[0].why_not, play.verdicts[0].unless) == ("", "")


def test_evidence_that_says_stop_is_believed_for_shared_memory_alone() -> None:
    """Shared memory that a data loader used up is no matter of GPUs: the row is passed over."""
    stop = Remedy.STOP_AND_TELL
    assert isinstance(Play().fail(Failure(Kind.SHM)), StepDown)
    assert isinstance(Play().fail(Failure(Kind.SHM, remedy=stop)), Stop)
    assert isinstance(Play().fail(replace(NCCL, remedy=stop)), StepDown)


def test_a_full_disk_says_how_much_is_needed() -> None:
    """The room of the next checkpoint."""
    decision = Play().fail(DISK)
    assert isinstance(decision, WaitForSpace)
    assert decision.need_mib == NEED_MIB


def test_a_stranger_on_the_gpu_is_named_and_waited_for() -> None:
    """Its pid, its GPU and what it holds; the patience is the longest delay."""
    decision = Play().fail(STRANGER)
    assert isinstance(decision, WaitForMemory)
    assert decision.stranger == Stranger("GPU-0", STRANGER_PID, STRANGER_MIB)
    assert decision.patience_s == Backoff().max_s


def test_an_older_checkpoint_puts_aside_the_one_that_was_resumed() -> None:
    """It is named by its step."""
    decision = Play().fail(Failure(Kind.CHECKPOINT_CORRUPT))
    assert isinstance(decision, UseOlderCheckpoint)
    assert decision.bad_step == 20


def test_only_a_gpu_fault_excludes_a_gpu() -> None:
    """An NCCL error names a GPU as well, and is no proof against it."""
    for kind in Kind:
        play = Play()
        play.fail(Failure(kind))
        assert play.excluded == (("GPU-0",) if kind is Kind.GPU_FAULT else ())


def test_an_end_of_the_sums_of_memory_says_so() -> None:
    """No batch configured, or one sample already: two different things to do."""
    for micro, words in ((None, "batch.micro"), (1, "of 1 sample")):
        play = Play(rungs=1, micro=micro)
        end = play.fail(Failure(Kind.CUDA_OOM, Holder.WORKLOAD))
        assert words in end.reason
