"""The grounds of a decision in words: why not the next best one, and what would change it. Pure."""

from __future__ import annotations

from typing import assert_never

from humigence_supervise.budgets import Policy
from humigence_supervise.decisions import (
    Complete,
    Decision,
    GrowMicroBatch,
    Incident,
    Retry,
    ShrinkMicroBatch,
    StepDown,
    StepUp,
    Stop,
    UseOlderCheckpoint,
    WaitForMemory,
    WaitForSpace,
)
from humigence_supervise.domain import Diagnosis, Kind
from humigence_supervise.moves import Move

_NEXT_BEST = {
    Move.RETRY: "the same rung again",
    Move.DOWN: "the next lower rung",
    Move.ELSEWHERE: "another GPU",
    Move.DEFRAGMENT: "another setting of the allocator",
    Move.SHRINK: "a smaller micro-batch",
    Move.OLDER: "an older checkpoint",
    Move.WAIT: "a longer wait",
    Move.WAIT_SPACE: "waiting for space",
    Move.WAIT_MEMORY: "waiting for memory",
    Move.STOP: "the end of the run",
}


def why_not(decision: Decision, following: Move, diagnosis: Diagnosis) -> str:
    """Return why the next best move is not made yet, one sentence."""
    other = _NEXT_BEST[following]
    kind = diagnosis.kind.value
    match decision:
        case Retry(defragment=True):
            return f"Not {other}: the memory was there, so nothing has to be given up for it yet."
        case Retry():
            return f"Not {other} yet: that is slower or final, and a restart cures most of these."
        case StepDown():
            return f"Not {other}: {kind} would most likely come back on the same rung."
        case ShrinkMicroBatch():
            return f"Not {other}: smaller micro-batches cost only time, the result is the same."
        case UseOlderCheckpoint():
            return f"Not {other}: an older checkpoint costs some steps, the run goes on."
        case WaitForSpace():
            return f"Not {other}: without room the next checkpoint would be lost as well."
        case WaitForMemory():
            return (
                f"Not {other} yet: nothing of ours is too large, and others' processes are let be."
            )
        case Stop(hopeless=True):
            return "Not another attempt: it would only fail the same way again."
        case Stop():
            return "Not another attempt now: enough were made without the run getting further."
        case StepUp() | GrowMicroBatch() | Complete():
            return ""
        case _:
            assert_never(decision)


def unless(decision: Decision, policy: Policy, now: Incident, *, on_lowest_rung: bool) -> str:
    """Return what would have led to another decision, one sentence."""
    key = f"policy.{now.kind.value}"
    again = "stop the run" if on_lowest_rung else "lead to the next lower rung"
    match decision:
        case Retry(defragment=True):
            return f"Running out of memory again would {again} or shrink the micro-batch."
        case Retry():
            return (
                f"The same failure at step {now.last_step} again would {again}; a newer checkpoint"
                f" or step gives the budget of {policy.attempts_without_progress} attempts back."
            )
        case StepDown():
            return (
                f'"retry_same" for {key} would have kept the rung, "stop_and_tell" ended the run.'
            )
        case ShrinkMicroBatch():
            return f'"stop_and_tell" for {key} would have ended the run.'
        case UseOlderCheckpoint():
            return "Without an older good checkpoint the run would have ended."
        case WaitForSpace():
            return "With room for a checkpoint the same rung would have been started at once."
        case WaitForMemory():
            return "With the memory free the same rung would have been started at once."
        case Stop() if now.kind is Kind.USER_CODE:
            return f'"retry_same" for {key} would have tried again.'
        case Stop():
            return (
                f"Progress before the failure, another action for {key}, or a larger"
                " policy.attempts_without_progress or policy.max_attempts."
            )
        case StepUp() | GrowMicroBatch() | Complete():
            return ""
        case _:
            assert_never(decision)
