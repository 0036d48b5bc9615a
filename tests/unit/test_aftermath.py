"""What follows an attempt: the means of the next one, exclusions, waits, rungs, micro-batches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from humigence_supervise.actions import Action, Append, Consider, Prepare, Probe
from humigence_supervise.aftermath import (
    BEFORE_STEPPING_DOWN,
    UNPREPARED_MOST,
    is_over,
    left_on_purpose,
    means_of,
    prepare,
    probed,
)
from humigence_supervise.budgets import Policy
from humigence_supervise.contract import EXIT_CONFIG, EXIT_GAVE_UP, EXIT_HOPELESS
from humigence_supervise.decisions import Incident, Stranger
from humigence_supervise.domain import (
    Checkpoint,
    Confidence,
    Diagnosis,
    Holder,
    Kind,
    Launcher,
    LaunchPlan,
    OomReading,
    Remedy,
    Rung,
)
from humigence_supervise.happenings import (
    Begin,
    CheckpointSeen,
    Context,
    Diagnosed,
    Happening,
    NotLaunched,
    NotPrepared,
    Prepared,
    Tick,
    TreeGone,
)
from humigence_supervise.machine import step
from humigence_supervise.phases import (
    Diagnosing,
    Ended,
    Probing,
    Ready,
    Running,
    Waiting,
    WaitingForRoom,
    Want,
)
from humigence_supervise.records import Event, Record
from humigence_supervise.state import Leaving, State, fold
from humigence_supervise.way_up import Promoting

MULTI = Rung("multi_gpu", "all", Launcher.TORCHRUN)
PAIR = Rung("pair", 2, Launcher.TORCHRUN)
SINGLE = Rung("single_gpu", 1, Launcher.PYTHON)
NOW_S = 1_000_000.0
UUIDS = ("GPU-0", "GPU-1")
RUN = State(
    phase=Diagnosing(), run_id="r", attempt=3, first_step=10, resumed=True, checkpoint_step=20
)
"""An attempt on the highest rung that has ended."""
BLAMED = Incident(1, 0, Kind.NCCL_REMOTE, "x", 0.0, 0, 10, 10, "GPU-1")


def context(*rungs: Rung) -> Context:
    """Return a ladder (of two rungs, if not said) and the default policy."""
    return Context(
        rungs or (MULTI, SINGLE),
        Policy(),
        Promoting(),
        micro_samples=8,
        counts_from_scratch=True,
        now_s=NOW_S,
        chance=0.5,
    )


def failed(
    kind: Kind,
    *,
    gpu: str | None = None,
    confidence: Confidence = Confidence.LIKELY,
    memory: OomReading | None = None,
    gpus: tuple[str, ...] | None = None,
    free_mib: int | None = None,
) -> Diagnosed:
    """Return the diagnosis of an attempt that made new steps and saved none."""
    found = Diagnosis(
        kind, None, (), Remedy.NONE, "Why.", "Do.", confidence, "f", gpu=gpu, memory=memory
    )
    return Diagnosed(found, 25, 20, need_mib=700, free_mib=free_mib, gpus=gpus)


def after(state: State, event: Happening, *rungs: Rung) -> tuple[State, str, tuple[Action, ...]]:
    """Return the state after a step, and what it did: in a line, and as it is."""
    state, actions = step(state, event, context(*rungs))
    return state, said(actions), actions


def said(actions: tuple[Action, ...]) -> str:
    """Return actions in a line: what is journaled by its event, what is done by its name."""
    return " ".join(
        one.record.event.value if isinstance(one, Append) else type(one).__name__ for one in actions
    )


def records(actions: tuple[Action, ...]) -> list[Record]:
    """Return what the actions journal."""
    return [one.record for one in actions if isinstance(one, Append)]


def wish(actions: tuple[Action, ...]) -> Prepare:
    """Return the wish for an attempt that the actions end with."""
    assert isinstance(actions[-1], Prepare)
    return actions[-1]


def plan(attempt: int, step_: int) -> LaunchPlan:
    """Return a plan that resumes at a step."""
    return LaunchPlan(
        attempt=attempt,
        rung="multi_gpu",
        rung_index=0,
        launcher=Launcher.TORCHRUN,
        world_size=2,
        argv=("python",),
        env=(),
        unset_env=(),
        cwd=Path("/"),
        attempt_dir=Path("/a"),
        gpus=(),
        batch=None,
        resume_from=Checkpoint(Path("/c"), step_, step_ * 8),
        grace_s=1.0,
    )


# --- the means -----------------------------------------------------------------------------------


def test_what_was_learned_about_gpus_and_batches_is_in_every_wish() -> None:
    """Attempt, look at a higher rung and probe are made with the same GPUs in mind."""
    state = replace(
        RUN,
        rung_index=1,
        micro_samples=4,
        defragment=True,
        excluded_gpus=("GPU-0",),
        incidents=(BLAMED,),
        rung_since_s=0.0,
    )
    means = means_of(state, context())
    assert (means.rung_index, means.micro_samples, means.defragment) == (1, 4, True)
    assert (means.excluded_gpus, means.suspect_gpus) == (("GPU-0",), ("GPU-1",))
    assert prepare(state, context()).means == means
    running = replace(state, phase=Running(), micro_samples=8)
    considered = after(running, CheckpointSeen(Checkpoint(Path("/c"), 25, 200)))[2][-1]
    assert isinstance(considered, Consider)
    assert considered.means == replace(means, rung_index=0, micro_samples=8)
    probe = left_on_purpose(state, Leaving(rung_index=0), context())[-1]
    assert isinstance(probe, Probe)
    assert probe.means == replace(means, rung_index=0)
    assert probe.attempt == state.attempt + 1


def test_a_ladder_that_became_shorter_leaves_the_lowest_rung() -> None:
    """The configuration may lose rungs between two starts."""
    state = replace(RUN, rung_index=2)
    wanted = prepare(state, context())
    assert (wanted.means.rung_index, wanted.lowest_rung) == (1, True)
    assert not prepare(replace(RUN, rung_index=0), context()).lowest_rung


@pytest.mark.parametrize(
    ("remaining_s", "length_s", "over"),
    [
        (60.0, 60.0, False),
        (0.1, 60.0, False),
        (0.0, 60.0, True),
        (-9.0, 60.0, True),
        (60.9, 60.0, False),
        (61.1, 60.0, True),
        (86_400.0, 60.0, True),
        (0.001, 0.001, False),
    ],
)
def test_a_time_has_come(remaining_s: float, length_s: float, *, over: bool) -> None:
    """Also where more remains than the whole length: the clock was set back."""
    assert is_over(NOW_S + remaining_s, length_s, context()) is over


# --- GPUs that are out ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("confidence", "gpu", "out", "excluded", "expected"),
    [
        (Confidence.CERTAIN, "GPU-1", (), ("GPU-1",), "decision.made gpu.excluded"),
        # A program's own illegal access looks the same: nothing is excluded for a likelihood.
        (Confidence.LIKELY, "GPU-1", (), (), "decision.made"),
        (Confidence.GUESS, "GPU-1", (), (), "decision.made"),
        (Confidence.CERTAIN, None, (), (), "decision.made"),
        (Confidence.CERTAIN, "GPU-1", ("GPU-1",), ("GPU-1",), "decision.made"),
        (
            Confidence.CERTAIN,
            "GPU-1",
            ("GPU-0",),
            ("GPU-0", "GPU-1"),
            "decision.made gpu.excluded",
        ),
    ],
)
def test_hardware_alone_excludes_a_gpu(
    confidence: Confidence,
    gpu: str | None,
    out: tuple[str, ...],
    excluded: tuple[str, ...],
    expected: str,
) -> None:
    """Once, journaled with the decision, and kept out of the next attempt."""
    event = failed(Kind.GPU_FAULT, gpu=gpu, confidence=confidence)
    state, line, actions = after(replace(RUN, excluded_gpus=out), event)
    assert line == f"diagnosis.made {expected} rung.changed Prepare"
    assert state.excluded_gpus == wish(actions).means.excluded_gpus == excluded


def test_a_gpu_that_a_program_may_have_made_fail_is_suspect() -> None:
    """Another one is taken where there is one."""
    event = failed(Kind.GPU_FAULT, gpu="GPU-1", confidence=Confidence.LIKELY)
    assert wish(after(RUN, event)[2]).means.suspect_gpus == ("GPU-1",)


@pytest.mark.parametrize(
    ("there", "out", "goes_on"),
    [
        (UUIDS, (), True),
        (UUIDS, ("GPU-0",), False),
        (UUIDS, ("GPU-7",), True),
        (("GPU-1",), (), False),
        ((*UUIDS, "GPU-2"), ("GPU-0",), True),
        # Nobody can count them: another one is tried.
        (None, ("GPU-0",), True),
    ],
)
def test_excluded_gpus_are_not_left(
    there: tuple[str, ...] | None, out: tuple[str, ...], *, goes_on: bool
) -> None:
    """GPU-1 fails on the lowest rung: another one is taken, if one is left."""
    state = replace(RUN, rung_index=1, excluded_gpus=out)
    event = failed(Kind.GPU_FAULT, gpu="GPU-1", confidence=Confidence.CERTAIN, gpus=there)
    state, line, actions = after(state, event)
    assert line.startswith("diagnosis.made decision.made gpu.excluded ")
    assert line.endswith("Prepare" if goes_on else "run.gave_up")
    if not goes_on:
        assert "No healthy GPU is left" in records(actions)[-1].message
        assert state.phase == Ended(Event.RUN_GAVE_UP, EXIT_GAVE_UP)


# --- checkpoints ---------------------------------------------------------------------------------


def test_a_bad_checkpoint_is_not_used_also_after_a_crash() -> None:
    """Until the next plan, which was made without it, the journal alone remembers it."""
    state, line, actions = after(RUN, failed(Kind.CHECKPOINT_CORRUPT))
    assert line == "diagnosis.made decision.made Prepare"
    assert wish(actions).bad_step == 20
    again, line, actions = after(fold(records(actions), RUN), Begin({"run_id": "r"}))
    assert (again, line) == (state, "run.adopted Prepare")
    assert wish(actions).bad_step == 20
    planned, _, _ = after(again, Prepared(plan(4, 10)))
    assert (planned.bad_step, planned.first_step) == (None, 10)
    assert prepare(planned, context()).bad_step is None


def test_a_bad_checkpoint_is_remembered_through_a_wait() -> None:
    """There was no room for the attempt without it."""
    state, _, _ = after(RUN, failed(Kind.CHECKPOINT_CORRUPT))
    waiting, _, _ = after(state, NotPrepared("No answer.", exit_code=75))
    assert wish(after(replace(waiting, phase=Waiting(NOW_S, 1.0)), Tick())[2]).bad_step == 20


def test_another_failure_leaves_no_checkpoint_out() -> None:
    """Each decision speaks for the next attempt alone."""
    state = replace(RUN, bad_step=10)
    assert wish(after(state, failed(Kind.NCCL_REMOTE))[2]).bad_step is None


# --- waits ---------------------------------------------------------------------------------------

STRANGER = OomReading(Holder.STRANGER, 4711, 20_480.0)


@pytest.mark.parametrize(
    ("event", "phase", "stranger"),
    [
        (failed(Kind.DISK_FULL, free_mib=3), WaitingForRoom(Want.DISK, 700), None),
        (
            failed(Kind.CUDA_OOM, gpu="GPU-1", memory=STRANGER),
            WaitingForRoom(Want.GPU_MEMORY, 0, NOW_S + 300.0, 300.0),
            Stranger("GPU-1", 4711, 20_480),
        ),
        (failed(Kind.NETWORK_HUB), Waiting(NOW_S + 30.0, 30.0), None),
        (failed(Kind.DISK_FULL, free_mib=900), Waiting(NOW_S + 30.0, 30.0), None),
        (failed(Kind.RENDEZVOUS), Waiting(NOW_S + 1.0, 1.0), None),
    ],
)
def test_what_a_failure_makes_the_run_wait_for(
    event: Diagnosed, phase: Waiting | WaitingForRoom, stranger: Stranger | None
) -> None:
    """Room on the disk, the end of a stranger, or time; nothing is prepared before."""
    state, line, _ = after(RUN, event)
    assert line == "diagnosis.made decision.made backoff.started"
    assert (state.phase, state.stranger) == (phase, stranger)


@pytest.mark.parametrize(
    ("kind", "line", "phase"),
    [
        (Kind.CONFIG_ERROR, "run.failed", Ended(Event.RUN_FAILED, EXIT_CONFIG)),
        (Kind.IMPORT_ERROR, "run.failed", Ended(Event.RUN_FAILED, EXIT_HOPELESS)),
        (Kind.NCCL_REMOTE, "rung.changed Prepare", Ready()),
    ],
)
def test_how_a_failure_ends_a_run(kind: Kind, line: str, phase: Ready | Ended) -> None:
    """The exit code tells a mistake of the configuration from what cannot be cured."""
    state, done, _ = after(RUN, failed(kind))
    assert (state.phase, done) == (phase, f"diagnosis.made decision.made {line}")


# --- no attempt can be prepared ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lower_may_do", "code", "rung_index", "unprepared", "expected"),
    [
        # What a driver does not tell for a moment costs no rung.
        (True, 75, 0, 0, "backoff.started"),
        (True, 75, 0, BEFORE_STEPPING_DOWN - 1, "backoff.started"),
        (True, 75, 0, BEFORE_STEPPING_DOWN, "decision.made rung.changed Prepare"),
        (True, 75, 1, BEFORE_STEPPING_DOWN, "backoff.started"),
        (True, 75, 1, UNPREPARED_MOST - 1, "backoff.started"),
        (True, 75, 1, UNPREPARED_MOST, "run.gave_up"),
        (False, 75, 0, BEFORE_STEPPING_DOWN, "backoff.started"),
        (False, 75, 0, UNPREPARED_MOST, "run.gave_up"),
        (False, 2, 0, 0, "run.failed"),
        (False, 93, 0, 0, "run.failed"),
        (True, 2, 0, 0, "run.failed"),
    ],
)
def test_what_follows_when_no_attempt_can_be_made(
    code: int, rung_index: int, unprepared: int, expected: str, *, lower_may_do: bool
) -> None:
    """It is looked at again, then a lower rung is taken, and at last the run ends."""
    state = replace(RUN, phase=Ready(), rung_index=rung_index, unprepared=unprepared)
    event = NotPrepared("Too few GPUs.", exit_code=code, lower_may_do=lower_may_do)
    state, line, actions = after(state, event)
    assert line == expected
    if expected == "backoff.started":
        assert state.unprepared == unprepared + 1
    if expected.endswith("Prepare"):
        assert wish(actions).means.rung_index == 1
        assert records(actions)[-1].message.startswith("⚠️ Missing GPUs: multi-GPU failed")
        assert state.incidents == ()


def test_looks_that_find_nothing_are_counted_until_there_is_an_attempt() -> None:
    """A rung is left after the third look in a row, and each look is later than the one before."""
    state, waits = replace(RUN, phase=Ready()), []
    event = NotPrepared("Too few GPUs.", exit_code=75, lower_may_do=True)
    while state.rung_index == 0:
        state, _, _ = after(state, event)
        if isinstance(state.phase, Waiting):
            waits.append(state.phase.delay_s)
            state = replace(state, phase=Ready())
    assert waits == [1.0, 2.0]
    planned, _, _ = after(replace(RUN, phase=Ready(), unprepared=2), Prepared(plan(4, 20)))
    assert planned.unprepared == 0


# --- the way up ----------------------------------------------------------------------------------

DOWN = replace(RUN, rung_index=1)
UP = Leaving(rung_index=0)
PASSED = TreeGone("The launcher exited with code 0.", 0.0, {"launcher_code": 0})
FAILED = TreeGone("The launcher exited with code 1.", 0.0, {"launcher_code": 1, "probe_said": "2"})
SILENT = TreeGone("The launcher exited with code 1.", 0.0, {"launcher_code": 1})
GONE = TreeGone("The keeper ended before its work was done.", 0.0)
NOT_BEGUN = NotLaunched("The probe could not be started.")


@pytest.mark.parametrize(
    ("event", "says"),
    [
        (PASSED, "The probe of multi_gpu passed."),
        (FAILED, "its probe failed. The launcher exited with code 1. It said: 2"),
        (SILENT, "It said: nothing"),
        (GONE, "It said: nothing"),
        (NOT_BEGUN, "could not be started"),
    ],
)
@pytest.mark.parametrize("stop", [None, 143])
def test_what_a_probe_leads_to(event: TreeGone | NotLaunched, says: str, stop: int | None) -> None:
    """Up, or on where it was; a stop is obeyed whatever the probe found."""
    passed = event is PASSED and stop is None
    probing = replace(DOWN, phase=Probing(0, NOW_S + 50.0, 50.0), stop=stop)
    state, line, actions = after(probing, event)
    tried = records(actions)[0]
    assert tried.facts["passed"] is passed
    assert state.rung_index == (0 if passed else 1)
    if stop is not None:
        assert line == "promotion.tried run.stopped"
        assert state.phase == Ended(Event.RUN_STOPPED, stop)
        # What a stop ended is no failed try to go back up.
        assert not state.promotions[-1].probed
        assert "a stop was asked for" in tried.message
        return
    up = "promotion.tried decision.made rung.changed Prepare"
    assert line == (up if passed else "promotion.tried Prepare")
    assert wish(actions).means.rung_index == state.rung_index
    assert says in tried.message


@pytest.mark.parametrize("event", [PASSED, FAILED])
def test_a_probe_that_was_made_counts(event: TreeGone) -> None:
    """At most so many are made, whether they passed or not."""
    probing = replace(DOWN, phase=Probing(0, NOW_S + 50.0, 50.0))
    assert after(probing, event)[0].promotions[-1].probed


def test_a_ladder_that_became_shorter_while_an_attempt_was_left() -> None:
    """There is no such rung: the run goes on where it is."""
    state = replace(DOWN, rung_index=1, leaving=Leaving(rung_index=2))
    state, line, actions = after(state, failed(Kind.PREEMPTED))
    assert line == "diagnosis.made backoff.ended Prepare"
    assert "shorter" in records(actions)[-1].message
    assert (state.phase, wish(actions).means.rung_index) == (Ready(), 1)


@pytest.mark.parametrize(("event", "says"), [(PASSED, "shorter"), (FAILED, "It said: 2")])
def test_a_ladder_that_became_shorter_while_a_rung_was_probed(event: TreeGone, says: str) -> None:
    """A probe of a rung that is no more leads nowhere, whatever it found."""
    probing = replace(DOWN, phase=Probing(2, NOW_S + 50.0, 50.0))
    state, line, actions = after(probing, event)
    assert line == "promotion.tried Prepare"
    assert records(actions)[0].facts["passed"] is False
    assert says in records(actions)[0].message
    assert (state.phase, wish(actions).means.rung_index) == (Ready(), 1)


def test_a_rung_in_between_is_a_rung() -> None:
    """Where the ladder has it, it is probed and taken."""
    ladder = (MULTI, PAIR, SINGLE)
    state = replace(DOWN, rung_index=2)
    assert said(left_on_purpose(state, Leaving(rung_index=1), context(*ladder))) == (
        "promotion.started Probe"
    )
    up = probed(state, 1, context(*ladder), why="")
    assert wish(up).means.rung_index == 1


# --- micro-batches -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "smaller", "larger"), [(None, 4, 8), (8, 4, 8), (4, 2, 4), (1, None, None)]
)
def test_a_micro_batch_shrinks_from_what_it_is(
    before: int | None, smaller: int | None, larger: int | None
) -> None:
    """From the configured one, or from the one that was reduced before, down to 1 sample."""
    event = failed(Kind.CUDA_OOM, memory=OomReading(Holder.WORKLOAD))
    state, line, actions = after(replace(RUN, rung_index=1, micro_samples=before), event)
    if smaller is None:
        assert line == "diagnosis.made decision.made run.failed"
    else:
        assert line == "diagnosis.made decision.made Prepare"
        assert wish(actions).means.micro_samples == smaller
        assert (state.larger_micro, state.grown) == (larger, False)


def test_a_growth_that_does_not_fit_goes_back_on_the_same_rung() -> None:
    """An experiment of ours costs no GPU: what fitted before comes back, and stays for good."""
    oom = failed(Kind.CUDA_OOM, memory=OomReading(Holder.WORKLOAD))
    shrunk = replace(RUN, micro_samples=2, larger_micro=8, leaving=Leaving(micro_samples=8))
    grown, line, actions = after(shrunk, failed(Kind.PREEMPTED))
    assert line == "diagnosis.made decision.made Prepare"
    assert wish(actions).means.micro_samples == 8
    assert (grown.grown, grown.fits_micro, grown.incidents) == (True, 2, ())
    back, line, actions = after(replace(grown, phase=Diagnosing()), oom)
    assert line == "diagnosis.made decision.made Prepare"
    assert (wish(actions).means.rung_index, wish(actions).means.micro_samples) == (0, 2)
    assert (back.grown, back.fits_micro) == (True, None)
    # Without a growth before it, an OOM on this rung leads down.
    never_grown = replace(grown, phase=Diagnosing(), fits_micro=None)
    assert after(never_grown, oom)[1] == "diagnosis.made decision.made rung.changed Prepare"


def test_another_failure_after_a_growth_is_no_reason_to_shrink() -> None:
    """What fits is not asked of a link between GPUs."""
    grown = replace(RUN, micro_samples=8, grown=True, fits_micro=2)
    state, line, actions = after(grown, failed(Kind.NCCL_REMOTE))
    assert line == "diagnosis.made decision.made rung.changed Prepare"
    assert wish(actions).means.micro_samples == 8
    assert state.fits_micro == 2
