"""The machine a simulated run lives on: clocks, GPUs, disk, checkpoints, what befalls them."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from itertools import count

from simulation.faults import Ending, Fault
from simulation.notes import Notes
from simulation.setups import PATHS, Setup, card, run_of
from simulation.trainer import Doing, Trainer

from humigence_supervise.contract import checkpoint_name
from humigence_supervise.domain import (
    Checkpoint,
    ExitStatus,
    Gpu,
    GpuProcess,
    GpuState,
    Holder,
    Host,
    Kind,
    LaunchPlan,
    Progress,
)
from humigence_supervise.gpu_room import Tenant
from humigence_supervise.happenings import StopRequested

EPOCH_S = 1_700_000_000.0
OWN_MIB = 20_000
BASE_MIB = 400
CHECKPOINT_MIB = 100
JOURNAL_ROOM_MIB = 1


class CrashError(BaseException):
    """The supervisor is killed, here and now. `reboot`: and everything else with it."""

    def __init__(self, *, reboot: bool = False) -> None:
        """Say whether the machine goes down."""
        super().__init__(reboot)
        self.reboot = reboot


class Health(Enum):
    """What can be true of a checkpoint's bytes. `SILENT`: only the worker finds the damage."""

    GOOD = "good"
    TORN = "torn"
    FLIPPED = "flipped"
    SILENT = "silent"
    FOREIGN = "foreign"


@dataclass(slots=True)
class Card:
    """One GPU slot. A card that is ill fails what uses it; one that is out is not seen."""

    index: int
    ill: bool = False
    out: bool = False
    called: str | None = None
    stranger_mib: int = 0
    stranger_pid: int = 0
    lingers_until_s: float = 0.0

    @property
    def uuid(self) -> str:
        """Return its name for ever."""
        return f"GPU-{self.index}"


@dataclass(slots=True)
class World:
    """Everything outside of the supervisor. `now_s` is true time, `wall_s` what the clock says."""

    setup: Setup
    target: int = 20
    save_every: int = 5
    step_s: float = 1.0
    save_s: float = 0.2
    start_s: float = 2.0
    kill_s: float = 0.3
    probe_s: float = 4.0
    global_batch: int = 8
    now_s: float = 0.0
    clock_off_s: float = 0.0
    disk_mib: int = 10_000
    deaf: bool = False
    cards: list[Card] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    unlaunchable: int = 0
    unplannable: int = 0
    wrong_resumes: int = 0
    unmovable: bool = False
    checkpoints: dict[int, Health] = field(default_factory=dict)
    aside: list[tuple[int, Health]] = field(default_factory=list)
    trainers: dict[int, Trainer] = field(default_factory=dict)
    levels: dict[int, dict[str, int]] = field(default_factory=dict)
    notes: Notes = field(default_factory=Notes)
    most_launches: int = 120
    patience_s: float = 1_500.0
    torn_appends: bool = False
    journal_broken: int = 0
    acts: int = 0
    crash_at_acts: dict[int, bool] = field(default_factory=dict)
    signals: list[StopRequested] = field(default_factory=list)
    _timeline: list[tuple[float, int, Callable[[World], None]]] = field(default_factory=list)
    _ids: count[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        """Put the cards in their slots."""
        self.cards = self.cards or [Card(index) for index in range(self.setup.gpus)]
        run = run_of(self.setup)
        if run.micro_samples is not None:
            self.global_batch = run.micro_samples * run.virtual_ranks

    # --- time -----------------------------------------------------------------------------------

    @property
    def wall_s(self) -> float:
        """Return what the wall clock shows."""
        return EPOCH_S + self.now_s + self.clock_off_s

    def at(self, when_s: float, what: Callable[[World], None]) -> None:
        """Let something befall the world at a time."""
        heapq.heappush(self._timeline, (when_s, next(self._ids), what))

    def act(self) -> None:
        """Count a moment between two actions of the supervisor: it may die in each of them."""
        self.acts += 1
        if self.crash_at_acts and self.acts in self.crash_at_acts:
            raise CrashError(reboot=self.crash_at_acts.pop(self.acts))

    def sleep(self, watched: Trainer | None, timeout_s: float) -> None:
        """Pass the time until it is over, a signal comes, or the watched attempt has news."""
        until_s = self.now_s + max(0.0, timeout_s)
        while True:
            if self.signals or (watched is not None and self.has_ended_news(watched)):
                return
            next_s = until_s
            trainer = self.living()
            if trainer is not None:
                next_s = min(next_s, trainer.wakes_at_s())
            if self._timeline and self._timeline[0][0] <= next_s:
                when_s, _, what = heapq.heappop(self._timeline)
                self._pass_to(max(self.now_s, when_s))
                what(self)
                continue
            self._pass_to(next_s)
            if next_s >= until_s:
                return

    def supervisor_is_down(self, for_s: float) -> None:
        """Pass time in which nobody looks; who would be told to die is dead already."""
        until_s = self.now_s + for_s
        while True:
            try:
                self.sleep(None, until_s - self.now_s)
            except CrashError as crash:
                if crash.reboot and (trainer := self.living()) is not None:
                    trainer.power_cut()
                continue
            if self.signals:
                self.signals.clear()
                continue
            return

    def has_ended_news(self, trainer: Trainer) -> bool:
        """Say whether a descriptor of the attempt is readable."""
        return not trainer.keeper_alive or len(trainer.exits) > trainer.exits_told

    def _pass_to(self, when_s: float) -> None:
        self.now_s = when_s
        for trainer in self.trainers.values():
            if trainer.doing is not Doing.OVER:
                trainer.advance(when_s)

    # --- attempts -------------------------------------------------------------------------------

    def living(self) -> Trainer | None:
        """Return the attempt or probe of which something is alive."""
        return next((one for one in self.trainers.values() if one.alive), None)

    def born(self, plan: LaunchPlan, *, probe: bool) -> Trainer:
        """Start an attempt's processes."""
        began = plan.resume_from.step if plan.resume_from else 0
        if not probe and began > 0 and self.wrong_resumes > 0:
            self.wrong_resumes -= 1
            self.notes.wrong_resumes += 1
            began = 0
        trainer = Trainer(self, plan, probe, began)
        trainer.next_s = self.now_s + (self.probe_s if probe else self.start_s)
        self.trainers[plan.attempt] = trainer
        return trainer

    def fault_at_start(self, trainer: Trainer) -> Fault | None:
        """Return what ends an attempt before its first step."""
        plan = trainer.plan
        source = plan.resume_from
        if source is not None and self.checkpoints.get(source.step) is Health.SILENT:
            self.notes.blamed_checkpoint = source.step
            return Fault(Kind.CHECKPOINT_CORRUPT)
        for one in self._cards_of(plan):
            if one.ill or one.out:
                called = one.uuid if one.called is None else one.called
                return Fault(Kind.GPU_FAULT, on_gpu=one.uuid, named=called or None)
            if one.stranger_mib > OWN_MIB // 2:
                return Fault(
                    Kind.CUDA_OOM,
                    holder=Holder.STRANGER,
                    named=one.uuid,
                    pid=one.stranger_pid or None,
                    held_mib=one.stranger_mib,
                )
        return self._struck(trainer, 0)

    def fault_in_step(self, trainer: Trainer, step: int) -> Fault | None:
        """Return what ends an attempt while it makes a step."""
        for one in self._cards_of(trainer.plan):
            if one.ill or one.out:
                called = one.uuid if one.called is None else one.called
                return Fault(
                    Kind.GPU_FAULT, on_gpu=one.uuid, named=called or None, ending=Ending.RANK_FIRST
                )
        return self._struck(trainer, step)

    def _struck(self, trainer: Trainer, step: int) -> Fault | None:
        for fault in self.faults:
            if fault.strikes(trainer.plan, trainer.began, step):
                return fault
        return None

    def probe_fails(self, plan: LaunchPlan) -> bool:
        """Say whether the GPUs of a plan do not work together now."""
        if any(one.ill or one.out for one in self._cards_of(plan)):
            return True
        return plan.world_size > 1 and any(
            one.several_ranks and one.left > 0 and one.at_step is None for one in self.faults
        )

    def _cards_of(self, plan: LaunchPlan) -> list[Card]:
        return [self.cards[gpu.index] for gpu in plan.gpus]

    def histories(self) -> list[list[Progress]]:
        """Return the progress lines of all attempts, in order."""
        return [one.lines for _, one in sorted(self.trainers.items()) if not one.probe]

    def redone_steps(self) -> int:
        """Return how many steps were made in vain."""
        redone = reached = 0
        for lines in self.histories():
            if len(lines) > 1:
                redone += max(0, reached - lines[0].step)
                reached = lines[-1].step
        return redone

    # --- GPUs -----------------------------------------------------------------------------------

    def host(self) -> Host:
        """Return what is read of the machine now."""
        seen: tuple[Gpu, ...] = tuple(
            card(one.index, 32_000 - self._used_mib(one)) for one in self.cards if not one.out
        )
        return Host(seen, "580.1", "2.13.0", 8)

    def gpu_states(self) -> tuple[GpuState, ...]:
        """Return what the driver says of the cards now."""
        return tuple(
            GpuState(
                one.index,
                one.uuid,
                f"0000:0{one.index + 1}:00",
                "RTX",
                32_600,
                self._used_mib(one),
                (GpuProcess(one.stranger_pid, one.stranger_mib),) if one.stranger_mib else (),
            )
            for one in self.cards
            if not one.out
        )

    def tenants(self) -> tuple[Tenant, ...]:
        """Return the strangers on the cards."""
        return tuple(
            Tenant(one.uuid, one.stranger_pid, "eve", "blender", one.stranger_mib)
            for one in self.cards
            if one.stranger_mib
        )

    def memory_lingers(self, trainer: Trainer) -> None:
        """The driver takes a moment to free what the dead held."""
        for one in self._cards_of(trainer.plan):
            one.lingers_until_s = self.now_s + self.kill_s

    def _used_mib(self, one: Card) -> int:
        lingering = OWN_MIB if one.lingers_until_s > self.now_s else 0
        return BASE_MIB + one.stranger_mib + lingering

    # --- disk and checkpoints -------------------------------------------------------------------

    def save(self, step: int) -> bool:
        """Write a checkpoint, keeping three; False: there is no room."""
        if self.disk_mib < CHECKPOINT_MIB:
            return False
        if self.checkpoints.get(step) is not Health.GOOD:
            self.checkpoints[step] = Health.GOOD
        good = sorted(s for s, health in self.checkpoints.items() if health is Health.GOOD)
        for old in good[:-3]:
            del self.checkpoints[old]
        return True

    def disk_fault(self) -> Fault:
        """Return what ends an attempt that could not save."""
        return Fault(Kind.DISK_FULL)

    def newest_good(self) -> int:
        """Return the newest step with a checkpoint that can be used as far as its bytes tell."""
        usable = (Health.GOOD, Health.SILENT)
        return max((s for s, health in self.checkpoints.items() if health in usable), default=0)

    def checkpoint(self, step: int) -> Checkpoint:
        """Return the checkpoint of a step as a value."""
        return Checkpoint(
            PATHS.checkpoint_dir / checkpoint_name(step), step, step * self.global_batch
        )

    # --- the end of the world's troubles ----------------------------------------------------------

    def heal(self) -> None:
        """Mend everything, for good."""
        self._timeline.clear()
        self.crash_at_acts.clear()
        self.faults.clear()
        self.unlaunchable = self.unplannable = self.wrong_resumes = self.journal_broken = 0
        self.disk_mib, self.deaf, self.unmovable = 10_000, False, False
        for one in self.cards:
            one.ill = one.out = False
            one.stranger_mib = one.stranger_pid = 0

    def well(self) -> bool:
        """Say whether nothing is wrong and nothing will be."""
        return not (
            self._timeline
            or self.crash_at_acts
            or any(fault.left > 0 for fault in self.faults)
            or self.unlaunchable
            or self.unplannable
            or self.wrong_resumes
            or self.journal_broken
            or self.disk_mib < 2 * CHECKPOINT_MIB
            or any(one.ill or one.out or one.stranger_mib for one in self.cards)
        )


def rank_status(code: int | None = None, signal: int | None = None) -> ExitStatus:
    """Return how a rank ended."""
    return ExitStatus(code, signal)
