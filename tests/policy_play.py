"""A run played against the policy alone: each failure is judged, each decision is followed."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
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
    Verdict,
    WaitForMemory,
    WaitForSpace,
)
from humigence_supervise.domain import Confidence, Diagnosis, Holder, Kind, OomReading, Remedy
from humigence_supervise.outcomes import LONG_WAIT_S
from humigence_supervise.policy import decide
from humigence_supervise.situation import Situation

STRANGER_PID = 4711
STRANGER_MIB = 20_480
NEED_MIB = 700
EVERY_STEPS = 5
"""Steps between two checkpoints."""
MOST_DECISIONS = 200


class Between(Enum):
    """What an attempt gets done before it fails."""

    NOTHING = "nothing"
    AGAIN = "the steps done before, and no new one"
    STEPS = "a new step, but no checkpoint"
    CHECKPOINT = "a new checkpoint"


@dataclass(frozen=True)
class Failure:
    """How an attempt fails. `same`: with the fingerprint of the failure before."""

    kind: Kind
    holder: Holder | None = None
    same: bool = False
    blames_gpu: bool = True
    remedy: Remedy = Remedy.NONE

    def __str__(self) -> str:
        """Return how the tables call it."""
        return self.kind.value if self.holder is None else f"{self.kind.value}/{self.holder.name}"


@dataclass
class Play:
    """A run: where it stands, and what was decided so far."""

    rungs: int = 2
    gpus: int = 2
    micro: int | None = 8
    free_mib: int | None = 0
    policy: Policy = field(default_factory=Policy)
    checkpoints: tuple[int, ...] = (5, 10, 15, 20)
    rung: int = 0
    now_s: float = 1_000_000.0
    chance: float = 0.5
    furthest: int = 20
    defragmented: bool = False
    excluded: tuple[str, ...] = ()
    incidents: tuple[Incident, ...] = ()
    verdicts: list[Verdict] = field(default_factory=list)

    def fail(self, failure: Failure, between: Between = Between.NOTHING) -> Decision:
        """Let an attempt fail, follow the decision, and return it."""
        last, saved = self._got_to(between)
        diagnosis = self._diagnosis(failure)
        self.incidents = (*self.incidents, self._incident(failure, last, saved))
        verdict = decide(self.policy, self._standing(diagnosis), diagnosis)
        self.verdicts.append(verdict)
        self.furthest = max(self.furthest, last)
        self.checkpoints = (*self.checkpoints, saved) if saved > self.step else self.checkpoints
        if verdict.excluded_gpu:
            self.excluded = tuple(dict.fromkeys((*self.excluded, verdict.excluded_gpu)))
        self._follow(verdict.decision)
        return verdict.decision

    def until_it_ends(self, failure: Failure, *between: Between) -> str:
        """Let the same failure happen again and again; return the decisions in short.

        `between` is what each attempt gets done, its last one repeated; nothing if not said.
        """
        words: list[str] = []
        for index in range(MOST_DECISIONS):
            done = between[min(index, len(between) - 1)] if between else Between.NOTHING
            decision = self.fail(failure, done)
            words.append(word_of(decision))
            if isinstance(decision, Stop | Complete):
                return shortened(words)
        return shortened([*words, "..."])

    @property
    def step(self) -> int:
        """The step the next attempt begins at: that of the newest checkpoint not put aside."""
        return max(self.checkpoints, default=0)

    def free_gpu(self) -> str:
        """Return the first GPU that was not excluded, "" where none is left."""
        return next((gpu for gpu in self._gpus() if gpu not in self.excluded), "")

    def _gpus(self) -> tuple[str, ...]:
        return tuple(f"GPU-{index}" for index in range(self.gpus))

    def _got_to(self, between: Between) -> tuple[int, int]:
        match between:
            case Between.NOTHING:
                return self.step, self.step
            case Between.AGAIN:
                return max(self.step, self.furthest), self.step
            case Between.STEPS:
                return max(self.step, self.furthest) + 1, self.step
            case Between.CHECKPOINT:
                saved = max(self.step, self.furthest) + EVERY_STEPS
                return saved + 1, saved
            case _:
                assert_never(between)

    def _incident(self, failure: Failure, last: int, saved: int) -> Incident:
        number = len(self.incidents) + 1
        mark = f"{failure.kind.value}:x" + ("" if failure.same else f"@{number}")
        gpu = self.free_gpu() if failure.blames_gpu else ""
        return Incident(
            number,
            self.rung,
            failure.kind,
            mark,
            self.now_s,
            self.step,
            last,
            saved,
            gpu,
            failure.holder,
        )

    def _diagnosis(self, failure: Failure) -> Diagnosis:
        memory = None
        if failure.holder is Holder.STRANGER:
            memory = OomReading(failure.holder, STRANGER_PID, STRANGER_MIB)
        elif failure.holder is not None:
            memory = OomReading(failure.holder)
        return Diagnosis(
            failure.kind,
            None,
            (),
            failure.remedy,
            "What happened.",
            "Do this.",
            Confidence.CERTAIN,  # of a GPU: it is the hardware, not a program on it
            "x",
            gpu=(self.free_gpu() or None) if failure.blames_gpu else None,
            memory=memory,
        )

    def _standing(self, diagnosis: Diagnosis) -> Situation:
        out = {*self.excluded, diagnosis.gpu}
        return Situation(
            self.incidents,
            self.rungs,
            self.micro,
            need_mib=NEED_MIB,
            free_mib=self.free_mib,
            now_s=self.now_s,
            chance=self.chance,
            gpus_left=sum(1 for gpu in self._gpus() if gpu not in out),
            defragmented=self.defragmented,
        )

    def _follow(self, decision: Decision) -> None:
        self.now_s += 60.0
        match decision:
            case StepDown(rung_index=index) | StepUp(rung_index=index):
                self.rung = index
            case ShrinkMicroBatch(micro_samples=micro) | GrowMicroBatch(micro_samples=micro):
                self.micro = micro
            case UseOlderCheckpoint(bad_step=bad_step):
                self.checkpoints = tuple(one for one in self.checkpoints if one != bad_step)
            case Retry(delay_s=delay_s, defragment=defragment):
                self.now_s += delay_s
                self.defragmented = self.defragmented or defragment
            case WaitForSpace() | WaitForMemory() | Stop() | Complete():
                pass
            case _:
                assert_never(decision)


def word_of(decision: Decision) -> str:
    """Return a decision in one word; an end is its exit code."""
    match decision:
        case Retry(defragment=True):
            return "defragment"
        case Retry(delay_s=delay_s) if delay_s <= 0:
            return "elsewhere"
        case Retry(delay_s=delay_s):
            return "retry" if delay_s < LONG_WAIT_S else "wait"
        case StepDown():
            return "down"
        case StepUp():
            return "up"
        case ShrinkMicroBatch():
            return "shrink"
        case GrowMicroBatch():
            return "grow"
        case UseOlderCheckpoint():
            return "older"
        case WaitForSpace():
            return "wait_space"
        case WaitForMemory():
            return "wait_memory"
        case Stop(hopeless=hopeless):
            return "93" if hopeless else "75"
        case Complete():
            return "complete"
        case _:
            assert_never(decision)


def shortened(words: list[str]) -> str:
    """Return the words in one line, a word that is repeated as `word*times`."""
    runs: list[tuple[str, int]] = []
    for word in words:
        if runs and runs[-1][0] == word:
            runs[-1] = (word, runs[-1][1] + 1)
        else:
            runs.append((word, 1))
    return " ".join(word if count == 1 else f"{word}*{count}" for word, count in runs)
