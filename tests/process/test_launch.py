"""Starting, adopting, stopping an attempt through its keeper; sweeping when there is none."""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from support import FAST_PYTHON, PYTHON, eventually, pids_marked

from humigence_supervise import contract, launch, proc
from humigence_supervise.domain import Batch, Checkpoint, Gpu
from humigence_supervise.plan_file import public_value

SLEEP = "import signal; signal.pause()"
START_AND_DIE = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from support import Run
run = Run(Path(sys.argv[2]))
run.id = sys.argv[3]
run.start_python(sys.argv[4])
os.write(1, b"started")
os.kill(os.getpid(), 9)
"""
CHATTER = """
import os, time
open("chatter", "w").write(str(os.getpid()))
for n in range(1000):
    print(f"line {n}", flush=True)
    if n == 10:
        while not os.path.exists("go on"):
            time.sleep(0.005)
"""


def orphan(run, program: str) -> None:
    """Start an attempt from a supervisor of its own, which dies at once."""
    tests = Path(__file__).parents[1]
    answer = subprocess.run(
        [PYTHON, "-c", START_AND_DIE, tests, run.dir, run.id, program],
        stdout=subprocess.PIPE,
        check=False,
    )
    assert (answer.returncode, answer.stdout) == (-signal.SIGKILL, b"started")


def test_folders_and_public_plan(run):
    """The attempt's folders are there and plan.json tells all of the plan that may be told."""
    plan = replace(
        run.plan(*FAST_PYTHON, "-c", "pass", world_size=3, env={"WANDB_API_KEY": "s3cr3t"}),
        batch=Batch(8, 4, 2, 1),
        gpus=(Gpu(0, "GPU-1", "RTX", 32607, 32000),),
        resume_from=Checkpoint(run.dir / "c", 20, 160),
    )
    kept = launch.start(plan, run.dir, {})
    run.keepers.append(kept)
    run.ended(kept)
    folder = run.attempt_dir()
    assert sorted(p.name for p in (folder / "ranks").iterdir()) == ["0", "1", "2"]
    assert (folder / "progress").is_dir()
    assert (folder / "incident").is_dir()
    text = (folder / contract.PLAN_FILE).read_text()
    assert "s3cr3t" not in text
    said = json.loads(text)
    assert said["argv"] == list(plan.argv)
    assert (said["cwd"], said["grace_s"]) == (str(run.dir), 10.0)
    assert said["batch"] == {"global": 8, "micro": 4, "grad_accum": 2, "world_size": 1}
    assert said["gpus"] == [{"index": 0, "uuid": "GPU-1", "name": "RTX", "bus_id": ""}]
    assert said["resume_from"] == {"path": str(run.dir / "c"), "step": 20, "samples": 160}
    env = {change["name"]: change for change in said["env"]}
    assert env["WANDB_API_KEY"]["value"] == "<redacted>"
    assert env["HUMIGENCE_RUN_ID"]["value"] == run.id
    assert env["HUMIGENCE_RUN_ID"]["why"] == "test"


def test_environment_is_merged(run):
    """The plan's changes win over the supervisor's environment; unset variables are gone."""
    program = "import os; print(os.environ.get('A'), os.environ.get('B'), os.environ.get('C'))"
    environ = {"A": "inherited", "B": "inherited", "C": "inherited"}
    run.ended(run.start_python(program, environ=environ, env={"B": "plan"}, unset_env=("C",)))
    assert (run.attempt_dir() / contract.LAUNCHER_LOG).read_text() == "inherited plan None\n"


def test_secret_reaches_the_worker(run):
    """What plan.json hides the worker sees."""
    run.ended(run.start_python("import os; print(os.environ['X_TOKEN'])", env={"X_TOKEN": "abc"}))
    assert (run.attempt_dir() / contract.LAUNCHER_LOG).read_text() == "abc\n"


def test_handle_while_running_and_after(run):
    """A handle says alive, then ended; signals to an ended keeper are nothing; reaping is safe."""
    kept = run.start_python(SLEEP)
    assert not kept.ended
    kept.reap()
    kept.clear()
    run.ended(kept)
    assert kept.ended
    kept.stop()
    kept.clear()
    kept.reap()
    assert proc.start_ticks(kept.process.pid) is None


def test_output_outlives_the_supervisor_and_is_adopted(run):
    """The supervisor is killed: the attempt prints on with nobody reading, and is adopted."""
    orphan(run, CHATTER)
    run.said("line 10\n")
    adopted = launch.adopt(run.dir, 1)
    assert adopted is not None
    run.keepers.append(adopted)
    assert not adopted.ended
    (run.dir / "go on").touch()
    record = run.ended(adopted)
    assert record["launcher"]["code"] == 0
    lines = (run.attempt_dir() / contract.LAUNCHER_LOG).read_text().splitlines()
    assert lines == [f"line {n}" for n in range(1000)]
    assert launch.adopt(run.dir, 1) is None


def test_adopted_attempt_can_be_stopped(run):
    """An adopted keeper hears clear() like one's own."""
    orphan(run, SLEEP)
    adopted = launch.adopt(run.dir, 1)
    run.keepers.append(adopted)
    adopted.clear()
    assert run.ended(adopted)["stop"] == "kill"


@pytest.mark.parametrize(
    "change",
    [
        {"start_ticks": 1},
        {"boot_id": "00000000-0000-0000-0000-000000000000"},
        {"pid": None},
        "not JSON",
    ],
)
def test_adopt_is_not_fooled(run, change):
    """A reused pid, another boot, a damaged record: nobody is adopted, and nobody is hurt."""
    kept = run.start_python(SLEEP)
    path = run.attempt_dir() / contract.KEEPER_FILE
    record = json.loads(path.read_text())
    path.write_text(change if isinstance(change, str) else json.dumps({**record, **change}))
    assert launch.adopt(run.dir, 1) is None
    path.write_text(json.dumps(record))
    adopted = launch.adopt(run.dir, 1)
    assert adopted is not None
    assert adopted.process == kept.process
    adopted.close()
    kept.clear()
    run.ended(kept)


def test_adopt_needs_the_lock(run):
    """A keeper of a folder that was moved away holds no lock here, so it is not ours."""
    kept = run.start_python(SLEEP)
    lock = run.dir / contract.KEEPER_LOCK
    lock.rename(run.dir / "moved")
    assert launch.adopt(run.dir, 1) is None
    lock.touch()
    assert not launch.lock_held(run.dir)
    assert launch.adopt(run.dir, 1) is None
    (run.dir / "moved").rename(lock)
    assert launch.lock_held(run.dir)
    kept.clear()
    run.ended(kept)
    assert not launch.lock_held(run.dir)


def test_sweep_after_the_keeper_was_killed(run):
    """Keeper killed: the sweep ends what is marked and what that started, and nothing else."""
    program = (
        "import os, subprocess, signal\n"
        "quiet = subprocess.Popen(['/bin/sleep', '1000'], env={}, start_new_session=True)\n"
        "open('quiet', 'w').write(str(quiet.pid))\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if os.fork() == 0: os.setsid()\n"
        "open(f'me-{os.getpid()}', 'w')\n"
        "signal.pause()\n"
    )
    kept = run.start_python(program)
    eventually(lambda: len(list(run.dir.glob("me-*"))) == 2, "both processes")
    pids = [int(path.name[3:]) for path in run.dir.glob("me-*")]
    bystander = subprocess.Popen(
        ["/bin/sleep", "1000"],
        env={"HUMIGENCE_RUN_ID": run.id + "x", "HUMIGENCE_ATTEMPT": "1"},
    )
    try:
        os.kill(kept.process.pid, signal.SIGKILL)
        eventually(lambda: kept.ended, "the keeper is dead")
        assert launch.read_exit(run.attempt_dir()) is None
        assert not launch.lock_held(run.dir)
        assert launch.sweep(run.id, 2) == ()
        assert {process.pid for process in launch.members(run.id, 1)} >= set(pids)
        killed = launch.sweep(run.id, 1)
        assert set(killed) == {*pids, run.pid_from("quiet")}
        assert launch.members(run.id) == ()
        assert launch.sweep(run.id) == ()
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
    assert not any(proc.start_ticks(pid) and not proc.stat(pid).dead for pid in killed)


def test_sweep_spares_the_caller_and_its_shell(run):
    """Run from a shell that carries the run's environment, a sweep kills neither, but others."""
    program = (
        "import json, os, subprocess, sys; sys.path[:] = json.loads(sys.argv[1])\n"
        "from humigence_supervise.launch import sweep\n"
        "other = subprocess.Popen(['/bin/sleep', '1000'])\n"
        "print(sweep(os.environ['HUMIGENCE_RUN_ID']) == (other.pid,), other.wait(), flush=True)"
    )
    answer = subprocess.run(
        ["/bin/sh", "-c", '"$@"; echo alive', "sh", PYTHON, "-c", program, json.dumps(sys.path)],
        env={"HUMIGENCE_RUN_ID": run.id},
        stdout=subprocess.PIPE,
        check=True,
    )
    assert answer.stdout == b"True -9\nalive\n"


def test_used_attempt_is_refused(run):
    """An attempt's folder is used once, so an old exit.json can never be taken for a new one."""
    run.ended(run.start_python("pass"))
    with pytest.raises(launch.LaunchError, match="was started before"):
        run.start_python("pass")


def test_folder_that_cannot_be_made(run):
    """A file where the attempts' folder goes is named in one sentence."""
    (run.dir / "attempts").write_text("")
    with pytest.raises(launch.LaunchError, match=r"attempt 1 cannot be started: .*attempts"):
        run.start_python("pass")


def test_environment_the_kernel_refuses(run):
    """An environment too large for the kernel, or with a NUL, is a sentence, not a traceback."""
    for attempt, value in enumerate(("x" * (1 << 22), "a\0b"), start=1):
        with pytest.raises(launch.LaunchError, match=f"attempt {attempt} cannot be started"):
            run.start_python("pass", attempt=attempt, env={"BIG": value})
    assert pids_marked(run.id) == []


START_WITHIN_LIMITS = """
import json, os, resource, sys
sys.path[:] = json.loads(sys.argv[1])
from pathlib import Path
from support import Run
from humigence_supervise.launch import LaunchError
run = Run(Path(sys.argv[2]))
run.id = sys.argv[3]
limit, value = getattr(resource, sys.argv[4]), int(sys.argv[5])
resource.setrlimit(limit, (value, resource.getrlimit(limit)[1]))
if os.geteuid() == 0 and sys.argv[4] == "RLIMIT_NPROC":
    os.setuid(65534)
try:
    run.start_python("pass")
except LaunchError as error:
    print(error)
"""


def start_within_limits(run, python, limit, value):
    """Start an attempt from a process with a resource limit; return what that process printed."""
    paths = json.dumps([str(Path(__file__).parents[1]), *filter(None, sys.path)])
    answer = subprocess.run(
        [python, "-c", START_WITHIN_LIMITS, paths, run.dir, run.id, limit, str(value)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def test_descriptors_exhausted(run):
    """No descriptor to be had: one sentence, and nothing started."""
    said = start_within_limits(run, PYTHON, "RLIMIT_NOFILE", 4)
    assert said.startswith("attempt 1 cannot be started: ")
    assert "Too many open files" in said
    run.ended(run.start_python("pass"))


def test_fork_that_fails(run):
    """No process to be had: one sentence, and the same attempt can be started later."""
    python = PYTHON if os.geteuid() else python_for_nobody()
    if python is None:
        pytest.skip("no interpreter here that the user nobody, whom limits bind, can run")
    run.dir.chmod(0o777)
    for folder in run.dir.parents[:2]:
        folder.chmod(0o755)
    said = start_within_limits(run, python, "RLIMIT_NPROC", 0)
    assert said.startswith("attempt 1 cannot be started: ")
    assert "Resource temporarily unavailable" in said
    run.ended(run.start_python("pass"))


def python_for_nobody() -> str | None:
    """Return an interpreter that can import this package as the user nobody."""
    program = "import os, sys; os.setuid(65534); import humigence_supervise.launch"
    source = str(Path(launch.__file__).parents[1])
    for python in (PYTHON, "/usr/bin/python3"):
        environ = {**os.environ, "PYTHONPATH": source}
        with suppress(OSError):
            if (
                subprocess.run(
                    [python, "-c", program], env=environ, capture_output=True, check=False
                ).returncode
                == 0
            ):
                return python
    return None


def test_free_port_can_be_bound():
    """A free port is one that can be listened on, and two calls find room each."""
    for _ in range(2):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", launch.free_port()))


@pytest.mark.parametrize(
    ("plan", "ranks"),
    [
        ('{"world_size": 4}', 4),
        ('{"world_size": 0}', 1),
        ('{"world_size": 1000000000}', 1),
        ('{"world_size": "4"}', 1),
        ("[" * 100_000, 1),
        (None, 1),
    ],
)
def test_planned_world_size(tmp_path, plan, ranks):
    """The ranks stand in plan.json; where it tells no number to be believed there is one."""
    if plan is not None:
        (tmp_path / contract.PLAN_FILE).write_text(plan)
    assert launch.planned_world_size(tmp_path) == ranks


def test_fifos_in_place_of_records_hold_nobody(tmp_path):
    """Pipes for plan.json and exit.json are records that are not there."""
    for name in (contract.PLAN_FILE, contract.EXIT_FILE):
        os.mkfifo(tmp_path / name)
    assert launch.planned_world_size(tmp_path) == 1
    assert launch.read_exit(tmp_path) is None


def test_read_exit_of_nothing(tmp_path):
    """No exit.json, half of one, another kind of JSON: no answer rather than a wrong one."""
    assert launch.read_exit(tmp_path) is None
    for text in ("", '{"attempt": 1', "[]", "null", "{}"):
        (tmp_path / contract.EXIT_FILE).write_text(text)
        assert launch.read_exit(tmp_path) is None


def test_variable_names_that_hold_secrets():
    """Names with a secret's word are redacted; names that only contain its letters are not."""
    for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "DB_PASSWORD"):
        assert public_value(name, "v") == "<redacted>"
    for name in ("TOKENIZERS_PARALLELISM", "NCCL_DEBUG", "KEYBOARD", "PYTHONHASHSEED"):
        assert public_value(name, "v") == "v"
    shown = public_value("MLFLOW_TRACKING_URI", "https://me:pw@host/x")
    assert shown == "https://<redacted>@host/x"
