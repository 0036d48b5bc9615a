"""Every path of `step` to a depth, against the invariants of a run; planted faults are caught."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from humigence_supervise.budgets import Policy
from humigence_supervise.domain import (
    Beginning,
    Checkpoint,
    Confidence,
    Diagnosis,
    ExitStatus,
    Kind,
    Launcher,
    LaunchPlan,
    ProcessId,
    Progress,
    RankExit,
    Remedy,
    Rung,
    Section,
)
from humigence_supervise.happenings import (
    Action,
    Append,
    Begin,
    CheckpointSeen,
    Clear,
    Consider,
    Considered,
    Context,
    Diagnosed,
    Gather,
    Happening,
    Launch,
    Launched,
    LogSampled,
    Means,
    NoRoom,
    NotLaunched,
    NotPrepared,
    Prepare,
    Prepared,
    Probe,
    ProgressMade,
    Quarantine,
    RankDied,
    Recover,
    Refused,
    SignatureSeen,
    StopRequested,
    Terminate,
    Tick,
    TreeGone,
)
from humigence_supervise.journal import decode, encode
from humigence_supervise.machine import step
from humigence_supervise.records import Entry, Event, Record
from humigence_supervise.state import Ended, Probing, Ready, State, Want, fold
from humigence_supervise.way_up import Promoting

RUNGS = (Rung("multi_gpu", "all", Launcher.TORCHRUN), Rung("single_gpu", 1, Launcher.PYTHON))
NOW_S = 1_000_000.0
KINDS = (
    Kind.HEALTHY,
    Kind.NCCL_REMOTE,
    Kind.CUDA_OOM,
    Kind.USER_CODE,
    Kind.DISK_FULL,
    Kind.CHECKPOINT_CORRUPT,
    Kind.UNKNOWN,
    Kind.PREEMPTED,
    Kind.GPU_FAULT,
)
ENDS = {
    Event.ATTEMPT_EXITED,
    Event.RUN_STOPPING,
    Event.ATTEMPT_LEAVING,
    Event.PROMOTION_STARTED,
}
"""What tells in the journal why an attempt is ended; a probe says it when it starts."""
Stepper = Callable[[State, Happening, Context], tuple[State, tuple[Action, ...]]]


@dataclass(frozen=True)
class World:
    """The run's state beside what is really true: what lives, what is owed, what was asked."""

    state: State = field(default_factory=State)
    journal: tuple[Record, ...] = ()
    alive: bool = False
    stopped: bool = False
    owed: Action | None = None

    def key(self) -> tuple[object, ...]:
        """Return what tells worlds apart for the walk; histories of equal worlds are one."""
        return (self.state, self.alive, self.stopped, type(self.owed))


class BrokenError(AssertionError):
    """An invariant does not hold."""


def context() -> Context:
    """Return a ladder of two rungs and the default policy at a fixed time."""
    return Context(
        RUNGS,
        Policy(grow_after_checkpoints=1),
        Promoting(after_s=0.0),
        micro_samples=4,
        counts_from_scratch=True,
        now_s=NOW_S,
        chance=0.5,
    )


def plan_for(wanted: Prepare, step_: int) -> LaunchPlan:
    """Return a plan that answers `wanted`, resumed at a step."""
    source = Checkpoint(Path(f"/c/step-{step_:08d}"), step_, step_ * 8) if step_ else None
    return LaunchPlan(
        attempt=wanted.attempt,
        rung=RUNGS[wanted.means.rung_index].name,
        rung_index=wanted.means.rung_index,
        launcher=Launcher.PYTHON,
        world_size=1,
        argv=("python",),
        env=(),
        unset_env=(),
        cwd=Path("/"),
        attempt_dir=Path("/a"),
        gpus=(),
        batch=None,
        resume_from=source,
        grace_s=1.0,
    )


def diagnosed(kind: Kind, state: State, progress: int) -> Diagnosed:
    """Return a diagnosis of an attempt that made so many steps and saved the last."""
    found = Diagnosis(
        kind, None, (), Remedy.NONE, "why", "advice", Confidence.LIKELY, f"{kind.value}:x"
    )
    last = state.first_step + progress
    return Diagnosed(found, last, last, need_mib=10)


def answers(world: World) -> Iterator[Happening]:
    """Yield everything that may happen next in this world."""
    state = world.state
    match world.owed:
        case Prepare() as wanted:
            good = plan_for(wanted, state.checkpoint_step)
            yield Prepared(good)
            yield Prepared(good, (Refused(Path("/c/step-00000099"), "torn", damaged=True),))
            yield NoRoom(Want.DISK, "no room", need_mib=10)
            yield NoRoom(Want.GPU_MEMORY, "somebody is there")
            yield NotPrepared("wrong")
            yield NotPrepared("too few GPUs", exit_code=75, lower_may_do=True)
            return
        case Consider() as wanted:
            yield Considered(wanted.promote)
            yield Considered(wanted.promote, "too few GPUs")
            yield TreeGone("gone", 0.0)
            return
        case Launch() | Probe():
            if world.alive:
                yield Launched(ProcessId(1, 1), 1)
            else:
                yield NotLaunched("no keeper")
            return
        case Recover():
            if world.alive:
                yield Launched(ProcessId(1, 1), 1, adopted=True)
            else:
                yield TreeGone("gone", 0.0)
                yield NotLaunched("never started")
            return
        case Gather():
            for kind in KINDS:
                yield diagnosed(kind, state, progress=0)
                yield diagnosed(kind, state, progress=5)
            yield StopRequested(143)
            return
        case _:
            pass
    yield StopRequested(143)
    yield StopRequested(143, now=True)
    yield Tick()
    if world.alive and isinstance(state.phase, Probing):
        yield TreeGone("gone", 0.0, {"launcher_code": 0})
        yield TreeGone("gone", 0.0, {"launcher_code": 1})
    elif world.alive:
        yield RankDied(RankExit(0, 7, ExitStatus(signal=9)))
        yield RankDied(RankExit(0, 7, ExitStatus(code=0)))
        yield CheckpointSeen(Checkpoint(Path("/c"), state.checkpoint_step + 5, 40))
        yield TreeGone("gone", 0.0)
        yield SignatureSeen({"signature": "x"}, "seen")
        yield LogSampled(0, "ranks/0/stderr.log", 1 << 30)
        yield ProgressMade(
            Progress(0, NOW_S, state.first_step + 3, 0, 0, 8, math.nan, Section.TRAIN)
        )
        yield ProgressMade(
            Progress(0, NOW_S, state.first_step + 9, 0, 0, 8, math.nan, Section.INIT),
            Beginning(state.first_step + 9, state.first_step + 9),
        )


def perform(world: World, actions: tuple[Action, ...], after: State) -> World:
    """Do the actions in the world, checking each against what must be true before it."""
    journal, alive, owed = list(world.journal), world.alive, None
    for action in actions:
        match action:
            case Append():
                journal.append(action.record)
            case Launch():
                check(not alive, "a second attempt is launched while one lives")
                check(not world.stopped, "an attempt is launched after a stop")
                check(
                    any(
                        r.event is Event.ATTEMPT_PLANNED and r.attempt == action.plan.attempt
                        for r in journal
                    ),
                    "an attempt is launched that is not in the journal",
                )
                alive, owed = True, action
            case Probe():
                check(not alive, "a probe is started while an attempt lives")
                check(not world.stopped, "a probe is started after a stop")
                check(
                    any(r.event is Event.PROMOTION_STARTED for r in journal),
                    "a probe is started that is not in the journal",
                )
                alive, owed = True, action
            case Consider():
                owed = action
            case Prepare():
                check(not alive, "an attempt is prepared while one lives")
                check(not world.stopped, "an attempt is prepared after a stop")
                owed = action
            case Clear() | Terminate():
                check(
                    any(r.event in ENDS and r.attempt == after.attempt for r in journal),
                    "an attempt is ended and the journal does not say why",
                )
            case Gather():
                check(not alive, "evidence is read of a living tree")
                owed = action
            case Recover():
                owed = action
            case Quarantine():
                check(
                    any(r.event is Event.CHECKPOINT_REFUSED for r in journal),
                    "a checkpoint is put aside and the journal does not say so",
                )
    check(fold(journal) == after, "the state is not the fold of the journal")
    return replace(world, state=after, journal=tuple(journal), alive=alive, owed=owed)


def check(holds: bool, what: str) -> None:  # noqa: FBT001
    """Raise unless the invariant holds."""
    if not holds:
        raise BrokenError(what)


def happen(world: World, event: Happening, stepper: Stepper) -> World:
    """Let one event happen."""
    match event:
        case TreeGone() | NotLaunched():
            world = replace(world, alive=False)
        case StopRequested():
            world = replace(world, stopped=True)
        case Begin() if isinstance(world.state.phase, Ended):
            world = replace(world, stopped=False)
        case _:
            pass
    keeps_debt = isinstance(event, StopRequested) and isinstance(world.owed, Gather)
    after, actions = stepper(world.state, event, context())
    if isinstance(world.state.phase, Ended) and not isinstance(event, Begin):
        check(not actions and after == world.state, "an ended run acts again")
    debt = world.owed
    world = perform(world, actions, after)
    return replace(world, owed=debt) if keeps_debt and world.owed is None else world


def crash(world: World, event: Happening, stepper: Stepper) -> Iterator[World]:
    """Yield the worlds of a supervisor that died after any number of the event's actions."""
    if isinstance(event, TreeGone | NotLaunched):
        world = replace(world, alive=False)
    _, actions = stepper(world.state, event, context())
    for count in range(len(actions) + 1):
        done = actions[:count]
        records = [a.record for a in done if isinstance(a, Append)]
        after = fold((*world.journal, *records))
        died = perform(replace(world, owed=None), done, after)
        # What was owed to the dead supervisor will never be answered; a new one begins.
        yield happen(replace(died, owed=None), Begin({"run_id": "r"}), stepper)


def walk(stepper: Stepper, depth: int) -> int:
    """Visit every world to `depth` events; return how many there were."""
    first = happen(World(), Begin({"run_id": "r"}), stepper)
    seen = {first.key()}
    frontier = [first]
    for level in range(depth):
        found: list[World] = []
        for world in frontier:
            for event in answers(world):
                nexts = [happen(world, event, stepper)]
                if level < depth - 2:
                    nexts.extend(crash(world, event, stepper))
                for one in nexts:
                    if one.key() not in seen:
                        seen.add(one.key())
                        found.append(one)
        frontier = found
    return len(seen)


def test_every_path_keeps_the_invariants() -> None:
    """One attempt at most, journal before act, no launch after a stop, ended is final."""
    started_s = time.process_time()
    visited = walk(step, depth=9)
    assert visited > 2000, visited
    assert time.process_time() - started_s < 60


def test_a_run_can_always_go_on() -> None:
    """In every world that has not ended something may still change the state: no wedge."""
    first = happen(World(), Begin({"run_id": "r"}), step)
    seen, frontier = {first.key()}, [first]
    for _ in range(7):
        found = []
        for world in frontier:
            nexts = [happen(world, event, step) for event in answers(world)]
            waits = {one.key() for one in nexts} - {world.key()}
            assert isinstance(world.state.phase, Ended) or waits, world.state
            for one in nexts:
                if one.key() not in seen:
                    seen.add(one.key())
                    found.append(one)
        frontier = found


def _without_plan(state: State, event: Happening, ctx: Context) -> tuple[State, tuple[Action, ...]]:
    _, actions = step(state, event, ctx)
    kept = tuple(
        a
        for a in actions
        if not (isinstance(a, Append) and a.record.event is Event.ATTEMPT_PLANNED)
    )
    return fold((a.record for a in kept if isinstance(a, Append)), state), kept


def _launch_first(state: State, event: Happening, ctx: Context) -> tuple[State, tuple[Action, ...]]:
    after, actions = step(state, event, ctx)
    return after, tuple(sorted(actions, key=lambda a: not isinstance(a, Launch)))


def _deaf_to_stop(state: State, event: Happening, ctx: Context) -> tuple[State, tuple[Action, ...]]:
    if isinstance(event, StopRequested) and isinstance(state.phase, Ready):
        return state, ()
    if isinstance(event, StopRequested):
        return state, ()
    return step(state, event, ctx)


def _rises_again(state: State, event: Happening, ctx: Context) -> tuple[State, tuple[Action, ...]]:
    if isinstance(state.phase, Ended) and isinstance(event, Tick):
        return state, (Prepare(Means(0, None), state.attempt + 1, 0),)
    return step(state, event, ctx)


def _impatient(state: State, event: Happening, ctx: Context) -> tuple[State, tuple[Action, ...]]:
    after, actions = step(state, event, ctx)
    if any(isinstance(a, Clear) for a in actions):
        return after, (*actions, Prepare(Means(0, None), state.attempt + 1, 0))
    return after, actions


def _forgetful(state: State, event: Happening, ctx: Context) -> tuple[State, tuple[Action, ...]]:
    after, actions = step(state, event, ctx)
    return replace(after, incidents=()), actions


def _hasty(state: State, event: Happening, ctx: Context) -> tuple[State, tuple[Action, ...]]:
    after, actions = step(state, event, ctx)
    if any(isinstance(a, Clear) for a in actions):
        return after, (*actions, Gather(state.attempt))
    return after, actions


def _silent(state: State, event: Happening, ctx: Context) -> tuple[State, tuple[Action, ...]]:
    if isinstance(event, RankDied):
        return state, (Clear(),)
    return step(state, event, ctx)


@pytest.mark.parametrize(
    ("fault", "broken"),
    [
        (_without_plan, "not in the journal"),
        (_launch_first, "not in the journal"),
        (_deaf_to_stop, "after a stop"),
        (_rises_again, "an ended run acts again"),
        (_impatient, "while one lives"),
        (_forgetful, "not the fold"),
        (_hasty, "of a living tree"),
        (_silent, "does not say why"),
    ],
)
def test_planted_faults_are_caught(fault: Stepper, broken: str) -> None:
    """The walk is no walk if a machine with a fault passes it."""
    with pytest.raises(BrokenError, match=broken):
        walk(fault, depth=8)


def test_every_record_survives_the_journal() -> None:
    """What the machine appends reads back equal, so the fold after a crash is the same fold."""
    world = happen(World(), Begin({"run_id": "r"}), step)
    for _ in range(40):
        events = list(answers(world))
        world = happen(world, events[0], step)
    assert len(world.journal) >= 8
    for seq, record in enumerate(world.journal, start=1):
        entry = Entry(seq, "2026-01-01T00:00:00.000000Z", 5, "r", record)
        assert decode(encode(entry).rstrip(b"\n")) == entry
