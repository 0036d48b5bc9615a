"""Did the worker begin where its checkpoint promised? Pure."""

from __future__ import annotations

from humigence_supervise.domain import Beginning


def resumed_wrongly(promised_step: int, began: Beginning | None) -> str:
    """Return how a worker began at another step than promised, in a sentence; "" if it did not.

    Steps are completed ones. What nobody told is no reproach.
    """
    if began is None or began.least <= promised_step <= began.most:
        return ""
    if began.most < promised_step:
        lost = promised_step - began.most
        where = f"The worker began at step {began.most}, its checkpoint is of step {promised_step}"
        return f"{where}: {lost} steps of progress were silently lost."
    between = began.least - promised_step
    where = f"The worker began at step {began.least}, its checkpoint is of step {promised_step}"
    return f"{where}: nobody knows where the {between} steps between come from."
