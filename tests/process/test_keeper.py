"""The keeper: starts the launcher clean, hears signals, records the end, leaves nothing alive."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from support import FAST_PYTHON, eventually, pids_marked

from humigence_supervise import contract, keeper, launch, proc
from humigence_supervise.plan_file import public_plan

DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf'); signal.pause()"
POLITE = """
import os, signal, sys
def save(signum, frame):
    open(f"saved-{os.environ['RANK']}", "w").close()
    os._exit(143)
signal.signal(signal.SIGTERM, save)
open(f"ready-{os.environ['RANK']}", "w").write(str(os.getpid()))
while True:
    signal.pause()
"""
DEAF_RANKS = POLITE.replace("signal.SIGTERM, save", "signal.SIGTERM, signal.SIG_IGN")
DESERTERS = """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
os.fork() or (os.setsid(), open("session", "w").write(str(os.getpid())), signal.pause())
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        open("daemon", "w").write(str(os.getpid()))
        signal.pause()
    os._exit(0)
stopped = os.fork()
if stopped == 0:
    open("stopped", "w").write(str(os.getpid()))
    signal.pause()
while not all(os.path.exists(n) and open(n).read() for n in ("session", "daemon", "stopped")):
    pass
os.kill(stopped, signal.SIGSTOP)
print("all there")
"""
RELAYS = """
import os, sys, time
end = time.monotonic() + 20
open("relay", "w").write(str(os.getpid()))
for _ in range(3):
    os.fork()
while time.monotonic() < end:
    if os.fork():
        os._exit(0)
    os.setsid()
"""
"""It ends by itself: a test that fails must not leave behind what nobody can catch any more."""
BREEDER = """
import os, signal, time
end = time.monotonic() + 20
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def breed(depth):
    for _ in range(3):
        if os.fork() == 0:
            os.setsid()
            if depth:
                breed(depth - 1)
            while time.monotonic() < end:
                signal.sigtimedwait([signal.SIGCHLD], 0.02)
                if os.fork():
                    os._exit(0)
            os._exit(0)
breed(2)
open("bred", "w").write(str(os.getpid()))
signal.pause()
"""


def test_names_are_those_of_the_contract():
    """The plain file repeats names of the contract; none may differ."""
    for name in ("KEEPER_LOCK", "PLAN_FILE", "KEEPER_FILE", "EXIT_FILE", "LAUNCHER_LOG"):
        assert getattr(keeper, name) == getattr(contract, name)
    assert keeper.RANKS_DIR == contract.RANKS_DIR
    assert keeper.RANK_PROCESS_FILE == contract.RANK_PROCESS_FILE
    assert keeper.EXIT_LOCKED == contract.EXIT_RUN_HELD


def test_exit_code_is_recorded(run):
    """A launcher that ends by itself is recorded with its code, as reaped, and not as stopped."""
    record = run.ended(run.start_python("raise SystemExit(7)"))
    assert record["launcher"]["code"] == 7
    assert record["launcher"]["signal"] is None
    assert record["reaped"] == [record["launcher"]]
    assert (record["stop"], record["error"], record["survivors"]) == ("none", None, [])
    assert set(record) == contract.ExitRecord.__required_keys__


def test_signal_is_recorded(run):
    """A launcher killed by a signal is recorded with the signal and no code."""
    record = run.ended(run.start_python("import os; os.abort()"))
    assert (record["launcher"]["code"], record["launcher"]["signal"]) == (None, signal.SIGABRT)


def test_keeper_file_names_keeper_and_launcher(run):
    """keeper.json identifies both processes of this boot while they live."""
    kept = run.start_python("import signal; signal.pause()")
    record = json.loads((run.attempt_dir() / contract.KEEPER_FILE).read_text())
    assert set(record) == contract.KeeperRecord.__required_keys__
    assert (record["pid"], record["start_ticks"]) == (kept.process.pid, kept.process.start_ticks)
    assert record["boot_id"] == proc.boot_id()
    assert record["launcher_start_ticks"] == proc.start_ticks(record["launcher_pid"])
    assert proc.stat(record["launcher_pid"]).ppid == kept.process.pid
    kept.clear()
    run.ended(kept)


def test_launcher_starts_clean(run):
    """The launcher has its own session, /dev/null, the log, default signals and exactly the env."""
    program = (
        "import os, json; print(json.dumps(["
        "os.getsid(0) == os.getpid(), *(os.readlink(f'/proc/self/fd/{n}') for n in range(3)),"
        "len(os.listdir('/proc/self/fd')), os.getcwd(),"
        "open('/proc/self/oom_score_adj').read().strip(),"
        "[l for l in open('/proc/self/status') if l.startswith(('SigBlk', 'SigCgt', 'SigIgn'))],"
        "open('/proc/self/environ').read()]))"
    )
    own_score = Path("/proc/self/oom_score_adj").read_text()
    environ = {"KEPT": "a b=c", "GONE": "x"}
    cwd = run.dir / "elsewhere"
    cwd.mkdir()
    plan = {"cwd": cwd, "unset_env": ("GONE",), "environ": environ}
    leak = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(leak, True)  # noqa: FBT003 - it takes no keywords
    try:
        record = run.ended(run.start(*FAST_PYTHON, "-c", program, **plan))
    finally:
        os.close(leak)
    assert record["launcher"]["code"] == 0
    log = str(run.attempt_dir() / contract.LAUNCHER_LOG)
    leads, stdin, stdout, stderr, fds, folder, score, masks, env = json.loads(Path(log).read_text())
    assert leads
    assert (stdin, stdout, stderr) == ("/dev/null", log, log)
    assert fds == 4  # the three and the listing's own
    assert folder == str(cwd)
    assert int(score) == max(0, int(own_score))
    # Python itself ignores SIGPIPE and SIGXFSZ and catches SIGINT; 32 and 33 are glibc's own.
    blocked, ignored, caught = (int(line.split()[1], 16) for line in masks)
    assert blocked == 0
    assert ignored & 0x7FFFFFFF == 1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1
    assert caught == 1 << signal.SIGINT - 1
    given = dict(pair.partition("=")[::2] for pair in env.split("\0") if pair)
    assert given.pop("KEPT") == "a b=c"
    assert given.pop("HUMIGENCE_RUN_ID") == run.id
    assert set(given) == {"HUMIGENCE_RUN_DIR", "HUMIGENCE_ATTEMPT", "HUMIGENCE_ATTEMPT_DIR"}


def test_deserters_die(run):
    """Own session, double fork, SIGSTOP: all of it is dead when exit.json says cleared."""
    kept = run.start_python(DESERTERS)
    pids = {name: run.pid_from(name) for name in ("session", "daemon", "stopped")}
    record = run.ended(kept)
    assert record["launcher"]["code"] == 0
    killed = {r["pid"] for r in record["reaped"] if r["signal"] == signal.SIGKILL}
    assert set(pids.values()) <= killed


def test_clear_kills_at_once(run):
    """SIGUSR2 ends a deaf launcher and its deaf ranks within a second, and says kill."""
    kept = run.start_ranks(DEAF_RANKS)
    pids = [run.pid_from(f"ready-{rank}") for rank in range(2)]
    begun = time.monotonic()
    kept.clear()
    record = run.ended(kept, within_s=1.0)
    assert time.monotonic() - begun < 1.0
    assert record["stop"] == "kill"
    assert not any(proc.start_ticks(pid) for pid in pids)


def test_relays_of_forks_die(run):
    """Eight chains that fork and exit all the time, never the same pid twice, are caught."""
    kept = run.start_python(RELAYS)
    run.pid_from("relay")
    record = run.ended(kept, within_s=10.0)
    assert signal.SIGKILL in {reaped["signal"] for reaped in record["reaped"]}


@pytest.mark.parametrize("how", ["launcher ends", "clear"])
def test_breeding_grandchildren_die(run, how):
    """Forty processes in own sessions that keep forking are all killed."""
    kept = run.start_python(BREEDER)
    pid = run.pid_from("bred")
    os.kill(pid, signal.SIGKILL) if how == "launcher ends" else kept.clear()
    assert run.ended(kept, within_s=10.0)["cleared"]


def test_deaf_launcher_gets_its_grace_and_no_more(run):
    """SIGTERM ignored: the launcher lives for the grace and is then killed."""
    kept = run.start_python(DEAF, grace_s=0.5)
    run.said("deaf")
    begun = time.monotonic()
    kept.stop()
    record = run.ended(kept)
    assert 0.5 <= time.monotonic() - begun < 2.0
    assert (record["stop"], record["launcher"]["signal"]) == ("graceful", signal.SIGKILL)


def test_graceful_stop_lets_ranks_save(run):
    """SIGTERM reaches the ranks through the launcher; they save, and the keeper waits for it."""
    kept = run.start_ranks(POLITE)
    for rank in range(2):
        run.pid_from(f"ready-{rank}")
    kept.stop()
    record = run.ended(kept)
    assert (record["stop"], record["launcher"]["code"]) == ("graceful", 1)
    assert {f"saved-{rank}" for rank in range(2)} <= {path.name for path in run.dir.iterdir()}


def test_single_rank_stops_with_143(run):
    """Where the launcher is the rank itself, its 143 is the launcher's, with its rank."""
    (run.dir / "rank.py").write_text(POLITE)
    env = {"RANK": "0", "LOCAL_RANK": "0"}
    entry = str(launch.RANK_ENTRY_PROGRAM)
    kept = run.start(*FAST_PYTHON, entry, str(run.dir / "rank.py"), env=env)
    pid = run.pid_from("ready-0")
    kept.stop()
    launcher = run.ended(kept)["launcher"]
    assert (launcher["pid"], launcher["rank"], launcher["code"]) == (pid, 0, 143)


def test_a_second_sigterm_changes_nothing(run):
    """A supervisor that takes over asks again: whoever saves meanwhile keeps its grace."""
    kept = run.start_python(DEAF, grace_s=1.0)
    run.said("deaf")
    kept.stop()
    eventually(lambda: sleeps_after_signal(kept.process.pid), "the keeper waits again")
    kept.stop()
    assert run.ended(kept)["stop"] == "graceful"


def sleeps_after_signal(pid: int) -> bool:
    """Tell whether no signal is pending for a process and it sleeps."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return fields["State"].startswith("S") and int(fields["ShdPnd"], 16) == 0


def test_launcher_killed_lets_healthy_ranks_save(run):
    """Ranks that lose their launcher get SIGTERM and time; the keeper reaps them by rank."""
    kept = run.start_ranks(POLITE)
    pids = [run.pid_from(f"ready-{rank}") for rank in range(2)]
    os.kill(launcher_of(run), signal.SIGKILL)
    record = run.ended(kept)
    assert record["launcher"]["signal"] == signal.SIGKILL
    assert record["stop"] == "none"
    ranks = {r["rank"]: (r["pid"], r["code"]) for r in record["reaped"] if r["rank"] is not None}
    assert ranks == {0: (pids[0], 143), 1: (pids[1], 143)}
    assert {f"saved-{rank}" for rank in range(2)} <= {path.name for path in run.dir.iterdir()}


def test_launcher_killed_and_ranks_deaf(run):
    """Deaf ranks that lose their launcher live for the grace at most."""
    kept = run.start_ranks(DEAF_RANKS, grace_s=0.4)
    for rank in range(2):
        run.pid_from(f"ready-{rank}")
    begun = time.monotonic()
    os.kill(launcher_of(run), signal.SIGKILL)
    record = run.ended(kept)
    assert 0.4 <= time.monotonic() - begun < 2.0
    assert {(r["rank"], r["signal"]) for r in record["reaped"]} == {(None, 9), (0, 9), (1, 9)}


def launcher_of(run) -> int:
    """Return the launcher's pid of a run's first attempt."""
    record = json.loads((run.attempt_dir() / contract.KEEPER_FILE).read_text())
    return record["launcher_pid"]


def test_reused_pid_is_no_rank(run):
    """A process.json whose start time is not that of the pid names no rank."""
    folder = run.attempt_dir() / contract.RANKS_DIR / "0"
    program = (
        f"import os, json; out = open({str(folder / 'process.json')!r}, 'w');"
        "json.dump(dict(rank=0, local_rank=0, pid=os.getpid(), start_ticks=1), out)"
    )
    record = run.ended(run.start_python(program))
    assert record["launcher"]["code"] == 0
    assert record["launcher"]["rank"] is None


def test_keeper_is_deaf_to_the_terminal(run):
    """SIGHUP, SIGINT and SIGPIPE neither end the keeper nor stop the attempt."""
    kept = run.start_python("import signal; signal.pause()")
    for signum in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
        os.kill(kept.process.pid, signum)
    eventually(lambda: sleeps_after_signal(kept.process.pid), "the keeper took the signals")
    assert proc.is_alive(kept.process)
    kept.clear()
    assert run.ended(kept)["launcher"]["signal"] == signal.SIGKILL


def test_waiting_costs_nothing(run):
    """While the launcher runs the keeper sleeps: not one more switch into it."""
    kept = run.start_python("import signal; signal.pause()")
    eventually(lambda: sleeps_after_signal(kept.process.pid), "the keeper waits")
    before = switches(kept.process.pid)
    deadline = time.monotonic() + 0.5
    eventually(lambda: time.monotonic() > deadline, "half a second")
    assert switches(kept.process.pid) == before
    kept.clear()
    run.ended(kept)


def switches(pid: int) -> list[str]:
    """Return the lines of /proc that count how often a process was switched to."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return [line for line in lines if "ctxt_switches" in line]


def test_launcher_that_cannot_start(run):
    """What is missing is named: the program, its interpreter, a permission, the folder."""
    script = run.dir / "script"
    script.write_text("#!/no/such/interpreter\n")
    plain = run.dir / "plain"
    plain.write_text("not a program")
    script.chmod(0o755)
    cases = (
        (("/no/such/python",), run.dir, "/no/such/python cannot be executed: No such file"),
        ((str(script),), run.dir, f"{script} cannot be executed: No such file or directory (the"),
        ((str(plain),), run.dir, f"{plain} cannot be executed: Permission denied"),
        (("/bin/true",), run.dir / "gone", f"{run.dir / 'gone'} cannot be entered: No such file"),
        (("/bin/true",), plain, f"{plain} cannot be entered: Not a directory"),
    )
    for attempt, (argv, cwd, words) in enumerate(cases, start=1):
        record = run.ended(run.start(*argv, attempt=attempt, cwd=cwd))
        assert words in record["error"]
        assert (record["launcher"], record["reaped"]) == (None, [])


@pytest.mark.parametrize("score", [-500, 0, 300])
def test_protection_from_memory_kills_ends_at_the_keeper(run, score):
    """A keeper protected from the OOM killer starts a launcher that is not."""
    program = "import sys; sys.stdout.write(open('/proc/self/oom_score_adj').read())"
    plan = planned(run.plan(*FAST_PYTHON, "-c", program))
    guard = 'echo $0 > /proc/self/oom_score_adj || exit 99; exec "$@"'
    command = ["/bin/sh", "-c", guard, str(score), *FAST_PYTHON, keeper.__file__, plan.attempt_dir]
    code = subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode
    if code == 99:
        pytest.skip("this score may not be set here")
    assert code == 0
    assert int((plan.attempt_dir / contract.LAUNCHER_LOG).read_text()) == max(0, score)


def test_inherited_descriptors_end_at_the_keeper(run):
    """Even one above the limit, which was lowered since it was opened, is closed."""
    plan = planned(run.plan(*FAST_PYTHON, "-c", "import signal; signal.pause()"))
    limit_and_run = (
        "import os, resource, sys; os.dup2(0, 200, inheritable=True);"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)); os.execv(sys.argv[1], sys.argv[1:])"
    )
    command = [*FAST_PYTHON, "-c", limit_and_run, *FAST_PYTHON, keeper.__file__, plan.attempt_dir]
    environ = {change.name: change.value for change in plan.env}
    started = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environ)
    try:
        record = eventually(lambda: launch_record(run), "the launcher")
        for pid in (started.pid, record["launcher_pid"]):
            assert not Path(f"/proc/{pid}/fd/200").is_symlink()
    finally:
        started.send_signal(signal.SIGUSR2)
        assert started.wait(timeout=60) == 0


def launch_record(run):
    """Return the first attempt's keeper.json once it names the launcher."""
    path = run.attempt_dir() / contract.KEEPER_FILE
    record = json.loads(path.read_text()) if path.exists() else {}
    return record if record.get("launcher_pid") else None


def planned(plan):
    """Write a plan as `launch.start` does; return it."""
    plan.attempt_dir.mkdir(parents=True)
    (plan.attempt_dir / contract.PLAN_FILE).write_text(json.dumps(public_plan(plan)))
    return plan


def test_saving_ranks_are_not_told_twice(run):
    """In a graceful stop whose launcher ends first, a saving rank gets no second SIGTERM."""
    program = (
        "import os, select, signal, sys, time\n"
        "rank = os.environ['RANK']\n"
        "signal.signal(signal.SIGTERM, lambda *_: os.write(out, b'T'))\n"
        "out = os.open(f'told-{rank}', os.O_WRONLY | os.O_CREAT | os.O_APPEND)\n"
        "open(f'ready-{rank}', 'w').write(str(os.getpid()))\n"
        "while not os.fstat(out).st_size: signal.sigtimedwait([], 0.01)\n"
        "end = time.monotonic() + 0.5\n"
        "while time.monotonic() < end: signal.sigtimedwait([], 0.01)\n"
        "os.write(out, b' saved')\n"
        "os._exit(143)\n"
    )
    kept = run.start_ranks(program)
    pids = [run.pid_from(f"ready-{rank}") for rank in range(2)]
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    for rank in range(2):
        eventually((run.dir / f"told-{rank}").read_text, "the rank's SIGTERM")
    os.kill(launcher_of(run), signal.SIGSTOP)  # its own SIGTERM waits: it may not hand it on
    kept.stop()
    eventually(lambda: sleeps_after_signal(kept.process.pid), "the keeper took the signal")
    os.kill(launcher_of(run), signal.SIGKILL)
    assert run.ended(kept)["stop"] == "graceful"
    assert [(run.dir / f"told-{rank}").read_text() for rank in range(2)] == ["T saved", "T saved"]


def test_a_fifo_in_place_of_a_ranks_record_holds_nobody(run):
    """The keeper clears an attempt whose process.json is a pipe nobody writes to."""
    kept = run.start_python("import signal; signal.pause()", world_size=1)
    os.mkfifo(run.attempt_dir() / contract.RANKS_DIR / "0" / contract.RANK_PROCESS_FILE)
    kept.clear()
    assert run.ended(kept, within_s=10.0)["stop"] == "kill"


@pytest.mark.parametrize("held_s", [0.3, None])
def test_a_look_at_the_lock_is_no_other_keeper(run, held_s):
    """Held shared for a moment the lock is waited for; held for long, the keeper refuses."""
    holding = (
        "import fcntl, os, select, sys; lock = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT);"
        "fcntl.flock(lock, fcntl.LOCK_SH); print('held', flush=True);"
        "select.select([0], [], [], float(sys.argv[2]))"
    )
    lock = run.dir / contract.KEEPER_LOCK
    command = [*FAST_PYTHON, "-c", holding, lock, str(held_s or 60)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as looker:
        assert looker.stdout.readline() == b"held\n"
        if held_s is None:
            with pytest.raises(launch.LaunchError, match="another keeper holds"):
                run.start_python("pass")
        else:
            run.ended(run.start_python("pass"))
        looker.kill()


def test_second_keeper_refuses(run):
    """While one keeper holds the run another one starts nothing and says why."""
    kept = run.start_python("import signal; signal.pause()")
    with pytest.raises(launch.LaunchError, match="another keeper holds"):
        run.start_python("open('second', 'w')", attempt=2)
    assert not (run.dir / "second").exists()
    kept.clear()
    run.ended(kept)
    run.ended(run.start_python("open('third', 'w')", attempt=3))
    assert (run.dir / "third").exists()


def test_keeper_by_hand_refuses_clearly(run):
    """No argument, no plan, a broken plan: a sentence and 64, no traceback."""
    run.attempt_dir().mkdir(parents=True)
    broken = run.attempt_dir(2)
    broken.mkdir()
    (broken / "plan.json").write_text('{"attempt": 2')
    for arguments in ((), (run.attempt_dir(),), (broken,)):
        answer = subprocess.run(
            [*FAST_PYTHON, keeper.__file__, *arguments], capture_output=True, text=True, check=False
        )
        assert answer.returncode == keeper.EXIT_BAD_PLAN
        assert answer.stderr.startswith("humigence-supervise: ")
        assert answer.stderr.count("\n") == 1
    assert not (run.dir / "keeper.lock").exists()


def test_many_orphans_do_not_grow_the_record(run):
    """An attempt that orphans thousands is recorded in bounded space, its launcher included."""
    program = (
        "import os\n"
        "for _ in range(400):\n"
        "    if os.fork() == 0:\n"
        "        os.fork()\n"
        "        os._exit(0)\n"
        "    os.wait()\n"
    )
    record = run.ended(run.start_python(program))
    assert record["launcher"]["code"] == 0
    assert len(record["reaped"]) == keeper.REAPED_KEPT


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGUSR2])
def test_signal_at_any_moment_of_the_start(run, signum):
    """Signalled anywhere in its start, the keeper leaves no launcher and no half record."""
    program = (*FAST_PYTHON, "-c", "import signal; signal.pause()")
    attempt, launched = 0, False
    while not launched:  # each attempt is signalled a little later than the one before
        attempt += 1
        plan = run.plan(*program, attempt=attempt, grace_s=5.0)
        plan.attempt_dir.mkdir(parents=True)
        (plan.attempt_dir / contract.PLAN_FILE).write_text(json.dumps(public_plan(plan)))
        environ = {change.name: change.value for change in plan.env}
        started = subprocess.Popen([*FAST_PYTHON, keeper.__file__, plan.attempt_dir], env=environ)
        with pytest.raises(subprocess.TimeoutExpired):
            started.wait(0.004 * attempt)
        started.send_signal(signum)
        code = started.wait(timeout=20)
        assert pids_marked(run.id) == []
        record = launch.read_exit(plan.attempt_dir)
        if code == 0:
            assert record["cleared"]
            assert record["launcher"]["signal"] in {signal.SIGKILL, signum}
        else:
            assert (code, record) == (-signum, None)
        launched = record is not None and record["launcher"] is not None


def test_signal_storm(run):
    """Thousands of signals that mean nothing change nothing, and SIGUSR2 is heard among them."""
    kept = run.start_python(DEAF)
    run.said("deaf")
    for _ in range(2000):
        for signum in (signal.SIGHUP, signal.SIGCHLD, signal.SIGINT):
            os.kill(kept.process.pid, signum)
    assert not kept.ended
    kept.clear()
    record = run.ended(kept, within_s=3.0)
    assert (record["stop"], record["launcher"]["signal"]) == ("kill", signal.SIGKILL)
