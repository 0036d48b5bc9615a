"""The keeper of one attempt: starts the launcher, outlives the supervisor, leaves nothing alive.

Run as a plain file, ``python -I -S keeper.py <attempt_dir>``; standard library only. It inherits
the environment the worker shall see and reads what to run from plan.json. Signals: SIGTERM stops
gracefully (the launcher gets SIGTERM and grace_s), SIGUSR2 kills all at once.

It is the subreaper of everything the launcher starts: a process that loses its parent becomes the
keeper's child, whatever session it went to. So whether the attempt is gone needs no list of
processes to be complete: it is gone when waitpid answers that there is no child.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import select
import signal
import sys
import time
from contextlib import suppress
from stat import S_ISREG

# Names of contract.py, which a plain file cannot import; a test compares them.
KEEPER_LOCK = "keeper.lock"
PLAN_FILE = "plan.json"
KEEPER_FILE = "keeper.json"
EXIT_FILE = "exit.json"
LAUNCHER_LOG = "launcher.log"
RANKS_DIR = "ranks"
RANK_PROCESS_FILE = "process.json"

EXIT_BAD_PLAN = 64
EXIT_LOCKED = 69
EXIT_CANNOT_WRITE = 74
BALLAST_FILE = "keeper.ballast"
BALLAST_BYTES = 64 * 1024
"""Room kept for exit.json, so that the end of an attempt is told on a full disk too."""
ORPHAN_GRACE_S = 5.0
"""What ranks get to save when their launcher is gone: at most this, at most grace_s."""
SURVIVOR_S = 5.0
"""How long after the first SIGKILL a process that lives still is reported as a survivor."""
RECHECK_S = 1.0
KILL_ROUNDS = 200
"""Rounds of killing without a pause; each takes some 0.05 ms and reaches one generation more."""
REAPED_KEPT = 256
"""A long attempt may orphan any number of processes: no more than these are remembered."""
SMALL_BYTES = 64 * 1024
"""No process.json is longer."""
LOCK_S = 1.0
"""How long the run's lock is tried for: whoever only looks whether it is held holds it too."""
PR_SET_CHILD_SUBREAPER = 36
STAT_STATE, STAT_PPID, STAT_START_TICKS = 0, 1, 19  # counted from 0 after the command name


class Keeper:
    """One attempt from the launcher's start to the end of its last process.

    `stop` is what was asked for: "none", "graceful", "kill"; signal handlers only set it, the
    main line acts on it. `gone` is true once waitpid said that no child is left.
    """

    def __init__(self, attempt_dir: str) -> None:
        """Read what to run from plan.json. Raises OSError, ValueError, KeyError, TypeError."""
        self.attempt_dir = attempt_dir
        with open(self.path(PLAN_FILE), encoding="utf-8") as stream:
            plan = json.load(stream)
        self.attempt = int(plan["attempt"])
        self.argv = [str(argument) for argument in plan["argv"]]
        self.cwd = str(plan["cwd"])
        self.grace_s = float(plan["grace_s"])
        self.stop = "none"
        self.deadline: float | None = None
        self.gone = False
        self.launcher_pid: int | None = None
        self.launcher: dict[str, int | None] | None = None
        self.error: str | None = None
        self.reaped: list[dict[str, int | None]] = []
        self.survivors: list[int] = []
        self.wake = -1
        self.log = -1

    def prepare(self) -> None:
        """Become subreaper, take signals, claim the files. Raises OSError."""
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")
        self.wake, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self.on_sigterm)
        signal.signal(signal.SIGUSR2, self.on_sigusr2)
        self.log = os.open(self.path(LAUNCHER_LOG), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        with open(self.path(BALLAST_FILE), "wb") as ballast:
            os.posix_fallocate(ballast.fileno(), 0, BALLAST_BYTES)
        self.write_keeper_file()

    def on_sigterm(self, *_: object) -> None:
        """Ask for a graceful end; whoever asks again (a new supervisor does) changes nothing."""
        if self.stop == "none":
            self.stop = "graceful"

    def on_sigusr2(self, *_: object) -> None:
        """Ask for an end now."""
        self.stop = "kill"

    def run(self) -> int:
        """Live the attempt; return the keeper's exit code."""
        self.start_launcher()
        # Whoever started the keeper waits for the end of this output, and reads no more of it.
        os.dup2(self.log, 1)
        os.dup2(self.log, 2)
        while not self.gone and self.launcher is None and self.error is None:
            if self.stop == "graceful" and self.deadline is None:
                self.ask_launcher_to_stop()
            if self.stop == "kill" or self.overdue():
                break
            self.wait(self.deadline)
        if self.launcher is not None:
            self.let_ranks_save()
        self.clear()
        return self.close()

    # --- the launcher --------------------------------------------------------------------------

    def start_launcher(self) -> None:
        """Execute the launcher, or set `error` to the reason why there is none."""
        report, child_report = os.pipe2(os.O_CLOEXEC)
        # A signal meant for the keeper must not reach its handlers in the child.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            pid = os.fork()
            if pid == 0:
                self.become_launcher(child_report)
        except OSError as error:
            self.error = f"no process can be started: {error.strerror}"
            return
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.close(child_report)
        with open(report, "rb") as stream:
            self.error = os.fsdecode(stream.read()) or None
        if self.error is not None:
            os.waitpid(pid, 0)
            return
        self.launcher_pid = pid
        try:
            self.write_keeper_file()
        except OSError as error:
            say(f"{self.path(KEEPER_FILE)} stays without the launcher: {error.strerror}")

    def become_launcher(self, report: int) -> None:
        """In the child: execute the launcher, or tell `report` which file stood in the way."""
        program = self.argv[0]
        failed = "the launcher's process cannot be prepared"
        try:
            os.setsid()
            restore_signals()
            protect_no_more()
            os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
            os.dup2(self.log, 1)
            os.dup2(self.log, 2)
            failed = f"the working directory {self.cwd} cannot be entered"
            os.chdir(self.cwd)
            failed = f"{program} cannot be executed"
            os.execvpe(program, self.argv, initial_environment())  # noqa: S606 - argv, no shell
        except (OSError, ValueError) as error:
            why = f"{failed}: {getattr(error, 'strerror', None) or error}"
            if isinstance(error, FileNotFoundError) and os.path.exists(program):
                why += " (the file is there; the interpreter its first line names is not)"
            os.write(report, os.fsencode(why))
        finally:
            os._exit(127)

    def ask_launcher_to_stop(self) -> None:
        """Send SIGTERM once (torchrun hands it on to its ranks) and start the clock."""
        self.deadline = time.monotonic() + self.grace_s
        if self.launcher_pid is not None:
            # Not reaped yet, so the pid is the launcher's own.
            os.kill(self.launcher_pid, signal.SIGTERM)

    def overdue(self) -> bool:
        """Tell whether the time given to end gracefully is over."""
        return self.deadline is not None and time.monotonic() >= self.deadline

    # --- the end -------------------------------------------------------------------------------

    def let_ranks_save(self) -> None:
        """Give ranks that outlive their launcher a bounded time to save and end."""
        ranks = self.living_ranks()
        if not ranks or self.stop == "kill":
            return
        if self.deadline is None:
            self.deadline = time.monotonic() + min(ORPHAN_GRACE_S, self.grace_s)
            # In a graceful stop they have had theirs: a second SIGTERM means "do not save".
            if self.stop == "none":
                for pid, ticks in ranks:
                    kill(pid, ticks, signal.SIGTERM)
        while self.living_ranks() and self.stop != "kill" and not self.overdue():
            self.wait(self.deadline)

    def clear(self) -> None:
        """Kill until nothing is left; return only then."""
        started = time.monotonic()
        told = False
        self.reap()
        while not self.gone:
            self.kill_children()
            alive = [] if self.gone else kill_descendants()
            if self.launcher is not None and not told:
                self.write_exit_file()
                told = True
            survivors = alive if time.monotonic() - started > SURVIVOR_S else []
            if survivors != self.survivors:
                self.survivors = survivors
                self.write_exit_file()
            self.wait(time.monotonic() + RECHECK_S)

    def kill_children(self) -> None:
        """Kill the keeper's own children as fast as they come.

        They are not reaped, so their pids are theirs and nothing has to be looked up: this outruns
        a process that only forks and ends. Whatever loses its parent so is a child in the next
        round.
        """
        for _ in range(KILL_ROUNDS):
            children = own_children()
            for pid in children:
                os.kill(pid, signal.SIGKILL)
            self.reap()
            if self.gone or not children:
                return

    def close(self) -> int:
        """Write the last exit.json; return the keeper's exit code."""
        self.survivors = []
        written = self.write_exit_file()
        with suppress(OSError):
            os.unlink(self.path(BALLAST_FILE))
        return 0 if written else EXIT_CANNOT_WRITE

    def wait(self, until: float | None) -> None:
        """Wait for a signal, at most until a monotonic time; then reap."""
        timeout = None if until is None else max(0.0, until - time.monotonic())
        select.select([self.wake], [], [], timeout)
        with suppress(BlockingIOError):
            os.read(self.wake, 65536)
        self.reap()

    def reap(self) -> None:
        """Reap every child that has ended; set `gone` when there is none left at all."""
        ranks = {pid: (rank, ticks) for rank, pid, ticks in self.ranks()}
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                self.gone = True
                return
            if ended is None:
                return
            rank, ticks = ranks.get(ended.si_pid, (None, None))
            # Its start time can be read only while it is a zombie.
            if rank is not None and start_ticks(read_stat(ended.si_pid)) != ticks:
                rank = None
            _, status = os.waitpid(ended.si_pid, 0)
            self.remember(ended.si_pid, rank, os.waitstatus_to_exitcode(status))

    def remember(self, pid: int, rank: int | None, result: int) -> None:
        """Note how a process ended: `result` is its exit code, or minus its signal."""
        record = {
            "pid": pid,
            "rank": rank,
            "code": result if result >= 0 else None,
            "signal": -result if result < 0 else None,
        }
        if pid == self.launcher_pid and self.launcher is None:
            self.launcher = record
        if rank is not None or len(self.reaped) < REAPED_KEPT:
            self.reaped.append(record)

    # --- files ---------------------------------------------------------------------------------

    def path(self, name: str) -> str:
        """Return the path of a file of this attempt."""
        return os.path.join(self.attempt_dir, name)

    def ranks(self) -> list[tuple[int, int, int]]:
        """Return (rank, pid, start ticks) of every rank that came through its doorway."""
        found = []
        with suppress(OSError):
            for name in os.listdir(self.path(RANKS_DIR)):
                with suppress(OSError, ValueError, KeyError, TypeError):
                    path = os.path.join(self.path(RANKS_DIR), name, RANK_PROCESS_FILE)
                    found.append(read_rank(path))
        return found

    def living_ranks(self) -> list[tuple[int, int]]:
        """Return (pid, start ticks) of the ranks that run still."""
        return [(pid, ticks) for _, pid, ticks in self.ranks() if runs(read_stat(pid), ticks)]

    def write_keeper_file(self) -> None:
        """Write keeper.json: who keeps, and what. Raises OSError."""
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
            boot_id = stream.read().strip()
        launcher = None if self.launcher_pid is None else read_stat(self.launcher_pid)
        record = {
            "attempt": self.attempt,
            "pid": os.getpid(),
            "start_ticks": start_ticks(read_stat(os.getpid())),
            "boot_id": boot_id,
            "launcher_pid": self.launcher_pid,
            "launcher_start_ticks": start_ticks(launcher),
        }
        write_json(self.path(KEEPER_FILE), record)

    def write_exit_file(self) -> bool:
        """Write exit.json, on a full disk into the room kept for it; tell whether it is there."""
        now = time.time()
        record = {
            "attempt": self.attempt,
            "launcher": self.launcher,
            "error": self.error,
            "reaped": self.reaped,
            "stop": self.stop,
            "ended": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
            + f".{int(now % 1 * 1e6):06d}Z",
            "cleared": self.gone,
            "survivors": self.survivors,
        }
        for _ in range(2):
            try:
                write_json(self.path(EXIT_FILE), record)
            except OSError as error:
                say(f"the keeper cannot write {self.path(EXIT_FILE)}: {error.strerror}")
                with suppress(OSError):
                    os.unlink(self.path(BALLAST_FILE))
            else:
                return True
        return False


def read_rank(path: str) -> tuple[int, int, int]:
    """Return (rank, pid, start ticks) from a rank's process.json.

    A FIFO in its place must not hold the keeper. Raises OSError, ValueError, KeyError, TypeError.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    if not S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError(f"{path} is not a regular file")
    with open(descriptor, "rb") as stream:
        try:
            said = json.loads(stream.read(SMALL_BYTES))
        except RecursionError:
            raise ValueError(f"{path} is nested too deeply") from None
    return int(said["rank"]), int(said["pid"]), int(said["start_ticks"])


def write_json(path: str, value: object) -> None:
    """Write a file aside, sync it, rename it, sync its folder. Raises OSError."""
    part = path + ".part"
    with open(part, "wb") as stream:
        stream.write(json.dumps(value).encode("ascii") + b"\n")
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(part, path)
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


# --- processes ---------------------------------------------------------------------------------


def read_stat(pid: int) -> list[bytes] | None:
    """Return the fields of /proc/<pid>/stat after the command name, None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            return stream.read().rpartition(b")")[2].split()
    except OSError:
        return None


def start_ticks(stat: list[bytes] | None) -> int | None:
    """Return when a process started, in clock ticks since boot."""
    return None if stat is None else int(stat[STAT_START_TICKS])


def runs(stat: list[bytes] | None, ticks: int) -> bool:
    """Tell whether this is the process that started then, and it has not ended."""
    return stat is not None and start_ticks(stat) == ticks and stat[STAT_STATE] not in b"ZX"


def own_children() -> list[int]:
    """Return the pids of this process's children, zombies included; [] where that is not told."""
    pid = os.getpid()
    try:
        with open(f"/proc/self/task/{pid}/children", encoding="ascii") as stream:
            return [int(word) for word in stream.read().split()]
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN
        return []


def kill_descendants() -> list[int]:
    """Send SIGKILL to every living descendant; return their pids.

    For what `own_children` does not reach: below a child that cannot die, or on a kernel that does
    not tell. One pass in the order of pids, killing on sight: parents mostly have the lower pid,
    and what a pass misses has become a child of the keeper by the next one.
    """
    family = {os.getpid()}
    killed = []
    with suppress(OSError):
        for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
            stat = read_stat(pid)
            if stat is None or int(stat[STAT_PPID]) not in family:
                continue
            family.add(pid)
            if stat[STAT_STATE] not in b"ZX":
                kill(pid, int(stat[STAT_START_TICKS]), signal.SIGKILL)
                killed.append(pid)
    return killed


def kill(pid: int, ticks: int, signum: signal.Signals) -> None:
    """Signal the process that has this pid and started then; another one is never hit."""
    with suppress(OSError):
        pidfd = os.pidfd_open(pid)
        try:
            if start_ticks(read_stat(pid)) == ticks:
                signal.pidfd_send_signal(pidfd, signum)
        finally:
            os.close(pidfd)


def restore_signals() -> None:
    """Undo, for the launcher, what the keeper (and Python itself) did to signals."""
    signal.set_wakeup_fd(-1)
    for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def protect_no_more() -> None:
    """Let the kernel choose the training for a memory kill, not what watches over it."""
    with suppress(OSError, ValueError), open("/proc/self/oom_score_adj", "r+") as stream:
        if int(stream.read()) < 0:
            stream.seek(0)
            stream.write("0")


def initial_environment() -> dict[bytes, bytes]:
    """Return the environment as it was given; Python itself adds to its own in a C locale."""
    with open("/proc/self/environ", "rb") as stream:
        pairs = [entry.partition(b"=") for entry in stream.read().split(b"\0")]
    return {name: value for name, found, value in pairs if found and name}


# --- the door ----------------------------------------------------------------------------------


def main(arguments: list[str]) -> int:
    """Keep one attempt; the exit code tells why that could not be."""
    close_inherited()
    for signum in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
        signal.signal(signum, signal.SIG_IGN)
    if os.getsid(0) != os.getpid():
        os.setsid()
    if len(arguments) != 1:
        return refuse(EXIT_BAD_PLAN, "the keeper takes one argument, the attempt's folder")
    attempt_dir = os.path.abspath(arguments[0])
    try:
        keeper = Keeper(attempt_dir)
    except (OSError, ValueError, KeyError, TypeError) as error:
        return refuse(EXIT_BAD_PLAN, f"no usable {PLAN_FILE} in {attempt_dir}: {error!r}")
    run_dir = os.path.dirname(os.path.dirname(attempt_dir))
    try:
        # Held, and not inherited by what the keeper starts, until the keeper ends.
        lock = os.open(os.path.join(run_dir, KEEPER_LOCK), os.O_RDWR | os.O_CREAT, 0o644)
        take(lock)
        keeper.prepare()
    except BlockingIOError:
        return refuse(EXIT_LOCKED, f"another keeper holds {run_dir}: an attempt is still alive")
    except OSError as error:
        return refuse(EXIT_CANNOT_WRITE, f"the keeper cannot set up {attempt_dir}: {error}")
    return keeper.run()


def close_inherited() -> None:
    """Close every descriptor but the standard three; a limit on their number says nothing."""
    for name in os.listdir("/proc/self/fd"):
        if name not in ("0", "1", "2"):
            with suppress(OSError):  # the listing's own
                os.close(int(name))


def take(lock: int) -> None:
    """Lock an open file for the keeper alone. Raises BlockingIOError when it stays held."""
    deadline = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise
            select.select([], [], [], 0.01)
        else:
            return


def refuse(code: int, sentence: str) -> int:
    """Say why there is no attempt; return `code`."""
    say(sentence)
    return code


def say(sentence: str) -> None:
    """Print a sentence where errors go; nobody need be listening."""
    with suppress(OSError):
        os.write(2, os.fsencode(f"humigence-supervise: {sentence}\n"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
