"""Run directories written by hand: a journal whose times are chosen, and progress files."""

import json
from datetime import UTC, datetime
from pathlib import Path

from humigence_supervise.actions import Append
from humigence_supervise.budgets import Policy
from humigence_supervise.contract import (
    ATTEMPTS_DIR,
    JOURNAL_FILE,
    PLAN_FILE,
    PROGRESS_DIR,
    ProgressLine,
    attempt_name,
    checkpoint_name,
)
from humigence_supervise.domain import (
    Batch,
    Checkpoint,
    Confidence,
    Diagnosis,
    ExitStatus,
    Hit,
    Kind,
    Launcher,
    LaunchPlan,
    ProcessId,
    Progress,
    RankExit,
    Remedy,
    Role,
    Rung,
    Section,
)
from humigence_supervise.happenings import (
    Begin,
    Context,
    Diagnosed,
    Happening,
    Launched,
    Prepared,
    ProgressMade,
    RankDied,
    TreeGone,
)
from humigence_supervise.journal import encode
from humigence_supervise.machine import step
from humigence_supervise.plan_file import public_plan
from humigence_supervise.records import Entry
from humigence_supervise.state import State
from humigence_supervise.way_up import Promoting

START_S = 1_780_000_000.0
"""When every hand-written run begins (Unix time); all times given below are seconds after it."""

RUNGS = (Rung("multi_gpu", "all", Launcher.TORCHRUN), Rung("single_gpu", 1, Launcher.PYTHON))
NCCL_TEXT = "torch.distributed.DistBackendError: NCCL error, remote process exited"


class Book:
    """A run directory that grows by what happens: each happening is stepped and journaled."""

    def __init__(self, run_dir: Path, name: str = "demo", rungs: tuple[Rung, ...] = RUNGS):
        """Begin the run at 0 s."""
        self.run_dir = run_dir
        self.name = name
        self.rungs = rungs
        self.state = State()
        self._seq = 0
        self.happen(0, Begin({"run_id": "r1"}))

    def happen(self, at_s: float, happening: Happening) -> None:
        """Let something happen to the run; journal what the machine appends."""
        context = Context(
            self.rungs,
            Policy(),
            Promoting(enabled=False),
            micro_samples=4,
            counts_from_scratch=True,
            now_s=START_S + at_s,
            chance=0.5,
        )
        self.state, actions = step(self.state, happening, context)
        records = [action.record for action in actions if isinstance(action, Append)]
        assert records, f"nothing was journaled of {happening}"
        with (self.run_dir / JOURNAL_FILE).open("ab") as journal:
            for record in records:
                self._seq += 1
                ts = datetime.fromtimestamp(START_S + at_s, UTC).isoformat(timespec="microseconds")
                stamp = ts.replace("+00:00", "Z")
                journal.write(encode(Entry(self._seq, stamp, 1, self.name, record)))

    def attempt(self, at_s: float, resume_step: int = 0) -> int:
        """Plan an attempt on the present rung and start it; return its number."""
        number, index = self.state.attempt + 1, self.state.rung_index
        world_size = 2 if self.rungs[index].launcher is Launcher.TORCHRUN else 1
        source = None
        if resume_step:
            path = self.run_dir / "checkpoints" / checkpoint_name(resume_step)
            source = Checkpoint(path, resume_step, resume_step * 8)
        plan = LaunchPlan(
            attempt=number,
            rung=self.rungs[index].name,
            rung_index=index,
            launcher=self.rungs[index].launcher,
            world_size=world_size,
            argv=("python", "train.py"),
            env=(),
            unset_env=(),
            cwd=self.run_dir,
            attempt_dir=self.folder(number),
            gpus=(),
            batch=Batch(8, 4, 2 // world_size, world_size),
            resume_from=source,
            grace_s=60.0,
        )
        self.folder(number).mkdir(parents=True)
        (self.folder(number) / PLAN_FILE).write_text(json.dumps(public_plan(plan)))
        self.happen(at_s, Prepared(plan))
        self.happen(at_s + 0.1, Launched(ProcessId(100 + number, 7), world_size, source))
        return number

    def folder(self, attempt: int) -> Path:
        """Return the folder of an attempt."""
        return self.run_dir / ATTEMPTS_DIR / attempt_name(attempt)

    def progress(
        self, attempt: int, steps: range, begin_s: float, *, step_s: float = 1.0, loss=None
    ) -> None:
        """Write the `init` line of an attempt at `begin_s` and one `train` line for each step."""
        folder = self.folder(attempt) / PROGRESS_DIR
        folder.mkdir(parents=True, exist_ok=True)
        lines = [_line(begin_s, steps.start - 1, None, "init")]
        for done, number in enumerate(steps, start=1):
            told = 5.0 / number if loss is None else loss(number)
            lines.append(_line(begin_s + done * step_s, number, told, "train"))
        for rank in range(2 if attempt == 1 else 1):
            (folder / f"{rank}.jsonl").write_text(
                "".join(json.dumps(line) + "\n" for line in lines)
            )

    def heartbeat(self, at_s: float, step_: int, loss: float | None = 2.5) -> None:
        """Journal a step of the running attempt, as the supervisor saw it."""
        told = Progress(0, START_S + at_s, step_, 0, 0, 0, loss, Section.TRAIN)
        self.happen(at_s, ProgressMade(told))

    def fails(
        self, at_s: float, last_step: int, diagnosis: Diagnosis, checkpoint_step: int
    ) -> None:
        """Let rank 1 die, the tree be cleared 1 s later and the diagnosis be made 1 s after."""
        self.happen(at_s, RankDied(RankExit(1, 77, ExitStatus(code=1))))
        self.happen(at_s + 1, TreeGone("", 1.0))
        self.happen(at_s + 2, Diagnosed(diagnosis, last_step, checkpoint_step, 1))

    def ends_well(self, at_s: float, last_step: int) -> None:
        """Let the launcher end with 0 and the run complete."""
        self.happen(at_s, TreeGone("The launcher exited with code 0.", 0.0))
        healthy = diagnosis_of(Kind.HEALTHY, "Nothing failed.", root=None)
        self.happen(at_s + 1, Diagnosed(healthy, last_step, last_step, 1))


def _line(at_s: float, step_: int, loss: float | None, section: str) -> ProgressLine:
    samples = [0, 0] if section == "init" else [(step_ - 1) * 8, step_ * 8]
    line = ProgressLine(
        ts=START_S + at_s, step=step_, epoch=0, samples=samples, loss=loss, section=section
    )
    return {**line, "target_step": 30} if section == "init" else line


def hit(kind: Kind, text: str, role: Role = Role.ROOT, rank: int = 1) -> Hit:
    """Return a matched line of a rank's log."""
    return Hit("nccl.remote_error", kind, role, rank, f"ranks/{rank}/stderr.log", 15, text)


def diagnosis_of(
    kind: Kind, reason: str, root: Hit | None, symptoms: tuple[Hit, ...] = ()
) -> Diagnosis:
    """Return a diagnosis with everything in it that an incident shows."""
    return Diagnosis(
        kind=kind,
        root=root,
        symptoms=symptoms,
        remedy=Remedy.NONE,
        reason=reason,
        advice="Look at the other rank.",
        confidence=Confidence.LIKELY,
        fingerprint=f"{kind.value}|x",
        rank=root.rank if root else None,
    )


def nccl_failure() -> Diagnosis:
    """Return the diagnosis of a rank that went away, with the other rank's symptom."""
    kind = Kind.NCCL_REMOTE
    symptom = hit(kind, "Connection closed by peer", Role.SYMPTOM, rank=0)
    return diagnosis_of(kind, "Another rank went away (rank 1).", hit(kind, NCCL_TEXT), (symptom,))


def fallen_back(run_dir: Path) -> Book:
    """Return a run of 30 steps that failed after step 19 and was finished on one rank.

    Attempt 1 trains from 10 to 29 s and dies at 40 s; attempt 2 goes on from step 10 at 43 s,
    trains from 50 to 70 s and ends at 75 s; the run is complete at 76 s.
    """
    book = Book(run_dir)
    book.progress(book.attempt(2), range(1, 20), 10)
    book.fails(40, 19, nccl_failure(), checkpoint_step=10)
    book.progress(book.attempt(43, resume_step=10), range(11, 31), 50)
    book.ends_well(75, 30)
    return book
