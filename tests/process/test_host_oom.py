"""A real kill for memory by the kernel, in a real cgroup, around the whole supervisor.

Needs to be root on a machine whose memory controller may be used; skipped otherwise.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support import eventually, pids_marked

from humigence_supervise.contract import EXIT_GAVE_UP
from humigence_supervise.journal import read_journal
from humigence_supervise.observe.cgroup import NoCounterError, own_counter, read_kills
from humigence_supervise.observe.host_facts import in_first_pid_namespace
from humigence_supervise.observe.kernel_log import read_kernel
from humigence_supervise.records import Event, Record

LIMIT_MIB = 300
HUNGRY = """
held = []
while True:
    held.append(bytearray(b"x") * (16 << 20))
"""
KILLED = "import os; os.kill(os.getpid(), 9)"
# Enters the cgroup, then becomes the program: first argument its cgroup.procs.
ENTER = """
import os, sys
with open(sys.argv[1], "w") as procs:
    procs.write(str(os.getpid()))
os.execvp(sys.argv[2], sys.argv[2:])
"""
CLI = (sys.executable, "-m", "humigence_supervise.cli")
LIMITS = (
    {"memory.max": f"{LIMIT_MIB}M", "memory.swap.max": "0"},
    {"memory.limit_in_bytes": f"{LIMIT_MIB}M", "memory.memsw.limit_in_bytes": f"{LIMIT_MIB}M"},
)


def _limited(cgroup: Path) -> None:
    """Limit a cgroup's memory, in version 2 or 1; skip the test where that is refused."""
    for limits in LIMITS:
        if (cgroup / next(iter(limits))).exists():
            for name, value in limits.items():
                with suppress(FileNotFoundError):
                    (cgroup / name).write_text(value)
            return
    pytest.skip("cgroups made here have no memory controller")


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """Give a cgroup of its own with a limit; it is gone at the end, and nothing is left in it."""
    try:
        folder = own_counter().file.parent / f"test-{uuid.uuid4().hex[:8]}"
        folder.mkdir()
    except (NoCounterError, OSError) as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        _limited(folder)
        try:
            read_kills(own_counter_of(folder))
        except NoCounterError as error:
            pytest.skip(f"kills are not counted here: {error}")
        yield folder
    finally:
        for pid in (folder / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), 9)
        eventually(lambda: not (folder / "cgroup.procs").read_text(), "an empty cgroup")
        folder.rmdir()


def own_counter_of(folder: Path) -> Path:
    """Return a cgroup's counter in version 2 or 1."""
    names = (folder / "memory.events", folder / "memory.oom_control")
    return next((name for name in names if name.exists()), names[0])


class Box:
    """One run in a cgroup."""

    def __init__(self, folder: Path, cgroup: Path) -> None:
        """Lay the run out; nothing is started."""
        self.folder = folder
        self.cgroup = cgroup
        self.name = f"oom-{uuid.uuid4().hex[:8]}"
        self.journal = folder / "runs" / self.name / "journal.jsonl"

    def configure(self, program: str) -> Path:
        """Write worker and configuration; return the latter."""
        script = self.folder / "worker.py"
        script.write_text(program)
        config = self.folder / "config.json"
        document = {
            "name": self.name,
            "accelerator": "cpu",
            "worker": {"script": str(script), "preset": "torchrun"},
            "batch": {"global": 8, "micro": 8},
            "ladder": [{"name": "alone", "gpus": 1}],
            "policy": {"attempts_without_progress": 1, "backoff": {"first_s": 0.05, "factor": 1}},
        }
        config.write_text(json.dumps(document))
        return config

    def enter(self) -> tuple[str, ...]:
        """Return the words that run what stands behind them in the cgroup."""
        return (sys.executable, "-c", ENTER, str(self.cgroup / "cgroup.procs"))

    def run(self, program: str, *wrapper: str) -> tuple[int, Record]:
        """Supervise a worker in the cgroup; return the exit code and the first diagnosis."""
        argv = (*self.enter(), *wrapper, *CLI, "start", str(self.configure(program)))
        ended = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
        found = [one for one in self.events() if one.event is Event.DIAGNOSIS_MADE]
        assert found, ended.stderr
        return ended.returncode, found[0]

    def events(self) -> list[Record]:
        """Return the journal."""
        return [entry.record for entry in read_journal(self.journal)]

    def do(self, verb: str, *options: str) -> str:
        """Return what a reading verb prints."""
        argv = (*CLI, verb, *options)
        return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.fixture
def box(tmp_path: Path, cgroup: Path) -> Iterator[Box]:
    """A run in a cgroup; nothing of it is alive at the end."""
    made = Box(tmp_path, cgroup)
    yield made
    with suppress(OSError):
        left = pids_marked(str(made.events()[0].facts["run_id"]))
        assert not left, left


def log_is_ours() -> bool:
    """Tell whether the kernel's log is readable here and names pids as we see them."""
    try:
        read_kernel(-1, lambda _: False)
    except OSError:
        return False
    return in_first_pid_namespace()


@pytest.mark.skipif(not log_is_ours(), reason="the kernel's log may not be read here")
def test_the_kernels_record_of_the_rank_is_proof(box: Box) -> None:
    """The log names the rank's pid: certain, with the line, and the folder says so afterwards."""
    code, found = box.run(HUNGRY)
    facts = found.facts
    assert (facts["kind"], facts["confidence"], facts["rank"]) == ("host_oom", "certain", 0)
    assert code == EXIT_GAVE_UP
    root = facts["root"]
    assert isinstance(root, dict)
    assert root["file"] == "incident/kernel.log"
    pid = str(
        json.loads(next(box.folder.glob("runs/*/attempts/0001/exit.json")).read_text())["launcher"][
            "pid"
        ]
    )
    assert pid in str(root["text"])
    attempt = next(box.folder.glob("runs/*/attempts/0001"))
    again = json.loads(box.do("diagnose", str(attempt), "--json"))
    assert (again["kind"], again["confidence"], again["root"]["line"]) == (
        "host_oom",
        "certain",
        root["line"],
    )
    explained = box.do("explain", str(attempt.parents[1]))
    assert "incident/kernel.log" in explained
    assert "killed" in explained.lower()


@pytest.mark.parametrize("hidden", ["no permission", "other pids"])
def test_the_counter_and_a_sigkill_are_enough_where_the_log_tells_nothing(
    box: Box, hidden: str
) -> None:
    """Without the right to read the log, and in a container, whose pids the log does not name."""
    wrapper = {
        "no permission": ("setpriv", "--bounding-set=-syslog,-sys_admin", "--inh-caps=-all"),
        "other pids": ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child"),
    }[hidden]
    probe = subprocess.run((*wrapper, "true"), capture_output=True, check=False)
    if probe.returncode != 0:
        pytest.skip(f"not possible here: {probe.stderr.decode().strip()}")
    _, found = box.run(HUNGRY, *wrapper)
    facts = found.facts
    assert (facts["kind"], facts["confidence"], facts["rank"]) == ("host_oom", "likely", 0)
    assert "oom_kill" in str(facts["reason"])
    assert "kernel's log" in str(facts["unread"])
    explained = box.do("explain", str(next(box.folder.glob("runs/*"))))
    assert "not read    the kernel's log" in explained


def test_a_supervisor_that_came_later_knows_where_the_count_began(box: Box) -> None:
    """The one that started the attempt is killed; its successor runs in another cgroup."""
    gate = box.folder / "gate"
    waiting = f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)"
    config = box.configure(waiting + HUNGRY)
    start = (*CLI, "start", str(config))
    first = subprocess.Popen((*box.enter(), *start), stdout=subprocess.DEVNULL)

    def names() -> list[Event]:
        return [one.event for one in box.events()] if box.journal.exists() else []

    try:
        eventually(lambda: Event.ATTEMPT_STARTED in names(), "a started attempt")
    finally:
        first.kill()
        first.wait()
    second = subprocess.Popen(start, stdout=subprocess.DEVNULL)
    try:
        eventually(lambda: Event.ATTEMPT_ADOPTED in names(), "an adopted attempt")
    finally:
        gate.touch()
        second.wait(60)
    (found,) = [one.facts for one in box.events() if one.event is Event.DIAGNOSIS_MADE]
    assert found["kind"] == "host_oom"
    host = json.loads(next(box.folder.glob("runs/*/attempts/0001/incident/host.json")).read_text())
    assert host["oom_kills"] == 1


def test_a_kill_by_somebody_else_is_no_kill_for_memory(box: Box) -> None:
    """The same SIGKILL in the same cgroup, where the kernel killed nobody."""
    _, found = box.run(KILLED)
    assert found.facts["kind"] == "unknown"


def test_kills_of_another_time_or_cgroup_prove_nothing(box: Box) -> None:
    """A kill before the attempt, in the same cgroup, is not this rank's."""
    hungry = (*box.enter(), sys.executable, "-c", HUNGRY)
    before = subprocess.run(hungry, check=False, timeout=60)
    assert before.returncode == -9
    assert read_kills(own_counter_of(box.cgroup)) > 0
    _, found = box.run(KILLED)
    assert found.facts["kind"] == "unknown"
