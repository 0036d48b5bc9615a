"""Everything before an attempt: is there room, which checkpoint, which GPUs, what plan."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

from humigence_supervise import contract, ladder, launch
from humigence_supervise.actions import Consider, Means, Prepare, Probe
from humigence_supervise.checkpoints import choose
from humigence_supervise.checkpoints.verdict import Standing
from humigence_supervise.decisions import Stranger
from humigence_supervise.domain import Checkpoint, Gpu, GpuState, Host, LaunchPlan
from humigence_supervise.gpu_choice import is_called
from humigence_supervise.gpu_room import room, stranger_left, suspicion
from humigence_supervise.happenings import (
    Considered,
    Happening,
    NoRoom,
    NotPrepared,
    Prepared,
    Refused,
)
from humigence_supervise.observe.gpu_state import read_gpu_states
from humigence_supervise.observe.gpu_tenants import read_tenants
from humigence_supervise.observe.host import read_host
from humigence_supervise.observe.host_evidence import planned_gpus
from humigence_supervise.observe.host_facts import noted_levels
from humigence_supervise.phases import Want
from humigence_supervise.probe_plan import probe_plan
from humigence_supervise.probe_script import probe_script
from humigence_supervise.run import Run

PROBE_S: Final = 35.0
"""What each rank of a probe gives itself, from its start: torchrun's own start and end come on
top, and at `aftermath.PROBE_LIMIT_S` the supervisor ends it."""

AS_GOOD_AS_FULL_MIB: Final = 16
"""With less than this free, a disk is taken for the one that was full."""


class Preparation:
    """Looks at the machine and plans; starts nothing."""

    def __init__(self, run: Run) -> None:
        """Prepare the attempts of `run`."""
        self._run = run

    def prepare(self, wanted: Prepare) -> Happening:
        """Return the plan of the next attempt, or what it has to wait for, or why there is none.

        What is cheap to ask comes first: while there is no room this is asked again and again.
        """
        try:
            return self._no_disk(wanted) or self._on_this_host(wanted)
        except OSError as error:
            reason = f"The next attempt cannot be prepared: {error}. Look at what is exhausted."
            return NotPrepared(reason, exit_code=contract.EXIT_GAVE_UP)

    def consider(self, wanted: Consider) -> Considered:
        """Say whether the higher rung could be planned now, with more ranks than it has now."""
        folder = self._run.attempt_dir(wanted.attempt)
        try:
            host = self._host()
            states = _states(host)
            higher = self.plan(wanted.means, 1, None, host, states)
        except (OSError, ValueError) as error:
            return Considered(wanted.promote, f"it cannot be planned: {error}")
        if higher.world_size <= launch.planned_world_size(folder):
            why = f"it would have {higher.world_size} ranks now, no more than this one."
            return Considered(wanted.promote, why)
        used = {gpu.uuid for gpu in planned_gpus(folder)}
        others = [gpu.uuid for gpu in higher.gpus if gpu.uuid not in used]
        found = room(noted_levels(folder), states, others, read_tenants(states))
        return Considered(wanted.promote, "" if found.clear else f"{found.says}.")

    def plan(
        self,
        means: Means,
        attempt: int,
        resume_from: Checkpoint | None,
        host: Host,
        states: tuple[GpuState, ...],
    ) -> LaunchPlan:
        """Return the complete plan of an attempt. Raises PlanError, OSError."""
        run = self._run
        return ladder.plan(
            run.settings,
            run.paths,
            means.rung_index,
            host=host,
            attempt=attempt,
            resume_from=resume_from,
            port=launch.free_port(),
            inherited=os.environ,
            micro_samples=means.micro_samples,
            excluded_gpus=means.excluded_gpus,
            suspect_gpus=_suspects(means, states),
            defragment=means.defragment,
            run_virtual_ranks=run.virtual_ranks,
            run_accelerator=run.accelerator,
            debug=run.debug,
        )

    def probe(self, wanted: Probe) -> LaunchPlan:
        """Return the plan of the probe of a higher rung. Raises PlanError, OSError."""
        script = probe_script()
        if script is None:
            raise OSError("the probe's program (humigence_worker) is not installed here")
        host = self._host()
        plan = self.plan(wanted.means, wanted.attempt, None, host, _states(host))
        worker = self._run.settings.worker
        return probe_plan(plan, worker.python, launch.free_port(), script, PROBE_S)

    def need_mib(self) -> int:
        """Return the room the next checkpoint takes, as far as earlier ones tell."""
        known = choose.needed_mib(self._run.paths.checkpoint_dir)
        return max(self._run.settings.checkpoints.min_free_mib, known or 0)

    def room_mib(self, free_mib: int | None) -> int:
        """Return the room to wait for on a full disk, of which so much is free.

        While no checkpoint tells its size, a disk that is as good as full has to get emptier.
        """
        need_mib = self.need_mib()
        if need_mib == 0 and free_mib is not None and free_mib < AS_GOOD_AS_FULL_MIB:
            return free_mib + 1
        return need_mib

    def free_mib(self) -> int | None:
        """Return the room where checkpoints go, None when it cannot be asked."""
        return choose.free_mib(self._run.paths.checkpoint_dir)

    def _no_disk(self, wanted: Prepare) -> NoRoom | None:
        need_mib = max(self.need_mib(), wanted.need_mib)
        free_mib = self.free_mib()
        if free_mib is None or free_mib >= need_mib:
            return None
        folder = self._run.paths.checkpoint_dir
        reason = f"{folder} has {free_mib} MiB free, the next checkpoint needs {need_mib} MiB."
        return NoRoom(Want.DISK, reason, need_mib, free_mib)

    def _on_this_host(self, wanted: Prepare) -> Happening:
        run, means = self._run, wanted.means
        host = self._host()
        states = _states(host)
        try:
            gpus = self.plan(means, wanted.attempt, None, host, states).gpus
        except ValueError as error:
            code = contract.EXIT_CONFIG if wanted.attempt == 1 else contract.EXIT_GAVE_UP
            lower = wanted.attempt > 1 and bool(host.gpus)
            return NotPrepared(str(error), exit_code=code, lower_may_do=lower)
        if gpus and (full := self._no_memory(wanted, gpus, states)):
            return NoRoom(Want.GPU_MEMORY, full)
        if wanted.bad_step is not None:
            self._put_aside(wanted.bad_step)
        folder = run.paths.checkpoint_dir
        choice = choose.newest_good(folder, run=run.paths.id, below=wanted.bad_step)
        if not choice.folder_read:
            return NotPrepared(choice.note, exit_code=contract.EXIT_GAVE_UP)
        if choice.checkpoint is None and (choice.refused or wanted.checkpoint_step > 0):
            return _nothing_to_resume(choice, wanted.checkpoint_step)
        refused = tuple(
            Refused(one.path, one.reason, damaged=one.standing is Standing.DAMAGED)
            for one in choice.refused
        )
        plan = self.plan(means, wanted.attempt, choice.checkpoint, host, states)
        return Prepared(plan, refused)

    def _put_aside(self, step: int) -> None:
        """Quarantine the checkpoints from a step on; they are not chosen in any case."""
        with suppress(OSError):
            for one in choose.candidates(self._run.paths.checkpoint_dir):
                if one.step >= step:
                    choose.quarantine(one.path, "It is whole, but the training failed with it.")

    def _no_memory(
        self, wanted: Prepare, gpus: tuple[Gpu, ...], states: tuple[GpuState, ...]
    ) -> str:
        """Return what holds memory on the chosen GPUs that was free before, "" for nothing."""
        tenants = read_tenants(states)
        stranger = wanted.stranger
        if stranger is not None and _is_in_the_way(stranger, gpus):
            left = stranger_left(states, stranger.pid, stranger.held_mib, stranger.gpu, tenants)
            waits = wanted.patient or (wanted.lowest_rung and left.known)
            if waits and not (left.clear and left.known):
                return left.says
        if not wanted.patient:
            return ""
        before = self._levels_before(wanted.attempt)
        found = room(before, states, [gpu.uuid for gpu in gpus], tenants)
        return "" if found.clear else found.says

    def _levels_before(self, attempt: int) -> dict[str, int]:
        """Return the MiB in use on each GPU before the last attempt; a probe notes none."""
        earlier = range(attempt - 1, max(0, attempt - 4), -1)
        noted = (noted_levels(self._run.attempt_dir(number)) for number in earlier)
        return next(filter(None, noted), {})

    def _host(self) -> Host:
        return read_host(self._run.settings.worker.python)


def _is_in_the_way(stranger: Stranger, gpus: tuple[Gpu, ...]) -> bool:
    return not stranger.gpu or any(is_called(gpu, stranger.gpu) for gpu in gpus)


def _states(host: Host) -> tuple[GpuState, ...]:
    return read_gpu_states().gpus if host.gpus else ()


def _suspects(means: Means, states: tuple[GpuState, ...]) -> tuple[str, ...]:
    """Return the GPUs that a failure or the driver speaks against."""
    by_driver = (state.uuid for state in states if state.uuid and suspicion(state))
    return tuple(dict.fromkeys((*means.suspect_gpus, *by_driver)))


def _nothing_to_resume(choice: choose.Choice, checkpoint_step: int) -> NotPrepared:
    """Refuse to begin from scratch where steps were saved: that would be the greatest loss."""
    what = f"Steps up to {checkpoint_step} were saved, but no checkpoint is left."
    if choice.refused:
        first = choice.refused[0]
        what = f"None of {len(choice.refused)} checkpoints can be used. The newest: {first.reason}"
    standings = {one.standing for one in choice.refused}
    unclear = standings & {Standing.UNKNOWN, Standing.MISSING}
    code = contract.EXIT_GAVE_UP if unclear else contract.EXIT_HOPELESS
    advice = "Repair or restore one, or begin anew with `start --fresh`. Nothing was changed."
    return NotPrepared(f"{what} {advice}", exit_code=code)
