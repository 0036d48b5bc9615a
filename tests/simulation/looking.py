"""What is found before an attempt: room, GPUs, memory, a checkpoint, in `Preparation`'s order."""

from __future__ import annotations

from simulation.cards import host_of, states_of, tenants_of
from simulation.rules import hold
from simulation.rules_of_acting import AT_QUARANTINE
from simulation.setups import plan_of
from simulation.shelf import REFUSED, Health
from simulation.world import CHECKPOINT_MIB, World

from humigence_supervise import contract
from humigence_supervise.actions import Consider, Means, Prepare
from humigence_supervise.decisions import Stranger
from humigence_supervise.domain import Checkpoint, LaunchPlan
from humigence_supervise.gpu_choice import is_called
from humigence_supervise.gpu_room import room, stranger_left
from humigence_supervise.happenings import (
    Considered,
    Happening,
    NoRoom,
    NotPrepared,
    Prepared,
    Refused,
)
from humigence_supervise.phases import Want
from humigence_supervise.preparing import AS_GOOD_AS_FULL_MIB


def prepared(world: World, wanted: Prepare) -> Happening:
    """Return the plan of the next attempt, or what it waits for, or why there is none."""
    need_mib = max(needed_mib(world), wanted.need_mib)
    if world.disk_mib < need_mib:
        return NoRoom(Want.DISK, "The disk is full.", need_mib, world.disk_mib)
    if world.unplannable > 0:
        world.unplannable -= 1
        return NotPrepared("descriptors are exhausted", exit_code=contract.EXIT_GAVE_UP)
    try:
        plan = planned(world, wanted.means, wanted.attempt)
    except ValueError as error:
        code = contract.EXIT_CONFIG if wanted.attempt == 1 else contract.EXIT_GAVE_UP
        return NotPrepared(str(error), exit_code=code, lower_may_do=wanted.attempt > 1)
    if plan.gpus and (full := _no_memory(world, wanted, plan)):
        return NoRoom(Want.GPU_MEMORY, full)
    if wanted.bad_step is not None:
        for step in [one for one in world.shelf.steps if one >= wanted.bad_step]:
            put_aside(world, step)
    chosen, refused = _newest_good(world, wanted.bad_step)
    if chosen is None and (refused or wanted.checkpoint_step > 0):
        return NotPrepared("no checkpoint is left", exit_code=contract.EXIT_HOPELESS)
    return Prepared(planned(world, wanted.means, wanted.attempt, chosen), refused)


def considered(world: World, wanted: Consider) -> Considered:
    """Say whether a higher rung could be planned now."""
    try:
        higher = planned(world, wanted.means, 1)
    except ValueError as error:
        return Considered(wanted.promote, f"it cannot be planned: {error}")
    present = world.trainers[wanted.attempt].plan
    if higher.world_size <= present.world_size:
        return Considered(wanted.promote, "it would have no more ranks")
    others = [gpu.uuid for gpu in higher.gpus if gpu not in present.gpus]
    states, levels = states_of(world.cards, world.now_s), world.levels[wanted.attempt]
    found = room(levels, states, others, tenants_of(world.cards))
    return Considered(wanted.promote, "" if found.clear else found.says)


def planned(
    world: World, means: Means, attempt: int, source: Checkpoint | None = None
) -> LaunchPlan:
    """Return the plan on the machine as it is now. Raises PlanError."""
    return plan_of(world.setup, host_of(world.cards, world.now_s), means, attempt, source)


def needed_mib(world: World) -> int:
    """Return the room that the next checkpoint takes, as far as earlier ones tell."""
    return CHECKPOINT_MIB if world.shelf.steps else 0


def room_mib(world: World) -> int:
    """Return the room to wait for on a full disk."""
    need_mib, free_mib = needed_mib(world), world.disk_mib
    return free_mib + 1 if need_mib == 0 and free_mib < AS_GOOD_AS_FULL_MIB else need_mib


def put_aside(world: World, step: int) -> None:
    """Put the checkpoint of a step aside; where nothing can be moved it stays."""
    if step in world.shelf.steps and not world.shelf.unmovable:
        hold(AT_QUARANTINE, world, step)
        world.shelf.put_aside(step)


def _newest_good(
    world: World, bad_step: int | None
) -> tuple[Checkpoint | None, tuple[Refused, ...]]:
    refused = []
    for step in sorted(world.shelf.steps, reverse=True):
        if bad_step is not None and step >= bad_step:
            continue
        checkpoint, health = world.shelf.checkpoint(step), world.shelf.steps[step]
        if health not in REFUSED:
            return checkpoint, tuple(refused)
        damaged = health is not Health.FOREIGN
        refused.append(Refused(checkpoint.path, REFUSED[health], damaged))
    return None, tuple(refused)


def _is_in_the_way(stranger: Stranger, plan: LaunchPlan) -> bool:
    return not stranger.gpu or any(is_called(gpu, stranger.gpu) for gpu in plan.gpus)


def _no_memory(world: World, wanted: Prepare, plan: LaunchPlan) -> str:
    states, tenants = states_of(world.cards, world.now_s), tenants_of(world.cards)
    stranger = wanted.stranger
    if stranger is not None and _is_in_the_way(stranger, plan):
        left = stranger_left(states, stranger.pid, stranger.held_mib, stranger.gpu, tenants)
        waits = wanted.patient or (wanted.lowest_rung and left.known)
        if waits and not (left.clear and left.known):
            return left.says
    if not wanted.patient:
        return ""
    before = world.levels.get(wanted.attempt - 1, {})
    found = room(before, states, [gpu.uuid for gpu in plan.gpus], tenants)
    return "" if found.clear else found.says
