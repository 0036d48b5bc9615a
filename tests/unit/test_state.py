"""The fold of a journal: what older versions wrote still folds, what makes no sense is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from humigence_supervise import state as state_module
from humigence_supervise.decisions import Incident, Stranger
from humigence_supervise.domain import Holder, Kind
from humigence_supervise.phases import (
    Ended,
    Launching,
    Probing,
    Ready,
    Running,
    Waiting,
    WaitingForRoom,
    Want,
)
from humigence_supervise.records import Event, Json, Level, Record
from humigence_supervise.state import Leaving, Promotion, State, StateError, apply, fold

OLD_DECISION: dict[str, Json] = {
    "decision": "StepDown",
    "reason": "Without the other GPU.",
    "kind": "nccl_remote",
    "fingerprint": "nccl_remote:x",
    "at_s": 100.0,
    "first_step": 10,
    "last_step": 20,
    "checkpoint_step": 15,
    "rung_index": 1,
    "micro_samples": None,
}
"""What the first version wrote of a decision."""

DECISION: dict[str, Json] = {
    **OLD_DECISION,
    "why_not": "Not the same rung again.",
    "unless": "It would have been.",
    "gpu": "GPU-1",
    "holder": None,
    "larger_micro": None,
    "defragment": False,
    "excluded_gpus": ["GPU-1"],
}


def record(event: Event, facts: dict[str, Json], attempt: int | None = 3) -> Record:
    """Return a record with these facts."""
    return Record(event, "message", Level.INFO, attempt, "multi_gpu", facts)


def decided(before: State | None = None, **facts: Json) -> State:
    """Return the state after a decision with these facts in place of the usual ones."""
    return apply(before or State(attempt=3), record(Event.DECISION_MADE, {**DECISION, **facts}))


# --- decisions -----------------------------------------------------------------------------------


def test_a_decision_becomes_an_incident_and_a_rung() -> None:
    """Everything policy asks for later is in it."""
    after = decided()
    assert after.phase == Ready()
    assert after.rung_index == 1
    assert after.excluded_gpus == ("GPU-1",)
    assert after.incidents == (
        Incident(3, 0, Kind.NCCL_REMOTE, "nccl_remote:x", 100.0, 10, 20, 15, "GPU-1"),
    )


def test_a_decision_of_an_older_version_folds() -> None:
    """Facts it did not know are absent: nothing is excluded, and what is remembered stays."""
    before = State(attempt=3, excluded_gpus=("GPU-0",), defragment=True)
    after = apply(before, record(Event.DECISION_MADE, OLD_DECISION))
    assert after.rung_index == 1
    assert after.excluded_gpus == ("GPU-0",)
    assert after.defragment
    assert after.incidents[0].gpu == ""
    assert after.incidents[0].holder is None


@pytest.mark.parametrize("missing", sorted(set(OLD_DECISION) - {"decision", "reason"}))
def test_a_decision_without_a_fact_that_always_was_there_is_refused(missing: str) -> None:
    """Except for the micro-batch: none means the configured one."""
    facts = {key: value for key, value in OLD_DECISION.items() if key != missing}
    if missing == "micro_samples":
        assert apply(State(), record(Event.DECISION_MADE, facts)).micro_samples is None
        return
    with pytest.raises(StateError, match=missing):
        apply(State(), record(Event.DECISION_MADE, facts))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("kind", "zebra"),
        ("kind", 7),
        ("kind", None),
        ("holder", "zebra"),
        ("holder", 7),
        ("fingerprint", 7),
        ("at_s", "now"),
        ("at_s", True),
        ("first_step", 1.5),
        ("last_step", "20"),
        ("checkpoint_step", None),
        ("checkpoint_step", True),
        ("rung_index", "1"),
        ("micro_samples", "4"),
        ("gpu", 1),
        ("defragment", "yes"),
        ("defragment", 1),
        ("excluded_gpus", "GPU-1"),
        ("excluded_gpus", [1]),
        ("excluded_gpus", {"GPU-1": True}),
    ],
)
def test_a_fact_of_the_wrong_type_is_a_state_error(key: str, value: Json) -> None:
    """It names the event and the fact; a newer version's word is refused as well as nonsense."""
    with pytest.raises(StateError, match=rf"decision\.made.*{key}"):
        apply(State(attempt=3), record(Event.DECISION_MADE, {**DECISION, key: value}))


def test_what_no_failure_led_to_is_no_incident() -> None:
    """Going up and growing are decided on a healthy run: they count against nothing."""
    before = State(attempt=3, rung_index=1, quiet_checkpoints=4)
    after = decided(before, decision="StepUp", kind="healthy", rung_index=0)
    assert after.rung_index == 0
    assert after.incidents == ()
    assert after.quiet_checkpoints == 4
    assert decided(before).quiet_checkpoints == 0


def test_the_holder_of_the_memory_is_remembered() -> None:
    """Whether it was a stranger decides over the attempts that are left."""
    assert decided(kind="cuda_oom", holder="stranger").incidents[0].holder is Holder.STRANGER


def test_a_setting_of_the_allocator_stays_for_the_run() -> None:
    """Once fragmented, it is not switched off by the next decision."""
    once = decided(defragment=True)
    assert once.defragment
    assert decided(once, defragment=False).defragment


def test_a_micro_batch_that_shrinks_may_grow_once() -> None:
    """What it was is remembered; after it grew, a second failure keeps it small for good."""
    small = decided(kind="cuda_oom", micro_samples=4, larger_micro=8)
    assert (small.micro_samples, small.larger_micro, small.grown) == (4, 8, False)
    grown = decided(small, kind="healthy", micro_samples=8, larger_micro=4)
    assert (grown.micro_samples, grown.larger_micro, grown.grown) == (8, 8, True)
    again = decided(grown, kind="cuda_oom", micro_samples=4, larger_micro=8)
    assert (again.micro_samples, again.larger_micro, again.grown) == (4, 8, True)


# --- waits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "phase"),
    [
        ({"delay_s": 2.0, "until_s": 9.0}, Waiting(9.0, 2.0)),
        ({"delay_s": 2, "until_s": 9, "want": None, "need_mib": None}, Waiting(9.0, 2.0)),
        # A version that knew only of disks.
        ({"delay_s": None, "until_s": None, "need_mib": 7}, WaitingForRoom(Want.DISK, 7)),
        ({"want": "disk", "need_mib": 7}, WaitingForRoom(Want.DISK, 7)),
        (
            {"want": "gpu_memory", "until_s": 9.0, "delay_s": 5.0},
            WaitingForRoom(Want.GPU_MEMORY, 0, 9.0, 5.0),
        ),
        ({"want": "gpu_memory"}, WaitingForRoom(Want.GPU_MEMORY)),
    ],
)
def test_what_is_waited_for(facts: dict[str, Json], phase: object) -> None:
    """For a time, for room on the disk, for memory that somebody else holds."""
    assert apply(State(), record(Event.BACKOFF_STARTED, facts)).phase == phase


@pytest.mark.parametrize(
    ("facts", "stranger"),
    [
        ({"gpu": "GPU-1", "pid": 47, "held_mib": 9}, Stranger("GPU-1", 47, 9)),
        ({"pid": 47}, Stranger("", 47, None)),
        ({}, None),
    ],
)
def test_who_is_in_the_way_is_known_until_the_next_attempt(
    facts: dict[str, Json], stranger: Stranger | None
) -> None:
    """Whatever else is waited for meanwhile; the attempt that follows shows anew."""
    waiting = apply(State(), record(Event.BACKOFF_STARTED, {"want": "gpu_memory", **facts}))
    assert waiting.stranger == stranger
    disk = apply(waiting, record(Event.BACKOFF_STARTED, {"want": "disk", "need_mib": 7}))
    assert disk.stranger == stranger
    planned = record(Event.ATTEMPT_PLANNED, {"resume_step": 0, "resume_from": None}, attempt=2)
    assert apply(disk, planned).stranger is None


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"delay_s": 2.0},
        {"delay_s": "2", "until_s": 9.0},
        {"want": "zebra"},
        {"want": 7},
        {"want": "disk", "need_mib": "7"},
        {"want": "gpu_memory", "pid": "47"},
        {"delay_s": 2.0, "until_s": 9.0, "unprepared": "1"},
    ],
)
def test_a_wait_that_makes_no_sense_is_a_state_error(facts: dict[str, Json]) -> None:
    """Not a wait without an end."""
    with pytest.raises(StateError, match=r"backoff\.started"):
        apply(State(), record(Event.BACKOFF_STARTED, facts))


def test_attempts_that_could_not_be_prepared_are_counted_until_one_could() -> None:
    """A wait for any other reason ends the count as well."""
    wait: dict[str, Json] = {"delay_s": 2.0, "until_s": 9.0}
    twice = apply(State(), record(Event.BACKOFF_STARTED, {**wait, "unprepared": 2}))
    assert twice.unprepared == 2
    assert apply(twice, record(Event.BACKOFF_STARTED, wait)).unprepared == 0
    planned = record(Event.ATTEMPT_PLANNED, {"resume_step": 5, "resume_from": "/c/5"})
    assert apply(twice, planned).unprepared == 0


# --- attempts, the way up, starting again --------------------------------------------------------


def test_an_attempt_goes_through_its_phases() -> None:
    """Planned, started, with checkpoints that are counted until something fails."""
    planned = apply(State(), record(Event.ATTEMPT_PLANNED, {"resume_step": 5, "resume_from": "/c"}))
    assert (planned.phase, planned.attempt, planned.first_step) == (Launching(), 3, 5)
    assert planned.resumed
    running = apply(planned, record(Event.ATTEMPT_STARTED, {}))
    assert running.phase == Running()
    saved = fold((record(Event.CHECKPOINT_COMMITTED, {"step": n}) for n in (10, 15)), running)
    assert (saved.checkpoint_step, saved.quiet_checkpoints) == (15, 2)
    scratch = record(Event.ATTEMPT_PLANNED, {"resume_step": 0, "resume_from": None})
    assert not apply(State(), scratch).resumed


def test_an_attempt_without_a_number_is_a_state_error() -> None:
    """Its folder could not be found."""
    facts: dict[str, Json] = {"resume_step": 0, "resume_from": None}
    with pytest.raises(StateError, match=r"attempt\.planned"):
        apply(State(), record(Event.ATTEMPT_PLANNED, facts, attempt=None))


def test_the_way_up_is_remembered() -> None:
    """Leaving, probing, and what the probe found."""
    left = apply(State(phase=Running()), record(Event.ATTEMPT_LEAVING, {"to_rung_index": 0}))
    assert left.leaving == Leaving(0)
    probe: dict[str, Json] = {"rung_index": 0, "until_s": 60.0, "limit_s": 50.0}
    probing = apply(left, record(Event.PROMOTION_STARTED, probe, attempt=4))
    assert (probing.phase, probing.attempt) == (Probing(0, 60.0, 50.0), 4)
    assert probing.leaving is None
    tried: dict[str, Json] = {"rung_index": 0, "at_s": 58.0, "passed": False}
    after = apply(probing, record(Event.PROMOTION_TRIED, tried))
    assert (after.phase, after.promotions) == (Ready(), (Promotion(0, 58.0, passed=False),))
    # A rung that cannot even be probed is told while the attempt below runs on.
    running = replace(left, leaving=None)
    assert apply(running, record(Event.PROMOTION_TRIED, tried)).phase == Running()
    with pytest.raises(StateError, match="passed"):
        apply(probing, record(Event.PROMOTION_TRIED, {**tried, "passed": 0}))


def test_starting_again_begins_the_budgets_anew_and_readmits_no_gpu() -> None:
    """Failures and tries are forgotten; which cards are bad, and which attempt it was, are not."""
    before = replace(
        decided(),
        phase=Ended(Event.RUN_GAVE_UP, 75),
        promotions=(Promotion(0, 1.0, passed=True),),
        stop=130,
        unprepared=4,
        quiet_checkpoints=3,
        leaving=Leaving(0),
    )
    facts: dict[str, Json] = {"rung_index": 0, "micro_samples": None, "at_s": 500.0}
    after = apply(before, record(Event.RUN_RESUMED, facts))
    assert after.phase == Ready()
    assert (after.incidents, after.promotions, after.stop, after.leaving) == ((), (), None, None)
    assert (after.unprepared, after.quiet_checkpoints, after.rung_index) == (0, 0, 0)
    assert (after.excluded_gpus, after.attempt) == (("GPU-1",), 3)
    older = {key: value for key, value in facts.items() if key != "at_s"}
    assert apply(before, record(Event.RUN_RESUMED, older)).phase == Ready()
    readmitted = apply(after, record(Event.GPU_READMITTED, {"excluded_gpus": []}))
    assert readmitted.excluded_gpus == ()


def test_events_that_only_inform_change_nothing() -> None:
    """A reader may ignore them, and so does the fold."""
    before = decided()
    for event in (Event.SIGNATURE_MATCHED, Event.RUNG_CHANGED, Event.DIAGNOSIS_MADE):
        assert apply(before, record(event, {})) == before


# --- planted faults ------------------------------------------------------------------------------


def test_a_fold_that_forgets_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is remembered across a restart is the fold alone: without it the tests above fail."""
    checks: tuple[Callable[[], None], ...] = (
        test_a_decision_becomes_an_incident_and_a_rung,
        test_a_setting_of_the_allocator_stays_for_the_run,
        test_a_micro_batch_that_shrinks_may_grow_once,
    )
    for check in checks:
        check()
    monkeypatch.setattr(state_module, "_decided", lambda state, _: replace(state, phase=Ready()))
    for check in checks:
        with pytest.raises((AssertionError, IndexError)):
            check()
