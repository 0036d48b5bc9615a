"""The machine a simulated run lives on: clocks, GPUs, disk, checkpoints, what befalls them."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from simulation.cards import Card
from simulation.faults import Ending, Fault
from simulation.notes import Notes
from simulation.setups import Setup, run_of
from simulation.shelf import Health, Shelf
from simulation.trainer import Doing, Trainer

from humigence_supervise.domain import Holder, Kind, LaunchPlan, Progress
from humigence_supervise.happenings import StopRequested

EPOCH_S = 1_700_000_000.0
GLOBAL_BATCH = 8
"""Samples of a step, where nobody says a batch."""
CHECKPOINT_MIB = 100
JOURNAL_ROOM_MIB = 1


class CrashError(BaseException):
    """The supervisor is killed, here and now. `reboot`: and everything else with it."""

    def __init__(self, *, reboot: bool = False) -> None:
        """Say whether the machine goes down."""
        super().__init__(reboot)
        self.reboot = reboot


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
    global_batch: int = GLOBAL_BATCH
    now_s: float = 0.0
    clock_off_s: float = 0.0
    clock_jumps: int = 0
    disk_mib: int = 10_000
    deaf: bool = False
    cards: list[Card] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    unlaunchable: int = 0
    unplannable: int = 0
    wrong_resumes: int = 0
    wrongly_at: int = 0
    shelf: Shelf = field(default_factory=lambda: Shelf(GLOBAL_BATCH))
    later_setups: list[Setup] = field(default_factory=list)
    hurts: list[Health] = field(default_factory=list)
    trainers: dict[int, Trainer] = field(default_factory=dict)
    latest: Trainer | None = None
    levels: dict[int, dict[str, int]] = field(default_factory=dict)
    notes: Notes = field(default_factory=Notes)
    most_launches: int = 60
    patience_s: float = 1_500.0
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
            self.shelf.batch = self.global_batch

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
        if self.latest is not None and self.latest.doing is not Doing.OVER:
            self.latest.advance(when_s)

    # --- attempts -------------------------------------------------------------------------------

    def living(self) -> Trainer | None:
        """Return the attempt or probe of which something is alive."""
        latest = self.latest
        return latest if latest is not None and latest.alive else None

    def born(self, plan: LaunchPlan, *, probe: bool) -> Trainer:
        """Start an attempt's processes."""
        began = plan.resume_from.step if plan.resume_from else 0
        if not probe and began > 0 and self.wrong_resumes > 0:
            self.wrong_resumes -= 1
            self.notes.wrong_resumes += 1
            began = self.wrongly_at
        trainer = Trainer(self, plan, probe, began)
        trainer.next_s = self.now_s + (self.probe_s if probe else self.start_s)
        self.trainers[plan.attempt] = self.latest = trainer
        return trainer

    def fault_at_start(self, trainer: Trainer) -> Fault | None:
        """Return what ends an attempt before its first step."""
        plan = trainer.plan
        source = plan.resume_from
        if source is not None and self.shelf.steps.get(source.step) is Health.SILENT:
            return Fault(Kind.CHECKPOINT_CORRUPT)
        for one in self.cards_of(plan):
            if one.ill or one.out:
                called = one.uuid if one.called is None else one.called
                return Fault(Kind.GPU_FAULT, on_gpu=one.uuid, named=called or None)
            if one.is_crowded():
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
        for one in self.cards_of(trainer.plan):
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
        if any(one.ill or one.out for one in self.cards_of(plan)):
            return True
        return plan.world_size > 1 and any(
            one.several_ranks and one.left > 0 and one.at_step is None for one in self.faults
        )

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

    # --- GPUs and disk --------------------------------------------------------------------------

    def is_over(self, trainer: Trainer) -> None:
        """An attempt is over: the driver frees what it held, and a checkpoint may have suffered."""
        if self.hurts and self.shelf.newest_good():
            self.shelf.steps[self.shelf.newest_good()] = self.hurts.pop()
        for one in self.cards_of(trainer.plan):
            one.lingers_until_s = self.now_s + self.kill_s

    def note_levels(self, attempt: int) -> None:
        """Note what is in use on the cards before an attempt."""
        self.levels[attempt] = {one.uuid: one.used_mib(self.now_s) for one in self.cards}

    def cards_of(self, plan: LaunchPlan) -> list[Card]:
        """Return the cards that a plan uses."""
        return [self.cards[gpu.index] for gpu in plan.gpus]

    def save(self, step: int) -> bool:
        """Write a checkpoint; False: there is no room."""
        if self.disk_mib < CHECKPOINT_MIB:
            return False
        self.shelf.save(step)
        return True

    # --- the end of the world's troubles ----------------------------------------------------------

    def heal(self) -> None:
        """Mend everything, for good."""
        self._timeline.clear()
        self.crash_at_acts.clear()
        self.faults.clear()
        self.hurts.clear()
        self.unlaunchable = self.unplannable = self.wrong_resumes = self.journal_broken = 0
        self.disk_mib, self.deaf, self.shelf.unmovable = 10_000, False, False
        self.shelf.mend()
        for one in self.cards:
            one.ill = one.out = False
            one.stranger_mib = one.stranger_pid = 0

    def well(self) -> bool:
        """Say whether nothing is wrong and nothing will be."""
        return not (
            self._timeline
            or self.crash_at_acts
            or self.hurts
            or any(fault.left > 0 for fault in self.faults)
            or self.unlaunchable
            or self.unplannable
            or self.wrong_resumes
            or self.journal_broken
            or self.disk_mib < 2 * CHECKPOINT_MIB
            or any(one.ill or one.out or one.stranger_mib for one in self.cards)
        )
