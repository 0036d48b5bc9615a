"""One seed is one history: a world with its troubles, played to the end of the run."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from simulation.hands import SimHands
from simulation.journal import SimJournal
from simulation.outside import SimOutside
from simulation.rules import BrokenError, hold
from simulation.rules_of_ending import AT_END, AT_READ_BACK
from simulation.setups import run_of
from simulation.world import CrashError, World

from humigence_supervise import contract
from humigence_supervise.loop import Loop
from humigence_supervise.records import Event, Record
from humigence_supervise.systemd import Notifier

MOST_LIVES = 60
RESTART_S = 3.0
Operator = Callable[[tuple[str, ...], int], tuple[str, ...] | None]
"""Told which GPUs are excluded and how the run ended, somebody starts it again: with those GPUs
that may be used again. None: nobody does."""
FACTS = {"run_id": "run-id", "accelerator": "cuda", "virtual_ranks": 2}


@dataclass(slots=True)
class Told:
    """What a history was: for people who look at one."""

    world: World
    journal: SimJournal
    codes: list[int] = field(default_factory=list)
    lives: int = 0

    def events(self, *names: Event) -> list[Record]:
        """Return the records of these events, all of them without names."""
        return [one for one in self.journal.records if not names or one.event in names]

    def tail(self, length: int = 40) -> str:
        """Return the end of the journal for people."""
        first = max(0, len(self.journal.records) - length)
        return "\n".join(
            f"{seq + 1:4} {one.event.value:22} {one.attempt or '':>3} {one.rung or '':10}"
            f" {one.message[:100]} {_short(one)}"
            for seq, one in enumerate(self.journal.records[first:], start=first)
        )


def _short(record: Record) -> str:
    shown = (
        "decision",
        "kind",
        "rung_index",
        "resume_step",
        "until_s",
        "exit_code",
        "last_step",
        "first_step",
        "checkpoint_step",
        "gpu",
        "excluded_gpus",
        "micro_samples",
        "micro_batch",
    )
    found = {key: record.facts[key] for key in shown if record.facts.get(key) not in (None, [])}
    return str(found) if found else ""


def play(
    world: World,
    seed: int = 0,
    *,
    persisted: bool = True,
    operator: Operator = lambda _excluded, _code: None,
    heals: bool = True,
) -> Told:
    """Supervise until the run has ended and nobody starts it again.

    `operator` may start an ended run again as it is. `heals`: at last everything is mended, and
    the run has to complete.
    """
    chance = random.Random(seed)
    told = Told(world, SimJournal(world, persisted=persisted))
    try:
        _play(told, chance, operator, heals=heals)
    except AssertionError as error:
        error.add_note(f"seed {seed}, {world.setup}\n{told.tail()}")
        raise
    return told


def _play(told: Told, chance: random.Random, operator: Operator, *, heals: bool) -> None:
    world = told.world
    healed = False
    readmit: tuple[str, ...] = ()
    while True:
        told.lives += 1
        assert told.lives < MOST_LIVES, "the supervisor lives too often"
        code = _one_life(told, chance, readmit)
        if code is None and world.notes.final is None:
            continue
        if code is None:  # it died after the end: nobody starts it again but an operator
            code = int(str(world.notes.final.facts["exit_code"]))
        told.codes.append(code)
        hold(AT_END, world, code)
        if code == contract.EXIT_COMPLETED:
            return
        final = world.notes.final
        assert final is not None
        if healed:
            if world.shelf.newest_good() or not (world.shelf.steps or world.shelf.aside):
                why = "A run that can go on completes when all is mended."
                about = f"exit code {code}: {final.message}"
                raise BrokenError("a_healed_run_completes", why, about)
            return
        excluded = told.journal.folded.excluded_gpus
        again = operator(excluded, code)
        if again is None and not heals:
            return
        if again is None:
            world.heal()
            healed = True
            again = ("all",) if excluded else ()
        readmit = again
        world.notes.renew()


def _one_life(told: Told, chance: random.Random, readmit: tuple[str, ...]) -> int | None:
    """Run one supervisor; None: it died."""
    world, journal = told.world, told.journal
    if told.lives > 1 and world.later_setups:
        world.setup = world.later_setups.pop()  # somebody changed the configuration meanwhile
    state = journal.read_back()
    hold(AT_READ_BACK, world, (journal.folded, state))
    outside = SimOutside(world, chance)
    loop = Loop(
        run_of(world.setup),
        journal,
        state,
        SimHands(world),
        outside,
        notifier=Notifier(),
        tell=lambda _entry: None,
    )
    outside.loop = loop
    try:
        return loop.until_ended(dict(FACTS), readmit)
    except CrashError as crash:
        reboot = crash.reboot
    except OSError:
        reboot = False
    died_s = world.now_s
    if reboot:
        for trainer in world.trainers.values():
            if trainer.alive:
                trainer.power_cut()
    # A signal that the dead did not journal is lost with it.
    world.notes.stop_told = world.notes.stop_journaled
    world.notes.stop_at_s = world.notes.stop_at_s if world.notes.stop_journaled else None
    world.supervisor_is_down(RESTART_S * chance.random() * (20.0 if reboot else 1.0))
    world.notes.down_s += world.now_s - died_s
    return None
