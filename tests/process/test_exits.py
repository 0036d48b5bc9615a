"""Seeing how ranks end without being their parent."""

import json
import os
import select
import signal
import subprocess
from pathlib import Path

import pytest
from support import FAST_PYTHON, RANK_ENTRY, eventually

from humigence_supervise import contract, proc
from humigence_supervise.domain import ExitStatus, ProcessId, RankExit
from humigence_supervise.observe.exits import RankWatch

PARENT = """
import json, os, sys, subprocess
ranks = [subprocess.Popen([sys.executable, "-I", "-S", "-c", program]) for program in sys.argv[1:]]
print(json.dumps([rank.pid for rank in ranks]), flush=True)
for line in sys.stdin:
    ranks[int(line)].wait()
    print("reaped", flush=True)
os._exit(0)
"""
WAIT = "import signal; signal.pause()"


class Family:
    """A parent that reaps its children only when told to, as the ranks' parent would."""

    def __init__(self, *programs: str) -> None:
        """Start the parent and one child for each Python program."""
        self.parent = subprocess.Popen(
            [*FAST_PYTHON, "-c", PARENT, *programs],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pids = json.loads(self.parent.stdout.readline())

    def reap(self, index: int) -> None:
        """Let the parent reap a child; return when it has."""
        self.parent.stdin.write(f"{index}\n")
        self.parent.stdin.flush()
        assert self.parent.stdout.readline() == "reaped\n"

    def close(self) -> None:
        """End everybody."""
        for pid in self.pids:
            identity = proc.identity(pid)
            if identity is not None:
                proc.send_signal(identity, signal.SIGKILL)
        self.parent.kill()
        self.parent.communicate()


@pytest.fixture
def family():
    """A maker of families, all of which are ended after the test."""
    made = []

    def make(*programs):
        made.append(Family(*programs))
        return made[-1]

    yield make
    for each in made:
        each.close()


def enter(attempt_dir, rank, pid, ticks=None):
    """Write the process file of a rank, as the doorway does."""
    folder = attempt_dir / contract.RANKS_DIR / str(rank)
    folder.mkdir(parents=True, exist_ok=True)
    said = {"rank": rank, "local_rank": rank, "pid": pid}
    said["start_ticks"] = proc.start_ticks(pid) if ticks is None else ticks
    (folder / contract.RANK_PROCESS_FILE).write_text(json.dumps(said))
    return folder


def readable(watch, within_s=60.0):
    """Wait until ranks have ended; return their descriptors."""
    return select.select(watch.fds, [], [], within_s)[0]


def watched_pids(watch):
    """Return the pids behind a watch's descriptors, sorted, as the kernel tells them."""
    pids = []
    for pidfd in watch.fds:
        lines = Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines()
        pids += [int(line.split()[1]) for line in lines if line.startswith("Pid:")]
    return sorted(pids)


def open_descriptors():
    """Return how many descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("raise SystemExit(0)", ExitStatus(code=0)),
        ("raise SystemExit(143)", ExitStatus(code=143)),
        ("import os; os.abort()", ExitStatus(signal=signal.SIGABRT)),
        ("import os; os.kill(os.getpid(), 9)", ExitStatus(signal=signal.SIGKILL)),
    ],
)
@pytest.mark.parametrize("reaped", [False, True])
def test_status_of_somebody_elses_child(tmp_path, family, program, status, reaped):
    """Code and signal are read from another's zombie; of a reaped one newer kernels still tell."""
    os.mkfifo(tmp_path / "gate")
    ranks = family(f"open({str(tmp_path / 'gate')!r}).read()\n{program}")
    enter(tmp_path, 0, ranks.pids[0])
    watch = RankWatch(tmp_path, 1)
    assert watch.discover() == ()
    (tmp_path / "gate").write_text("")
    ready = readable(watch)
    if reaped:
        ranks.reap(0)
    known = not reaped or kernel() >= (6, 15)
    assert watch.exits(ready) == (RankExit(0, ranks.pids[0], status if known else ExitStatus()),)
    assert watch.fds == ()


def kernel():
    """Return the kernel's version as (major, minor)."""
    return tuple(int(part) for part in os.uname().release.split(".")[:2])


def test_ranks_are_found_as_they_appear(tmp_path, family):
    """A rank without a process file, or with half of one, is looked for again."""
    ranks = family(WAIT, WAIT)
    watch = RankWatch(tmp_path, 2)
    assert watch.discover() == ()
    assert watch.fds == ()
    folder = enter(tmp_path, 1, ranks.pids[1])
    whole = (folder / contract.RANK_PROCESS_FILE).read_text()
    (folder / contract.RANK_PROCESS_FILE).write_text(whole[:20])
    watch.discover()
    assert watch.fds == ()
    assert "rank 1 cannot be watched" in watch.unread[0]
    (folder / contract.RANK_PROCESS_FILE).write_text(whole)
    watch.discover()
    assert watched_pids(watch) == [ranks.pids[1]]
    assert watch.unread == ()
    enter(tmp_path, 0, ranks.pids[0])
    watch.discover()
    watch.discover()
    assert watched_pids(watch) == sorted(ranks.pids)
    watch.close()
    assert proc.start_ticks(ranks.pids[0]) is not None


def test_the_right_rank_ends(tmp_path, family):
    """Of two ranks the one that was killed is told, and the other one is watched on."""
    ranks = family(WAIT, WAIT)
    for rank in range(2):
        enter(tmp_path, rank, ranks.pids[rank])
    watch = RankWatch(tmp_path, 2)
    watch.discover()
    os.kill(ranks.pids[1], signal.SIGSEGV)
    assert watch.exits(readable(watch)) == (
        RankExit(1, ranks.pids[1], ExitStatus(signal=signal.SIGSEGV)),
    )
    assert watched_pids(watch) == [ranks.pids[0]]
    assert readable(watch, within_s=0) == []
    watch.close()


def test_a_dead_rank_leaves_no_descriptor(tmp_path, family):
    """Rank after rank ends, or was gone before it was found: nothing stays open."""
    before = open_descriptors()
    for number in range(3):
        ranks = family(WAIT)
        with_parent = open_descriptors()
        enter(tmp_path / str(number), 0, ranks.pids[0])
        enter(tmp_path / str(number), 1, ranks.pids[0], ticks=1)
        watch = RankWatch(tmp_path / str(number), 2)
        watch.discover()
        assert open_descriptors() == with_parent + 1
        os.kill(ranks.pids[0], signal.SIGKILL)
        watch.exits(readable(watch))
        assert open_descriptors() == with_parent
        ranks.close()
    assert open_descriptors() == before


@pytest.mark.parametrize(
    "said",
    [
        {"pid": 10**30, "start_ticks": 1},
        {"pid": -1, "start_ticks": 1},
        {"pid": 1e400, "start_ticks": 1},
        {"pid": 1},
        [],
    ],
)
def test_a_process_file_that_names_nobody(tmp_path, said):
    """Numbers no process can have, or none at all, are told and end nobody's watch."""
    folder = tmp_path / contract.RANKS_DIR / "0"
    folder.mkdir(parents=True)
    (folder / contract.RANK_PROCESS_FILE).write_text(json.dumps(said))
    watch = RankWatch(tmp_path, 1)
    assert watch.discover() == ()
    assert "names no process" in watch.unread[0]


def test_fifos_in_place_of_a_ranks_files(tmp_path, family):
    """A pipe for process.json is unread; one for error.json means that there is no message."""
    ranks = family(WAIT)
    folder = enter(tmp_path, 0, ranks.pids[0])
    strange = tmp_path / contract.RANKS_DIR / "1"
    strange.mkdir()
    os.mkfifo(strange / contract.RANK_PROCESS_FILE)
    os.mkfifo(folder / contract.RANK_ERROR_FILE)
    watch = RankWatch(tmp_path, 2)
    watch.discover()
    assert "not a regular file" in watch.unread[0]
    os.kill(ranks.pids[0], signal.SIGKILL)
    (ended,) = watch.exits(readable(watch))
    assert (ended.error, ended.status.signal) == ("", signal.SIGKILL)


def test_reused_pid_is_not_watched(tmp_path, family):
    """A pid that started at another time is another process: the rank is gone, status unknown."""
    ranks = family(WAIT)
    enter(tmp_path, 0, ranks.pids[0], ticks=1)
    watch = RankWatch(tmp_path, 1)
    assert watch.discover() == (RankExit(0, ranks.pids[0], ExitStatus()),)
    assert watch.fds == ()
    assert watch.discover() == ()


def test_zombie_at_discovery_is_read(tmp_path, family):
    """A rank that ended before it was found, but is not reaped, still has its status."""
    ranks = family("raise SystemExit(5)")
    eventually(lambda: proc.stat(ranks.pids[0]).dead, "the rank ends")
    enter(tmp_path, 0, ranks.pids[0])
    watch = RankWatch(tmp_path, 1)
    assert watch.discover() == ()
    (ended,) = watch.exits(readable(watch))
    assert ended.status == ExitStatus(code=5)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({"message": {"message": "ValueError: no", "extraInfo": {}}}, "ValueError: no"),
        ({"message": "plain"}, "plain"),
        ({"else": 1}, ""),
        ([], ""),
    ],
)
def test_error_file_is_read(tmp_path, family, written, message):
    """The message of torchelastic's error file comes with the exit; a strange file is nothing."""
    ranks = family(WAIT)
    folder = enter(tmp_path, 0, ranks.pids[0])
    watch = RankWatch(tmp_path, 1)
    watch.discover()
    (folder / contract.RANK_ERROR_FILE).write_text(json.dumps(written))
    os.kill(ranks.pids[0], signal.SIGKILL)
    (ended,) = watch.exits(readable(watch))
    assert ended.error == message


def test_half_an_error_file_is_nothing(tmp_path, family):
    """A rank that died while it wrote its error file has no message."""
    ranks = family(WAIT)
    folder = enter(tmp_path, 0, ranks.pids[0])
    watch = RankWatch(tmp_path, 1)
    watch.discover()
    (folder / contract.RANK_ERROR_FILE).write_text('{"message": {"mess')
    os.kill(ranks.pids[0], signal.SIGKILL)
    (ended,) = watch.exits(readable(watch))
    assert (ended.error, ended.status.signal) == ("", signal.SIGKILL)


def test_doorway_and_watch_agree(run):
    """A rank of a real attempt is found by what its doorway wrote, and its signal is seen."""
    (run.dir / "rank.py").write_text(WAIT)
    kept = run.start(*FAST_PYTHON, str(RANK_ENTRY), "rank.py", env={"RANK": "0", "LOCAL_RANK": "0"})
    watch = RankWatch(run.attempt_dir(), 1)
    eventually(lambda: watch.discover() or watch.fds, "the rank")
    os.kill(watched_pids(watch)[0], signal.SIGBUS)
    (ended,) = watch.exits(readable(watch))
    assert ended.status.signal == signal.SIGBUS or kernel() < (6, 15)
    assert run.ended(kept)["launcher"]["signal"] == signal.SIGBUS


def test_stat_of_a_hostile_name(tmp_path):
    """A command name with blanks, parentheses and digits does not shift the fields."""
    evil = tmp_path / "a) R 1 (b"
    os.symlink("/bin/sleep", evil)  # noqa: PTH211
    process = subprocess.Popen([evil, "100"])
    try:
        found = proc.stat(process.pid)
        assert (found.pid, found.ppid) == (process.pid, os.getpid())
        assert proc.is_alive(ProcessId(process.pid, found.start_ticks))
        assert not proc.is_alive(ProcessId(process.pid, found.start_ticks + 1))
        process.kill()
        eventually(lambda: proc.stat(process.pid).dead, "the zombie")
        assert not proc.is_alive(ProcessId(process.pid, found.start_ticks))
        assert proc.stat(process.pid).exit_status == signal.SIGKILL
    finally:
        process.kill()
        process.wait()
    assert proc.stat(process.pid) is None
    assert proc.identity(process.pid) is None
