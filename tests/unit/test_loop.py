"""The loop journals before it acts, checked on the journal's own file at the moment of the act."""

from __future__ import annotations

from pathlib import Path

import pytest

from humigence_supervise.actions import Prepare
from humigence_supervise.config import parse_settings
from humigence_supervise.contract import EXIT_CONFIG, JOURNAL_FILE
from humigence_supervise.domain import (
    Accelerator,
    Confidence,
    Diagnosis,
    Kind,
    LaunchPlan,
    Remedy,
    RunPaths,
)
from humigence_supervise.effects import Effects
from humigence_supervise.happenings import Diagnosed, Happening, NotLaunched, Prepared
from humigence_supervise.journal import open_journal, read_journal
from humigence_supervise.ladder import rungs
from humigence_supervise.loop import Loop
from humigence_supervise.run import Run
from humigence_supervise.state import State
from humigence_supervise.systemd import Notifier
from humigence_supervise.waiting import signals_awaited

CONFIG = b'{"name": "demo", "accelerator": "cpu", "worker": {"script": "train.py"}}'


class Hands(Effects):
    """Hands that do nothing, and note what the journal on disk said when they were asked to."""

    def __init__(self, run: Run, plan: LaunchPlan) -> None:
        """Answer `prepare` with `plan`."""
        self.run_dir = run.paths.run_dir
        self.plan = plan
        self.keeper = None
        self.watch = None
        self.journaled: dict[str, list[str]] = {}

    def _note(self, act: str) -> None:
        entries = read_journal(self.run_dir / JOURNAL_FILE)
        self.journaled[act] = [entry.record.event.value for entry in entries]

    def prepare(self, wanted: Prepare) -> Happening:
        """Note and answer."""
        del wanted
        self._note("prepare")
        return Prepared(self.plan)

    def launch(self, plan: LaunchPlan) -> Happening:
        """Note, and say that nothing could be started."""
        del plan
        self._note("launch")
        return NotLaunched("no")

    def gather(self, state: State) -> Happening:
        """Note, and diagnose a wrong configuration."""
        del state
        self._note("gather")
        found = Diagnosis(
            Kind.CONFIG_ERROR, None, (), Remedy.STOP_AND_TELL, "r", "a", Confidence.CERTAIN, "f"
        )
        return Diagnosed(found, last_step=0, checkpoint_step=0, need_mib=1)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run that nothing is started of."""
    settings = parse_settings(CONFIG, tmp_path / "config.json")
    paths = RunPaths("demo", "id", tmp_path, tmp_path / "checkpoints")
    return Run(settings, paths, rungs(settings), Accelerator.CPU, 2, 4)


def test_what_is_done_stands_in_the_journal_first(run: Run, tmp_path: Path) -> None:
    """The plan is on disk before it is launched, the end of the tree before evidence is read."""
    plan = LaunchPlan(
        attempt=1,
        rung="multi_gpu",
        rung_index=0,
        launcher=run.rungs[0].launcher,
        world_size=2,
        argv=("x",),
        env=(),
        unset_env=(),
        cwd=tmp_path,
        attempt_dir=tmp_path / "attempts" / "0001",
        gpus=(),
        batch=None,
        resume_from=None,
        grace_s=1.0,
    )
    journal, _ = open_journal(tmp_path / JOURNAL_FILE, "demo")
    hands = Hands(run, plan)
    told: list[str] = []
    with signals_awaited() as outside:
        loop = Loop(
            run,
            journal,
            State(),
            hands,
            outside,
            notifier=Notifier(),
            tell=lambda entry: told.append(entry.record.event.value),
        )
        assert loop.until_ended({"run_id": "id"}) == EXIT_CONFIG
    assert hands.journaled["prepare"] == ["run.started"]
    assert hands.journaled["launch"] == ["run.started", "attempt.planned"]
    assert hands.journaled["gather"][-2:] == ["attempt.exited", "tree.cleared"]
    assert told[-3:] == ["diagnosis.made", "decision.made", "run.failed"]
