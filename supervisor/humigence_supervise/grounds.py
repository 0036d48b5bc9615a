"""The grounds of a decision in words: why not the next best one, and what would change it. Pure."""

from __future__ import annotations

from typing import Final, assert_never

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
from humigence_supervise.domain import Diagnosis
from humigence_supervise.moves import Move, is_hardware

HOPELESS: Final = "Not another attempt: it would only fail the same way again."
LATER: Final = "Not another attempt now: what is wrong has to change first, and may in time."

_OTHERS: Final = {
    Move.RETRY: "the same rung again",
    Move.DOWN: "the next lower rung",
    Move.ELSEWHERE: "other GPUs on this rung",
    Move.DEFRAGMENT: "another setting of the allocator",
    Move.SHRINK: "a smaller micro-batch",
    Move.OLDER: "an older checkpoint",
    Move.WAIT: "a longer wait",
    Move.WAIT_SPACE: "waiting for space",
    Move.WAIT_MEMORY: "waiting for the memory",
    Move.STOP: "the end of the run",
}


def why_not(decision: Decision, other: Move, diagnosis: Diagnosis) -> str:
    """Return why the next best move is not made, one sentence."""
    return f"Not {_OTHERS[other]}: {_because(decision, other, diagnosis)}."


def _because(decision: Decision, other: Move, diagnosis: Diagnosis) -> str:
    match decision, other:
        case Retry(defragment=True), _:
            return "the memory is there, so nothing has to be given up for it yet"
        case Retry(delay_s=0.0), _ if is_hardware(diagnosis):
            return "the GPUs that are left are healthy, as far as anything tells"
        case Retry(), Move.DOWN:
            return "it is slower, and fresh processes cure most failures of this kind"
        case Retry(), _:
            return "there is a fair chance that it passes"
        case StepDown(), Move.RETRY:
            return f"{diagnosis.kind.value} would most likely come back on it"
        case StepDown(), Move.SHRINK:
            return "without the other GPUs' share of buffers it may fit as it is"
        case StepDown(), Move.ELSEWHERE:
            return "a rung of several GPUs needs the one that failed"
        case StepDown(), Move.WAIT_MEMORY:
            return "a lower rung can take a GPU that nobody else uses"
        case StepDown(), _:
            return "the lower rung has not failed"
        case ShrinkMicroBatch(), _:
            return "smaller micro-batches cost only time, the result is the same"
        case UseOlderCheckpoint(), _:
            return "an older checkpoint costs some steps, and the run goes on"
        case WaitForSpace(), Move.STOP:
            return "room can be made while the run waits"
        case WaitForSpace(), _:
            return "without room the next checkpoint would be lost as well"
        case WaitForMemory(), Move.DOWN:
            return "all GPUs together are faster as soon as the memory is free"
        case WaitForMemory(), _:
            return "nothing of ours is too large, and what others hold comes back"
        case _:
            return "it is not needed"


def unless(
    decision: Decision, if_repeated: Decision, now: Incident, *, retry_keeps_rung: bool
) -> str:
    """Return what would have led to another decision, or would lead to one next.

    `if_repeated` is what would be decided if the same failure came at the same step again;
    `retry_keeps_rung`: the action "retry_same" would have kept the rung.
    """
    repeated = f"The same failure at step {now.last_step} again would {_would(if_repeated)}"
    key = f"policy.{now.kind.value}"
    match decision:
        case StepDown():
            there = f"The same failure on the lower rung would {_would(if_repeated)}."
            if not retry_keeps_rung:
                return f'"stop_and_tell" for {key} would have ended the run. {there}'
            return f'"retry_same" for {key} would have kept the rung. {there}'
        case WaitForSpace():
            return f"With room for a checkpoint it would have been started at once. {repeated}."
        case WaitForMemory():
            return f"With the memory free it would have been started at once. {repeated}."
        case _:
            return f'{repeated}, progress begins the tries anew; "stop_and_tell" for {key} stops.'


def _would(decision: Decision) -> str:
    match decision:
        case Retry(defragment=True):
            return "be met with another setting of the allocator"
        case Retry():
            return "be tried once more"
        case StepDown():
            return "lead to the next lower rung"
        case StepUp():
            return "lead to a higher rung"
        case ShrinkMicroBatch() | GrowMicroBatch():
            return "change the micro-batch"
        case UseOlderCheckpoint():
            return "lead to a still older checkpoint"
        case WaitForSpace() | WaitForMemory():
            return "be waited for"
        case Stop():
            return "end the run"
        case Complete():
            return "complete the run"
        case _:
            assert_never(decision)
