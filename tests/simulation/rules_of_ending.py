"""What must hold when the run has ended, and when a supervisor takes it over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from humigence_supervise.ledger import account
from humigence_supervise.records import Event
from humigence_supervise.state import State

if TYPE_CHECKING:
    from simulation.world import World


def nothing_is_left_alive(world: World, code: int) -> bool:
    """Nothing of the run is alive when the supervisor ends."""
    del code
    return world.living() is None


def the_code_is_journaled(world: World, code: int) -> bool:
    """The exit code of `start` is the one of the journaled end."""
    final = world.notes.final
    return final is not None and final.facts["exit_code"] == code


def complete_is_complete(world: World, code: int) -> bool:
    """A completed run has made all its steps, and saved the last."""
    return code != 0 or (world.target in world.shelf.steps)


def a_stopped_run_was_stopped(world: World, code: int) -> bool:
    """Only who was asked to stop says so, and who was asked does nothing else but complete."""
    final = world.notes.final
    assert final is not None
    asked = world.notes.stop_told or world.notes.stop_journaled
    if final.event is Event.RUN_STOPPED:
        return asked
    return not asked or code == 0 or world.notes.stop_was_late


def every_end_has_a_cause(world: World, code: int) -> bool:
    """Who gives up or fails does so over a failed attempt, or because none could be made."""
    final = world.notes.final
    assert final is not None
    if final.event not in (Event.RUN_GAVE_UP, Event.RUN_FAILED):
        return True
    del code
    return world.notes.last_answer in ("NotPrepared", "Diagnosed")


def the_ledger_is_exact(world: World, code: int) -> bool:
    """The steps are one contiguous range, each with its own samples; redone ones stand apart."""
    if world.notes.wrong_resumes:
        return True
    ledger = account(world.histories())
    return (
        ledger.clean
        and (code != 0 or ledger.steps_done == world.target)
        and ledger.samples_done == ledger.steps_done * world.global_batch
        and ledger.redone_steps == world.redone_steps()
    )


def the_journal_reads_back(world: World, states: tuple[State, State]) -> bool:
    """What was persisted folds to the state that its writer had."""
    del world
    folded, read = states
    return folded == read


AT_END = (
    nothing_is_left_alive,
    the_code_is_journaled,
    complete_is_complete,
    a_stopped_run_was_stopped,
    every_end_has_a_cause,
    the_ledger_is_exact,
)
AT_READ_BACK = (the_journal_reads_back,)
