"""A worker that does not begin where its checkpoint ends is noticed."""

from __future__ import annotations

import pytest

from humigence_supervise.domain import Beginning
from humigence_supervise.resume_echo import resumed_wrongly


@pytest.mark.parametrize(
    "began",
    [
        None,
        Beginning(20, 20),
        # One line of a step was heard: it may report each, or one in many.
        Beginning(0, 29),
        # It reports every tenth step: 30 first, and began within the ten before it.
        Beginning(20, 29),
    ],
)
def test_a_worker_that_may_have_begun_right_is_not_reproached(began: Beginning | None) -> None:
    """Nobody told, the promised step, or a first step that is no proof."""
    assert resumed_wrongly(20, began) == ""


@pytest.mark.parametrize(
    ("began", "lost"),
    [
        (Beginning(0, 0), "20 steps of progress were silently lost"),
        (Beginning(6, 15), "5 steps of progress were silently lost"),
        (Beginning(25, 29), "nobody knows where the 5 steps between come from"),
    ],
)
def test_a_worker_that_began_elsewhere_is_told_with_both_steps(began: Beginning, lost: str) -> None:
    """The message says what was promised, what happened, and how much is missing."""
    how = resumed_wrongly(20, began)
    where = began.most if began.most < 20 else began.least
    assert f"began at step {where}, its checkpoint is of step 20" in how
    assert lost in how


def test_a_start_from_scratch_promises_step_0() -> None:
    """A worker that claims steps without a checkpoint is as wrong as one that lost some."""
    assert resumed_wrongly(0, Beginning(0, 0)) == ""
    assert resumed_wrongly(0, Beginning(3, 3))
