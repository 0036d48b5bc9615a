"""Properties of the policy over random histories, and planted faults that break each of them."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from policy_play import MOST_DECISIONS, Between, Failure, Play

from humigence_supervise import outcomes
from humigence_supervise import policy as policy_module
from humigence_supervise.budgets import Backoff, Policy
from humigence_supervise.decisions import (
    Decision,
    Retry,
    ShrinkMicroBatch,
    StepDown,
    Stop,
    UseOlderCheckpoint,
    WaitForMemory,
)
from humigence_supervise.domain import Diagnosis, Holder, Kind, Remedy
from humigence_supervise.moves import OVERRIDES, Move, row_of
from humigence_supervise.situation import Situation

SEEDS = range(150)
KINDS: tuple[Kind, ...] = tuple(kind for kind in Kind if kind is not Kind.HEALTHY)


def random_failure(rng: random.Random) -> Failure:
    """Return any way of failing."""
    kind = rng.choice(KINDS)
    holder = rng.choice((None, *Holder)) if kind is Kind.CUDA_OOM else None
    remedy = rng.choice((Remedy.NONE, Remedy.STOP_AND_TELL))
    return Failure(kind, holder, rng.random() < 0.5, rng.random() < 0.7, remedy)


def random_play(rng: random.Random) -> Play:
    """Return any machine with any policy, sensible or not."""
    overrides = {kind: rng.choice(tuple(OVERRIDES)) for kind in KINDS if rng.random() < 0.1}
    backoff = Backoff(rng.choice((0.0, 1.0, 60.0)), rng.choice((0.0, 5.0, 300.0)), 2.0, 0.2)
    policy = Policy(
        overrides,
        retries=rng.choice((0, 1, 2, 5)),
        attempts_without_progress=rng.choice((1, 3, 8)),
        max_attempts=rng.choice((1, 20)),
        backoff=backoff,
    )
    rungs, gpus = rng.randint(1, 4), rng.randint(0, 8)
    micro, free_mib = rng.choice((None, 1, 7, 8, 12, 4096)), rng.choice((None, 0, 10_000))
    return Play(rungs, gpus, micro, free_mib, policy)


def check_bounds(play: Play) -> None:
    """Assert what holds of the last verdict, whatever led to it."""
    verdict, now = play.verdicts[-1], play.incidents[-1]
    assert verdict.decision.reason
    match verdict.decision:
        case StepDown(rung_index=index):
            assert index == now.rung_index + 1 < play.rungs
        case Retry(delay_s=delay_s):
            backoff = play.policy.backoff
            assert 0 <= delay_s <= backoff.max_s * (1 + backoff.jitter)
        case UseOlderCheckpoint(bad_step=bad_step):
            assert bad_step in {now.first_step, now.checkpoint_step}
            assert bad_step > 0
        case WaitForMemory(patience_s=patience_s):
            assert patience_s >= 0
        case _:
            pass


def fail_and_check(play: Play, failure: Failure, between: Between) -> bool:
    """Let an attempt fail, check the decision; say whether the run ended."""
    micro = play.micro
    decision = play.fail(failure, between)
    check_bounds(play)
    if isinstance(decision, ShrinkMicroBatch):
        assert micro is not None
        assert 1 <= decision.micro_samples < micro
        assert micro % decision.micro_samples == 0
    return isinstance(decision, Stop)


def wander(seed: int) -> None:
    """Judge a random history, going on after each stop as an operator would."""
    rng = random.Random(seed)
    play = random_play(rng)
    for _ in range(40):
        play.chance = rng.random()
        play.now_s += rng.choice((-7200.0, 0.0, 60.0, 90_000.0))
        fail_and_check(play, random_failure(rng), rng.choice(tuple(Between)))


def repeat(seed: int) -> None:
    """Repeat one failure after a random history until the run ends."""
    rng = random.Random(seed)
    play = random_play(rng)
    for _ in range(rng.randint(0, 15)):
        fail_and_check(play, random_failure(rng), rng.choice(tuple(Between)))
    failure = random_failure(rng)
    assert any(fail_and_check(play, failure, Between.NOTHING) for _ in range(MOST_DECISIONS))


def alternate(seed: int) -> None:
    """Let two failures come as they will until the run ends."""
    rng = random.Random(seed)
    play = random_play(rng)
    mixture = (random_failure(rng), random_failure(rng))
    ends = (
        fail_and_check(play, rng.choice(mixture), Between.NOTHING) for _ in range(MOST_DECISIONS)
    )
    assert any(ends)


@pytest.mark.parametrize("seed", SEEDS)
def test_any_history_has_a_possible_decision(seed: int) -> None:
    """Never an exception, a rung that is not there, a delay out of bounds, a batch with a rest."""
    wander(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_failure_is_repeated_without_end(seed: int) -> None:
    """After any history: one failure again and again, without progress, comes to an end."""
    repeat(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_mixture_of_failures_goes_on_without_end(seed: int) -> None:
    """Two ways of failing that alternate do not give each other the attempts back."""
    alternate(seed)


# --- planted faults ------------------------------------------------------------------------------


def halves(micro_samples: int | None, _fits: int | None = None) -> Decision:
    """Halve whatever there is, with a rest or down to nothing."""
    return ShrinkMicroBatch("half", (micro_samples or 1) // 2)


def begins_each_row_anew(policy: Policy, _: Situation, diagnosis: Diagnosis) -> tuple[Move, ...]:
    """Forget which moves were made."""
    return (*row_of(diagnosis, policy.overrides), Move.STOP)


def doubles_for_ever(backoff: Backoff, fruitless: int, chance: float, **_: float) -> float:
    """Know no longest delay."""
    return 2 * (backoff.max_s + 1.0) * backoff.factor**fruitless + chance


def never_lowest(_: Situation) -> bool:
    """Take every rung for one with another below it."""
    return False


@pytest.mark.parametrize(
    ("where", "name", "fault", "broken"),
    [
        (Situation, "on_lowest_rung", property(never_lowest), wander),
        (outcomes, "_shrink", halves, wander),
        (Backoff, "delay_s", doubles_for_ever, wander),
        (policy_module, "_moves_left", begins_each_row_anew, repeat),
        (policy_module, "_moves_left", begins_each_row_anew, alternate),
    ],
)
def test_a_planted_fault_breaks_its_property(
    where: object,
    name: str,
    fault: object,
    broken: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each property above has been seen to fail."""
    monkeypatch.setattr(where, name, fault)
    failed = 0
    for seed in SEEDS:
        try:
            broken(seed)
        except AssertionError:
            failed += 1
    assert failed
