"""The hands of the simulated world: they do to it what `effects.Effects` does to a machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from simulation import invariants
from simulation.faults import diagnosis_of
from simulation.invariants import hold
from simulation.setups import plan_of, run_of
from simulation.trainer import Trainer
from simulation.world import CHECKPOINT_MIB, Health, World

from humigence_supervise import contract, ladder
from humigence_supervise.domain import Beginning, Diagnosis, Kind, LaunchPlan, ProcessId, Section
from humigence_supervise.gpu_room import room, stranger_left
from humigence_supervise.happenings import (
    CheckpointSeen,
    Consider,
    Considered,
    Diagnosed,
    Happening,
    Launched,
    Means,
    NoRoom,
    NotLaunched,
    NotPrepared,
    Prepare,
    Prepared,
    Probe,
    ProgressMade,
    RankDied,
    Refused,
    TreeGone,
)
from humigence_supervise.ledger import account, describe
from humigence_supervise.preparing import AS_GOOD_AS_FULL_MIB
from humigence_supervise.records import Json
from humigence_supervise.resume_echo import resumed_wrongly
from humigence_supervise.state import State, Want

REASONS = {
    Health.TORN: "its manifest is missing",
    Health.FLIPPED: "a digest differs",
    Health.FOREIGN: "it is of another run",
}


class SimHands:
    """The hands of one supervisor; they forget everything when it dies."""

    def __init__(self, world: World) -> None:
        """Act in `world`."""
        self.world = world
        self.run = run_of(world.setup)
        self.keeper: Trainer | None = None
        self.watch: Trainer | None = None
        self._lines_seen = 0
        self._checkpoint_seen = -1
        self._not_started = ""

    # --- before an attempt ----------------------------------------------------------------------

    def prepare(self, wanted: Prepare) -> Happening:
        """Look for room, GPUs, memory and a checkpoint, in the order of `Preparation`."""
        world = self.world
        world.act()
        answer = self._prepare(wanted)
        world.notes.last_answer = type(answer).__name__
        return answer

    def _prepare(self, wanted: Prepare) -> Happening:
        world = self.world
        need_mib = max(self._need_mib(), wanted.need_mib)
        if world.disk_mib < need_mib:
            return NoRoom(Want.DISK, "The disk is full.", need_mib, world.disk_mib)
        if world.unplannable > 0:
            world.unplannable -= 1
            return NotPrepared("descriptors are exhausted", exit_code=contract.EXIT_GAVE_UP)
        try:
            plan = self._plan(wanted.means, wanted.attempt)
        except ValueError as error:
            code = contract.EXIT_CONFIG if wanted.attempt == 1 else contract.EXIT_GAVE_UP
            return NotPrepared(str(error), exit_code=code, lower_may_do=wanted.attempt > 1)
        if plan.gpus and (full := self._no_memory(wanted, plan)):
            return NoRoom(Want.GPU_MEMORY, full)
        refused = []
        chosen = None
        for step in sorted(world.checkpoints, reverse=True):
            health = world.checkpoints[step]
            if health not in REASONS:
                chosen = world.checkpoint(step)
                break
            damaged = health is not Health.FOREIGN
            refused.append(Refused(world.checkpoint(step).path, REASONS[health], damaged))
        if chosen is None and (refused or wanted.checkpoint_step > 0):
            return NotPrepared("no checkpoint is left", exit_code=contract.EXIT_HOPELESS)
        return Prepared(self._plan(wanted.means, wanted.attempt, chosen), tuple(refused))

    def _plan(self, means: Means, attempt: int, source=None) -> LaunchPlan:
        return plan_of(self.world.setup, self.world.host(), means, attempt, source)

    def _no_memory(self, wanted: Prepare, plan: LaunchPlan) -> str:
        states, tenants = self.world.gpu_states(), self.world.tenants()
        if (stranger := wanted.stranger) is not None:
            left = stranger_left(states, stranger.pid, stranger.held_mib, stranger.gpu, tenants)
            waits = wanted.patient or (wanted.lowest_rung and left.known)
            if waits and not (left.clear and left.known):
                return left.says
        if not wanted.patient:
            return ""
        before = self.world.levels.get(wanted.attempt - 1, {})
        found = room(before, states, [gpu.uuid for gpu in plan.gpus], tenants)
        return "" if found.clear else found.says

    def _need_mib(self) -> int:
        return CHECKPOINT_MIB if self.world.checkpoints else 0

    def _room_mib(self) -> int:
        need_mib, free_mib = self._need_mib(), self.world.disk_mib
        return free_mib + 1 if need_mib == 0 and free_mib < AS_GOOD_AS_FULL_MIB else need_mib

    def consider(self, wanted: Consider) -> Happening:
        """Say whether the higher rung could be planned now."""
        self.world.act()
        try:
            higher = self._plan(wanted.means, 1)
            present = ladder.world_size(
                self.run.rungs[wanted.present_index], self.world.host(), self.run.accelerator
            )
        except ValueError as error:
            return Considered(wanted.promote, f"it cannot be planned: {error}")
        if higher.world_size <= present:
            return Considered(wanted.promote, "it would have no more ranks")
        return Considered(wanted.promote)

    def quarantine(self, path: Path, reason: str) -> None:
        """Put a checkpoint aside; where nothing can be moved it stays."""
        del reason
        self._aside(int(path.name.removeprefix("step-")))
        self.world.act()

    def quarantine_step(self, step: int, reason: str) -> None:
        """Put the checkpoint of a step aside."""
        del reason
        self._aside(step)
        self.world.act()

    def _aside(self, step: int | None) -> None:
        world = self.world
        if step in world.checkpoints and not world.unmovable:
            hold(invariants.ONLY_BAD_CHECKPOINTS_GO, world, step)
            world.aside.append((step, world.checkpoints.pop(step)))

    # --- an attempt -----------------------------------------------------------------------------

    def launch(self, plan: LaunchPlan) -> Happening:
        """Start the plan."""
        world = self.world
        world.act()
        hold(invariants.AT_LAUNCH, world, plan)
        world.notes.launched(plan)
        world.levels[plan.attempt] = {
            state.uuid: state.used_mib or 0
            for state in world.gpu_states()
            if any(gpu.uuid == state.uuid for gpu in plan.gpus)
        }
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
            plan = self._plan(wanted.means, wanted.attempt)
        except ValueError as error:
            return NotLaunched(f"the probe could not be started: {error}")
        hold(invariants.AT_PROBE, world, plan)
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
        hold(invariants.AT_RECOVER, world, attempt)
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
        self._checkpoint_seen = -1

    def terminate(self) -> None:
        """Ask the attempt to save and exit."""
        self._ended_by_us(clear=False)

    def clear(self) -> None:
        """Have the attempt killed."""
        self._ended_by_us(clear=True)

    def _ended_by_us(self, *, clear: bool) -> None:
        self.world.act()
        if self.keeper is not None:
            hold(invariants.AT_OUR_END, self.world, self.keeper.plan)
            if clear:
                self.keeper.clear()
            else:
                self.keeper.terminate()
        self.world.act()

    def _gone(self, trainer: Trainer) -> TreeGone:
        self.keeper = None
        if not trainer.recorded:
            trainer.swept()
            self.world.memory_lingers(trainer)
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
            found.append(ProgressMade(trainer.lines[-1], self._began(trainer)))
        loud = (Health.TORN, Health.FOREIGN)
        whole = [step for step, health in world.checkpoints.items() if health not in loud]
        newest = max(whole, default=-1)
        if newest > self._checkpoint_seen:
            self._checkpoint_seen = newest
            found.append(CheckpointSeen(world.checkpoint(newest)))
        found += [RankDied(one) for one in trainer.exits[trainer.exits_told :]]
        trainer.exits_told = len(trainer.exits)
        return found

    @staticmethod
    def _began(trainer: Trainer) -> Beginning:
        return Beginning(trainer.lines[0].step, told=trainer.lines[0].section is Section.INIT)

    def step(self) -> int | None:
        """Return the newest completed step."""
        lines = self.watch.lines if self.watch is not None else ()
        return lines[-1].step if lines else None

    # --- after an attempt -----------------------------------------------------------------------

    def gather(self, state: State) -> Happening:
        """Diagnose as the reader of the evidence would."""
        world = self.world
        world.act()
        trainer = world.trainers.get(state.attempt)
        self.watch = None
        hold(invariants.AT_GATHER, world, state)
        lines = trainer.lines if trainer is not None else []
        last_step = lines[-1].step if lines else state.first_step
        diagnosis = self._diagnose(state, trainer)
        self._not_started = ""
        facts: dict[str, Json] = {"last_step": last_step}
        if diagnosis.kind is Kind.HEALTHY:
            facts["ledger"] = {"says": describe(account(world.histories()))}
        world.notes.last_answer = "Diagnosed"
        world.notes.last_failed_at_s = world.now_s
        world.act()
        loud = (Health.TORN, Health.FOREIGN)
        whole = [step for step, health in world.checkpoints.items() if health not in loud]
        gpus = None
        if diagnosis.kind is Kind.GPU_FAULT:
            gpus = tuple(gpu.uuid for gpu in world.host().gpus)
        return Diagnosed(
            diagnosis,
            last_step,
            max(whole, default=0),
            need_mib=self._room_mib(),
            free_mib=world.disk_mib,
            gpus=gpus,
            facts=facts,
        )

    def _diagnose(self, state: State, trainer: Trainer | None) -> Diagnosis:
        asked = state.stop is not None or state.leaving is not None
        if trainer is not None and not asked and trainer.recorded and trainer.code == 0:
            early = trainer.fault is not None or trainer.step < self.world.target
            return diagnosis_of(Kind.PREMATURE_SUCCESS if early else Kind.HEALTHY)
        if trainer is not None and trainer.fault is not None:
            kind = trainer.fault.kind
            if kind in (Kind.GPU_FAULT, Kind.HOST_OOM):  # the host's own record says so
                return trainer.fault.diagnosis()
        if trainer is None:
            return diagnosis_of(Kind.UNKNOWN, fingerprint="unknown|not_started|")
        if asked:
            return diagnosis_of(Kind.PREEMPTED)
        if trainer.lines and resumed_wrongly(state.first_step, self._began(trainer)):
            return diagnosis_of(Kind.USER_CODE, fingerprint="user_code|resume.mismatch|")
        if trainer.fault is not None:
            return trainer.fault.diagnosis()
        return diagnosis_of(Kind.UNKNOWN)
