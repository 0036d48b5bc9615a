"""Carry out the machine's actions; each answers with what happened."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from humigence_supervise import contract, launch
from humigence_supervise.accounting import account_run, ledger_facts
from humigence_supervise.actions import Consider, Prepare, Probe
from humigence_supervise.catalogue import Catalogue
from humigence_supervise.checkpoints import choose
from humigence_supervise.checkpoints.verify import verify
from humigence_supervise.diagnose import diagnose
from humigence_supervise.domain import Accelerator, Diagnosis, Kind, LaunchPlan
from humigence_supervise.happenings import Diagnosed, Happening, Launched, NotLaunched, TreeGone
from humigence_supervise.observe.attempt import AttemptWatch
from humigence_supervise.observe.host import read_host
from humigence_supervise.observe.host_facts import note_start, started_at
from humigence_supervise.observe.probe_words import probe_words
from humigence_supervise.observe.shm_segments import remove_stale_segments
from humigence_supervise.post_mortem import examine
from humigence_supervise.preparing import Preparation
from humigence_supervise.records import Json
from humigence_supervise.run import Run
from humigence_supervise.state import State
from humigence_supervise.systemd import UNSET_FOR_CHILDREN


class Effects:
    """The hands of one run; they hold at most one attempt at a time."""

    def __init__(self, run: Run, catalogue: Catalogue) -> None:
        """Work for `run`."""
        self._run = run
        self._catalogue = catalogue
        self._preparation = Preparation(run)
        self.keeper: launch.Keeper | None = None
        self.watch: AttemptWatch | None = None
        self._clearing_since = 0.0
        self._not_started = ""

    # --- before an attempt ----------------------------------------------------------------------

    def prepare(self, wanted: Prepare) -> Happening:
        """Plan the next attempt, or say what it has to wait for, or why there is none."""
        return self._preparation.prepare(wanted)

    def consider(self, wanted: Consider) -> Happening:
        """Look whether a higher rung could be planned now."""
        return self._preparation.consider(wanted)

    def quarantine(self, path: Path, reason: str) -> None:
        """Put a bad checkpoint aside; one that is gone or cannot be moved stays refused."""
        with suppress(OSError):
            choose.quarantine(path, reason)

    # --- an attempt -----------------------------------------------------------------------------

    def launch(self, plan: LaunchPlan) -> Happening:
        """Start the plan's keeper."""
        note_start(plan.attempt_dir, plan.gpus)
        try:
            self.keeper = _start(plan, self._run.paths.run_dir)
        except launch.LaunchError as error:
            self._not_started = str(error)
            return NotLaunched(self._not_started)
        self.watch = self._watch(plan.attempt, plan.world_size)
        return Launched(self.keeper.process, plan.world_size, plan.resume_from)

    def probe(self, wanted: Probe) -> Happening:
        """Start the probe of a higher rung; it is ended like an attempt."""
        try:
            plan = self._preparation.probe(wanted)
            note_start(plan.attempt_dir)
            self.keeper = _start(plan, self._run.paths.run_dir)
        except (OSError, ValueError) as error:
            return NotLaunched(f"the probe could not be started: {error}")
        return Launched(self.keeper.process, plan.world_size)

    def recover(self, attempt: int) -> Happening:
        """Find the attempt a supervisor before us started: alive, ended, or never begun."""
        folder = self._run.attempt_dir(attempt)
        world_size = launch.planned_world_size(folder)
        self.keeper = launch.adopt(self._run.paths.run_dir, attempt)
        self.watch = self._watch(attempt, world_size)
        if self.keeper is not None:
            return Launched(self.keeper.process, world_size, adopted=True)
        if launch.read_exit(folder) is None and not (folder / contract.KEEPER_FILE).exists():
            launch.sweep(self._run.paths.id, attempt)
            return NotLaunched("the supervisor before this one ended before it was started")
        return self.attempt_gone(attempt)

    def terminate(self) -> None:
        """Ask the attempt to save and exit."""
        if self.keeper is not None:
            self.keeper.stop()

    def clear(self) -> None:
        """Have the attempt's whole tree killed."""
        self._clearing_since = self._clearing_since or time.monotonic()
        if self.keeper is not None:
            self.keeper.clear()

    def attempt_gone(self, attempt: int) -> TreeGone:
        """Say how the attempt ended, once its keeper has; what a dead keeper left is killed."""
        took_s = time.monotonic() - self._clearing_since if self._clearing_since else 0.0
        self._clearing_since = 0.0
        if self.keeper is not None:
            self.keeper.reap()
            self.keeper.close()
            self.keeper = None
        folder = self._run.attempt_dir(attempt)
        record = launch.read_exit(folder)
        facts: dict[str, Json] = {}
        if record is None or not record["cleared"]:
            killed = launch.sweep(self._run.paths.id, attempt)
            how = f"The keeper ended before its work was done; {len(killed)} processes were left."
            facts["swept_pids"] = list(killed)
        elif record["launcher"] is None:
            self._not_started = record["error"] or ""
            how = f"The launcher could not be started: {record['error']}"
        else:
            launcher = record["launcher"]
            facts |= {
                "launcher_pid": launcher["pid"],
                "launcher_code": launcher["code"],
                "launcher_signal": launcher["signal"],
            }
            how = f"The launcher exited with code {launcher['code']}."
            if said := probe_words(folder):
                facts["probe_said"] = said
            if launcher["signal"] is not None:
                how = f"The launcher was killed by signal {launcher['signal']}."
        return TreeGone(how, took_s, facts | self._segments_removed(attempt, folder))

    def _segments_removed(self, attempt: int, folder: Path) -> dict[str, Json]:
        """Remove what the attempt's dead left in shared memory; return what to journal of it."""
        # Of the attempt before as well: what was a moment old then could not be told from others'.
        earlier = self._run.attempt_dir(attempt - 1)
        since_s = started_at(earlier) or started_at(folder)
        if self._run.accelerator is not Accelerator.CUDA or since_s is None:
            return {}
        removed = remove_stale_segments(since_s)
        facts: dict[str, Json] = {}
        if removed.names:
            facts["shm_removed"] = list(removed.names)
        if removed.unread:
            facts["shm_unread"] = list(removed.unread)
        return facts

    def descriptors(self) -> tuple[int, ...]:
        """Return what becomes readable when the keeper or a rank ends."""
        keeper = () if self.keeper is None else (self.keeper.pidfd,)
        return keeper if self.watch is None else (*keeper, *self.watch.descriptors())

    def observe(self, attempt: int) -> Iterator[Happening]:
        """Yield the attempt's news and, once its keeper has ended, its last words and its end."""
        if self.watch is not None:
            yield from self.watch.poll()
        if self.keeper is not None and self.keeper.ended:
            if self.watch is not None:
                yield from (*self.watch.poll(), *self.watch.drain())
            yield self.attempt_gone(attempt)

    def step(self) -> int | None:
        """Return the newest completed step of the living attempt, where it is known."""
        progress = None if self.watch is None else self.watch.last_progress
        return None if progress is None else progress.step

    # --- after an attempt -----------------------------------------------------------------------

    def gather(self, state: State) -> Happening:
        """Read the evidence of the ended attempt and diagnose it."""
        folder = self._run.attempt_dir(state.attempt)
        watch = self.watch or self._watch(state.attempt, launch.planned_world_size(folder))
        watch.poll()
        watch.drain()
        free_mib = self._preparation.free_mib()
        evidence, last_step = examine(
            self._run, state, watch, free_mib=free_mib, not_started=self._not_started
        )
        watch.close()
        self.watch, self._not_started = None, ""
        diagnosis = diagnose(evidence)
        facts: dict[str, Json] = {"last_step": last_step}
        if diagnosis.kind is Kind.HEALTHY:
            facts["ledger"] = ledger_facts(account_run(self._run.paths.run_dir).ledger)
        return Diagnosed(
            diagnosis,
            last_step,
            self._checkpoint_step(),
            need_mib=self._preparation.room_mib(free_mib),
            free_mib=free_mib,
            gpus=self._gpus_now(diagnosis),
            facts=facts,
        )

    def _gpus_now(self, diagnosis: Diagnosis) -> tuple[str, ...] | None:
        """Return the UUIDs of the GPUs that are there, asked only where it decides something."""
        if diagnosis.kind is not Kind.GPU_FAULT:
            return None
        return tuple(gpu.uuid for gpu in read_host(self._run.settings.worker.python).gpus)

    def _checkpoint_step(self) -> int:
        """Return the newest step whose checkpoint looks whole; its digests are read on resume."""
        try:
            found = choose.candidates(self._run.paths.checkpoint_dir)
        except OSError:
            return 0
        whole = (one.step for one in found if verify(one.path, digests=False).good)
        return next(whole, 0)

    def _watch(self, attempt: int, world_size: int) -> AttemptWatch:
        folder = self._run.attempt_dir(attempt)
        return AttemptWatch(folder, world_size, self._run.paths.checkpoint_dir, self._catalogue)


def _start(plan: LaunchPlan, run_dir: Path) -> launch.Keeper:
    """Start a plan without what systemd told the supervisor alone."""
    environ = {k: v for k, v in os.environ.items() if k not in UNSET_FOR_CHILDREN}
    return launch.start(plan, run_dir, environ)
