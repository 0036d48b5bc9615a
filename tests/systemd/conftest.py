"""A booted systemd for a test session: process 1 of its own namespaces, nothing of the host.

Needs root, systemd's files and the right to make namespaces; skips with the reason otherwise.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INIT = Path(__file__).with_name("box_init.sh")
SYSTEMD = Path("/lib/systemd/systemd")
TOOLS = ("unshare", "nsenter", "setpriv", "pivot_root", "mount", "hostname")
NAMESPACES = ("--pid", "--mount", "--cgroup", "--uts", "--ipc", "--net")
BOOT_TIMEOUT_S = 60


def cgroup2_of_this_process():
    """Give our folder in the version 2 hierarchy, None where there is none."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    points = [fields[1] for fields in mounts if fields[2] == "cgroup2"]
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    paths = [line.removeprefix("0::") for line in lines if line.startswith("0::")]
    return Path(points[0] + paths[0]) if points and paths else None


def why_not():
    """Give the reason why no box can be had here, None when one can."""
    if os.geteuid() != 0:
        return "a booted systemd needs root"
    if not SYSTEMD.exists():
        return f"systemd is not installed ({SYSTEMD})"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    if cgroup2_of_this_process() is None:
        return "no cgroup version 2 hierarchy is mounted"
    room = tempfile.mkdtemp(prefix="box-probe-")
    probe = (
        "mount -t tmpfs x $0 && mkdir $0/u $0/w $0/r && "
        "mount -t overlay x -o lowerdir=/,upperdir=$0/u,workdir=$0/w $0/r && "
        "mount -t proc x $0/r/proc"
    )
    try:
        tried = subprocess.run(
            ["unshare", "--fork", *NAMESPACES, "sh", "-c", probe, room],
            text=True,
            capture_output=True,
            check=False,
            timeout=30,
        )
    finally:
        Path(room).rmdir()
    return f"namespaces are refused: {tried.stderr.strip()}" if tried.returncode else None


class Box:
    """One booted systemd. Paths and commands are those inside unless said otherwise."""

    def __init__(self):
        """Make room on the host: a folder, a console file, a cgroup."""
        self.room = Path(tempfile.mkdtemp(prefix="box-"))
        (self.room / "memory").mkdir()
        self.console = self.room / "console.log"
        self.console.touch()
        self.cgroup = cgroup2_of_this_process() / self.room.name
        self.unshare = None
        self.pid = None  # of its systemd, as the host counts

    def boot(self):
        """Start and wait until systemd says it is up."""
        self.cgroup.mkdir()
        join = 'echo 0 >"$0/cgroup.procs" && exec setpriv --pdeathsig KILL "$@"'
        folders = sorted({str(ROOT), sys.prefix, sys.base_prefix})
        box = ["unshare", "--fork", "--kill-child", *NAMESPACES, "sh", INIT, self.room, *folders]
        with self.console.open("ab") as console:
            self.unshare = subprocess.Popen(
                ["sh", "-c", join, self.cgroup, *box],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
            )
        self._until(self._is_up, "systemd did not come up")

    def _is_up(self):
        assert self.unshare.poll() is None, f"the box died:\n{self.console.read_text()}"
        if self.pid is None:
            children = Path(f"/proc/{self.unshare.pid}/task/{self.unshare.pid}/children")
            for pid in children.read_text().split():
                if Path(f"/proc/{pid}/comm").read_text() == "systemd\n":
                    self.pid = int(pid)
            return False
        state = self.run("systemctl", "is-system-running", check=False).stdout.strip()
        return state in {"running", "degraded"}

    def shut(self):
        """Kill process 1 (the kernel then kills every other one) and clear up on the host."""
        if self.unshare is not None:
            if self.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.unshare.wait(5)
            self.unshare.kill()
            self.unshare.wait()
        self._until(self._cgroup_is_gone, f"processes are left in {self.cgroup}")
        shutil.rmtree(self.room)

    def _cgroup_is_gone(self):
        for folder, _, _ in os.walk(self.cgroup, topdown=False):
            with contextlib.suppress(OSError):
                Path(folder).rmdir()
        return not self.cgroup.exists()

    def _until(self, fact, complaint, timeout_s=BOOT_TIMEOUT_S):
        deadline = time.monotonic() + timeout_s
        while not fact():
            assert time.monotonic() < deadline, f"{complaint}\n{self.console.read_text()}"
            time.sleep(0.05)

    def run(self, *argv, check=True, stdin="", timeout_s=60):
        """Run a command in the box."""
        enter = ["nsenter", "--target", str(self.pid), "--mount", "--pid", "--cgroup", "--net"]
        enter += ["--uts", "--ipc", "--root", "--wdns=/", "--", "env", "-i"]
        variables = ["HOME=/root", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"]
        variables += ["SYSTEMD_COLORS=0", "SYSTEMD_PAGER=cat"]
        ended = subprocess.run(
            [*enter, *variables, *argv],
            input=stdin,
            text=True,
            capture_output=True,
            check=False,
            timeout=timeout_s,
        )
        complaint = f"{argv} ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}"
        assert not check or ended.returncode == 0, complaint
        return ended

    def write(self, path, text, mode="0644"):
        """Write a file in the box."""
        script = 'mkdir -p "${0%/*}" && cat >"$0" && chmod "$1" "$0"'
        self.run("sh", "-c", script, path, mode, stdin=text)

    def install(self, name, text):
        """Add or replace a unit, or a drop-in (``NAME.d/FILE.conf``)."""
        self.write(f"/etc/systemd/system/{name}", text)
        self.run("systemctl", "daemon-reload")

    def show(self, unit, *names):
        """Give properties of a unit."""
        lines = self.run("systemctl", "show", unit, "-p", ",".join(names)).stdout.splitlines()
        return dict(line.split("=", 1) for line in lines)

    def wait_for(self, unit, timeout_s=30, **wanted):
        """Poll until the unit's properties are as wanted."""
        deadline = time.monotonic() + timeout_s
        while (found := self.show(unit, *wanted)) != wanted:
            if time.monotonic() > deadline:
                status = self.run("systemctl", "status", "--lines=50", unit, check=False).stdout
                pytest.fail(f"wanted {wanted}, found {found}\n{status}")
            time.sleep(0.05)

    def main_pid(self, unit):
        """Give the main process of a unit, as the box counts; 0 when there is none."""
        return int(self.show(unit, "MainPID")["MainPID"])

    def processes(self, unit):
        """Give the pids in the unit's cgroup, as the box counts."""
        group = self.show(unit, "ControlGroup")["ControlGroup"]
        if not group:
            return []
        script = 'find "$0" -name cgroup.procs -exec cat {} + 2>/dev/null || true'
        listed = self.run("sh", "-c", script, f"/sys/fs/cgroup{group}").stdout
        return sorted(int(pid) for pid in listed.split())

    def journal(self, unit):
        """Give the messages of a unit, systemd's own about it too."""
        listed = self.run("journalctl", "-u", unit, "-o", "json", "--no-pager").stdout
        return [str(json.loads(line).get("MESSAGE")) for line in listed.splitlines()]


@pytest.fixture(scope="session")
def box():
    """Give the session's box."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    box = Box()
    try:
        box.boot()
        yield box
    finally:
        box.shut()


@pytest.fixture
def until():
    """Give a function that polls for a fact and says what it waited for."""

    def poll(fact, what, timeout_s=30):
        deadline = time.monotonic() + timeout_s
        while not fact():
            assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
            time.sleep(0.1)

    return poll
