"""What must hold whenever the supervisor waits: nothing lasts for ever."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from simulation.notes import is_timed
from simulation.setups import run_of, settings_of

from humigence_supervise.state import State

if TYPE_CHECKING:
    from simulation.world import World

SLACK_S = 12.0
"""What a wait may take longer: two of the loop's longest sleeps, and moments between."""
MOST_WAKES = 60
"""More often in a second the supervisor spins."""
OF_NEWS = {one.name for one in fields(State)} & {
    "checkpoint_step",
    "quiet_checkpoints",
    "pace",
    "target_step",
    "progress_at_s",
}
"""What a supervisor knows of news; on a full disk the journal does without them."""


def the_state_is_the_fold(world: World, loop: Any) -> bool:
    """What the supervisor knows is the fold of its journal, but for news that found no room."""
    known, folded = loop._state, loop._journal.folded  # noqa: SLF001 - there is no other window
    if known == folded:
        return True
    heard = {name: getattr(known, name) for name in OF_NEWS}
    return world.notes.news_dropped and known == replace(folded, **heard)


def time_goes_on(world: World, loop: Any) -> bool:
    """The supervisor does not spin: in a second it wakes a bounded number of times."""
    del loop
    since_s, times = world.notes.waits_at
    if world.now_s - since_s >= 1.0:
        world.notes.waits_at = (world.now_s, 0)
        return True
    world.notes.waits_at = (since_s, times + 1)
    return times < MOST_WAKES


def a_wait_ends_in_time(world: World, loop: Any) -> bool:
    """A wait of known length is not prolonged, by restarts of the supervisor neither."""
    del loop
    notes = world.notes
    if notes.wait is None or not is_timed(notes.wait):
        return True
    delay_s = float(str(notes.wait.facts["delay_s"]))
    limit_s = (2 * delay_s if notes.clock_changed else delay_s) + SLACK_S + notes.down_s
    return world.now_s - notes.wait_since_s <= limit_s


def room_that_is_there_is_taken(world: World, loop: Any) -> bool:
    """Nobody waits for room on a machine that is empty."""
    del loop
    notes = world.notes
    if notes.wait is None or notes.wait.facts.get("want") is None or not world.well():
        notes.roomy_since_s = None
        return True
    if notes.roomy_since_s is None:
        notes.roomy_since_s = world.now_s
    return world.now_s - notes.roomy_since_s <= 60.0


def patience_ends_in_time(world: World, loop: Any) -> bool:
    """GPU memory is waited for as long as was said; longer on the last rung, while it is held."""
    del loop
    notes = world.notes
    if notes.wait is None or notes.patience_s is None:
        return True
    ends_at_s = notes.wait_since_s + (2 if notes.clock_changed else 1) * notes.patience_s
    # On a full disk the end of the wait itself cannot be journaled.
    ends_at_s = max(ends_at_s, notes.disk_full_at_s)
    if any(one.stranger_mib for one in world.cards):
        notes.stranger_at_s = world.now_s
    if notes.next_rung + 1 >= len(run_of(world.setup).rungs):
        ends_at_s = max(ends_at_s, notes.stranger_at_s)
    return world.now_s <= ends_at_s + SLACK_S + notes.down_s


def a_stop_is_obeyed(world: World, loop: Any) -> bool:
    """A stop ends the run within the time a worker has to save."""
    del loop
    notes = world.notes
    if notes.stop_at_s is None or world.disk_mib < 1:
        return True
    limit_s = settings_of(world.setup).stop.grace_s + 60.0 + notes.down_s + world.kill_s
    return world.now_s - notes.stop_at_s <= limit_s


def a_probe_is_bounded(world: World, loop: Any) -> bool:
    """A probe that hangs is ended."""
    del loop
    living = world.living()
    if living is None or not living.probe:
        world.notes.probe_since_s = None
        return True
    if world.notes.probe_since_s is None:
        world.notes.probe_since_s = world.now_s
    limit_s = 120.0 + world.notes.down_s
    return world.notes.clock_changed or world.now_s - world.notes.probe_since_s <= limit_s


def attempts_are_bounded(world: World, loop: Any) -> bool:
    """Bounded faults lead to a bounded number of attempts."""
    del loop
    return world.notes.launches <= world.most_launches


def the_run_comes_to_an_end(world: World, loop: Any) -> bool:
    """A machine on which all is well completes the run, or has ended it, in bounded time."""
    del loop
    if not world.well():
        world.notes.well_since_s = None
        return True
    if world.notes.well_since_s is None:
        world.notes.well_since_s = world.now_s
    return world.now_s - world.notes.well_since_s <= world.patience_s


AT_WAIT = (
    the_state_is_the_fold,
    time_goes_on,
    a_wait_ends_in_time,
    room_that_is_there_is_taken,
    patience_ends_in_time,
    a_stop_is_obeyed,
    a_probe_is_bounded,
    attempts_are_bounded,
    the_run_comes_to_an_end,
)
