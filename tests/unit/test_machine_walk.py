"""Every path of `step` to a depth, against the invariants of a run; planted faults are caught."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import get_args

import pytest

from humigence_supervise.actions import (
    Action,
    Append,
    Clear,
    Consider,
    Gather,
    Launch,
    Means,
    Prepare,
    Probe,
    Quarantine,
    Recover,
    Terminate,
)
from humigence_supervise.budgets import Policy
from humigence_supervise.decisions import Decision
from humigence_supervise.domain import (
    Beginning,
    Checkpoint,
    Confidence,
    Diagnosis,
    ExitStatus,
    Holder,
    Kind,
    Launcher,
    LaunchPlan,
    OomReading,
    ProcessId,
    Progress,
    RankExit,
    Remedy,
    Rung,
    Section,
)
from humigence_supervise.happenings import (
    Begin,
    CheckpointSeen,
    Considered,
    Context,
    Diagnosed,
    Happening,
    Launched,
    LogSampled,
    NoRoom,
    NotLaunched,
    NotPrepared,
    Prepared,
    ProgressMade,
    RankDied,
    Refused,
    SignatureSeen,
    StopRequested,
    Tick,
    TreeGone,
)
from humigence_supervise.journal import decode, encode
from humigence_supervise.machine import step
from humigence_supervise.phases import (
    Clearing,
    Ended,
    Probing,
    Running,
    Waiting,
    WaitingForRoom,
    Want,
)
from humigence_supervise.records import Entry, Event, Record
from humigence_supervise.state import State, fold
from humigence_supervise.way_up import Promoting

RUNGS = (Rung("multi_gpu", "all", Launcher.TORCHRUN), Rung("single_gpu", 1, Launcher.PYTHON))
NOW_S = 1_000_000.0
UUIDS = ("GPU-0", "GPU-1")


def found(
    kind: Kind,
    *,
    gpu: str | None = None,
    holder: Holder | None = None,
    confidence: Confidence = Confidence.LIKELY,
) -> Diagnosis:
    """Return a diagnosis; of a stranger with all that a text says of it."""
    memory = None if holder is None else OomReading(holder, 4711, 20_480.0)
    mark = f"{kind.value}:x"
    return Diagnosis(
        kind, None, (), Remedy.NONE, "Why.", "Do.", confidence, mark, gpu=gpu, memory=memory
    )


DIAGNOSES = (
    found(Kind.HEALTHY),
    found(Kind.NCCL_REMOTE, gpu="GPU-1"),
    found(Kind.CUDA_OOM, gpu="GPU-0", holder=Holder.WORKLOAD),
    found(Kind.CUDA_OOM, gpu="GPU-0", holder=Holder.STRANGER),
    found(Kind.CUDA_OOM, holder=Holder.FRAGMENTATION),
    found(Kind.USER_CODE),
    found(Kind.DISK_FULL),
    found(Kind.CHECKPOINT_CORRUPT),
    found(Kind.UNKNOWN),
    found(Kind.PREEMPTED),
    found(Kind.GPU_FAULT, gpu="GPU-0", confidence=Confidence.CERTAIN),
    found(Kind.GPU_FAULT, gpu="GPU-1"),
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
    """The run's state beside what is really true.

    `alive`: an attempt or a probe may live; `asked`: it was asked to end; `stopped`: somebody
    wants the run to stop; `owed`: what has not been answered yet.
    """

    state: State = field(default_factory=State)
    journal: tuple[Record, ...] = ()
    alive: bool = False
    asked: bool = False
    stopped: bool = False
    owed: Action | None = None

    def key(self) -> tuple[object, ...]:
        """Return what tells worlds apart for the walk; histories of equal worlds are one."""
        return (self.state, self.alive, self.asked, self.stopped, type(self.owed))


class BrokenError(AssertionError):
    """An invariant does not hold."""


class Late(Tick):
    """A tick at which every wait is over."""


def context(event: Happening | None = None) -> Context:
    """Return a ladder of two rungs and the default policy, at a fixed time or late."""
    return Context(
        RUNGS,
        Policy(grow_after_checkpoints=1),
        Promoting(after_s=0.0),
        micro_samples=4,
        counts_from_scratch=True,
        now_s=NOW_S + 1_000.0 if isinstance(event, Late) else NOW_S,
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


def diagnosed(diagnosis: Diagnosis, state: State, progress: int) -> Diagnosed:
    """Return a diagnosis of an attempt that made so many steps and saved the last."""
    last = state.first_step + progress
    return Diagnosed(diagnosis, last, last, need_mib=10, free_mib=0, gpus=UUIDS)


def answers(world: World) -> Iterator[Happening]:
    """Yield everything that may happen next in this world."""
    if world.owed is not None:
        yield from answers_owed(world, world.owed)
        if not world.stopped:  # signals come in while it is done
            yield StopRequested(143)
        return
    yield StopRequested(143)
    yield StopRequested(143, now=True)
    yield Tick()
    if isinstance(world.state.phase, Waiting | WaitingForRoom | Probing):
        yield Late()
    if world.alive and isinstance(world.state.phase, Probing):
        yield TreeGone("gone", 0.0, {"launcher_code": 0})
        yield TreeGone("gone", 0.0, {"launcher_code": 1})
    elif world.alive:
        yield from news(world.state)


def answers_owed(world: World, owed: Action) -> Iterator[Happening]:
    """Yield every answer to an action."""
    match owed:
        case Prepare() as wanted:
            good = plan_for(wanted, world.state.checkpoint_step)
            yield Prepared(good)
            yield Prepared(good, (Refused(Path("/c/step-00000099"), "torn", damaged=True),))
            yield NoRoom(Want.DISK, "no room", need_mib=10)
            yield NoRoom(Want.GPU_MEMORY, "somebody is there")
            yield NotPrepared("wrong")
            yield NotPrepared("too few GPUs", exit_code=75, lower_may_do=True)
        case Consider() as wanted:
            yield Considered(wanted.promote)
            yield Considered(wanted.promote, "too few GPUs")
        case Launch() | Probe():
            yield Launched(ProcessId(1, 1), 1)
            yield NotLaunched("no keeper")
        case Recover():
            if world.alive:
                yield Launched(ProcessId(1, 1), 1, adopted=True)
            yield TreeGone("gone", 0.0)
            yield NotLaunched("never started, or its folder is gone")
        case Gather():
            for one in DIAGNOSES:
                yield diagnosed(one, world.state, progress=0)
                yield diagnosed(one, world.state, progress=5)
        case _:
            raise AssertionError(owed)


def news(state: State) -> Iterator[Happening]:
    """Yield what a living attempt may tell."""
    yield RankDied(RankExit(0, 7, ExitStatus(signal=9)))
    yield RankDied(RankExit(0, 7, ExitStatus(code=0)))
    yield CheckpointSeen(Checkpoint(Path("/c"), state.checkpoint_step + 5, 40))
    yield TreeGone("gone", 0.0)
    yield SignatureSeen({"signature": "x"}, "seen")
    yield LogSampled(0, "ranks/0/stderr.log", 1 << 30)
    yield ProgressMade(Progress(0, NOW_S, state.first_step + 3, 0, 0, 8, math.nan, Section.TRAIN))
    yield ProgressMade(
        Progress(0, NOW_S, state.first_step + 9, 0, 0, 8, math.nan, Section.INIT),
        Beginning(state.first_step + 9, state.first_step + 9),
    )


def excluded(journal: list[Record]) -> object:
    """Return the GPUs that the journal says are out of the run."""
    for record in reversed(journal):
        if record.event in {Event.DECISION_MADE, Event.GPU_READMITTED}:
            return record.facts["excluded_gpus"]
    return []


def bad_step(journal: list[Record]) -> object:
    """Return the checkpoint that the last decision gave up, unless it was acted upon already."""
    for record in reversed(journal):
        if record.event is Event.ATTEMPT_PLANNED:
            return None
        if record.event is Event.DECISION_MADE:
            return record.facts["bad_step"]
    return None


def perform(world: World, actions: tuple[Action, ...], after: State) -> World:
    """Do the actions in the world, checking each against what must be true before it."""
    journal, alive, asked = list(world.journal), world.alive, world.asked
    owed: Action | None = None
    for action in actions:
        match action:
            case Append():
                left = action.record.event is Event.ATTEMPT_LEAVING
                check(not (left and world.stopped), "a healthy attempt is left after a stop")
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
                alive, asked, owed = True, False, action
            case Probe():
                check(not alive, "a probe is started while an attempt lives")
                check(not world.stopped, "a probe is started after a stop")
                check(
                    any(r.event is Event.PROMOTION_STARTED for r in journal),
                    "a probe is started that is not in the journal",
                )
                alive, asked, owed = True, False, action
            case Consider():
                owed = action
            case Prepare():
                check(not alive, "an attempt is prepared while one lives")
                check(not world.stopped, "an attempt is prepared after a stop")
                check(action.bad_step == bad_step(journal), "a bad checkpoint is forgotten")
                owed = action
            case Clear() | Terminate():
                check(
                    any(r.event in ENDS and r.attempt == after.attempt for r in journal),
                    "an attempt is ended and the journal does not say why",
                )
                asked = True
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
        if isinstance(action, Prepare | Probe | Consider):
            out = list(action.means.excluded_gpus)
            check(out == excluded(journal), "not all that is excluded is left out")
    # The state before is the fold of the journal before.
    appended = journal[len(world.journal) :]
    check(fold(appended, world.state) == after, "the state is not the fold of the journal")
    return World(after, tuple(journal), alive, asked, world.stopped, owed)


def check(holds: bool, what: str) -> None:  # noqa: FBT001
    """Raise unless the invariant holds."""
    if not holds:
        raise BrokenError(what)


def happen(world: World, event: Happening, stepper: Stepper) -> World:
    """Let one event happen."""
    match event:
        case TreeGone() | NotLaunched():
            world = replace(world, alive=False, asked=False)
        case StopRequested():
            world = replace(world, stopped=True)
        case Begin() if isinstance(world.state.phase, Ended):
            world = replace(world, stopped=False)
        case _:
            pass
    after, actions = stepper(world.state, event, context(event))
    if isinstance(world.state.phase, Ended) and not isinstance(event, Begin):
        check(not actions and after == world.state, "an ended run acts again")
    debt = world.owed if isinstance(event, StopRequested) else None
    world = perform(world, actions, after)
    world = world if debt is None or world.owed is not None else replace(world, owed=debt)
    waits = isinstance(after.phase, Waiting | WaitingForRoom | Ended)
    check(world.alive or world.owed is not None or waits, "nothing will ever happen again")
    if world.alive and world.owed is None:
        to_end = after.stop is not None or after.leaving is not None
        to_end = to_end or isinstance(after.phase, Clearing)
        check(world.asked or not to_end, "an attempt that is to end is not asked to")
    return world


def crash(world: World, event: Happening, stepper: Stepper) -> Iterator[World]:
    """Yield the worlds of a supervisor that died after any number of the event's actions."""
    if isinstance(event, TreeGone | NotLaunched):
        world = replace(world, alive=False, asked=False)
    _, actions = stepper(world.state, event, context(event))
    for count in range(len(actions) + 1):
        done = actions[:count]
        records = [a.record for a in done if isinstance(a, Append)]
        died = perform(replace(world, owed=None), done, fold(records, world.state))
        # What was owed to the dead supervisor will never be answered; a new one begins.
        readmit = ("all",) if isinstance(died.state.phase, Ended) else ()
        yield happen(replace(died, owed=None), Begin({"run_id": "r"}, readmit), stepper)


def led(stepper: Stepper, *words: str) -> World:
    """Return the world after a fresh run was led by these answers: names of events, of kinds."""
    world = happen(World(), Begin({"run_id": "r"}), stepper)
    for word in words:
        world = happen(world, next(e for e in answers(world) if word in names_of(e)), stepper)
    return world


def names_of(event: Happening) -> set[str]:
    """Return what an event is called by `led`."""
    names = {type(event).__name__}
    return names | {event.diagnosis.kind.value} if isinstance(event, Diagnosed) else names


LAUNCHED = ("Prepared", "Launched")
FAILS = (*LAUNCHED, "TreeGone")
BEGINNINGS: tuple[tuple[str, ...], ...] = (
    (),
    LAUNCHED,
    # On the lower rung, from where the way leads up again.
    (*FAILS, "nccl_remote", *LAUNCHED, "CheckpointSeen"),
    # With smaller micro-batches, and after they grew again.
    (*FAILS, "cuda_oom", *FAILS, "cuda_oom", *LAUNCHED),
    (*FAILS, "cuda_oom", *FAILS, "cuda_oom", *LAUNCHED, "CheckpointSeen", "TreeGone"),
    # With a GPU out of the run.
    (*FAILS, "gpu_fault"),
)
"""From where the walk goes on; each is reached by the first answer of that name."""

DEPTH = 6


@dataclass
class Walk:
    """Every world that was visited, and the events and decisions on the way."""

    worlds: dict[object, World] = field(default_factory=dict)
    events: set[Event] = field(default_factory=set)
    decisions: set[object] = field(default_factory=set)

    def visit(self, world: World) -> bool:
        """Note a world; say whether it is a new one."""
        self.events.update(record.event for record in world.journal)
        key = world.key()
        if key in self.worlds:
            return False
        self.worlds[key] = world
        decided = (r for r in world.journal if r.event is Event.DECISION_MADE)
        self.decisions.update(record.facts["decision"] for record in decided)
        return True


def walk(stepper: Stepper, depth: int = DEPTH) -> Walk:
    """Visit every world that is so many events away from a beginning, or less."""
    walked = Walk()
    frontier = [led(stepper, *words) for words in BEGINNINGS]
    for level in range(depth):
        new: list[World] = []
        for world in frontier:
            for event in answers(world):
                nexts = [happen(world, event, stepper)]
                if level < depth - 2:
                    nexts.extend(crash(world, event, stepper))
                new.extend(one for one in nexts if walked.visit(one))
        frontier = new
    return walked


DECISIONS = {one.__name__ for one in get_args(Decision)}
OF_OTHERS = {Event.HANG_SUSPECTED, Event.NOTIFY_SENT}
"""No step of the machine journals these."""


def test_every_path_keeps_the_invariants() -> None:
    """One attempt at most, journal before act, no launch after a stop, no wedge, one end."""
    started_s = time.process_time()
    walked = walk(step)
    assert walked.events == set(Event) - OF_OTHERS
    assert walked.decisions == DECISIONS
    assert len(walked.worlds) > 10_000
    assert time.process_time() - started_s < 40


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


def _never_asks(state: State, event: Happening, ctx: Context) -> tuple[State, tuple[Action, ...]]:
    after, actions = step(state, event, ctx)
    return after, tuple(a for a in actions if not isinstance(a, Terminate))


def _asks_once(state: State, event: Happening, ctx: Context) -> tuple[State, tuple[Action, ...]]:
    if isinstance(event, Launched) and event.adopted:
        return _never_asks(state, event, ctx)
    return step(state, event, ctx)


def _after_the_stop(forgotten: type[Considered | TreeGone]) -> Stepper:
    """Return a machine that does not think of a stop when this happens and nothing trains."""

    def fault(state: State, event: Happening, ctx: Context) -> tuple[State, tuple[Action, ...]]:
        forgets = isinstance(event, forgotten) and isinstance(state.phase, Running | Probing)
        _, actions = step(replace(state, stop=None) if forgets else state, event, ctx)
        return fold((a.record for a in actions if isinstance(a, Append)), state), actions

    return fault


def _deaf_to(unheard: type[Happening]) -> Stepper:
    """Return a machine that does nothing when this happens."""

    def fault(state: State, event: Happening, ctx: Context) -> tuple[State, tuple[Action, ...]]:
        return (state, ()) if isinstance(event, unheard) else step(state, event, ctx)

    return fault


def _careless(state: State, event: Happening, ctx: Context) -> tuple[State, tuple[Action, ...]]:
    after, actions = step(state, event, ctx)
    return after, tuple(
        replace(a, means=replace(a.means, excluded_gpus=())) if isinstance(a, Prepare) else a
        for a in actions
    )


def _stubborn(state: State, event: Happening, ctx: Context) -> tuple[State, tuple[Action, ...]]:
    after, actions = step(state, event, ctx)
    if isinstance(event, Begin):
        actions = tuple(replace(a, bad_step=None) if isinstance(a, Prepare) else a for a in actions)
    return after, actions


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
        (_never_asks, "is not asked to"),
        (_asks_once, "is not asked to"),
        (_after_the_stop(Considered), "left after a stop"),
        (_after_the_stop(TreeGone), "prepared after a stop"),
        (_deaf_to(Prepared), "ever happen again"),
        (_deaf_to(NotPrepared), "ever happen again"),
        (_deaf_to(NoRoom), "ever happen again"),
        (_deaf_to(NotLaunched), "ever happen again"),
        (_deaf_to(TreeGone), "ever happen again"),
        (_deaf_to(Diagnosed), "ever happen again"),
        (_careless, "is excluded is left out"),
        (_stubborn, "checkpoint is forgotten"),
    ],
)
def test_planted_faults_are_caught(fault: Stepper, broken: str) -> None:
    """The walk is no walk if a machine with a fault passes it."""
    with pytest.raises(BrokenError, match=broken):
        walk(fault)


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
