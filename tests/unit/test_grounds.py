"""The grounds of every decision: what they name is true, and they are sentences."""

from __future__ import annotations

import itertools
import re

import pytest
from policy_play import Between, Failure, Play, word_of

from humigence_supervise import grounds, policy
from humigence_supervise.budgets import Policy
from humigence_supervise.decisions import Complete, Stop, Verdict
from humigence_supervise.domain import Holder, Kind, Remedy
from humigence_supervise.moves import Move

FAILURES = (
    *(Failure(kind, same=True) for kind in Kind if kind is not Kind.HEALTHY),
    *(Failure(Kind.CUDA_OOM, holder, same=True) for holder in Holder),
    *(Failure(kind) for kind in (Kind.UNKNOWN, Kind.NCCL_INIT, Kind.USER_CODE)),
)
COURSES = {
    "at the start": (Between.NOTHING,),
    "at one step": (Between.STEPS, Between.AGAIN),
    "with progress": (Between.CHECKPOINT,) * 3 + (Between.NOTHING,),
}
WOULD = {
    "retry": "be tried once more",
    "elsewhere": "be tried once more",
    "wait": "be tried once more",
    "defragment": "be met with another setting of the allocator",
    "down": "lead to the next lower rung",
    "shrink": "change the micro-batch",
    "older": "lead to a still older checkpoint",
    "wait_space": "be waited for",
    "wait_memory": "be waited for",
    "75": "end the run",
    "93": "end the run",
}
"""How the grounds call the decision that would be next."""


def _id(failure: Failure) -> str:
    return f"{failure}{'-same' if failure.same else ''}"


def verdicts(failure: Failure, course: str, play: Play | None = None) -> list[Verdict]:
    """Return all verdicts of a run that fails in one way until it ends."""
    play = play or Play()
    play.until_it_ends(failure, *COURSES[course])
    return play.verdicts


def one_verdict(failure: Failure, play: Play, between: Between = Between.NOTHING) -> Verdict:
    """Return the verdict on one more failure."""
    play.fail(failure, between)
    return play.verdicts[-1]


def check_sentences(text: str) -> None:
    """Assert that a text is made of sentences a person can read."""
    assert text
    assert text == text.strip()
    assert text.endswith(".")
    assert "  " not in text
    assert ".." not in text
    assert " ." not in text
    assert text.isascii()


@pytest.mark.parametrize("course", COURSES)
@pytest.mark.parametrize("failure", FAILURES, ids=_id)
def test_every_verdict_on_a_failure_is_told_in_sentences(failure: Failure, course: str) -> None:
    """Reason, why not the next best, and what would change it: nothing is empty."""
    for verdict in verdicts(failure, course):
        check_sentences(verdict.decision.reason)
        check_sentences(verdict.why_not)
        check_sentences(verdict.unless)


def test_a_completed_run_needs_no_grounds() -> None:
    """The other side: there is nothing to say why not."""
    (verdict,) = verdicts(Failure(Kind.HEALTHY), "at the start")
    assert isinstance(verdict.decision, Complete)
    assert (verdict.why_not, verdict.unless) == ("", "")


@pytest.mark.parametrize("course", ["at the start", "at one step"])
@pytest.mark.parametrize("gpus", [1, 2, 3])
@pytest.mark.parametrize("failure", [one for one in FAILURES if one.same], ids=_id)
def test_what_would_follow_is_what_follows(failure: Failure, gpus: int, course: str) -> None:
    """What a verdict says the same failure would lead to is decided when it comes."""
    play = Play(rungs=min(gpus, 2), gpus=gpus)
    told = verdicts(failure, course, play)
    for verdict, following in itertools.pairwise(told):
        assert f" would {WOULD[word_of(following.decision)]}" in verdict.unless, verdict


@pytest.mark.parametrize(
    ("failure", "between", "why_not"),
    [
        (Failure(Kind.NCCL_REMOTE), (), "Not the same rung again: nccl_remote would"),
        (Failure(Kind.UNKNOWN), (), "Not the next lower rung: "),
        (Failure(Kind.USER_CODE), (Between.STEPS,), "Not the end of the run: "),
        (Failure(Kind.NETWORK_HUB), (), "Not the end of the run: "),
        (Failure(Kind.DISK_FULL), (), "Not the end of the run: "),
        (Failure(Kind.CHECKPOINT_CORRUPT), (), "Not the end of the run: an older checkpoint"),
        (Failure(Kind.GPU_FAULT), (), "Not other GPUs on this rung: "),
        (Failure(Kind.CUDA_OOM), (), "Not a smaller micro-batch: "),
        (Failure(Kind.CUDA_OOM, Holder.FRAGMENTATION), (), "Not the next lower rung: the memory"),
        (Failure(Kind.CUDA_OOM, Holder.STRANGER), (), "Not the next lower rung: "),
        (Failure(Kind.SHM), (), "Not the end of the run: "),
        (Failure(Kind.IMPORT_ERROR), (), "Not another attempt: "),
        (Failure(Kind.USER_CODE), (), "Not another attempt: "),
    ],
    ids=str,
)
def test_why_not_names_the_next_best_move(
    failure: Failure, between: tuple[Between, ...], why_not: str
) -> None:
    """The move that stands next in the row is the one a reader asks about."""
    verdict = one_verdict(failure, Play(), *between)
    assert verdict.why_not.startswith(why_not)


@pytest.mark.parametrize("failure", FAILURES, ids=_id)
@pytest.mark.parametrize("course", COURSES)
def test_nobody_is_told_why_not_what_is_done(failure: Failure, course: str) -> None:
    """A step down is never defended against the next lower rung, and so on."""
    own = {
        "down": "the next lower rung",
        "retry": "the same rung again",
        "elsewhere": "other GPUs",
        "shrink": "a smaller micro-batch",
        "older": "an older checkpoint",
        "wait_space": "waiting for space",
        "wait_memory": "waiting for the memory",
        "wait": "a longer wait",
        "defragment": "another setting",
        "75": "the end of the run",
        "93": "the end of the run",
    }
    generous = Play(policy=Policy(retries=3, attempts_without_progress=9))
    for play in (Play(), generous):
        for verdict in verdicts(failure, course, play):
            assert not verdict.why_not.startswith(f"Not {own[word_of(verdict.decision)]}")


@pytest.mark.parametrize(
    ("failure", "between"),
    [
        (Failure(Kind.CUDA_OOM), Between.CHECKPOINT),
        (Failure(Kind.SHM), Between.CHECKPOINT),
        (Failure(Kind.DEVICE_MISMATCH), Between.CHECKPOINT),
        (Failure(Kind.GPU_FAULT), Between.CHECKPOINT),
        (Failure(Kind.IMPORT_ERROR), Between.CHECKPOINT),
    ],
    ids=str,
)
def test_progress_is_not_offered_where_it_changed_nothing(
    failure: Failure, between: Between
) -> None:
    """A run that progressed before it ended is not told that progress would have helped."""
    play = Play(rungs=1, gpus=1, micro=1)
    verdict = one_verdict(failure, play, between)
    assert isinstance(verdict.decision, Stop)
    assert "Progress" not in verdict.unless


def test_progress_is_offered_where_the_attempts_are_spent() -> None:
    """The other side: a spent budget that a newer checkpoint would have filled again."""
    play = Play(rungs=1, gpus=1)
    for kind in (Kind.RENDEZVOUS, Kind.SEGFAULT):
        play.fail(Failure(kind))
    verdict = one_verdict(Failure(Kind.HOST_OOM), play)
    assert isinstance(verdict.decision, Stop)
    assert "Progress" in verdict.unless


@pytest.mark.parametrize("failure", FAILURES, ids=_id)
def test_actions_that_are_offered_would_change_the_decision(failure: Failure) -> None:
    """The action that `unless` names for `policy.KIND` leads elsewhere when it is configured."""
    told = verdicts(failure, "at the start")
    for index, verdict in enumerate(told):
        for action, kind in re.findall(r'"(\w+)" for policy\.(\w+)', verdict.unless):
            assert kind == failure.kind.value
            play = Play()
            for _ in range(index):
                play.fail(failure)
            play.policy = Policy(overrides={failure.kind: Remedy(action)})
            assert word_of(play.fail(failure)) != word_of(verdict.decision), action


# --- planted faults ------------------------------------------------------------------------------


def test_a_planted_fault_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Grounds that always say the same are caught by the prediction and by the names."""
    failure = Failure(Kind.NCCL_REMOTE, same=True)
    test_what_would_follow_is_what_follows(failure, 2, "at one step")
    test_why_not_names_the_next_best_move(failure, (), "Not the same rung again: nccl_remote would")
    with monkeypatch.context() as broken:
        broken.setattr(policy, "unless", lambda *_, **__: "It would be tried once more.")
        with pytest.raises(AssertionError):
            test_what_would_follow_is_what_follows(failure, 2, "at one step")
    with monkeypatch.context() as broken:
        broken.setitem(grounds._OTHERS, Move.RETRY, "the next lower rung")  # noqa: SLF001
        with pytest.raises(AssertionError):
            test_why_not_names_the_next_best_move(failure, (), "Not the same rung again: ")
