"""Whole runs in a simulated world, through the real loop: many random ones, and some stories."""

from __future__ import annotations

import multiprocessing
import sys
from typing import get_args

import pytest
from simulation.batches import broken, decisions, history
from simulation.faults import FOR_EVER, Ending, Fault
from simulation.histories import Told, play
from simulation.setups import Setup
from simulation.shelf import Health
from simulation.world import World

from humigence_supervise.decisions import Decision
from humigence_supervise.domain import Kind
from humigence_supervise.happenings import StopRequested
from humigence_supervise.records import Event

QUICK = 3_000
MANY = 100_000
BATCH = 500
NOT_SIMULATED = {"log.sampled", "hang.suspected", "notify.sent"}
"""What no history can tell of; everything else happens in some of the first ones."""


def test_random_histories_keep_every_rule(only_seed: int | None) -> None:
    """Whatever goes wrong when, no rule of invariants.py breaks."""
    seen: set[str] = set()
    found = broken(range(QUICK) if only_seed is None else [only_seed], seen)
    if only_seed is not None:
        sys.stdout.write("\n".join(found) or history(only_seed).tail(1000))
    assert not found, found[0]
    never = {one.value for one in Event} | {one.__name__ for one in get_args(Decision)}
    assert only_seed is not None or never - seen <= NOT_SIMULATED, never - seen - NOT_SIMULATED


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_hundred_thousand_histories_keep_every_rule() -> None:
    """The same for so many that rare meetings of troubles are among them."""
    batches = [range(first, first + BATCH) for first in range(QUICK, QUICK + MANY, BATCH)]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        found = [text for texts in pool.imap_unordered(broken, batches) for text in texts]
    assert not found, "\n".join((*(text.splitlines()[0][:200] for text in found), found[0]))


# --- stories -------------------------------------------------------------------------------------


def names(told: Told) -> list[str]:
    """Return the rungs of the attempts, in order."""
    return [str(one.rung) for one in told.events(Event.ATTEMPT_PLANNED)]


def nccl_fails_once() -> World:
    """Return two GPUs whose link fails while step 20 is made, then never again."""
    fault = Fault(Kind.NCCL_REMOTE, at_step=20, several_ranks=True, ending=Ending.RANK_FIRST)
    return World(Setup(promote="off"), target=40, faults=[fault])


def test_nccl_fails_at_step_20_and_one_gpu_finishes() -> None:
    """The main story: the fallback resumes at the newest checkpoint and completes."""
    told = play(nccl_fails_once())
    assert told.codes == [0]
    assert names(told) == ["multi_gpu", "single_gpu"]
    assert [one.facts["resume_step"] for one in told.events(Event.ATTEMPT_PLANNED)] == [0, 15]
    assert decisions(told) == ["StepDown", "Complete"]


def test_after_a_healthy_while_the_run_goes_back_up() -> None:
    """A probe passes, and both GPUs finish what one of them carried on."""
    world = nccl_fails_once()
    world.setup = Setup(promote="quick")
    told = play(world)
    assert names(told) == ["multi_gpu", "single_gpu", "multi_gpu"]
    assert told.codes == [0]


def test_gpu_1_falls_off_the_bus_and_is_never_used_again() -> None:
    """The GPU that died is left out, also when it is seen again."""
    world = World(Setup(), target=60)
    world.at(20.0, lambda w: setattr(w.cards[1], "out", True))
    world.at(40.0, lambda w: setattr(w.cards[1], "out", False))
    told = play(world)
    assert told.codes == [0]
    assert told.journal.folded.excluded_gpus == ("GPU-1",)
    last = told.events(Event.ATTEMPT_PLANNED)[-1]
    assert last.facts["gpus"] == ["GPU-0"]


def test_the_disk_fills_at_night_and_is_freed_in_the_morning() -> None:
    """Four hours without room are waited through; nothing is lost and nothing is given up."""
    world = World(Setup(), target=60, patience_s=20_000.0)
    world.at(30.0, lambda w: setattr(w, "disk_mib", 0))
    world.at(30.0 + 4 * 3600.0, lambda w: setattr(w, "disk_mib", 10_000))
    told = play(world)
    assert told.codes == [0]
    assert told.events(Event.RUN_COMPLETED)[0].message.endswith("0 lost, 0 repeated, 5 redone.")


def test_a_stranger_on_the_gpu_is_waited_for() -> None:
    """Somebody's program takes the card; ours waits until it has left, on both GPUs."""
    world = World(Setup(), target=20)
    world.cards[0].stranger_mib, world.cards[0].stranger_pid = 24_000, 666
    world.at(100.0, lambda w: setattr(w.cards[0], "stranger_mib", 0))
    told = play(world)
    assert told.codes == [0]
    assert decisions(told)[0] == "WaitForMemory"
    assert names(told)[-1] == "multi_gpu"


def test_a_torn_checkpoint_is_put_aside_and_the_older_one_used() -> None:
    """The newest checkpoint is damaged when an attempt ends: the one before it is taken."""

    def tear(world: World) -> None:
        world.shelf.steps[max(world.shelf.steps)] = Health.TORN

    world = nccl_fails_once()
    world.at(21.5, tear)
    told = play(world)
    assert told.codes == [0]
    assert [step for step, _ in world.shelf.aside] == [15]
    assert told.events(Event.ATTEMPT_PLANNED)[1].facts["resume_step"] == 10


def test_a_bug_in_the_program_ends_the_run_after_two_attempts() -> None:
    """The same exception at the same step twice is not tried a third time."""
    world = World(Setup(), target=20, faults=[Fault(Kind.USER_CODE, at_step=8, left=FOR_EVER)])
    told = play(world, heals=False)
    assert told.codes == [93]
    assert len(names(told)) == 2


def test_memory_is_short_until_the_micro_batch_fits() -> None:
    """Micro-batches are halved until they fit, and the sums of a step hold."""
    fault = Fault(Kind.CUDA_OOM, left=FOR_EVER, micro_above=1)
    told = play(World(Setup(gpus=1, ladder="single", micro=8), target=10, faults=[fault]))
    assert told.codes == [0]
    assert decisions(told) == ["ShrinkMicroBatch"] * 3 + ["Complete"]


def test_a_stop_is_obeyed_and_a_start_goes_on() -> None:
    """Ctrl-C ends the run after a save; the next start finishes it and redoes nothing."""
    world = World(Setup(), target=20)
    world.at(12.3, lambda w: w.signals.append(StopRequested(130)))
    told = play(world, operator=lambda _excluded, _code: ())
    assert told.codes == [130, 0]
    assert told.events(Event.RUN_COMPLETED)[0].message.endswith("0 lost, 0 repeated, 0 redone.")


def test_the_machine_reboots_in_the_middle() -> None:
    """Everything dies at once; the run is taken up at its newest checkpoint."""
    world = World(Setup(), target=20, crash_at_acts={60: True})
    told = play(world)
    assert told.codes == [0]
    assert told.lives == 2


def test_the_supervisor_is_killed_at_each_moment_of_the_main_story() -> None:
    """After a kill between any two acts the next supervisor leads the story to the same end."""
    acts = play(nccl_fails_once()).world.acts
    assert acts > 100
    for moment in range(1, acts):
        world = nccl_fails_once()
        world.crash_at_acts = {moment: False}
        told = play(world)
        assert told.codes == [0], f"killed at act {moment}"
        assert told.lives == 2, f"killed at act {moment}"
