"""The hands of the simulated world: they do to it what `effects.Effects` does to a machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from simulation import rules_of_acting as rules
from simulation.autopsy import began, diagnosed
from simulation.looking import considered, planned, prepared, put_aside
from simulation.rules import hold
from simulation.trainer import Trainer
from simulation.world import World

from humigence_supervise.actions import Consider, Prepare, Probe
from humigence_supervise.domain import LaunchPlan, ProcessId
from humigence_supervise.happenings import (
    CheckpointSeen,
    Happening,
    Launched,
    NotLaunched,
    ProgressMade,
    RankDied,
    SignatureSeen,
    TreeGone,
)
from humigence_supervise.records import Json
from humigence_supervise.state import State


class SimHands:
    """The hands of one supervisor; they forget everything when it dies."""

    def __init__(self, world: World) -> None:
        """Act in `world`."""
        self.world = world
        self.keeper: Trainer | None = None
        self.watch: Trainer | None = None
        self._lines_seen = 0
        self._checkpoint_seen = -1
        self._not_started = ""

    # --- before an attempt ----------------------------------------------------------------------

    def prepare(self, wanted: Prepare) -> Happening:
        """Look and plan."""
        self.world.act()
        answer = prepared(self.world, wanted)
        self.world.notes.last_answer = type(answer).__name__
        return answer

    def consider(self, wanted: Consider) -> Happening:
        """Look whether a higher rung could be planned."""
        self.world.act()
        return considered(self.world, wanted)

    def quarantine(self, path: Path, reason: str) -> None:
        """Put a checkpoint aside; where nothing can be moved it stays."""
        del reason
        put_aside(self.world, int(path.name.removeprefix("step-")))
        self.world.act()

    # --- an attempt -----------------------------------------------------------------------------

    def launch(self, plan: LaunchPlan) -> Happening:
        """Start the plan."""
        world = self.world
        world.act()
        hold(rules.AT_LAUNCH, world, plan)
        world.notes.launched(plan)
        world.note_levels(plan.attempt)
        if world.unlaunchable > 0:
            world.unlaunchable -= 1
            self._not_started = "no process can be made"
            return NotLaunched(self._not_started)
        self.keeper = world.born(plan, probe=False)
        self._look_at(self.keeper)
        world.act()
        return Launched(ProcessId(4242, plan.attempt), plan.world_size, plan.resume_from)

    def probe(self, wanted: Probe) -> Happening:
        """Start a probe."""
        world = self.world
        world.act()
        try:
            plan = planned(world, wanted.means, wanted.attempt)
        except ValueError as error:
            return NotLaunched(f"the probe could not be started: {error}")
        hold(rules.AT_PROBE, world, plan)
        if world.unlaunchable > 0:
            world.unlaunchable -= 1
            return NotLaunched("no process can be made")
        self.keeper = world.born(plan, probe=True)
        world.act()
        return Launched(ProcessId(4242, plan.attempt), plan.world_size)

    def recover(self, attempt: int) -> Happening:
        """Find an earlier supervisor's attempt."""
        world = self.world
        world.act()
        hold(rules.AT_RECOVER, world, attempt)
        trainer = world.trainers.get(attempt)
        if trainer is None:
            return NotLaunched("the supervisor before this one ended before it was started")
        self._look_at(trainer)
        if trainer.keeper_alive:
            self.keeper = trainer
            return Launched(ProcessId(4242, attempt), trainer.plan.world_size, adopted=True)
        return self._gone(trainer)

    def _look_at(self, trainer: Trainer) -> None:
        self.watch = trainer
        trainer.exits_told = 0
        self._lines_seen = 0
        self._checkpoint_seen = 0

    def terminate(self) -> None:
        """Ask the attempt to save and exit."""
        self._ended_by_us(clear=False)

    def clear(self) -> None:
        """Have the attempt killed."""
        self._ended_by_us(clear=True)

    def _ended_by_us(self, *, clear: bool) -> None:
        self.world.act()
        if self.keeper is not None:
            hold(rules.AT_CLEAR if clear else rules.AT_TERMINATE, self.world, self.keeper)
            if clear:
                self.keeper.clear()
            else:
                self.keeper.terminate()
        self.world.act()

    def _gone(self, trainer: Trainer) -> TreeGone:
        self.keeper = None
        if not trainer.recorded:
            trainer.swept()
            self.world.is_over(trainer)
            return TreeGone("The keeper ended before its work was done.", 0.0, {"swept_pids": []})
        facts: dict[str, Json] = {
            "launcher_pid": 4243,
            "launcher_code": trainer.code,
            "launcher_signal": trainer.signal,
        }
        return TreeGone("The launcher ended.", 0.1, facts)

    def descriptors(self) -> tuple[int, ...]:
        """Return something while there is an attempt to be watched."""
        return () if self.keeper is None else (self.keeper.plan.attempt,)

    def observe(self, attempt: int) -> Iterator[Happening]:
        """Yield what is new of the attempt, then its end."""
        del attempt
        if self.watch is not None:
            yield from self._news(self.watch)
        if self.keeper is not None and not self.keeper.keeper_alive:
            if self.watch is not None:
                yield from self._news(self.watch)
            yield self._gone(self.keeper)

    def _news(self, trainer: Trainer) -> list[Happening]:
        found: list[Happening] = []
        world = self.world
        if len(trainer.lines) > self._lines_seen:
            self._lines_seen = len(trainer.lines)
            world.notes.resumed_wrongly |= trainer.began_wrongly()
            found.append(ProgressMade(trainer.lines[-1], began(trainer)))
        newest = world.shelf.newest_whole()
        if newest > self._checkpoint_seen:
            self._checkpoint_seen = newest
            found.append(CheckpointSeen(world.shelf.checkpoint(newest)))
        if trainer.fault is not None and not trainer.fault_told:
            trainer.fault_told = True
            facts: dict[str, Json] = {"rank": 0, "kind": trainer.fault.kind.value}
            found.append(SignatureSeen(facts, "Rank 0: something is wrong."))
        found += [RankDied(one) for one in trainer.exits[trainer.exits_told :]]
        trainer.exits_told = len(trainer.exits)
        return found

    def step(self) -> int | None:
        """Return the newest completed step."""
        lines = self.watch.lines if self.watch is not None else ()
        return lines[-1].step if lines else None

    # --- after an attempt -----------------------------------------------------------------------

    def gather(self, state: State) -> Happening:
        """Diagnose as the reader of the evidence would."""
        world = self.world
        world.act()
        hold(rules.AT_GATHER, world, state)
        found = diagnosed(world, state, world.trainers.get(state.attempt), self._not_started)
        self.watch, self._not_started = None, ""
        world.notes.last_answer = "Diagnosed"
        if state.leaving is None:
            world.notes.last_failed_at_s = world.now_s
        world.act()
        return found
