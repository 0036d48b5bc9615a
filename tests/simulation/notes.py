"""What an honest bystander writes down: the invariants are judged by it, not by our own state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from simulation.setups import settings_of

from humigence_supervise.domain import Kind, LaunchPlan
from humigence_supervise.records import Event, Record

if TYPE_CHECKING:
    from simulation.world import World

ENDINGS = frozenset(
    (Event.ATTEMPT_EXITED, Event.RUN_STOPPING, Event.ATTEMPT_LEAVING, Event.PROMOTION_STARTED)
)
"""What tells in the journal why an attempt is ended; a probe says it when it starts."""
FINAL = frozenset((Event.RUN_COMPLETED, Event.RUN_STOPPED, Event.RUN_GAVE_UP, Event.RUN_FAILED))


@dataclass(slots=True)
class Failure:
    """A failed attempt, as `decision.made` tells of it."""

    kind: str
    fingerprint: str
    holder: str
    rung_index: int
    first_step: int
    last_step: int
    checkpoint_step: int
    at_s: float
    decision: str
    defragment: bool
    fruitless: int
    known: bool
    in_period: int
    hardware: bool
    gpu: str


@dataclass(slots=True)
class Notes:
    """All that was seen. What begins anew when an operator starts the run again is in `renew`."""

    planned: dict[int, int] = field(default_factory=dict)
    probes_said: set[int] = field(default_factory=set)
    used: set[int] = field(default_factory=set)
    why_ended: set[int] = field(default_factory=set)
    excluded: set[str] = field(default_factory=set)
    stop_told: bool = False
    stop_was_late: bool = False
    stop_journaled: bool = False
    stop_at_s: float | None = None
    hopeless: str = ""
    final: Record | None = None
    failures: list[Failure] = field(default_factory=list)
    reached: int = 0
    saved: int = 0
    fruitless: int = 0
    defragmented: bool = False
    promotions: int = 0
    growths: int = 0
    unprepared: int = 0
    global_batch: int | None = None
    blamed: int | None = None
    wrong_resumes: int = 0
    resumed_wrongly: bool = False
    alike: int = 0
    last_confidence: str = ""
    leaving: int | None = None
    probe_passed_of: int | None = None
    patience_s: float | None = None
    stranger_at_s: float = 0.0
    next_rung: int = 0
    wait: Record | None = None
    waits_anew: bool = False
    wait_since_s: float = 0.0
    wait_wall_until_s: float | None = None
    last_failed_at_s: float | None = None
    last_plan: LaunchPlan | None = None
    last_answer: str = ""
    launches: int = 0
    clock_changed: bool = False
    disk_full_at_s: float = 0.0
    news_dropped: bool = False
    down_s: float = 0.0
    waits_at: tuple[float, int] = (0.0, 0)
    planned_rung: int = 0
    renewals: int = 0
    roomy_since_s: float | None = None
    probe_since_s: float | None = None
    well_since_s: float | None = None

    def renew(self) -> None:
        """An operator starts an ended run again: budgets and stops are of the past."""
        self.renewals += 1
        self.resumed_wrongly = False
        self.alike = 0
        self.launches = 0
        self.stop_told = self.stop_journaled = self.stop_was_late = False
        self.stop_at_s = None
        self.hopeless = ""
        self.final = None
        self.failures.clear()
        self.reached = self.saved = self.fruitless = 0
        self.promotions = self.unprepared = 0
        self.wait = self.wait_wall_until_s = None
        self.last_failed_at_s = None
        self.last_plan = None

    def launched(self, plan: LaunchPlan) -> None:
        """An attempt is being started."""
        self.used.add(plan.attempt)
        self.launches += 1
        last = self.last_plan
        self.alike = self.alike + 1 if last is not None and _alike(last, plan) else 0
        self.last_plan = plan
        self.wait_wall_until_s = None
        self.blamed = None
        if plan.batch is not None:
            self.global_batch = plan.batch.global_samples

    def told_to_stop(self, now_s: float, *, late: bool) -> None:
        """The supervisor was asked to stop; `late`: while it writes what it has decided."""
        self.stop_was_late = late
        self.stop_told = True
        self.stop_at_s = now_s if self.stop_at_s is None else self.stop_at_s

    # --- what the journal says ------------------------------------------------------------------

    def journaled(self, record: Record, world: World) -> None:
        """Take a durable record in."""
        now_s = world.now_s
        attempt = record.attempt or 0
        if record.event in ENDINGS:
            self.why_ended.add(attempt)
        match record.event:
            case Event.ATTEMPT_PLANNED:
                self.planned[attempt] = int(str(record.facts["resume_step"]))
                self.planned_rung = int(str(record.facts["rung_index"]))
                self.unprepared = 0
                self.wait = None
            case Event.PROMOTION_STARTED:
                self.probes_said.add(attempt)
                self.promotions += 1
            case Event.PROMOTION_TRIED:
                passed = record.facts["passed"] is True
                self.probe_passed_of = int(str(record.facts["rung_index"])) if passed else None
            case Event.ATTEMPT_LEAVING:
                self.leaving = attempt
            case Event.RUN_STOPPING:
                self.stop_journaled = True
            case Event.DIAGNOSIS_MADE:
                self.last_confidence = str(record.facts["confidence"])
            case Event.DECISION_MADE:
                self._decided(record, world)
            case Event.GPU_READMITTED:
                self.excluded -= set(_texts(record, "readmitted"))
            case Event.BACKOFF_STARTED:
                self.waits_anew = is_timed(self.wait) and is_timed(record)
                self.wait, self.wait_since_s = record, now_s
                until = record.facts.get("until_s")
                wants = record.facts.get("want") is not None and until is not None
                self.patience_s = float(str(until)) - world.wall_s if wants else None
                until_s = record.facts.get("until_s")
                self.down_s = 0.0
                # The journal's disk may have been full between the decision and this record.
                self.clock_changed = is_timed(record) and (
                    float(str(until_s)) - world.wall_s > float(str(record.facts["delay_s"])) + 1.0
                )
                self.wait_wall_until_s = float(str(until_s)) if is_timed(record) else None
                self.unprepared = self.unprepared + 1 if record.facts.get("unprepared") else 0
            case Event.BACKOFF_ENDED:
                self.wait = None
            case _ if record.event in FINAL:
                self.final = record
                self.stop_journaled |= record.event is Event.RUN_STOPPED
                self.wait = None

    def _decided(self, record: Record, world: World) -> None:
        facts = record.facts
        decision, kind = str(facts["decision"]), str(facts["kind"])
        self.next_rung = int(str(facts["rung_index"]))
        if decision == "GrowMicroBatch":
            self.growths += 1
        if decision in ("Stop", "Complete"):
            self.hopeless = decision
        self.blamed = None
        if decision == "UseOlderCheckpoint":
            loaded = kind == Kind.CHECKPOINT_CORRUPT
            self.blamed = int(str(facts["first_step" if loaded else "bad_step"]))
        hardware = kind == Kind.GPU_FAULT and self.last_confidence == "certain"
        if hardware and facts.get("gpu"):
            self.excluded.add(str(facts["gpu"]))
        if kind == Kind.HEALTHY:
            return
        first, last = int(str(facts["first_step"])), int(str(facts["last_step"]))
        checkpoint = int(str(facts["checkpoint_step"]))
        fingerprint = str(facts["fingerprint"])
        at_s = float(str(facts["at_s"]))
        patient = is_patient(kind, str(facts.get("holder")))
        further = checkpoint > max(self.saved, first) or last > max(self.reached, first)
        if further or first > self.saved:  # an attempt between may have ended without a failure
            self.fruitless = 0
        if not further and not patient:
            self.fruitless += 1
        gpu = str(facts.get("gpu")) if kind == Kind.GPU_FAULT else ""  # another is another failure
        known = any(
            (one.kind, one.fingerprint, one.last_step, one.gpu) == (kind, fingerprint, last, gpu)
            for one in self.failures
        )
        period_s = settings_of(world.setup).policy.max_attempts.period_s
        recent = sum(
            1
            for one in self.failures
            if at_s - one.at_s <= period_s and not is_patient(one.kind, one.holder)
        )
        self.failures.append(
            Failure(
                kind,
                fingerprint,
                str(facts.get("holder")),
                self.planned_rung,
                first,
                last,
                checkpoint,
                at_s,
                decision,
                bool(facts.get("defragment")) and not self.defragmented,
                self.fruitless,
                known,
                recent + (not patient),
                hardware,
                gpu,
            )
        )
        self.defragmented |= bool(facts.get("defragment"))
        self.reached = max(self.reached, last)
        self.saved = max(self.saved, first, checkpoint)


def is_patient(kind: str, holder: str) -> bool:
    """Say whether the world is waited for after such a failure, at no cost."""
    return kind in (Kind.DISK_FULL, Kind.NETWORK_HUB) or holder == "stranger"


def _alike(last: LaunchPlan, plan: LaunchPlan) -> bool:
    return (last.rung_index, last.gpus, last.batch, last.resume_from, last.env[:-1]) == (
        plan.rung_index,
        plan.gpus,
        plan.batch,
        plan.resume_from,
        plan.env[:-1],
    )


def is_timed(wait: Record | None) -> bool:
    """Say whether nothing but time is waited for."""
    return wait is not None and wait.facts.get("want") is None


def _texts(record: Record, key: str) -> list[str]:
    value = record.facts.get(key)
    return [str(one) for one in value] if isinstance(value, list) else []
