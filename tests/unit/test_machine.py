"""One step of a run, phase by phase: what is journaled and done about each event."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from humigence_supervise.actions import Action, Append, Consider, Prepare
from humigence_supervise.budgets import Backoff, Policy
from humigence_supervise.decisions import Stranger
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
from humigence_supervise.machine import step
from humigence_supervise.phases import (
    Clearing,
    Diagnosing,
    Ended,
    Launching,
    Phase,
    Probing,
    Ready,
    Running,
    Waiting,
    WaitingForRoom,
    Want,
)
from humigence_supervise.records import Event
from humigence_supervise.state import Leaving, Pace, State
from humigence_supervise.way_up import Promote, Promoting, worth_leaving

RUNGS = (Rung("multi_gpu", "all", Launcher.TORCHRUN), Rung("single_gpu", 1, Launcher.PYTHON))
NOW_S = 1_000_000.0
DAY_S = 86_400.0
RUNNING = State(
    phase=Running(),
    run_id="r",
    attempt=3,
    rung_index=1,
    first_step=10,
    resumed=True,
    checkpoint_step=20,
    rung_since_s=NOW_S - DAY_S,
)
"""An attempt on the lower rung that has been healthy for a day."""
UP = Leaving(rung_index=0)
STRANGER = Stranger("GPU-1", 4711, 20_480)
PROMOTE = Promote(0, "It may work again.")


def context(now_s: float = NOW_S, *, strict: bool = True) -> Context:
    """Return a ladder of two rungs and a patience of 300 s."""
    return Context(
        RUNGS,
        Policy(backoff=Backoff(max_s=300.0), grow_after_checkpoints=2),
        Promoting(),
        micro_samples=8,
        counts_from_scratch=strict,
        now_s=now_s,
        chance=0.5,
    )


def said(actions: tuple[Action, ...]) -> str:
    """Return actions in a line: what is journaled by its event, what is done by its name."""
    return " ".join(
        one.record.event.value if isinstance(one, Append) else type(one).__name__ for one in actions
    )


def done(state: State, event: Happening, now_s: float = NOW_S) -> str:
    """Return what one step does, in a line."""
    return said(step(state, event, context(now_s))[1])


def prepared_by(state: State, event: Happening, now_s: float = NOW_S) -> Prepare:
    """Return the wish for an attempt that a step ends with."""
    wish = step(state, event, context(now_s))[1][-1]
    assert isinstance(wish, Prepare)
    return wish


def plan(attempt: int = 4) -> LaunchPlan:
    """Return a plan of the lower rung, from the checkpoint of step 20."""
    return LaunchPlan(
        attempt=attempt,
        rung="single_gpu",
        rung_index=1,
        launcher=Launcher.PYTHON,
        world_size=1,
        argv=("python",),
        env=(),
        unset_env=(),
        cwd=Path("/"),
        attempt_dir=Path("/a"),
        gpus=(),
        batch=None,
        resume_from=Checkpoint(Path("/c/step-00000020"), 20, 160),
        grace_s=1.0,
    )


def asked(state: State, *, stop: bool = False, leaving: bool = False) -> State:
    """Return the state after somebody asked the run to stop, or we the attempt to end."""
    return replace(state, stop=143 if stop else None, leaving=UP if leaving else None)


ASKED = [(False, False), (True, False), (False, True), (True, True)]


# --- an attempt that was asked to end ------------------------------------------------------------


@pytest.mark.parametrize(("stop", "leaving"), ASKED)
@pytest.mark.parametrize("status", [ExitStatus(signal=15), ExitStatus(code=1)])
def test_a_rank_that_dies_while_others_save_ends_nothing(
    status: ExitStatus, *, stop: bool, leaving: bool
) -> None:
    """A rank without a handler dies of the SIGTERM at which another one saves."""
    died = RankDied(RankExit(1, 77, status))
    expected = "" if stop or leaving else "attempt.exited Clear"
    assert done(asked(RUNNING, stop=stop, leaving=leaving), died) == expected


@pytest.mark.parametrize("status", [ExitStatus(code=0), ExitStatus(code=143), ExitStatus()])
def test_a_rank_that_ends_well_or_unseen_ends_nothing(status: ExitStatus) -> None:
    """What the others still do is theirs; the launcher knows more."""
    assert done(RUNNING, RankDied(RankExit(1, 77, status))) == ""


@pytest.mark.parametrize(("stop", "leaving"), ASKED)
def test_an_adopted_attempt_is_asked_again_to_end(*, stop: bool, leaving: bool) -> None:
    """The supervisor before this one may have died before it asked."""
    adopted = Launched(ProcessId(1, 1), 1, adopted=True)
    expected = "attempt.adopted Terminate" if stop or leaving else "attempt.adopted"
    assert done(asked(RUNNING, stop=stop, leaving=leaving), adopted) == expected


@pytest.mark.parametrize(
    ("phase", "stop", "expected"),
    [
        (Launching(), False, "attempt.started"),
        (Launching(), True, "attempt.started Terminate"),
        # The tree is being cleared whatever else was asked for.
        (Clearing(), False, "Clear"),
        (Clearing(), True, "Clear"),
        # A probe goes on under the next supervisor, unless nobody wants it any more.
        (Probing(0, NOW_S + 50, 50), False, ""),
        (Probing(0, NOW_S + 50, 50), True, "Clear"),
    ],
)
def test_an_attempt_that_is_there_when_it_should_end_is_ended(
    phase: Phase, expected: str, *, stop: bool
) -> None:
    """A stop that came while it was launched reaches it as soon as there is somebody to ask."""
    state = asked(replace(RUNNING, phase=phase), stop=stop)
    assert done(state, Launched(ProcessId(1, 1), 1)) == expected


@pytest.mark.parametrize(
    ("phase", "before", "now", "expected"),
    [
        (Ready(), False, False, "run.stopped"),
        (Launching(), False, False, "run.stopping"),
        (Running(), False, False, "run.stopping Terminate"),
        (Running(), False, True, "run.stopping Clear"),
        (Running(), True, False, "run.stopping Clear"),
        (Clearing(), False, False, "run.stopping Clear"),
        (Diagnosing(), False, False, "run.stopping"),
        (Waiting(NOW_S + 60, 60), False, False, "run.stopped"),
        (WaitingForRoom(Want.DISK), False, False, "run.stopped"),
        (Probing(0, NOW_S + 50, 50), False, False, "run.stopping Clear"),
        (Ended(Event.RUN_STOPPED, 143), False, False, ""),
    ],
)
def test_what_a_stop_does(phase: Phase, expected: str, *, before: bool, now: bool) -> None:
    """The first one lets the worker save, the second one does not wait; else the run ends."""
    state = asked(replace(RUNNING, phase=phase), stop=before)
    assert done(state, StopRequested(143, now=now)) == expected


def test_a_stop_reaches_an_attempt_that_is_being_left() -> None:
    """It asks once more, and its exit code is remembered."""
    after, actions = step(asked(RUNNING, leaving=True), StopRequested(130), context())
    assert (said(actions), after.stop) == ("run.stopping Terminate", 130)


def diagnosed(kind: Kind) -> Diagnosed:
    """Return a diagnosis of an attempt that made a step."""
    found = Diagnosis(kind, None, (), Remedy.NONE, "Why.", "Do.", Confidence.LIKELY, "x")
    return Diagnosed(found, 25, 20, need_mib=10)


@pytest.mark.parametrize(
    ("kind", "stop", "leaving", "expected"),
    [
        (Kind.PREEMPTED, True, False, "diagnosis.made run.stopped"),
        (Kind.NCCL_REMOTE, True, True, "diagnosis.made run.stopped"),
        # The last step was done before the stop came.
        (Kind.HEALTHY, True, False, "diagnosis.made decision.made run.completed"),
        (Kind.HEALTHY, False, True, "diagnosis.made decision.made run.completed"),
        (Kind.PREEMPTED, False, True, "diagnosis.made promotion.started Probe"),
        (Kind.PREEMPTED, False, False, "diagnosis.made decision.made backoff.started"),
        # It failed by itself before it could leave.
        (Kind.UNKNOWN, False, True, "diagnosis.made decision.made backoff.started"),
    ],
)
def test_why_an_attempt_ended_counts_only_where_nobody_wanted_it(
    kind: Kind, expected: str, *, stop: bool, leaving: bool
) -> None:
    """A stop ends the run, a leaving goes on with what it was for, and a failure is judged."""
    state = asked(replace(RUNNING, phase=Diagnosing()), stop=stop, leaving=leaving)
    assert done(state, diagnosed(kind)) == expected


# --- waiting -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("now_s", "is_over"),
    [
        (NOW_S, False),
        (NOW_S + 299.0, False),
        (NOW_S + 300.0, True),
        (NOW_S + DAY_S, True),
        # Set back by less than anybody would notice, and by a day.
        (NOW_S - 0.5, False),
        (NOW_S - 2.0, True),
        (NOW_S - DAY_S, True),
    ],
)
def test_a_wait_is_over_also_on_a_clock_that_was_set_back(now_s: float, *, is_over: bool) -> None:
    """A wait of 300 s that would last longer than 300 s has lasted long enough; so has a probe."""
    until_s = NOW_S + 300.0
    waiting = replace(RUNNING, phase=Waiting(until_s, 300.0))
    assert done(waiting, Tick(), now_s) == ("backoff.ended Prepare" if is_over else "")
    probing = replace(RUNNING, phase=Probing(0, until_s, 300.0))
    assert done(probing, Tick(), now_s) == ("Clear" if is_over else "")
    room = replace(RUNNING, phase=WaitingForRoom(Want.GPU_MEMORY, 0, until_s, 300.0))
    assert done(room, Tick(), now_s) == "Prepare"
    assert prepared_by(room, Tick(), now_s).patient is not is_over


def test_a_wait_without_an_end_has_none() -> None:
    """Space on the disk is waited for as long as it takes."""
    room = replace(RUNNING, phase=WaitingForRoom(Want.DISK, 700))
    assert prepared_by(room, Tick(), NOW_S + 1e9).patient
    assert prepared_by(room, Tick(), NOW_S + 1e9).need_mib == 700


@pytest.mark.parametrize(
    ("found", "need_mib", "patience_s"),
    [
        (NoRoom(Want.DISK, "Full.", need_mib=700, free_mib=3), 700, None),
        (NoRoom(Want.GPU_MEMORY, "Somebody."), 0, 300.0),
    ],
)
@pytest.mark.parametrize("waits_already", [False, True])
def test_gpu_memory_is_waited_for_with_patience_and_the_disk_without_end(
    found: NoRoom, need_mib: int, patience_s: float | None, *, waits_already: bool
) -> None:
    """The patience is `policy.backoff.max_s`, from when the wait for the memory began."""
    other = Want.GPU_MEMORY if found.want is Want.DISK else Want.DISK
    phase = WaitingForRoom(other) if waits_already else Ready()
    after, actions = step(replace(RUNNING, phase=phase), found, context())
    assert said(actions) == "backoff.started"
    until_s = None if patience_s is None else NOW_S + patience_s
    assert after.phase == WaitingForRoom(found.want, need_mib, until_s, patience_s or 0.0)


def test_what_is_waited_for_is_journaled_once() -> None:
    """It is looked at every second; the journal tells only of what is new."""
    disk = NoRoom(Want.DISK, "Full.", need_mib=700, free_mib=3)
    waiting, _ = step(replace(RUNNING, phase=Ready()), disk, context())
    assert done(waiting, replace(disk, free_mib=4)) == ""
    other, actions = step(waiting, NoRoom(Want.GPU_MEMORY, "Somebody."), context())
    assert said(actions) == "backoff.started"
    assert done(other, NoRoom(Want.GPU_MEMORY, "Somebody else.")) == ""


def test_a_stranger_is_remembered_through_other_waits_until_the_next_attempt() -> None:
    """A full disk, and a driver that does not answer, come and go; the stranger is on the card."""
    room = WaitingForRoom(Want.GPU_MEMORY, 0, NOW_S + 300.0, 300.0)
    state = replace(RUNNING, phase=room, stranger=STRANGER)
    assert prepared_by(state, Tick()).stranger == STRANGER
    full, _ = step(state, NoRoom(Want.DISK, "Full.", need_mib=700), context())
    assert prepared_by(full, Tick()).stranger == STRANGER
    silent, actions = step(full, NotPrepared("No answer.", exit_code=75), context())
    assert said(actions) == "backoff.ended backoff.started"
    assert isinstance(silent.phase, Waiting)
    assert prepared_by(silent, Tick(), NOW_S + 60.0).stranger == STRANGER
    ready, _ = step(silent, Tick(), context(NOW_S + 60.0))
    launched, _ = step(ready, Prepared(plan()), context())
    assert (launched.phase, launched.stranger) == (Launching(), None)


def test_what_was_waited_for_is_there() -> None:
    """The end of the wait and the plan are journaled before the attempt is launched."""
    waiting = replace(RUNNING, phase=WaitingForRoom(Want.DISK, 700))
    assert done(waiting, Prepared(plan())) == "backoff.ended attempt.planned Launch"


@pytest.mark.parametrize(
    ("damaged", "expected"),
    [
        (True, "checkpoint.refused Quarantine attempt.planned Launch"),
        (False, "checkpoint.refused attempt.planned Launch"),
    ],
)
def test_a_refused_checkpoint_is_moved_where_it_is_damaged(expected: str, *, damaged: bool) -> None:
    """It may be whole on a disk that does not answer: then it stays where it is."""
    refused = Refused(Path("/c/step-00000025"), "Torn.", damaged)
    assert done(replace(RUNNING, phase=Ready()), Prepared(plan(), (refused,))) == expected


# --- the way up ----------------------------------------------------------------------------------

SHRUNK = replace(RUNNING, rung_index=0, micro_samples=4, larger_micro=8, quiet_checkpoints=1)
PACE = Pace(0.0, 0, 100.0, 100)
"""A second a step."""


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (RUNNING, "checkpoint.committed Consider"),
        (replace(RUNNING, rung_since_s=NOW_S - 60), "checkpoint.committed"),
        (replace(RUNNING, rung_index=0), "checkpoint.committed"),
        (asked(RUNNING, stop=True), "checkpoint.committed"),
        (asked(RUNNING, leaving=True), "checkpoint.committed"),
        # Of a run that is as good as done nothing is left to gain.
        (replace(RUNNING, target_step=25), "checkpoint.committed"),
        (replace(RUNNING, target_step=50, pace=PACE), "checkpoint.committed"),
        (replace(RUNNING, target_step=500, pace=PACE), "checkpoint.committed Consider"),
        (SHRUNK, "checkpoint.committed attempt.leaving Terminate"),
        (replace(SHRUNK, quiet_checkpoints=0), "checkpoint.committed"),
        (replace(SHRUNK, target_step=25), "checkpoint.committed"),
        (asked(SHRUNK, stop=True), "checkpoint.committed"),
        (asked(SHRUNK, leaving=True), "checkpoint.committed"),
    ],
)
def test_what_a_checkpoint_is_the_moment_for(state: State, expected: str) -> None:
    """A better way of running, where one is due and enough of the run is left to gain from it."""
    assert done(state, CheckpointSeen(Checkpoint(Path("/c"), 25, 200))) == expected


@pytest.mark.parametrize(
    ("target_step", "pace", "worth"),
    [
        (None, None, True),
        (None, PACE, True),
        (21, None, True),
        (20, None, False),
        (19, PACE, False),
        (79, PACE, False),
        (80, PACE, True),
        (79, Pace(0.0, 0, 200.0, 100), True),
        (21, Pace(5.0, 7, 5.0, 7), True),
    ],
)
def test_when_enough_is_left_to_gain(
    target_step: int | None, pace: Pace | None, *, worth: bool
) -> None:
    """A minute of training; what nobody told is taken for enough."""
    state = replace(RUNNING, target_step=target_step, pace=pace)
    assert worth_leaving(state, Promoting()) is worth


def test_a_short_patience_with_a_lower_rung_makes_less_worth_leaving() -> None:
    """Who goes back up after ten seconds gains from ten seconds."""
    state = replace(RUNNING, target_step=32, pace=PACE)
    assert not worth_leaving(state, Promoting())
    assert worth_leaving(state, Promoting(after_s=10.0))


def test_a_checkpoint_that_is_known_or_older_is_no_news() -> None:
    """Only a newer one counts as quiet time."""
    for step_ in (20, 15):
        assert done(RUNNING, CheckpointSeen(Checkpoint(Path("/c"), step_, 200))) == ""


@pytest.mark.parametrize(("stop", "leaving"), ASKED)
@pytest.mark.parametrize(
    ("hindrance", "expected"),
    [("", "attempt.leaving Terminate"), ("Too few GPUs.", "promotion.tried")],
)
def test_a_promotion_yields_to_whatever_else_ends_the_attempt(
    hindrance: str, expected: str, *, stop: bool, leaving: bool
) -> None:
    """While it was looked at, a stop may have come; then neither is it made nor counted."""
    state = asked(RUNNING, stop=stop, leaving=leaving)
    assert done(state, Considered(PROMOTE, hindrance)) == ("" if stop or leaving else expected)


def test_a_rung_is_considered_with_the_means_of_the_next_attempt() -> None:
    """All but the rung is as an attempt would have it."""
    state = replace(RUNNING, excluded_gpus=("GPU-2",), micro_samples=8, defragment=True)
    _, actions = step(state, CheckpointSeen(Checkpoint(Path("/c"), 25, 200)), context())
    considered = actions[-1]
    assert isinstance(considered, Consider)
    wish = prepared_by(replace(state, phase=Ready()), Begin({"run_id": "r"}))
    assert considered.means == replace(wish.means, rung_index=0)
    assert considered.attempt == 3


# --- where a worker begins -----------------------------------------------------------------------

WRONG = "resume.mismatch attempt.exited Clear"


def progress(began: Beginning | None) -> ProgressMade:
    """Return a step of a worker that said where it began."""
    return ProgressMade(Progress(0, NOW_S, 30, 0, 0, 8, math.nan, Section.TRAIN), began)


@pytest.mark.parametrize(
    ("resumed", "strict", "began", "expected"),
    [
        (True, True, Beginning(10, 10), "attempt.progress"),
        (True, True, Beginning(5, 15), "attempt.progress"),
        (True, True, None, "attempt.progress"),
        (True, True, Beginning(0, 0), WRONG),
        (True, True, Beginning(12, 20), WRONG),
        (True, False, Beginning(0, 0), WRONG),
        # Nothing was promised: a foreign worker may find a checkpoint of its own.
        (False, False, Beginning(12, 20), "attempt.progress"),
        (False, True, Beginning(12, 20), WRONG),
    ],
)
def test_a_worker_that_begins_elsewhere_is_ended_at_once(
    began: Beginning | None, expected: str, *, resumed: bool, strict: bool
) -> None:
    """Before it overwrites a checkpoint with steps of another beginning."""
    state = replace(RUNNING, resumed=resumed)
    after, actions = step(state, progress(began), context(strict=strict))
    assert said(actions) == expected
    assert isinstance(after.phase, Clearing if expected == WRONG else Running)


def test_progress_is_thinned() -> None:
    """A line in ten seconds; the progress files hold every step."""
    told, _ = step(RUNNING, progress(None), context())
    assert done(told, progress(None), NOW_S + 9.0) == ""
    assert done(told, progress(None), NOW_S + 10.0) == "attempt.progress"


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (SignatureSeen({"signature": "x"}, "Seen."), "signature.matched"),
        (LogSampled(0, "ranks/0/stderr.log", 1 << 30), "log.sampled"),
    ],
)
def test_what_the_logs_tell_is_journaled_while_it_trains(event: Happening, expected: str) -> None:
    """It ends nothing: only an end is diagnosed."""
    assert done(RUNNING, event) == expected
    assert done(replace(RUNNING, phase=Diagnosing()), event) == ""


# --- GPUs that are allowed again -----------------------------------------------------------------

OUT = ("GPU-1", "0000:02:00")


@pytest.mark.parametrize(
    ("readmit", "still"),
    [
        ((), OUT),
        (("GPU-1",), ("0000:02:00",)),
        (("0000:02:00",), ("GPU-1",)),
        (OUT, ()),
        (("all",), ()),
        (("GPU-7",), OUT),
        (("GPU-7", "GPU-1"), ("0000:02:00",)),
    ],
)
@pytest.mark.parametrize(
    ("phase", "others"),
    [
        (Ready(), "run.adopted {} Prepare"),
        (Launching(), "run.adopted {} Recover"),
        (Running(), "run.adopted {} Recover"),
        (Clearing(), "run.adopted {} Recover"),
        (Diagnosing(), "run.adopted {} Gather"),
        (Waiting(NOW_S + 60, 60), "run.adopted {}"),
        (WaitingForRoom(Want.DISK), "run.adopted {}"),
        (Probing(0, NOW_S + 50, 50), "run.adopted {} Recover"),
        (Ended(Event.RUN_STOPPED, 143), "run.resumed {} Prepare"),
        (Ended(Event.RUN_FAILED, 93), "run.resumed {} Prepare"),
    ],
)
def test_the_operator_allows_gpus_again(
    phase: Phase, others: str, readmit: tuple[str, ...], still: tuple[str, ...]
) -> None:
    """Those named that are out, all of them, or none; whatever the run was doing."""
    state = replace(RUNNING, phase=phase, excluded_gpus=OUT)
    after, actions = step(state, Begin({"run_id": "r"}, readmit), context())
    news = "gpu.readmitted" if still != OUT else ""
    assert said(actions) == " ".join(others.format(news).split())
    assert after.excluded_gpus == still
    for action in actions:
        if isinstance(action, Prepare):
            assert action.means.excluded_gpus == still


# --- what a supervisor finds ---------------------------------------------------------------------


def test_a_fresh_run_and_one_that_is_complete() -> None:
    """The first is started and prepared, the second is left alone."""
    assert done(State(), Begin({"run_id": "r"})) == "run.started Prepare"
    complete = replace(RUNNING, phase=Ended(Event.RUN_COMPLETED, 0))
    assert done(complete, Begin({"run_id": "r"})) == ""


def test_a_run_that_was_to_stop_is_not_prepared_again() -> None:
    """The supervisor died between the wish to stop and the stop."""
    state = asked(replace(RUNNING, phase=Ready()), stop=True)
    assert done(state, Begin({"run_id": "r"})) == "run.adopted run.stopped"


@pytest.mark.parametrize(
    ("event", "rung_index", "micro"),
    [(Event.RUN_STOPPED, 1, 4), (Event.RUN_GAVE_UP, 0, None), (Event.RUN_FAILED, 0, None)],
)
def test_where_a_run_goes_on(event: Event, rung_index: int, micro: int | None) -> None:
    """Stopped, it keeps what it had learned; given up, it begins at the top again."""
    state = replace(RUNNING, phase=Ended(event, 75), micro_samples=4)
    means = prepared_by(state, Begin({"run_id": "r"})).means
    assert (means.rung_index, means.micro_samples) == (rung_index, micro)


@pytest.mark.parametrize(
    ("phase", "event", "expected"),
    [
        (Launching(), NotLaunched("No keeper."), "attempt.exited tree.cleared Gather"),
        (Launching(), TreeGone("Gone.", 0.0), "attempt.exited tree.cleared Gather"),
        (Running(), TreeGone("Gone.", 0.0), "attempt.exited tree.cleared Gather"),
        (Running(), NotLaunched("No folder."), "attempt.exited tree.cleared Gather"),
        (Clearing(), NotLaunched("No keeper."), "tree.cleared Gather"),
        (Clearing(), TreeGone("Gone.", 0.0), "tree.cleared Gather"),
    ],
)
def test_an_attempt_that_is_gone_is_diagnosed(
    phase: Phase, event: Happening, expected: str
) -> None:
    """Its exit is journaled once, and its evidence read when nothing of it is alive."""
    assert done(replace(RUNNING, phase=phase), event) == expected
