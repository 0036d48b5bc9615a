"""When a run is led back to a higher rung, and to which: tables of states and answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from humigence_supervise import way_up
from humigence_supervise.decisions import Incident
from humigence_supervise.domain import Holder, Kind, Launcher, Rung
from humigence_supervise.moves import MOVES
from humigence_supervise.state import Promotion, State
from humigence_supervise.way_up import (
    MAY_HAVE_PASSED,
    Promoting,
    failed_promotions,
    promotion_due,
)

AFTER_S = 1800.0
PROMOTING = Promoting()
MULTI = Rung("multi_gpu", "all", Launcher.TORCHRUN)
REMEDY = Rung("multi_gpu_no_cumem", "all", Launcher.TORCHRUN, (("NCCL_CUMEM_ENABLE", "0"),))
PAIR = Rung("pair", 2, Launcher.TORCHRUN)
SINGLE = Rung("single_gpu", 1, Launcher.PYTHON)
TWO = (MULTI, SINGLE)
WITH_REMEDY = (MULTI, REMEDY, SINGLE)


def incident(
    kind: Kind = Kind.NCCL_REMOTE,
    *,
    rung: int = 0,
    at_s: float = 0.0,
    mark: str = "",
    step: int = 20,
    first: int = 10,
    holder: Holder | None = None,
) -> Incident:
    """Return a failure at a step; `mark` is its fingerprint, its own one if not said."""
    return Incident(1, rung, kind, mark or f"{at_s}", at_s, first, step, 10, "", holder)


def below(*incidents: Incident, **changes: object) -> State:
    """Return a run on the lower of two rungs after `incidents` (one of NCCL at 0 s)."""
    state = State(rung_index=1, incidents=incidents or (incident(),), rung_since_s=0.0)
    return replace(state, **changes)  # type: ignore[arg-type]


def due_at(state: State, now_s: float, rungs: tuple[Rung, ...] = TWO) -> int | None:
    """Return the rung that is due, None where none is."""
    promote = promotion_due(state, rungs, PROMOTING, now_s)
    return None if promote is None else promote.rung_index


def first_due_s(state: State, rungs: tuple[Rung, ...] = TWO) -> float | None:
    """Return from when on a rung is due, None for never (within a year)."""
    times = sorted({factor * AFTER_S + at for factor in (1, 2, 4, 8) for at in _marks(state)})
    return next((at for at in (*times, 3.2e7) if due_at(state, at, rungs) is not None), None)


def _marks(state: State) -> tuple[float, ...]:
    failures = [one.at_s for one in state.incidents]
    tries = [one.at_s for one in state.promotions]
    since = [] if state.rung_since_s is None else [state.rung_since_s]
    return (0.0, *failures, *tries, *since)


def failed_probe(at_s: float, rung: int = 0) -> Promotion:
    """Return a try whose probe failed."""
    return Promotion(rung, at_s, passed=False)


def passed_probe(at_s: float, rung: int = 0) -> Promotion:
    """Return a try whose probe passed, so that the run went up."""
    return Promotion(rung, at_s, passed=True)


# --- when ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "due_s"),
    [
        # A healthy while after the failure that led down.
        (below(), AFTER_S),
        (below(incident(at_s=500.0)), 500.0 + AFTER_S),
        # A later failure on the lower rung begins the while anew.
        (below(incident(), incident(Kind.UNKNOWN, rung=1, at_s=900.0)), 900.0 + AFTER_S),
        # A failed probe doubles it.
        (below(promotions=(failed_probe(2000.0),)), 2000.0 + 2 * AFTER_S),
        (
            below(promotions=(failed_probe(2000.0), failed_probe(8000.0))),
            8000.0 + 4 * AFTER_S,
        ),
        # So does a rung that failed again soon after its probe had passed; not one that held.
        (
            below(incident(), incident(at_s=2600.0), promotions=(passed_probe(2000.0),)),
            2600.0 + 2 * AFTER_S,
        ),
        (
            below(incident(), incident(at_s=9000.0), promotions=(passed_probe(2000.0),)),
            9000.0 + AFTER_S,
        ),
        # Three tries, whatever became of them.
        (below(promotions=(failed_probe(1.0), failed_probe(2.0), failed_probe(3.0))), None),
        (below(promotions=(passed_probe(1.0), passed_probe(2.0), passed_probe(3.0))), None),
        # Started again by its operator on the lower rung: the while begins there.
        (State(rung_index=1, rung_since_s=7000.0), 7000.0 + AFTER_S),
        # Stepped down because the GPUs of the higher rung were not there: no failure at all.
        (State(rung_index=1, rung_since_s=300.0), 300.0 + AFTER_S),
        # On the highest rung there is nothing to go up to.
        (below(rung_index=0), None),
    ],
)
def test_when_a_higher_rung_is_due(state: State, due_s: float | None) -> None:
    """Not a second before, and then at once."""
    assert first_due_s(state) == due_s
    if due_s is not None:
        assert due_at(state, due_s - 1.0) is None


def test_the_reason_names_both_rungs_and_the_tries() -> None:
    """A person reads why a healthy attempt is ended."""
    plain = promotion_due(below(), TWO, PROMOTING, AFTER_S)
    assert plain is not None
    assert plain.reason.startswith("1800 s without a failure on single_gpu: ")
    assert "multi_gpu" in plain.reason
    again = promotion_due(below(promotions=(failed_probe(0.0),)), TWO, PROMOTING, 2 * AFTER_S)
    assert again is not None
    assert "tries that failed before: 1" in again.reason


def test_a_disabled_way_up_is_never_due() -> None:
    """`promotion.enabled` false, or no tries allowed; the same state with the default is due."""
    for off in (Promoting(enabled=False), Promoting(max_promotions=0)):
        assert promotion_due(below(), TWO, off, 10 * AFTER_S) is None
    assert promotion_due(below(), TWO, PROMOTING, 10 * AFTER_S) is not None


def test_a_clock_that_was_set_back_delays_and_never_hastens() -> None:
    """A failure in the future is no healthy while; once the clock passed it, it is."""
    state = below(incident(at_s=50_000.0))
    assert due_at(state, 10_000.0) is None
    assert due_at(state, 50_000.0 + AFTER_S) == 0


def test_a_long_series_of_failures_overflows_nothing() -> None:
    """The doubling is capped: thousands of failed tries are only never due."""
    many = Promoting(max_promotions=10_000)
    state = below(promotions=tuple(failed_probe(0.0) for _ in range(5000)))
    assert promotion_due(state, TWO, many, 1e9) is None
    assert promotion_due(state, TWO, many, 1e300) is not None


# --- after what ----------------------------------------------------------------------------------

DETERMINISTIC = (incident(mark="same"), incident(mark="same", at_s=1.0))
AT_START = (
    incident(mark="same", step=10, first=10),
    incident(mark="same", step=10, first=10, at_s=1.0),
)


@pytest.mark.parametrize(
    ("incidents", "due"),
    [
        ((incident(Kind.CUDA_OOM),), None),
        ((incident(Kind.CUDA_OOM, holder=Holder.WORKLOAD),), None),
        ((incident(Kind.CUDA_OOM, holder=Holder.FRAGMENTATION),), None),
        ((incident(Kind.CUDA_OOM, holder=Holder.SIBLING_RANK),), None),
        ((incident(Kind.CUDA_OOM, holder=Holder.STRANGER),), 0),
        (DETERMINISTIC, None),
        (AT_START, 0),
        ((incident(mark="same"), incident(mark="same", step=30)), 0),
        ((incident(mark="same"), incident(mark="other")), 0),
        # The last failure of a rung is what counts there.
        ((incident(Kind.CUDA_OOM), incident(Kind.NCCL_REMOTE, at_s=1.0)), 0),
        ((incident(Kind.NCCL_REMOTE), incident(Kind.CUDA_OOM, at_s=1.0)), None),
        # What failed on the lower rung tells nothing of the higher one.
        ((incident(), incident(Kind.CUDA_OOM, rung=1)), 0),
        ((incident(Kind.DEVICE_MISMATCH),), None),
        ((incident(Kind.SHM),), None),
        ((incident(Kind.GPU_FAULT),), 0),
    ],
)
def test_after_which_failures_a_rung_is_worth_another_try(
    incidents: tuple[Incident, ...], due: int | None
) -> None:
    """Not after what would only come back: a batch that is too large, a deterministic failure."""
    assert due_at(below(*incidents), 100 * AFTER_S) == due


def test_every_kind_that_leads_down_and_may_pass_is_tried_again() -> None:
    """Mirrors the table: what NCCL, the host or a GPU did may pass; what the program does won't."""
    final = {
        Kind.CUDA_OOM,
        Kind.SHM,
        Kind.CHECKPOINT_CORRUPT,
        Kind.USER_CODE,
        Kind.IMPORT_ERROR,
        Kind.CONFIG_ERROR,
        Kind.GPU_UNSUPPORTED,
        Kind.DEVICE_ASSERT,
        Kind.CUDA_INIT_FORK,
        Kind.NAN_DIVERGENCE,
        Kind.DEVICE_MISMATCH,
        Kind.PREMATURE_SUCCESS,
    }
    assert set(MOVES) - final == MAY_HAVE_PASSED


# --- which rung ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rungs", "at", "promotions", "due"),
    [
        # The highest first, then in turns, the one tried least often.
        (WITH_REMEDY, 2, (), 0),
        (WITH_REMEDY, 2, (failed_probe(0.0, 0),), 1),
        (WITH_REMEDY, 2, (failed_probe(0.0, 0), failed_probe(0.0, 1)), 0),
        # From the remedy to the rung it remedies: the same GPUs, nothing would be gained.
        (WITH_REMEDY, 1, (), None),
        ((MULTI, PAIR, SINGLE), 1, (), 0),
        ((MULTI, PAIR, SINGLE), 2, (failed_probe(0.0, 0),), 1),
        # Rungs of one GPU each differ in their environment alone.
        ((SINGLE, SINGLE), 1, (), None),
        # The ladder became shorter since the journal was written.
        (TWO, 7, (), 0),
        ((SINGLE,), 3, (), None),
    ],
)
def test_which_rung_is_tried(
    rungs: tuple[Rung, ...], at: int, promotions: tuple[Promotion, ...], due: int | None
) -> None:
    """Going up means other GPUs than now; remedies for the same ones are tried in turn."""
    failures = tuple(incident(rung=index) for index in range(at))
    state = below(*failures, rung_index=at, promotions=promotions)
    assert due_at(state, 100 * AFTER_S, rungs) == due


def test_a_rung_that_cannot_have_changed_is_passed_over() -> None:
    """The remedy's own failure was a batch that is too large: the rung above it is tried alone."""
    failures = (incident(rung=0), incident(Kind.CUDA_OOM, rung=1))
    state = below(*failures, rung_index=2, promotions=(failed_probe(0.0, 0),))
    assert due_at(state, 100 * AFTER_S, WITH_REMEDY) == 0


# --- failed tries --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("promotions", "incidents", "failed"),
    [
        ((), (), 0),
        ((failed_probe(0.0),), (), 1),
        ((passed_probe(0.0),), (), 0),
        ((passed_probe(0.0),), (incident(at_s=99.0),), 1),
        ((passed_probe(0.0),), (incident(at_s=100.0),), 0),
        ((passed_probe(50.0),), (incident(at_s=49.0),), 0),
        ((passed_probe(0.0),), (incident(at_s=9.0, rung=1),), 0),
        ((passed_probe(0.0),), (incident(at_s=9.0), incident(at_s=10.0)), 1),
        ((failed_probe(0.0), passed_probe(5.0)), (incident(at_s=9.0),), 2),
    ],
)
def test_how_many_tries_failed(
    promotions: tuple[Promotion, ...], incidents: tuple[Incident, ...], failed: int
) -> None:
    """By the probe, or on the rung within the healthy while (100 s) after it; each once."""
    state = State(promotions=promotions, incidents=incidents)
    assert failed_promotions(state, 100.0) == failed


# --- planted faults ------------------------------------------------------------------------------


def never_failed(_state: State, _healthy_s: float) -> int:
    """Forget the tries that failed."""
    return 0


def always_may(_incidents: tuple[Incident, ...], _index: int) -> bool:
    """Take every failure for one that passes."""
    return True


def straight_up(state: State, _rungs: tuple[Rung, ...]) -> int | None:
    """Go to the next rung above, whatever its GPUs."""
    return state.rung_index - 1 if state.rung_index else None


@pytest.mark.parametrize(
    ("name", "fault", "told_by"),
    [
        (
            "failed_promotions",
            never_failed,
            lambda: first_due_s(below(promotions=(failed_probe(2000.0),))) == 2000.0 + 2 * AFTER_S,
        ),
        (
            "_may_have_passed",
            always_may,
            lambda: due_at(below(*DETERMINISTIC), 100 * AFTER_S) is None,
        ),
        (
            "_rung_to_try",
            straight_up,
            lambda: due_at(below(rung_index=1), 100 * AFTER_S, WITH_REMEDY) is None,
        ),
    ],
)
def test_planted_faults_change_a_row(
    name: str,
    fault: Callable[..., object],
    told_by: Callable[[], bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the tables above say is true of the product and false of a broken one."""
    assert told_by()
    monkeypatch.setattr(way_up, name, fault)
    assert not told_by()
