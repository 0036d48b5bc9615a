"""Faults on demand: off unless asked for, once a run, and as real as they can be made."""

import faulthandler
import os
import re
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import pytest
import torch

from humigence_supervise.contract import MANIFEST_FILE, checkpoint_name
from humigence_worker import fault_texts
from humigence_worker.faults import BALLAST_FILE, FaultPlan
from humigence_worker.settings import FaultName, FaultSetting, WorkerConfigError

N = FaultName


def plan(run_dir, *faults, rank=0):
    """Return the plan of one rank."""
    return FaultPlan(faults, run_dir, run_dir / "checkpoints", rank)


def markers(run_dir):
    """Return the names of the markers that were left."""
    return sorted(path.name for path in (run_dir / "faults").glob("*"))


class Child:
    """A forked process in which a function runs; its stderr goes to a file."""

    def __init__(self, folder, function):
        """Fork; the child ends with 0 when the function returns and 1 when it raises."""
        self.stderr_file = folder / "child.stderr"
        self.stderr_file.touch()
        self._status = None
        self.pid = os.fork()
        if self.pid:
            return
        code = 1
        try:
            faulthandler.disable()  # pytest's own, which would write into pytest's output
            os.dup2(os.open(self.stderr_file, os.O_WRONLY | os.O_APPEND), 2)
            sys.stderr = os.fdopen(2, "w", closefd=False)
            function()
            code = 0
        except BaseException:  # noqa: BLE001 - a child never returns into pytest
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def ended(self):
        """Return the exit code (negative for a signal), None while it lives."""
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = os.waitstatus_to_exitcode(status) if pid else None
        return self._status

    def wait(self):
        """Return the exit code once it has ended."""
        until(lambda: self.ended() is not None)
        return self._status

    def stderr(self):
        """Return what it wrote to stderr so far."""
        return self.stderr_file.read_text()


def until(fact, limit_s=20.0):
    """Wait for a fact."""
    deadline = time.monotonic() + limit_s
    while not fact():
        assert time.monotonic() < deadline, "the fact did not come true in time"
        time.sleep(0.005)


@pytest.fixture
def child(tmp_path):
    """Return a function that starts a child; what still lives at the end is killed."""
    children = []

    def start(function):
        children.append(Child(tmp_path, function))
        return children[-1]

    yield start
    for each in children:
        if each.ended() is None:
            os.kill(each.pid, signal.SIGKILL)
            each.wait()


# --- when a fault acts ---------------------------------------------------------------------------


def test_without_faults_nothing_happens(tmp_path):
    """Not a file is touched when the configuration asks for none."""
    for step in range(1, 5):
        plan(tmp_path).at_step(step)
    assert list(tmp_path.iterdir()) == []


def test_a_fault_acts_at_its_step_on_its_rank(tmp_path):
    """Other steps and other ranks pass; they leave no marker either."""
    fault = FaultSetting(N.EXCEPTION, step=3, rank=1)
    plan(tmp_path, fault, rank=0).at_step(3)
    there = plan(tmp_path, fault, rank=1)
    there.at_step(2)
    there.at_step(4)
    assert markers(tmp_path) == []
    with pytest.raises(ValueError, match="broadcast"):
        there.at_step(3)
    assert markers(tmp_path) == ["0-exception.fired"]


def test_a_fault_acts_once_in_the_whole_run(tmp_path):
    """A later attempt, which is another process with another plan, passes the same step."""
    fault = FaultSetting(N.EXCEPTION, step=3)
    with pytest.raises(ValueError, match="broadcast"):
        plan(tmp_path, fault).at_step(3)
    plan(tmp_path, fault).at_step(3)
    with pytest.raises(ValueError, match="broadcast"):
        plan(tmp_path / "another run", fault).at_step(3)


def test_any_rank_means_the_first_one(tmp_path):
    """With no rank given, whoever gets to the step first takes the fault for all."""
    fault = FaultSetting(N.EXCEPTION, step=3, rank=None)
    with pytest.raises(ValueError, match="broadcast"):
        plan(tmp_path, fault, rank=5).at_step(3)
    plan(tmp_path, fault, rank=0).at_step(3)


def test_the_same_fault_twice_acts_twice(tmp_path):
    """Faults are told apart by their place in the list."""
    faults = [FaultSetting(N.EXCEPTION, step=3), FaultSetting(N.EXCEPTION, step=3)]
    for _ in faults:
        with pytest.raises(ValueError, match="broadcast"):
            plan(tmp_path, *faults).at_step(3)
    plan(tmp_path, *faults).at_step(3)
    assert markers(tmp_path) == ["0-exception.fired", "1-exception.fired"]


def test_the_marker_is_there_before_the_fault_acts(tmp_path, child):
    """Even a process that is killed on the spot has left its marker."""
    run = child(lambda: plan(tmp_path, FaultSetting(N.SIGKILL, step=1)).at_step(1))
    assert run.wait() == -signal.SIGKILL
    assert markers(tmp_path) == ["0-sigkill.fired"]


def test_the_announcement_does_not_give_the_cause_away(tmp_path, capsys):
    """The log says that a drill runs; what kind of failure it is must be found out."""
    with pytest.raises(torch.OutOfMemoryError):
        plan(tmp_path, FaultSetting(N.CUDA_OOM, step=1)).at_step(1)
    said = capsys.readouterr().err
    assert "drill, rank 0: fault 0 of the configuration acts before step 1" in said
    assert "oom" not in said.lower()
    assert "memory" not in said


# --- what the faults do --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            N.NCCL_ERROR,
            ["NCCL error in: ", "ProcessGroupNCCL.cpp", "\nncclRemoteError: ", "\nLast"],
        ),
        (N.NCCL_INTERNAL, ["internal error", "\nncclInternalError: Internal check failed."]),
    ],
)
def test_nccl_errors_have_their_class_and_their_lines(tmp_path, name, words):
    """The exception is the one that c10d raises, its text has NCCL's lines."""
    with pytest.raises(torch.distributed.DistBackendError) as caught:
        plan(tmp_path, FaultSetting(name, step=1)).at_step(1)
    for word in words:
        assert word in str(caught.value)


def test_out_of_memory_has_its_class_and_its_sizes(tmp_path):
    """The sizes in the text add up: in use and free make the capacity."""
    with pytest.raises(torch.OutOfMemoryError) as caught:
        plan(tmp_path, FaultSetting(N.CUDA_OOM, step=1)).at_step(1)
    text = str(caught.value)
    assert text.startswith("CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has")
    capacity, free_mib, in_use = (
        float(re.search(pattern, text).group(1))
        for pattern in (r"capacity of (\S+) GiB", r"which (\S+) MiB", r"process has (\S+) GiB")
    )
    assert in_use + free_mib / 1024 == pytest.approx(capacity, abs=0.05)


def test_the_watchdog_prints_and_aborts(tmp_path, child):
    """The lines carry rank and stamp, and the process ends by SIGABRT."""
    run = child(lambda: plan(tmp_path, FaultSetting(N.NCCL_TIMEOUT, 1), rank=1).at_step(1))
    assert run.wait() == -signal.SIGABRT
    assert re.search(
        r"^\[rank1\]:\[E\d{4} \d\d:\d\d:\d\d\.\d{9} ProcessGroupNCCL\.cpp:\d+\] \[Rank 1\] "
        r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=",
        run.stderr(),
        re.MULTILINE,
    )
    assert "terminate called after throwing an instance of 'c10::DistBackendError'" in run.stderr()


def test_the_watchdog_stamp_is_the_time_given():
    """The stamp is month and day, time of day, and nanoseconds."""
    assert "[E0102 03:04:05.500000000 " in fault_texts.nccl_timeout(0, 97445.5)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        (N.SIGKILL, -signal.SIGKILL),
        (N.ABORT, -signal.SIGABRT),
        (N.SEGFAULT, -signal.SIGSEGV),
        (N.EXIT0, 0),
    ],
)
def test_a_process_ends_as_asked(tmp_path, child, name, code):
    """Signals are real signals, and a too early end looks like success; nothing comes after."""

    def function():
        plan(tmp_path, FaultSetting(name, step=1)).at_step(1)
        sys.stderr.write("still here")

    run = child(function)
    assert run.wait() == code
    assert "acts before step 1" in run.stderr()
    assert "still here" not in run.stderr()


def test_a_signal_handler_does_not_save_the_process(tmp_path, child):
    """Abort means abort, even where the process handles the signal."""

    def function():
        signal.signal(signal.SIGABRT, lambda *_: None)
        plan(tmp_path, FaultSetting(N.ABORT, step=1)).at_step(1)

    assert child(function).wait() == -signal.SIGABRT


def test_a_hang_outlives_a_polite_request(tmp_path, child):
    """Handlers run, but the process does not come back, as in a collective without its peer."""
    noted = tmp_path / "noted"

    def function():
        signal.signal(signal.SIGTERM, lambda *_: noted.touch())
        plan(tmp_path, FaultSetting(N.HANG, step=1)).at_step(1)

    run = child(function)
    until(lambda: "acts before" in run.stderr())
    os.kill(run.pid, signal.SIGTERM)
    until(noted.exists)
    assert run.ended() is None


def test_deaf_means_deaf_from_there_on(tmp_path, child):
    """SIGTERM ends the process before the step, and does nothing after it."""
    go_on = tmp_path / "go on"

    def function():
        plan(tmp_path, FaultSetting(N.DEAF, step=1)).at_step(1)
        sys.stderr.write("trains on\n")
        sys.stderr.flush()
        until(go_on.exists)

    run = child(function)
    until(lambda: "trains on" in run.stderr())
    os.kill(run.pid, signal.SIGTERM)
    go_on.touch()
    assert run.wait() == 0


# --- disks and checkpoints -----------------------------------------------------------------------


def test_filling_stops_at_its_limit(tmp_path, capsys):
    """A drill on a large disk writes no more than it may, and says that space is left."""
    fault = FaultSetting(N.FILL_DISK, step=1, folder=str(tmp_path), max_mib=3)
    plan(tmp_path, fault).at_step(1)
    assert (tmp_path / BALLAST_FILE).stat().st_size == 3 * 1024 * 1024
    assert "space is left" in capsys.readouterr().err


def test_filling_fills_to_the_last_byte(tmp_path):
    """On a small file system not one byte more can be written afterwards."""
    script = """
import sys
from pathlib import Path
from humigence_worker.faults import FaultPlan
from humigence_worker.settings import FaultName, FaultSetting
full = Path(sys.argv[1])
fault = FaultSetting(FaultName.FILL_DISK, step=1, folder=str(full), max_mib=64)
FaultPlan([fault], Path(sys.argv[2]), full, 0).at_step(1)
try:
    (full / "more").write_bytes(b"x")
except OSError as error:
    sys.exit(error.errno)
"""
    full = tmp_path / "full"
    full.mkdir()
    mount = f"mount -t tmpfs -o size=2100k tmpfs {full}"
    unshare = ["unshare", "--mount", "--map-root-user", "sh", "-c"]
    if subprocess.run([*unshare, mount], check=False, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here, even in an own namespace")
    command = f'{mount} && exec {sys.executable} -c "$0" {full} {tmp_path}'
    done = subprocess.run([*unshare, command, script], check=False, capture_output=True, text=True)
    assert done.returncode == 28, done.stderr  # ENOSPC
    assert "wrote 2 MiB" in done.stderr
    assert "no space is left" in done.stderr


def test_a_folder_to_fill_must_exist(tmp_path):
    """A drill creates no folder where somebody may have misspelled a mount point."""
    fault = FaultSetting(N.FILL_DISK, step=1, folder=str(tmp_path / "absent"))
    with pytest.raises(WorkerConfigError, match="absent"):
        plan(tmp_path, fault).at_step(1)


@pytest.fixture
def checkpoints(tmp_path):
    """Three checkpoint folders: two complete, a newer one without its manifest."""
    for step in (10, 100, 200):
        folder = tmp_path / "checkpoints" / checkpoint_name(step)
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(bytes(1000))
        (folder / "state.json").write_text("{}")
        if step < 200:
            (folder / MANIFEST_FILE).write_text("{}")
    return tmp_path / "checkpoints"


def contents(folder):
    """Return the bytes of every file below a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize(
    ("name", "damaged"),
    [
        (N.CORRUPT_TRUNCATE, bytes(500)),
        (N.CORRUPT_FLIP, bytes(500) + b"\1" + bytes(499)),
    ],
)
def test_only_the_newest_complete_checkpoint_is_damaged(
    tmp_path, child, checkpoints, name, damaged
):
    """The weights of the newest one change as told, nothing else does, and the process dies."""
    before = contents(checkpoints)
    run = child(lambda: plan(tmp_path, FaultSetting(name, step=1)).at_step(1))
    assert run.wait() == -signal.SIGKILL
    expected = before | {f"{checkpoint_name(100)}/model.safetensors": damaged}
    assert contents(checkpoints) == expected


def test_without_a_checkpoint_there_is_nothing_to_damage(tmp_path):
    """The configuration is told off, the process is not killed."""
    with pytest.raises(WorkerConfigError, match="no checkpoint"):
        plan(tmp_path, FaultSetting(N.CORRUPT_FLIP, step=1)).at_step(1)


def test_every_fault_has_a_test():
    """A fault that is added without a test here is noticed."""
    text = Path(__file__).read_text()
    assert [name for name in FaultName if f"N.{name.name}" not in text] == []
