"""The policy as a table: a history and a diagnosis, and the decision an expert would take."""

from __future__ import annotations

from dataclasses import replace

import pytest

from humigence_supervise.domain import (
    Complete,
    Confidence,
    Decision,
    Diagnosis,
    Incident,
    Kind,
    Remedy,
    Retry,
    ShrinkMicroBatch,
    StepDown,
    Stop,
    UseOlderCheckpoint,
    WaitForSpace,
)
from humigence_supervise.policy import MOVES, Backoff, Move, Policy, Standing, decide

NOW_S = 1_000_000.0


def failed(
    kind: Kind,
    *,
    rung: int = 0,
    first: int = 10,
    last: int = 10,
    saved: int | None = None,
    fingerprint: str = "",
) -> Incident:
    """Return an incident; `saved` is the newest checkpoint at its end (default: no new one)."""
    checkpoint = first if saved is None else saved
    mark = fingerprint or f"{kind.value}@{last}-{rung}-{first}"
    return Incident(1, rung, kind, mark, NOW_S, first, last, checkpoint)


def judged(
    *incidents: Incident,
    policy: Policy | None = None,
    micro: int | None = 4,
    remedy: Remedy = Remedy.NONE,
) -> Decision:
    """Return the decision about the last incident on a ladder of two rungs."""
    standing = Standing(incidents, 2, micro, need_mib=7, now_s=NOW_S, chance=0.5)
    kind = incidents[-1].kind
    found = Diagnosis(kind, None, (), remedy, "why", "do this", Confidence.LIKELY, "f")
    return decide(policy or Policy(), standing, found)


N, OOM, U, C = Kind.NCCL_REMOTE, Kind.CUDA_OOM, Kind.UNKNOWN, Kind.USER_CODE


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ([failed(N)], StepDown),
        ([failed(Kind.NCCL_TIMEOUT)], StepDown),
        ([failed(Kind.HANG)], StepDown),
        ([failed(N, rung=1)], Retry),
        ([failed(N), failed(N, rung=1)], Retry),
        ([failed(OOM)], StepDown),
        ([failed(OOM, rung=1)], ShrinkMicroBatch),
        ([failed(Kind.RENDEZVOUS)], Retry),
        ([failed(U)], Retry),
        ([failed(U, last=11), failed(U, last=12)], StepDown),
        ([failed(Kind.HOST_OOM)], Retry),
        ([failed(Kind.SEGFAULT, rung=1, last=11), failed(Kind.SEGFAULT, rung=1, last=12)], Stop),
        ([failed(Kind.GPU_FAULT)], StepDown),
        ([failed(Kind.GPU_FAULT, rung=1)], Stop),
        ([failed(Kind.CHECKPOINT_CORRUPT)], UseOlderCheckpoint),
        ([failed(Kind.CHECKPOINT_CORRUPT, first=0, last=0)], Stop),
        ([failed(Kind.DISK_FULL)], WaitForSpace),
        ([failed(C)], Stop),
        ([failed(C, last=15)], Retry),
        ([failed(C, last=15), failed(C, first=10, last=15)], Stop),
        ([failed(Kind.IMPORT_ERROR)], Stop),
        ([failed(Kind.CONFIG_ERROR)], Stop),
        ([failed(Kind.NAN_DIVERGENCE, last=50, saved=50)], Stop),
        ([failed(Kind.DEVICE_MISMATCH)], StepDown),
        ([failed(Kind.PREMATURE_SUCCESS)], Retry),
    ],
)
def test_the_table(history: list[Incident], expected: type[Decision]) -> None:
    """Each kind's first move, and the next one when the first did not help."""
    decision = judged(*history)
    assert isinstance(decision, expected), decision
    assert decision.reason


def test_every_kind_has_a_row() -> None:
    """No diagnosis can leave the supervisor without an answer."""
    assert set(MOVES) == set(Kind) - {Kind.HEALTHY}
    for row in MOVES.values():
        assert Move.STOP in row or set(row) == {Move.WAIT_SPACE}


def test_healthy_completes() -> None:
    """A reached target ends the run."""
    assert isinstance(judged(failed(Kind.HEALTHY)), Complete)


def test_three_attempts_without_progress_end_the_run_and_progress_refills() -> None:
    """The budget counts checkpoints, not attempts."""
    fruitless = [failed(U, last=10 + n, rung=n % 2) for n in range(3)]
    stopped = judged(*fruitless)
    assert isinstance(stopped, Stop)
    assert not stopped.hopeless
    refilled = judged(*fruitless[:2], replace(fruitless[2], checkpoint_step=20))
    assert not isinstance(refilled, Stop)


def test_a_failure_after_progress_begins_its_row_anew() -> None:
    """Ten retries in a long run are fine as long as each one got further."""
    history = [failed(U, first=10 * n, last=10 * n + 15, saved=10 * n + 10) for n in range(10)]
    assert isinstance(judged(*history), Retry)


def test_the_same_failure_at_the_same_step_skips_a_rung_then_stops() -> None:
    """Deterministic failures are not repeated, even when a retry would be the next move."""
    twice = [failed(U, last=15, fingerprint="same") for _ in range(2)]
    down = judged(*twice, policy=Policy(retries=2))
    assert isinstance(down, StepDown)
    assert "deterministic" in down.reason
    below = [failed(U, rung=1, last=15, fingerprint="same") for _ in range(2)]
    end = judged(*below, policy=Policy(retries=2))
    assert isinstance(end, Stop)
    assert end.hopeless


def test_the_micro_batch_shrinks_to_divisors_and_stops_at_one() -> None:
    """The global batch can be split by every micro-batch tried."""
    history = [failed(OOM, rung=1, fingerprint="oom")]
    seen = []
    micro = 12
    while isinstance(decision := judged(*history, micro=micro), ShrinkMicroBatch):
        assert micro % decision.micro_samples == 0
        micro = decision.micro_samples
        seen.append(micro)
        history.append(history[0])
    assert seen == [6, 3, 1]
    assert isinstance(decision, Stop)
    assert decision.hopeless


def patient() -> Policy:
    """Return a policy whose budgets do not end the run."""
    return Policy(attempts_without_progress=99, max_attempts=99)


def test_attempts_within_a_period_are_bounded_whatever_their_progress() -> None:
    """A run that fails all day, always a little further, ends too."""
    history = [failed(U, first=n, last=n + 2, saved=n + 1) for n in range(20)]
    assert isinstance(judged(*history), Stop)
    old = [replace(one, at_s=NOW_S - 90_000) for one in history[:-1]]
    assert not isinstance(judged(*old, history[-1]), Stop)


def test_retries_are_repeated_as_often_as_the_policy_says() -> None:
    """`policy.retries` 2 tries a rung twice more before the next one."""
    twice = [failed(U, last=11), failed(U, last=12)]
    assert isinstance(judged(*twice), StepDown)
    assert isinstance(judged(*twice, policy=Policy(retries=2)), Retry)


def test_an_override_takes_a_rows_place() -> None:
    """`policy: {"nccl_remote": "retry_same"}` retries instead of falling back."""
    policy = Policy(overrides={N: Remedy.RETRY_SAME})
    assert isinstance(judged(failed(N), policy=policy), Retry)
    assert isinstance(judged(failed(Kind.NCCL_INIT), policy=policy), StepDown)


def test_giving_up_on_what_may_pass_is_not_hopeless() -> None:
    """75 for what another hour may cure, 93 for what it cannot."""
    spent = [failed(N, rung=1, last=10 + n) for n in range(2)]
    gave_up = judged(*spent, policy=patient())
    assert isinstance(gave_up, Stop)
    assert not gave_up.hopeless
    lost = judged(failed(Kind.IMPORT_ERROR))
    assert isinstance(lost, Stop)
    assert lost.hopeless


def test_a_full_disk_is_waited_for_and_not_counted() -> None:
    """However often the disk fills up, the run does not give up for want of progress."""
    history = [failed(Kind.DISK_FULL, last=10 + n) for n in range(5)]
    assert isinstance(judged(*history), WaitForSpace)
    assert isinstance(judged(*history, failed(U, last=30)), Retry)


def test_evidence_that_says_stop_is_believed() -> None:
    """Shared memory that a data loader used up is no matter of GPUs: the row is passed over."""
    stop = Remedy.STOP_AND_TELL
    assert isinstance(judged(failed(Kind.SHM)), StepDown)
    assert isinstance(judged(failed(Kind.SHM), remedy=stop), Stop)
    assert isinstance(judged(failed(N), remedy=stop), StepDown)


def test_what_no_rung_cures_does_not_fall_back() -> None:
    """The user's own error at the same step twice ends the run, whatever was saved between."""
    twice = [
        failed(C, first=10, last=25, saved=20, fingerprint="same"),
        failed(C, first=20, last=25, saved=24, fingerprint="same"),
    ]
    decision = judged(*twice)
    assert isinstance(decision, Stop)
    assert decision.hopeless


def test_a_failure_right_after_progress_counts_with_it() -> None:
    """An attempt that progressed and failed, then one that did not: that is the second failure."""
    history = [failed(U, first=0, last=12, saved=10), failed(U, first=10, last=11)]
    assert isinstance(judged(*history), StepDown)


def test_the_backoff_exponent_is_capped() -> None:
    """Thousands of fruitless attempts do not overflow a float."""
    assert Backoff(max_s=1e308, factor=10.0).delay_s(100_000, 0.5) <= 1e308


@pytest.mark.parametrize(("fruitless", "delay_s"), [(0, 1.0), (1, 2.0), (5, 32.0), (500, 300.0)])
def test_backoff_grows_and_is_capped(fruitless: int, delay_s: float) -> None:
    """An exponent of hundreds neither overflows nor waits for ever; jitter stays in its bounds."""
    backoff = Backoff()
    assert backoff.delay_s(fruitless, 0.5) == pytest.approx(delay_s)
    assert backoff.delay_s(fruitless, 0.0) == pytest.approx(delay_s * 0.8)
    assert backoff.delay_s(fruitless, 0.999999) <= delay_s * 1.2
