"""What befalls a random world from outside, at some time."""

from __future__ import annotations

import random
from collections.abc import Callable

from simulation.cards import Card
from simulation.shelf import Health
from simulation.world import CrashError, World

from humigence_supervise.happenings import StopRequested

MOST_ACTS = 120
"""Crashes at counted moments happen within so many of them."""


def crash(draw: random.Random, world: World, horizon_s: float) -> None:
    """Have the supervisor or the machine die, at an act or at a time."""
    reboot = draw.random() < 0.2
    if draw.random() < 0.6:
        world.crash_at_acts[draw.randint(1, MOST_ACTS)] = reboot
    else:
        world.at(draw.random() * horizon_s, lambda _world: _die(reboot=reboot))


def _die(*, reboot: bool) -> None:
    raise CrashError(reboot=reboot)


def stop(draw: random.Random, world: World, at_s: float) -> None:
    """Have somebody ask for a stop, perhaps twice."""
    code, now = draw.choice(((143, False), (143, False), (130, False), (143, True)))
    for again_s in (0.0, *draw.choice(((), (), (0.3,), (5.0,)))):
        world.at(at_s + again_s, lambda w: w.signals.append(StopRequested(code, now=now)))


def _disk_fills(draw: random.Random, world: World, at_s: float) -> None:
    left_mib = draw.choice((0, 0, 50, 99))

    def fill(w: World) -> None:
        w.disk_mib = left_mib

    def free(w: World) -> None:
        w.disk_mib = 10_000

    world.at(at_s, fill)
    world.at(at_s + draw.choice((0.7, 15.0, 80.0)), free)


def _card_goes(draw: random.Random, world: World, at_s: float) -> None:
    if not world.cards:
        return
    one = draw.choice(world.cards)
    ill, out = draw.choice(((True, False), (True, True), (False, True)))
    one_called = draw.choice((None, None, None, "", str(one.index), f"0000:0{one.index + 1}:00"))

    def goes(_world: World) -> None:
        one.ill, one.out, one.called = ill, out, one_called

    def returns(_world: World) -> None:
        one.ill = one.out = False

    world.at(at_s, goes)
    world.at(at_s + draw.choice((3.0, 30.0, 120.0)), returns)


def _stranger(draw: random.Random, world: World, at_s: float) -> None:
    if not world.cards:
        return
    one: Card = draw.choice(world.cards)
    pid, mib = draw.choice(((666, 24_000), (666, 3_000), (0, 24_000)))

    def comes(_world: World) -> None:
        one.stranger_mib, one.stranger_pid = mib, pid

    def leaves(_world: World) -> None:
        one.stranger_mib = one.stranger_pid = 0

    world.at(at_s, comes)
    world.at(at_s + draw.choice((4.0, 40.0, 300.0)), leaves)


def _damage(draw: random.Random, world: World, at_s: float) -> None:
    health = draw.choice((Health.TORN, Health.FLIPPED, Health.SILENT, Health.FOREIGN))
    all_of_them = draw.random() < 0.1

    def hurt(w: World) -> None:
        for step in sorted(w.shelf.steps, reverse=True)[: None if all_of_them else 1]:
            if step < w.target:
                w.shelf.steps[step] = health

    world.at(at_s, hurt)


def _clock_jumps(draw: random.Random, world: World, at_s: float) -> None:
    by_s = draw.choice((-5.0, -3600.0, 4.0, 3600.0, 86_400.0))

    def jump(w: World) -> None:
        w.clock_off_s += by_s
        w.clock_jumps += 1
        w.notes.clock_changed = True

    world.at(at_s, jump)


def _journal_breaks(draw: random.Random, world: World, at_s: float) -> None:
    del draw

    def breaks(w: World) -> None:
        w.journal_broken += 1

    world.at(at_s, breaks)


BEFALLS: tuple[Callable[[random.Random, World, float], None], ...] = (
    _disk_fills,
    _card_goes,
    _stranger,
    _damage,
    _damage,
    _clock_jumps,
    _journal_breaks,
)
"""What else may befall a world, to be drawn from."""
