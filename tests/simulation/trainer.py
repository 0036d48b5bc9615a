"""A fake attempt: keeper, launcher, ranks; it starts, steps, saves and fails in virtual time."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from simulation.faults import Ending, Fault

from humigence_supervise.domain import ExitStatus, Kind, LaunchPlan, Progress, RankExit, Section

if TYPE_CHECKING:
    from simulation.world import World

HANDS_BACK_S = 0.2
"""A launcher's own time between the death of its ranks and its end."""
GIVES_UP_S = 32.0
"""torchrun's time to end ranks that ignore it because they wait for a dead peer."""
STALLS_S = 45.0
"""A watchdog's patience with a collective that does not move."""
NEVER_S = float("inf")


class Doing(Enum):
    """What the attempt is at."""

    STARTING = "starting"
    STEPPING = "stepping"
    SAVING = "saving"
    STALLING = "stalling"
    ENDING = "ending"
    OVER = "over"


@dataclass(slots=True)
class Trainer:
    """One attempt, or one probe. `step` is the newest completed step, `began` its first promise.

    `next_s` is when something happens to it next, by itself.
    """

    world: World
    plan: LaunchPlan
    probe: bool
    began: int
    step: int = 0
    doing: Doing = Doing.STARTING
    next_s: float = 0.0
    alive: bool = True
    keeper_alive: bool = True
    leaving: bool = False
    killed_at_s: float = NEVER_S
    code: int | None = None
    signal: int | None = None
    recorded: bool = False
    fault: Fault | None = None
    exits: list[RankExit] = field(default_factory=list)
    exits_told: int = 0
    fault_told: bool = False
    lines: list[Progress] = field(default_factory=list)

    def advance(self, to_s: float) -> None:
        """Let everything happen that happens to it until then."""
        while self.doing is not Doing.OVER and min(self.next_s, self.killed_at_s) <= to_s:
            if self.killed_at_s <= self.next_s:
                self._over(signal=9)
            else:
                self._next()

    def wakes_at_s(self) -> float:
        """Return when something happens that may make a descriptor readable."""
        return NEVER_S if self.doing is Doing.OVER else min(self.next_s, self.killed_at_s)

    def began_wrongly(self) -> bool:
        """Say whether it is seen to have begun at another step than promised."""
        source = self.plan.resume_from
        promised = source.step if source is not None else 0
        return bool(self.lines) and self.lines[0].step != promised

    def terminate(self) -> None:
        """SIGTERM through the keeper: save and leave; what does not is killed after the grace."""
        if self.doing is Doing.OVER or not self.keeper_alive:
            return
        now_s = self.world.now_s
        self.killed_at_s = min(self.killed_at_s, now_s + self.plan.grace_s)
        if self.world.deaf or self.leaving or self.doing is Doing.ENDING:
            return
        self.leaving = True
        if self.probe or self.doing is Doing.STARTING:
            self._end(now_s + HANDS_BACK_S, code=1)

    def clear(self) -> None:
        """The keeper kills everything; it takes a moment."""
        if self.doing is not Doing.OVER and self.keeper_alive:
            self.killed_at_s = min(self.killed_at_s, self.world.now_s + self.world.kill_s)

    def swept(self) -> None:
        """What a dead keeper left is killed."""
        self.alive = False
        self.doing = Doing.OVER

    def power_cut(self) -> None:
        """The machine is gone: no record of an end is written."""
        self.keeper_alive = self.alive = False
        self.doing = Doing.OVER

    # --- what happens by itself -----------------------------------------------------------------

    def _next(self) -> None:
        match self.doing:
            case Doing.STARTING:
                self._start()
            case Doing.STEPPING:
                self._step()
            case Doing.SAVING:
                self._save()
            case Doing.STALLING:
                self._a_rank_dies()
            case Doing.ENDING:
                self._over(code=self.code, signal=self.signal)
            case Doing.OVER:
                raise AssertionError("nothing happens any more")

    def _start(self) -> None:
        if self.probe:
            self._end(self.next_s + HANDS_BACK_S, code=int(self.world.probe_fails(self.plan)))
            return
        if fault := self.world.fault_at_start(self):
            self._fail(fault)
            return
        self.step = self.began
        self._line(Section.INIT)
        self._go_on()

    def _go_on(self) -> None:
        if self.step >= self.world.target:
            self._end(self.next_s + HANDS_BACK_S, code=0)
            return
        self.doing = Doing.STEPPING
        self.next_s += self.world.step_s

    def _step(self) -> None:
        if fault := self.world.fault_in_step(self, self.step + 1):
            self._fail(fault)
            return
        self.step += 1
        self._line(Section.TRAIN)
        due = self.step % self.world.save_every == 0 or self.step == self.world.target
        if due or self.leaving:
            self.doing = Doing.SAVING
            self.next_s += self.world.save_s
        else:
            self._go_on()

    def _save(self) -> None:
        if not self.world.save(self.step):
            self._fail(Fault(Kind.DISK_FULL))
            return
        if self.leaving:
            self._end(self.next_s + HANDS_BACK_S, code=1, ranks=ExitStatus(code=143))
        else:
            self._go_on()

    def _line(self, section: Section) -> None:
        size = self.world.global_batch
        first = (self.step - 1) * size if section is Section.TRAIN else 0
        last = self.step * size if section is Section.TRAIN else 0
        self.lines.append(
            Progress(0, self.next_s, self.step, 0, first, last, 1.0, section, self.world.target)
        )

    def _fail(self, fault: Fault) -> None:
        fault.left -= 1
        self.fault = fault
        at_s = self.next_s
        match fault.ending:
            case Ending.RANK_FIRST:
                self._a_rank_dies()
            case Ending.STALL:
                self.doing, self.next_s = Doing.STALLING, at_s + STALLS_S
            case Ending.LAUNCHER:
                self._end(at_s + HANDS_BACK_S, signal=9)
            case Ending.KEEPER:
                self.keeper_alive = False
                self.doing, self.next_s = Doing.ENDING, NEVER_S
            case Ending.EARLY:
                self._end(at_s + HANDS_BACK_S, code=0, ranks=ExitStatus(code=0))
            case Ending.TOGETHER:
                self._end(at_s + HANDS_BACK_S, code=1, ranks=fault.status)

    def _a_rank_dies(self) -> None:
        assert self.fault is not None
        self.exits.append(RankExit(self.plan.world_size - 1, 100, self.fault.status))
        self._end(self.next_s + GIVES_UP_S, code=1)

    def _end(
        self,
        at_s: float,
        *,
        code: int | None = None,
        signal: int | None = None,
        ranks: ExitStatus | None = None,
    ) -> None:
        self.code, self.signal = code, signal
        self.doing, self.next_s = Doing.ENDING, at_s
        if ranks is not None:
            self.exits += [
                RankExit(rank, 100 + rank, ranks) for rank in range(self.plan.world_size)
            ]

    def _over(self, *, code: int | None = None, signal: int | None = None) -> None:
        self.code, self.signal = (None, signal) if signal is not None else (code, None)
        self.alive = self.keeper_alive = False
        self.recorded = True
        self.doing = Doing.OVER
        self.world.is_over(self)
