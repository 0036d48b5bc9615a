"""What the evidence of an ended attempt says: the real diagnosis of its ends, and our faults."""

from __future__ import annotations

from simulation.cards import host_of
from simulation.looking import room_mib
from simulation.setups import settings_of
from simulation.trainer import Trainer
from simulation.world import World

from humigence_supervise.diagnose import diagnose
from humigence_supervise.domain import Beginning, Diagnosis, Evidence, ExitStatus, Kind
from humigence_supervise.happenings import Diagnosed
from humigence_supervise.ledger import account, describe
from humigence_supervise.records import Json
from humigence_supervise.resume_echo import resumed_wrongly
from humigence_supervise.run import counts_from_scratch
from humigence_supervise.state import State

ON_RECORD = frozenset((Kind.GPU_FAULT, Kind.HOST_OOM))
"""Kinds that the kernel's own record proves, whatever else is known of the end."""


def diagnosed(world: World, state: State, trainer: Trainer | None, not_started: str) -> Diagnosed:
    """Return the diagnosis of an attempt that ended, with what is known of its steps."""
    lines = trainer.lines if trainer is not None else []
    last_step = lines[-1].step if lines else state.first_step
    if trainer is not None and _resumed_wrongly(world, state, trainer):
        last_step = state.first_step  # steps from elsewhere are no progress of this run
    diagnosis = _diagnosis(world, state, trainer, not_started)
    facts: dict[str, Json] = {"last_step": last_step}
    if diagnosis.kind is Kind.HEALTHY:
        facts["ledger"] = {"says": describe(account(world.histories()))}
    gpus = None
    if diagnosis.kind is Kind.GPU_FAULT:
        gpus = tuple(gpu.uuid for gpu in host_of(world.cards, world.now_s).gpus)
    return Diagnosed(
        diagnosis,
        last_step,
        world.shelf.newest_whole(),
        need_mib=room_mib(world),
        free_mib=world.disk_mib,
        gpus=gpus,
        facts=facts,
    )


def began(trainer: Trainer) -> Beginning | None:
    """Return where a worker says that it began."""
    if not trainer.lines:
        return None
    first = trainer.lines[0]
    return Beginning(first.step, first.step)


def _diagnosis(world: World, state: State, trainer: Trainer | None, not_started: str) -> Diagnosis:
    asked = state.stop is not None or state.leaving is not None
    fault = trainer.fault if trainer is not None else None
    found = diagnose(_evidence(world, state, trainer, not_started, asked=asked))
    if fault is None or found.fingerprint.endswith("resume.mismatch|"):
        return found
    return found if asked and fault.kind not in ON_RECORD else fault.diagnosis()


def _resumed_wrongly(world: World, state: State, trainer: Trainer) -> str:
    strict = state.resumed or counts_from_scratch(settings_of(world.setup))
    return resumed_wrongly(state.first_step, began(trainer)) if strict else ""


def _evidence(
    world: World, state: State, trainer: Trainer | None, not_started: str, *, asked: bool
) -> Evidence:
    if trainer is None:
        return Evidence(world_size=1, stop_requested=asked, not_started=not_started)
    first_dead = next((one.rank for one in trainer.exits if not one.status.ok), None)
    return Evidence(
        launcher=ExitStatus(trainer.code, trainer.signal) if trainer.recorded else None,
        ranks=tuple(trainer.exits),
        world_size=trainer.plan.world_size,
        first_dead=first_dead,
        first_step=state.first_step,
        last_step=trainer.lines[-1].step if trainer.lines else state.first_step,
        target_step=world.target if trainer.lines else None,
        stop_requested=asked,
        progress_seen=bool(trainer.lines),
        left=state.stop is None and state.leaving is not None,
        resumed_wrongly=_resumed_wrongly(world, state, trainer),
    )
