"""What a run may spend on failures: attempts without progress, attempts in a period, delays."""

from __future__ import annotations

import pytest
from policy_play import Between, Failure, Play

from humigence_supervise.budgets import Backoff, Policy
from humigence_supervise.decisions import Retry, StepDown, Stop, WaitForMemory, WaitForSpace
from humigence_supervise.domain import Holder, Kind

UNKNOWN = Failure(Kind.UNKNOWN)
DISK = Failure(Kind.DISK_FULL)
HUB = Failure(Kind.NETWORK_HUB)
STRANGER = Failure(Kind.CUDA_OOM, Holder.STRANGER)


# --- budgets -------------------------------------------------------------------------------------


def test_three_attempts_without_progress_end_the_run() -> None:
    """Whatever the kinds are; the third one is told as what used the budget up."""
    play = Play(rungs=1)
    for kind in (Kind.RENDEZVOUS, Kind.SEGFAULT):
        assert isinstance(play.fail(Failure(kind)), Retry)
    end = play.fail(Failure(Kind.HOST_OOM))
    assert isinstance(end, Stop)
    assert not end.hopeless
    assert "policy.attempts_without_progress is 3" in end.reason


@pytest.mark.parametrize("between", [Between.STEPS, Between.CHECKPOINT])
def test_progress_gives_the_attempts_back(between: Between) -> None:
    """A new step or a new checkpoint in the third attempt: three more are there."""
    play = Play(rungs=1)
    play.fail(Failure(Kind.RENDEZVOUS))
    play.fail(Failure(Kind.SEGFAULT))
    assert isinstance(play.fail(Failure(Kind.HOST_OOM), between), Retry)
    assert isinstance(play.fail(Failure(Kind.RENDEZVOUS)), Retry)
    assert isinstance(play.fail(Failure(Kind.SEGFAULT)), Retry)
    assert isinstance(play.fail(Failure(Kind.DATALOADER)), Stop)


def test_steps_that_were_done_before_are_no_progress() -> None:
    """From checkpoint 20 to step 21 again and again: that ends, with 21 reached only once."""
    play = Play(rungs=1)
    play.fail(Failure(Kind.RENDEZVOUS), Between.STEPS)
    play.fail(Failure(Kind.SEGFAULT), Between.AGAIN)
    play.fail(Failure(Kind.HOST_OOM), Between.AGAIN)
    assert isinstance(play.fail(Failure(Kind.DATALOADER), Between.AGAIN), Stop)


def test_progress_that_no_failure_ended_counts_as_well() -> None:
    """An attempt left on purpose got to a newer checkpoint: what fails after it begins anew."""
    play = Play(rungs=1)
    play.fail(Failure(Kind.RENDEZVOUS))
    play.fail(Failure(Kind.SEGFAULT))
    play.checkpoints = (*play.checkpoints, 40)
    assert isinstance(play.fail(Failure(Kind.HOST_OOM)), Retry)
    assert isinstance(play.fail(Failure(Kind.RENDEZVOUS)), Retry)
    assert isinstance(play.fail(Failure(Kind.SEGFAULT)), Stop)


def test_an_older_checkpoint_is_no_progress() -> None:
    """Steps lost and made again, with their checkpoint, are not new ones."""
    play = Play(rungs=1)
    play.fail(Failure(Kind.CHECKPOINT_CORRUPT))
    assert play.step == 15
    play.fail(Failure(Kind.RENDEZVOUS))
    play.checkpoints = (*play.checkpoints, 20)
    assert isinstance(play.fail(Failure(Kind.SEGFAULT), Between.AGAIN), Stop)


def test_an_attempt_that_progressed_and_failed_is_the_first_of_its_row() -> None:
    """It failed, too: what follows without progress is the second failure."""
    play = Play()
    assert isinstance(play.fail(UNKNOWN, Between.CHECKPOINT), Retry)
    assert isinstance(play.fail(UNKNOWN), StepDown)


@pytest.mark.parametrize("between", [Between.STEPS, Between.CHECKPOINT])
def test_attempts_within_a_period_are_bounded_whatever_their_progress(between: Between) -> None:
    """The 20th failure of a day ends the run; with pauses of hours it goes on."""
    hourly = Play()
    assert hourly.until_it_ends(UNKNOWN, between) == "retry*19 75"
    rarely = Play()
    for _ in range(60):
        rarely.now_s += 2 * 3600
        assert isinstance(rarely.fail(UNKNOWN, between), Retry)


@pytest.mark.parametrize("waiting", [DISK, HUB, STRANGER])
def test_what_is_waited_for_uses_up_no_attempts(waiting: Failure) -> None:
    """Five waits, then two failures of our own: the third one ends the run, not the first."""
    play = Play(rungs=1, gpus=1)
    for _ in range(5):
        assert isinstance(play.fail(waiting), WaitForSpace | WaitForMemory | Retry)
    assert isinstance(play.fail(Failure(Kind.RENDEZVOUS)), Retry)
    assert isinstance(play.fail(Failure(Kind.SEGFAULT)), Retry)
    assert isinstance(play.fail(waiting), WaitForSpace | WaitForMemory | Retry)
    assert isinstance(play.fail(Failure(Kind.HOST_OOM)), Stop)


def test_an_out_of_memory_of_our_own_uses_up_attempts() -> None:
    """The other side of a stranger's: three micro-batches that were too large count."""
    play = Play()
    for _ in range(3):
        play.fail(Failure(Kind.CUDA_OOM, Holder.WORKLOAD))
    assert isinstance(play.fail(UNKNOWN), Stop)


# --- backoff -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fruitless", "delay_s"), [(0, 1.0), (1, 2.0), (5, 32.0), (500, 300.0)])
def test_backoff_grows_and_is_capped(fruitless: int, delay_s: float) -> None:
    """An exponent of hundreds neither overflows nor waits for ever; jitter stays in its bounds."""
    backoff = Backoff()
    assert backoff.delay_s(fruitless, 0.5) == pytest.approx(delay_s)
    assert backoff.delay_s(fruitless, 0.0) == pytest.approx(delay_s * 0.8)
    assert backoff.delay_s(fruitless, 0.999999) <= delay_s * 1.2


def test_the_backoff_exponent_is_capped() -> None:
    """Thousands of fruitless attempts do not overflow a float."""
    assert Backoff(max_s=1e308, factor=10.0).delay_s(100_000, 0.5) <= 1e308


def test_a_service_that_is_down_is_waited_for_longer_within_the_cap() -> None:
    """Thirty seconds at first, doubled each time, never more than `max_s`."""
    play = Play()
    delays = [d.delay_s for _ in range(8) if isinstance(d := play.fail(HUB), Retry)]
    assert delays == [30.0, 60.0, 120.0, 240.0, 300.0, 300.0, 300.0, 300.0]
    capped = Play(policy=Policy(backoff=Backoff(max_s=5.0))).fail(HUB)
    assert isinstance(capped, Retry)
    assert capped.delay_s == 5.0
