"""The whole supervisor around tiny real workers: it may die, its attempts may, nothing is lost."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from support import eventually, pids_marked

from humigence_supervise.contract import (
    EXIT_COMPLETED,
    EXIT_CONFIG,
    EXIT_GAVE_UP,
    EXIT_HOPELESS,
    EXIT_INTERNAL,
    EXIT_RUN_HELD,
    EXIT_SIGINT,
    EXIT_SIGTERM,
)
from humigence_supervise.journal import read_journal
from humigence_supervise.loop import TICK_S
from humigence_supervise.records import Event, Record
from humigence_supervise.run_lock import holder
from humigence_supervise.status import status_document

STEPPER = Path(__file__).parents[1] / "systemd" / "foreign_worker.py"
QUICK = {"first_s": 0.05, "factor": 1}
CLI = (sys.executable, "-m", "humigence_supervise.cli")


class Run:
    """A run of a tiny worker, and the supervisors started on it."""

    def __init__(self, folder: Path) -> None:
        """Lay the run out in `folder`; nothing is started."""
        self.folder = folder
        self.name = f"life-{uuid.uuid4().hex[:8]}"
        self.run_dir = folder / "runs" / self.name
        self.config = folder / "config.json"
        self.supervisors: list[subprocess.Popen[str]] = []

    def configure(self, script: Path, *args: str, **settings: object) -> None:
        """Write the configuration: one process on the CPU, quick retries."""
        document = {
            "name": self.name,
            "accelerator": "cpu",
            "worker": {"script": str(script), "args": list(args), "preset": "torchrun"},
            "batch": {"global": 8, "micro": 8},
            "ladder": [{"name": "alone", "gpus": 1}],
            "policy": {"backoff": {"first_s": 0.05, "factor": 1}},
            **settings,
        }
        self.config.write_text(json.dumps(document))

    def steps(self, target: int, step_s: float = 0.02, **settings: object) -> None:
        """Configure the worker that counts steps and saves every fifth."""
        self.configure(STEPPER, str(target), str(step_s), **settings)

    def start(self, *options: str) -> subprocess.Popen[str]:
        """Start a supervisor in the background."""
        argv = [*CLI, "start", str(self.config), *options]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.supervisors.append(process)
        return process

    def finish(self, process: subprocess.Popen[str] | None = None) -> tuple[int, str]:
        """Return exit code and standard error of a supervisor that ends by itself."""
        process = process or self.start()
        _, err = process.communicate(timeout=60)
        return process.returncode, err

    def do(self, verb: str, *options: str) -> subprocess.CompletedProcess[str]:
        """Run another verb on the run."""
        argv = [*CLI, verb, str(self.run_dir), *options]
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)

    def events(self) -> list[Record]:
        """Return the journal so far."""
        with suppress(FileNotFoundError):
            return [entry.record for entry in read_journal(self.run_dir / "journal.jsonl")]
        return []

    def names(self) -> list[str]:
        """Return what happened so far, as names."""
        return [record.event.value for record in self.events()]

    def executed(self) -> list[int]:
        """Return every step in the order it was executed, over all attempts."""
        files = sorted(self.run_dir.glob("attempts/*/progress/0.jsonl"))
        lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        return [line["step"] for line in lines if line["section"] == "train"]

    def at_step(self, step: int) -> None:
        """Wait until a step is done."""
        eventually(lambda: self.executed() and max(self.executed()) >= step, f"step {step}")

    def keeper_pid(self) -> int:
        """Return the keeper of the newest attempt."""
        newest = max(self.run_dir.glob("attempts/*/keeper.json"))
        return int(json.loads(newest.read_text())["pid"])

    def run_id(self) -> str:
        """Return the id that marks every process of the run."""
        return str(self.events()[0].facts["run_id"])


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """A run whose every process is gone at the end, also when the test fails."""
    made = Run(tmp_path)
    yield made
    for supervisor in made.supervisors:
        if supervisor.poll() is None:
            supervisor.kill()
        supervisor.communicate()
    left = pids_marked(made.run_id()) if made.events() else []
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert not left, left


def test_a_killed_supervisor_is_followed_by_one_that_adopts(run: Run) -> None:
    """SIGKILL of the supervisor stops no step; the next one goes on with the same attempt."""
    run.steps(400)
    first = run.start()
    run.at_step(10)
    first.kill()
    first.wait()
    run.at_step(20)
    assert status_document(run.run_dir)["state"] == "unsupervised"
    code, _ = run.finish()
    assert code == EXIT_COMPLETED
    assert "attempt.adopted" in run.names()
    assert run.names().count("attempt.started") == 1
    assert run.executed() == list(range(1, 401))


def test_an_attempt_that_ends_unsupervised_is_judged_later(run: Run) -> None:
    """What happened while no supervisor lived is read from its files: here, success."""
    run.steps(20)
    first = run.start()
    run.at_step(5)
    first.kill()
    first.wait()
    keeper = psutil.Process(run.keeper_pid())
    eventually(lambda: not keeper.is_running() or keeper.status() == "zombie", "the end")
    code, _ = run.finish()
    assert code == EXIT_COMPLETED
    assert run.names().count("attempt.planned") == 1


def test_a_killed_keeper_takes_its_attempt_along(run: Run) -> None:
    """Without its keeper the tree is found by its marks and cleared; the next attempt resumes."""
    run.steps(400)
    process = run.start()
    run.at_step(12)
    os.kill(run.keeper_pid(), signal.SIGKILL)
    code, _ = run.finish(process)
    assert code == EXIT_COMPLETED
    assert run.names().count("attempt.started") == 2
    resumed = [one for one in run.events() if one.event is Event.ATTEMPT_STARTED][1]
    assert resumed.facts["resume_step"] >= 10
    assert sorted(set(run.executed())) == list(range(1, 401))


def test_a_second_supervisor_is_refused(run: Run) -> None:
    """One run, one supervisor: 69 and the pid of the holder."""
    run.steps(2000)
    first = run.start()
    run.at_step(1)
    code, err = run.finish(run.start())
    assert code == EXIT_RUN_HELD
    assert f"pid {first.pid}" in err
    assert "Traceback" not in err
    code, err = run.finish(run.start("--fresh"))
    assert code == EXIT_RUN_HELD
    assert run.do("stop", "--now").returncode == 0
    assert run.finish(first)[0] == EXIT_SIGTERM


@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGTERM, EXIT_SIGTERM), (signal.SIGINT, EXIT_SIGINT)]
)
def test_a_stop_saves_first(run: Run, signum: signal.Signals, code: int) -> None:
    """The worker saves at its step; the next start goes on from exactly there."""
    run.steps(300)
    process = run.start()
    run.at_step(7)
    process.send_signal(signum)
    assert run.finish(process)[0] == code
    stopped = status_document(run.run_dir)
    assert stopped["state"] == "stopped"
    assert stopped["checkpoint"]["step"] == stopped["step"]
    assert run.finish()[0] == EXIT_COMPLETED
    assert run.executed() == list(range(1, 301))


def test_a_second_signal_does_not_wait(run: Run) -> None:
    """A worker that ignores SIGTERM is killed by the second one, long before its grace."""
    deaf = run.folder / "deaf.py"
    deaf.write_text(
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "open(os.environ['HUMIGENCE_RUN_DIR'] + '/up', 'w').close()\n"
        "time.sleep(600)\n"
    )
    run.configure(deaf, stop={"grace_s": 600})
    process = run.start()
    eventually((run.run_dir / "up").exists, "the worker")
    process.terminate()
    eventually(lambda: "run.stopping" in run.names(), "the stop")
    process.terminate()
    assert run.finish(process)[0] == EXIT_SIGTERM


def test_a_hang_up_and_a_closed_output_stop_nothing(run: Run) -> None:
    """The terminal goes away: the training does not."""
    run.steps(60)
    process = run.start()
    run.at_step(3)
    assert process.stdout is not None
    process.stdout.close()
    process.send_signal(signal.SIGHUP)
    run.at_step(30)
    process.wait(timeout=60)
    assert process.returncode == EXIT_COMPLETED


def test_a_detached_run_outlives_its_starter(run: Run) -> None:
    """`start --detach` returns once the run is held; `stop` ends it."""
    run.steps(5000)
    done = subprocess.run(
        [*CLI, "start", str(run.config), "--detach"], capture_output=True, text=True, check=True
    )
    supervisor = holder(run.run_dir)
    assert supervisor is not None
    assert f"pid {supervisor.pid}" in done.stdout
    run.at_step(2)
    assert run.do("stop").returncode == 0
    assert holder(run.run_dir) is None
    assert status_document(run.run_dir)["state"] == "stopped"


def test_a_damaged_newest_checkpoint_is_put_aside(run: Run) -> None:
    """One flipped bit: the checkpoint is quarantined and the one before it is used."""
    run.steps(300)
    process = run.start()
    run.at_step(11)
    process.terminate()
    run.finish(process)
    checkpoints = sorted((run.run_dir / "checkpoints").glob("step-*"))
    state = checkpoints[-1] / "state.txt"
    state.write_bytes(bytes([state.read_bytes()[0] ^ 1]) + state.read_bytes()[1:])
    assert run.finish()[0] == EXIT_COMPLETED
    (refused,) = [one for one in run.events() if one.event is Event.CHECKPOINT_REFUSED]
    assert checkpoints[-1].name in refused.message
    assert list((run.run_dir / "checkpoints" / "quarantine").glob("*/*/state.txt"))
    resumed = [one for one in run.events() if one.event is Event.ATTEMPT_STARTED][1]
    assert resumed.facts["resume_from"] == str(checkpoints[-2])
    assert sorted(set(run.executed())) == list(range(1, 301))


def test_a_run_without_any_good_checkpoint_does_not_begin_again(run: Run) -> None:
    """Every checkpoint damaged: nothing starts from scratch, nothing is moved, and it is said."""
    run.steps(300)
    process = run.start()
    run.at_step(11)
    process.terminate()
    run.finish(process)
    before = sorted((run.run_dir / "checkpoints").glob("step-*"))
    for checkpoint in before:
        (checkpoint / "state.txt").write_text("?")
    assert run.finish()[0] == EXIT_HOPELESS
    assert sorted((run.run_dir / "checkpoints").glob("step-*")) == before
    assert run.names().count("attempt.planned") == 1
    assert "checkpoints can be used" in run.events()[-1].message


def test_a_stop_survives_the_death_of_the_supervisor(run: Run) -> None:
    """Asked to stop, killed, started again (as systemd does): the run stops, and stays stopped."""
    slow = run.folder / "slow.py"
    slow.write_text(
        "import os, signal, sys, time\n"
        "home = os.environ['HUMIGENCE_RUN_DIR']\n"
        "def save(*_):\n"
        "    while not os.path.exists(home + '/saved'): time.sleep(0.01)\n"
        "    sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "open(home + '/up', 'w').close()\n"
        "while True: time.sleep(1)\n"
    )
    run.configure(slow, stop={"grace_s": 300})
    first = run.start()
    eventually((run.run_dir / "up").exists, "the worker")
    first.terminate()
    eventually(lambda: "run.stopping" in run.names(), "the stop")
    first.kill()
    first.wait()
    second = run.start()
    eventually(lambda: "attempt.adopted" in run.names(), "the adoption")
    (run.run_dir / "saved").touch()
    assert run.finish(second)[0] == EXIT_SIGTERM
    assert run.names().count("attempt.planned") == 1
    assert run.names()[-1] == "run.stopped"


def test_stop_ends_what_a_dying_supervisor_left(run: Run) -> None:
    """The supervisor is killed while `stop` waits for it: `stop` ends the attempt itself."""
    run.steps(100_000)
    process = run.start()
    run.at_step(2)
    process.send_signal(signal.SIGSTOP)
    stopping = subprocess.Popen([*CLI, "stop", str(run.run_dir)], stdout=subprocess.PIPE)
    pending = Path(f"/proc/{process.pid}/status")
    eventually(lambda: "ShdPnd:\t0000000000004000" in pending.read_text(), "SIGTERM is on its way")
    process.kill()
    assert stopping.wait(timeout=60) == 0
    stopping.communicate()
    assert not pids_marked(run.run_id())


def test_the_second_attempts_death_is_seen_at_once(run: Run) -> None:
    """Descriptors of the first attempt are used again by the second, and are watched again."""
    dies = run.folder / "dies.py"
    dies.write_text(
        "import json, os, signal\n"
        "line = {'ts': 0, 'step': int(os.environ['HUMIGENCE_ATTEMPT']), 'epoch': 0}\n"
        "line |= {'samples': [0, 1], 'loss': None, 'section': 'train'}\n"
        "path = os.environ['HUMIGENCE_PROGRESS_DIR'] + '/0.jsonl'\n"
        "open(path, 'w').write(json.dumps(line) + '\\n')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    run.configure(dies, policy={"retries": 3, "attempts_without_progress": 4, "backoff": QUICK})
    assert run.finish()[0] == EXIT_GAVE_UP
    lines = (run.run_dir / "journal.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    at_ns = {(e["event"], e["attempt"]): e["mono_ns"] for e in entries}
    lasted_s = [
        (at_ns["attempt.exited", n] - at_ns["attempt.started", n]) / 1e9 for n in range(1, 5)
    ]
    assert sorted(lasted_s)[1] < TICK_S / 2, lasted_s


def test_a_short_torchrun_job_that_succeeds_is_a_success(run: Run) -> None:
    """Ranks that were gone before anyone looked say nothing; the launcher's exit 0 does."""
    quick = run.folder / "quick.py"
    quick.write_text("print('done')\n")
    run.configure(quick, ladder=[{"name": "both", "gpus": 2}], batch={"global": 8, "micro": 4})
    assert run.finish()[0] == EXIT_COMPLETED, run.names()
    assert run.names().count("attempt.started") == 1


def test_a_reader_that_does_not_read_stops_nothing(run: Run) -> None:
    """Standard output is a full pipe: the run goes on, falls, retries and ends all the same."""
    run.configure(STEPPER, "100000", "0.01")
    receiver, sender = os.pipe()
    fcntl.fcntl(sender, fcntl.F_SETPIPE_SZ, 4096)
    os.write(sender, b"x" * 4000)
    process = subprocess.Popen([*CLI, "start", str(run.config)], stdout=sender, text=True)
    run.supervisors.append(process)
    os.close(sender)
    for attempt in (1, 2):
        eventually(
            lambda n=attempt: run.names().count("attempt.started") == n, f"attempt {attempt}"
        )
        run.at_step(10 * attempt)
        keeper = json.loads(
            (run.run_dir / "attempts" / f"{attempt:04d}" / "keeper.json").read_text()
        )
        os.kill(keeper["launcher_pid"], signal.SIGKILL)
    process.terminate()
    assert process.wait(timeout=60) == EXIT_SIGTERM
    os.close(receiver)


def test_a_detached_start_passes_the_refusal_on(run: Run) -> None:
    """What the supervisor in the background refuses is said and exited with in the foreground."""
    run.configure(run.folder / "missing.py")
    code, err = run.finish(run.start("--detach"))
    assert code == EXIT_CONFIG
    assert "missing.py" in err
    assert "Traceback" not in err


def test_ranks_without_supervisor_and_keeper_are_not_called_stopped(run: Run) -> None:
    """Both killed: the attempt is unsupervised until `stop` or a start ends it."""
    run.steps(100_000)
    process = run.start()
    run.at_step(2)
    process.kill()
    process.wait()
    os.kill(run.keeper_pid(), signal.SIGKILL)
    assert status_document(run.run_dir)["state"] == "unsupervised"
    assert run.do("stop").returncode == 0
    assert not pids_marked(run.run_id())


def test_a_run_whose_folder_was_moved_is_not_begun_again(run: Run) -> None:
    """The journal is gone from its place: the supervisor says so and starts nothing."""
    run.steps(100_000)
    process = run.start()
    run.at_step(3)
    run_id = run.run_id()
    moved = run.run_dir.rename(run.folder / "moved")
    code, err = run.finish(process)
    assert code == EXIT_INTERNAL
    assert "moved or deleted" in err
    assert not run.run_dir.exists()
    moved.rename(run.run_dir)
    assert run.do("stop").returncode == 0
    assert not pids_marked(run_id)


def test_standard_streams_may_be_closed(run: Run) -> None:
    """Started with stdin, stdout and stderr closed, the run completes."""
    run.steps(5)
    shell = 'exec "$@" <&- >&- 2>&-'
    done = subprocess.run(["sh", "-c", shell, "sh", *CLI, "start", str(run.config)], check=False)
    assert done.returncode == EXIT_COMPLETED


SCRIPTS = {
    "raise ValueError('the same every time')": (EXIT_HOPELESS, 1, "user_code"),
    "import os, signal; os.kill(os.getpid(), signal.SIGKILL)": (EXIT_GAVE_UP, 2, "unknown"),
    "import sys; sys.exit('train.py: error: unrecognized arguments: --x')": (
        EXIT_CONFIG,
        1,
        "config_error",
    ),
    "print('done')": (EXIT_COMPLETED, 1, "healthy"),
}


@pytest.mark.parametrize("code", SCRIPTS, ids=["raises", "killed", "usage", "fine"])
def test_a_foreign_script_without_progress(run: Run, code: str) -> None:
    """What is hopeless is tried once, what may pass again, and exit 0 is believed."""
    expected, attempts, kind = SCRIPTS[code]
    script = run.folder / "train.py"
    script.write_text(code + "\n")
    run.configure(script)
    assert run.finish()[0] == expected, run.names()
    assert run.names().count("attempt.started") == attempts
    diagnoses = [one for one in run.events() if one.event is Event.DIAGNOSIS_MADE]
    assert diagnoses[-1].facts["kind"] == kind


@pytest.mark.parametrize(
    ("success", "code"),
    [
        ({"target_step": 10}, EXIT_COMPLETED),
        ({"target_step": 50}, EXIT_HOPELESS),
        ({"marker": "no such words"}, EXIT_HOPELESS),
        ({"exit_code_only": True}, EXIT_COMPLETED),
    ],
    ids=["reached", "not-reached", "no-marker", "exit-code"],
)
def test_exit_zero_must_be_proven(run: Run, success: dict[str, object], code: int) -> None:
    """Exit 0 short of what the configuration asks for is premature, retried once, and said."""
    run.steps(10, success=success)
    assert run.finish()[0] == code, run.names()
    kinds = [one.facts["kind"] for one in run.events() if one.event is Event.DIAGNOSIS_MADE]
    assert kinds[-1] == ("healthy" if code == EXIT_COMPLETED else "premature_success")


def test_the_reading_verbs_read(run: Run) -> None:
    """Every reading verb answers about an ended run, as JSON and for people."""
    run.steps(12)
    assert run.finish()[0] == EXIT_COMPLETED
    journal = (run.run_dir / "journal.jsonl").read_text()
    assert run.do("events", "--json").stdout == journal
    assert "run.completed" in run.do("events").stdout
    assert json.loads(run.do("status", "--json").stdout)["samples_done"] == 96
    rows = json.loads(run.do("checkpoints", "--verify", "--json").stdout)
    assert [(row["step"], row["verdict"]) for row in rows[:2]] == [(12, "good"), (10, "good")]
    assert "0 lost, 0 repeated, 0 redone" in run.do("status").stdout
    assert run.do("logs").returncode == 0
    assert (run.run_dir / "report.html").read_text().lower().startswith("<!doctype html>")
    assert run.finish()[0] == EXIT_COMPLETED
    assert run.names().count("run.completed") == 1


def test_fresh_begins_anew_and_keeps_the_old(run: Run) -> None:
    """`--fresh` archives journal and checkpoints; nothing is deleted."""
    run.steps(12)
    assert run.finish()[0] == EXIT_COMPLETED
    old = (run.run_dir / "journal.jsonl").read_bytes()
    assert run.finish(run.start("--fresh"))[0] == EXIT_COMPLETED
    (archived,) = run.run_dir.glob("archive/*/journal.jsonl")
    assert archived.read_bytes() == old
    assert list(run.run_dir.glob("archive/*/checkpoints/step-*"))
    assert run.executed() == list(range(1, 13))


def test_fresh_leaves_checkpoints_on_their_own_disk(run: Run) -> None:
    """A checkpoint folder elsewhere may be a mount: it stays, its content is archived in it."""
    elsewhere = run.folder / "elsewhere"
    run.steps(12, checkpoints={"dir": str(elsewhere)})
    assert run.finish()[0] == EXIT_COMPLETED
    before = elsewhere.stat().st_ino
    assert run.finish(run.start("--fresh"))[0] == EXIT_COMPLETED
    assert elsewhere.stat().st_ino == before
    assert list(elsewhere.glob("archive/*/step-*"))
    assert run.executed() == list(range(1, 13))


def test_what_is_not_acted_on_is_said(run: Run) -> None:
    """A section that this version only reads is named at the start, others are not."""
    run.steps(5, notify=[{"command": ["true"]}], checkpoints={"keep": 2})
    assert run.finish()[0] == EXIT_COMPLETED
    begun = run.events()[0]
    assert begun.facts["not_acted_on"] == ["notify"]
    assert "notify" in begun.message
