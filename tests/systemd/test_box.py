"""The box is a real systemd: a stand-in service that speaks through our notifier behaves in it."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Ready at once, then alive until the file "hang" appears: from there on silent.
STAND_IN = """
import os, sys, time
sys.path.insert(0, {supervisor!r})
from humigence_supervise.systemd import UNSET_FOR_CHILDREN, Notifier
notifier = Notifier.from_environ(os.environ)
assert set(UNSET_FOR_CHILDREN) <= set(os.environ)
if os.path.exists("/run/stand-in/mute"):
    time.sleep(3600)
notifier.ready("the stand-in is here")
while True:
    if not os.path.exists("/run/stand-in/hang"):
        notifier.watchdog()
    time.sleep(notifier.watchdog_interval_s / 2)
"""

UNIT = f"""
[Service]
Type=notify
NotifyAccess=main
ExecStart={sys.executable} /opt/stand-in.py
RuntimeDirectory=stand-in
RuntimeDirectoryPreserve=yes
WatchdogSec=1
TimeoutStartSec=2
TimeoutAbortSec=1
Restart=on-watchdog
RestartSec=0
StartLimitIntervalSec=0
"""


@pytest.fixture
def stand_in(box):
    """Install the stand-in, and remove every trace of a run of it."""
    box.write("/opt/stand-in.py", STAND_IN.format(supervisor=str(ROOT / "supervisor")))
    box.install("stand-in.service", UNIT)
    yield "stand-in.service"
    box.run("systemctl", "stop", "stand-in.service", check=False)
    box.run("rm", "-rf", "/run/stand-in")
    box.run("systemctl", "reset-failed", check=False)


def test_active_comes_with_ready_and_its_status(box, stand_in):
    """The start returns when READY arrived; the text is what `systemctl status` shows."""
    box.run("systemctl", "start", stand_in)
    box.wait_for(stand_in, ActiveState="active", StatusText="the stand-in is here")
    assert box.processes(stand_in) == [box.main_pid(stand_in)]
    box.run("systemctl", "stop", stand_in)
    assert box.processes(stand_in) == []


def test_without_ready_it_is_never_active(box, stand_in):
    """A service that says nothing fails its start."""
    box.run("mkdir", "-p", "/run/stand-in")
    box.write("/run/stand-in/mute", "")
    assert box.run("systemctl", "start", stand_in, check=False).returncode != 0
    assert box.show(stand_in, "Result") == {"Result": "timeout"}


def test_a_silent_watchdog_brings_a_restart(box, stand_in):
    """Silence for WatchdogSec kills the main process and starts another; a live one stays."""
    box.run("systemctl", "start", stand_in)
    first = box.main_pid(stand_in)
    box.run("sh", "-c", "sleep 2")  # two watchdog periods
    assert box.main_pid(stand_in) == first
    box.write("/run/stand-in/hang", "")
    box.wait_for(stand_in, NRestarts="1")
    box.run("rm", "/run/stand-in/hang")
    box.wait_for(stand_in, ActiveState="active")
    assert box.main_pid(stand_in) != first
