"""A worker that does not begin where its checkpoint ends is noticed."""

from __future__ import annotations

import pytest

from humigence_supervise.domain import Beginning
from humigence_supervise.resume_echo import resumed_wrongly


@pytest.mark.parametrize(
    "began",
    [
        None,
        Beginning(20, told=True),
        Beginning(20, told=False),
        # It reports every tenth step, say: nothing proves that it began later than promised.
        Beginning(29, told=False),
    ],
)
def test_a_worker_that_may_have_begun_right_is_not_reproached(began: Beginning | None) -> None:
    """Nobody told, the promised step, or a first step that is no proof."""
    assert resumed_wrongly(20, began) == ""


@pytest.mark.parametrize(
    ("began", "lost"),
    [
        (Beginning(0, told=True), "20 steps of progress were silently lost"),
        (Beginning(0, told=False), "20 steps of progress were silently lost"),
        (Beginning(15, told=True), "5 steps of progress were silently lost"),
        (Beginning(25, told=True), "nobody knows where the 5 steps between come from"),
    ],
)
def test_a_worker_that_began_elsewhere_is_told_with_both_steps(began: Beginning, lost: str) -> None:
    """The message says what was promised, what happened, and how much is missing."""
    how = resumed_wrongly(20, began)
    assert f"began at step {began.step}, its checkpoint is of step 20" in how
    assert lost in how


def test_a_start_from_scratch_promises_step_0() -> None:
    """A worker that claims steps without a checkpoint is as wrong as one that lost some."""
    assert resumed_wrongly(0, Beginning(0, told=True)) == ""
    assert resumed_wrongly(0, Beginning(3, told=True))
