"""Random worlds: which run, which troubles, when. Everything is drawn from one seed."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache, lru_cache

from simulation.befalls import BEFALLS, crash, stop
from simulation.faults import FOR_EVER, Ending, Fault
from simulation.histories import Operator
from simulation.setups import LADDERS, POLICIES, PROMOTES, Setup, card, plan_of, run_of
from simulation.shelf import Health
from simulation.world import World

from humigence_supervise.actions import Means
from humigence_supervise.domain import Confidence, ExitStatus, Holder, Host, Kind, Remedy

HEALED_AT_S = 600.0
"""From then on all is well in every world, so that every run has to come to its end."""
FROM_ALL_GPUS = ("default", "one", "remedy", "stairs")
STARTS_AGAIN = 0.4
OF_THE_WORLD = (Kind.HEALTHY, Kind.CHECKPOINT_CORRUPT)
"""Not drawn: they come of the world's checkpoints themselves."""
FAULTY = (
    *(kind for kind in Kind if kind not in OF_THE_WORLD),
    *(Kind.CUDA_OOM,) * 4,
    *(Kind.GPU_FAULT,) * 2,
)
ON_SEVERAL = frozenset(
    kind for kind in Kind if kind.value.startswith("nccl_") or kind in (Kind.NVLINK_P2P, Kind.HANG)
)
ENDINGS = (
    Ending.TOGETHER,
    Ending.TOGETHER,
    Ending.RANK_FIRST,
    Ending.RANK_FIRST,
    Ending.LAUNCHER,
    Ending.KEEPER,
    Ending.STALL,
)
STATUSES = (
    ExitStatus(code=1),
    ExitStatus(code=1),
    ExitStatus(signal=9),
    ExitStatus(signal=11),
    ExitStatus(signal=6),
    ExitStatus(),
)


@lru_cache(maxsize=1)
def setups() -> tuple[Setup, ...]:
    """Return all configurations whose every rung can be planned on their machine at its best."""
    found = []
    for name in LADDERS:
        for gpus in (0, 1, 2, 3, 4):
            for micro, preset in (
                (4, "humigence"),
                (None, "humigence"),
                (8, "torchrun"),
                (None, "torchrun"),
                (1, "humigence"),
            ):
                setup = Setup(name, "default", "quick", gpus, micro, 10.0, preset)
                if _can_be_planned(setup):
                    found.append(setup)
    return tuple(
        Setup(one.ladder, policy, promote, one.gpus, one.micro, grace_s, one.preset)
        for one in found
        for policy in POLICIES
        for promote, grace_s in ((name, 10.0 if name != "off" else 3.0) for name in PROMOTES)
    )


@cache
def _other_ladders(setup: Setup) -> tuple[Setup, ...]:
    """Return configurations that differ in the ladder only, below its first rung."""
    if LADDERS[setup.ladder] is not None and setup.ladder not in FROM_ALL_GPUS:
        return ()
    others = (replace(setup, ladder=name) for name in FROM_ALL_GPUS if name != setup.ladder)
    return tuple(one for one in others if one in setups())


def _can_be_planned(setup: Setup) -> bool:
    host = Host(tuple(card(index) for index in range(setup.gpus)), "580.1", "2.13.0", 8)
    try:
        run = run_of(setup)
        for index in range(len(run.rungs)):
            plan_of(setup, host, Means(index, None), 1, None)
    except ValueError:
        return False
    return True


def world_of(seed: int) -> World:
    """Return the world of a seed."""
    draw = random.Random(seed)
    setup = draw.choice(setups())
    every = draw.choice((1, 2, 4, 5, 10))
    world = World(
        setup,
        target=draw.randint(3, 30),
        save_every=every,
        step_s=draw.choice((0.3, 0.7, 1.0, 2.0)),
        save_s=draw.choice((0.05, 0.4, 3.0)),
        start_s=draw.choice((0.4, 1.5, 4.0)),
        kill_s=draw.choice((0.05, 0.3, 2.0, 12.0)),
        probe_s=draw.choice((1.0, 6.0, 6.0, 49.0, 400.0)),
    )
    for _ in range(draw.choice((0, 1, 1, 1, 2, 2, 3, 5))):
        world.faults.append(_fault(draw, world))
    horizon_s = draw.choice((20.0, 60.0, 150.0))
    for _ in range(draw.choice((0, 0, 1, 1, 2, 3))):
        draw.choice(BEFALLS)(draw, world, draw.random() * horizon_s)
    for _ in range(draw.choice((0, 0, 0, 1, 1, 2, 4))):
        crash(draw, world, horizon_s)
    if draw.random() < 0.25:
        stop(draw, world, draw.random() * horizon_s)
    if draw.random() < 0.1 and (others := _other_ladders(setup)):
        world.later_setups = [draw.choice(others)]
    if draw.random() < 0.15:
        world.hurts = draw.choices(tuple(Health)[1:], k=draw.choice((1, 1, 2, 3)))
    world.deaf = draw.random() < 0.1
    world.unlaunchable = draw.choice((0,) * 12 + (1, 2))
    world.unplannable = draw.choice((0,) * 12 + (1, 3, 12))
    world.wrong_resumes = draw.choice((0,) * 30 + (1,))
    world.wrongly_at = draw.choice((0, 0, world.target // 2, world.target + 1))
    world.shelf.unmovable = draw.random() < 0.03
    world.at(HEALED_AT_S, World.heal)
    return world


def operator_of(seed: int) -> Operator:
    """Return somebody who now and then starts an ended run again without mending anything."""
    draw = random.Random(f"operator {seed}")

    def starts(excluded: tuple[str, ...], _code: int) -> tuple[str, ...] | None:
        if draw.random() >= STARTS_AGAIN:
            return None
        return draw.choice(((), (), ("all",), excluded[:1])) if excluded else ()

    return starts


def _fault(draw: random.Random, world: World) -> Fault:
    kind = draw.choice(FAULTY)
    fault = Fault(
        kind,
        at_step=draw.choice((0, None, draw.randint(1, world.target))),
        left=draw.choice((1, 1, 1, 2, 3, 5, FOR_EVER)),
        several_ranks=kind in ON_SEVERAL and draw.random() < 0.8,
        ending=draw.choice(ENDINGS),
        status=draw.choice(STATUSES),
        fingerprint=f"{kind.value}|row{draw.randint(0, 1)}|",
    )
    if draw.random() < 0.15:
        fault.on_rung = draw.randint(0, len(run_of(world.setup).rungs) - 1)
    match kind:
        case Kind.CUDA_OOM:
            fault.holder = draw.choice((*(Holder.WORKLOAD,) * 4, *Holder))
            fault.micro_above = draw.choice((None, 1, 2, 3))
            fault.at_step = draw.choice((0, None, None))
            fault.left = draw.choice((1, 3, FOR_EVER, FOR_EVER))
            if fault.holder is Holder.STRANGER:
                fault.pid, fault.held_mib = draw.choice(((4711, 20_000), (None, 20_000)))
                fault.named = "GPU-0" if world.cards else None
        case Kind.GPU_FAULT if world.cards:
            one = draw.choice(world.cards)
            fault.on_gpu = one.uuid
            fault.confidence = draw.choice((Confidence.CERTAIN, Confidence.LIKELY))
            fault.named = draw.choice(
                (one.uuid, one.uuid, one.uuid, None, str(one.index), f"0000:0{one.index + 1}:00")
            )
        case Kind.PREMATURE_SUCCESS:
            fault.ending = Ending.EARLY
        case Kind.SHM:
            fault.remedy = draw.choice((Remedy.STOP_AND_TELL, Remedy.FALLBACK_SINGLE_GPU))
    return fault
