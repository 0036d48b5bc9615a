"""Did the worker begin where its checkpoint promised? Pure."""

from __future__ import annotations

from humigence_supervise.domain import Beginning


def resumed_wrongly(promised_step: int, began: Beginning | None) -> str:
    """Return how a worker began at another step than promised, in a sentence; "" if it did not.

    Steps are completed ones. What nobody told is no reproach.
    """
    if began is None or began.step == promised_step:
        return ""
    where = f"The worker began at step {began.step}, its checkpoint is of step {promised_step}"
    if began.step < promised_step:
        return f"{where}: {promised_step - began.step} steps of progress were silently lost."
    if not began.told:
        return ""
    return f"{where}: nobody knows where the {began.step - promised_step} steps between come from."
