"""The real unit in a booted systemd, with a worker that needs no torch."""

import json
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "systemd" / "humigence-supervise@.service"
SYSUSERS = ROOT / "systemd" / "humigence-supervise.sysusers.conf"
WORKER = Path(__file__).with_name("foreign_worker.py")
PROGRAM = "/opt/humigence/venv/bin/humigence-supervise"

# Only what a test box cannot have or a test cannot wait for: a negative score needs a right that
# containers lack, and a stuck loop shall be noticed within seconds.
DROP_IN = """
[Service]
OOMScoreAdjust=0
WatchdogSec=4
TimeoutAbortSec=2
RestartSec=1
"""
AS_ROOT = "User=root\nGroup=root\n"


@pytest.fixture(scope="session")
def installed(box):
    """Install program, account and unit where the unit expects them."""
    box.run("mkdir", "-p", "/opt/humigence")
    box.run("ln", "-s", sys.prefix, "/opt/humigence/venv")
    box.write("/opt/foreign_worker.py", WORKER.read_text())
    box.write("/etc/sysusers.d/humigence-supervise.conf", SYSUSERS.read_text())
    box.run("systemd-sysusers")
    box.install("humigence-supervise@.service", UNIT.read_text())
    as_user = ["systemd-run", "--wait", "--quiet", "--collect", "--property=User=humigence"]
    readable = box.run(*as_user, PROGRAM, "--help", check=False).returncode == 0
    extra = "" if readable else AS_ROOT  # an interpreter in a private home is closed to the account
    box.install("humigence-supervise@.service.d/test.conf", DROP_IN + extra)
    return box


class Service:
    """One instance of the unit and its run."""

    def __init__(self, box, name):
        """Name the run; nothing is written yet."""
        self.box = box
        self.name = name
        self.unit = f"humigence-supervise@{name}.service"
        self.run_dir = f"/var/lib/humigence/{name}"

    def configure(self, target_step=100_000, step_s=0.05, **more):
        """Write the config: one process, no accelerator, no torch."""
        config = {
            "name": self.name,
            "accelerator": "cpu",
            "worker": {
                "script": "/opt/foreign_worker.py",
                "args": [str(target_step), str(step_s)],
                "preset": "torchrun",
            },
            "batch": {"global": 8, "micro": 8},
            "ladder": [{"name": "alone", "gpus": 1, "launcher": "python"}],
        }
        self.box.write(f"/etc/humigence/{self.name}.json", json.dumps(config | more))

    def start(self, *, check=True):
        """Start the unit; returns when READY came or the start failed."""
        return self.box.run("systemctl", "start", self.unit, check=check)

    def stop(self):
        """Stop the unit."""
        return self.box.run("systemctl", "stop", self.unit, timeout_s=120)

    def show(self, name):
        """Give one property."""
        return self.box.show(self.unit, name)[name]

    def status(self):
        """Give what the command line says of the run."""
        return json.loads(self.box.run(PROGRAM, "status", self.run_dir, "--json").stdout)

    def events(self):
        """Give the event names of the journal, in order."""
        lines = self.box.run("cat", f"{self.run_dir}/journal.jsonl").stdout.splitlines()
        return [json.loads(line)["event"] for line in lines]

    def worker_pid(self):
        """Give the pid of rank 0 of the newest attempt, None before there is one."""
        script = 'cat "$(ls -d "$0"/attempts/* | tail -n 1)/ranks/0/process.json"'
        found = self.box.run("sh", "-c", script, self.run_dir, check=False)
        return json.loads(found.stdout)["pid"] if found.returncode == 0 else None

    def step(self):
        """Give the last completed step of the newest attempt, 0 before there is one."""
        script = 'tail -n 1 "$(ls -d "$0"/attempts/* | tail -n 1)/progress/0.jsonl"'
        found = self.box.run("sh", "-c", script, self.run_dir, check=False).stdout
        return json.loads(found)["step"] if found else 0


@pytest.fixture
def service(installed, request):
    """Give an instance of the unit named after the test; afterwards nothing of it is left."""
    name = request.node.name.removeprefix("test_").replace("_", "-")
    service = Service(installed, name)
    yield service
    installed.run("systemctl", "kill", "--signal=KILL", "--kill-who=all", service.unit, check=False)
    installed.run("systemctl", "stop", service.unit, check=False, timeout_s=120)
    installed.run("systemctl", "reset-failed", check=False)


def test_start_is_active_once_ready(service, until):
    """The start returns with the loop running, a status line for people, and a training below."""
    service.configure()
    service.start()
    assert service.show("ActiveState") == "active"
    assert service.show("StatusText")
    until(lambda: service.step() >= 3, "the worker makes steps")
    main = service.box.main_pid(service.unit)
    assert service.worker_pid() != main
    assert {main, service.worker_pid()} <= set(service.box.processes(service.unit))
    assert service.status()["state"] == "running"


def test_stop_saves_and_leaves_nothing(service, until):
    """A stop is a success, the last step is saved, and no process of the unit is alive."""
    service.configure()
    service.start()
    until(lambda: service.step() >= 3, "the worker makes steps")
    service.stop()
    assert service.box.processes(service.unit) == []
    assert service.show("Result") == "success"
    assert service.show("ActiveState") == "inactive"
    status = service.status()
    assert status["state"] == "stopped"
    assert status["checkpoint"]["step"] == service.step()
    assert service.events()[-1] == "run.stopped"


def test_a_killed_supervisor_adopts(service, until):
    """After kill -9 of the main process the next one goes on with the same living worker."""
    service.configure()
    service.start()
    until(lambda: service.step() >= 3, "the worker makes steps")
    first, worker = service.box.main_pid(service.unit), service.worker_pid()
    service.box.run("kill", "-KILL", str(first))
    service.box.wait_for(service.unit, NRestarts="1", ActiveState="active")
    until(lambda: "attempt.adopted" in service.events(), "the attempt is adopted")
    assert service.box.main_pid(service.unit) not in {0, first}
    assert service.worker_pid() == worker
    before = service.step()
    until(lambda: service.step() > before, "the worker goes on")
    service.stop()
    assert service.box.processes(service.unit) == []
    assert service.show("Result") == "success"


def test_a_stuck_loop_is_restarted(service, until):
    """A main process that stands still is replaced by the watchdog; the worker is not."""
    service.configure()
    service.start()
    until(lambda: service.step() >= 3, "the worker makes steps")
    first, worker = service.box.main_pid(service.unit), service.worker_pid()
    service.box.run("kill", "-STOP", str(first))
    service.box.wait_for(service.unit, NRestarts="1", ActiveState="active")
    assert any("Watchdog timeout" in line for line in service.box.journal(service.unit))
    until(lambda: "attempt.adopted" in service.events(), "the attempt is adopted")
    assert service.worker_pid() == worker


@pytest.mark.slow
def test_a_healthy_loop_feeds_the_watchdog(service, until):
    """Nothing is restarted while the loop turns, over more than two watchdog periods."""
    service.configure()
    service.start()
    first = service.box.main_pid(service.unit)
    until(lambda: service.step() >= 180, "nine seconds of steps")
    assert service.box.main_pid(service.unit) == first
    assert service.show("NRestarts") == "0"


def test_a_wrong_config_is_not_retried(service):
    """Exit 78 fails the unit at once, with the message in the service's journal."""
    service.configure(ladders=[])
    assert service.start(check=False).returncode != 0
    service.box.wait_for(service.unit, ActiveState="failed", ExecMainStatus="78", NRestarts="0")
    assert any("ladders" in line for line in service.box.journal(service.unit))


def test_a_finished_run_is_not_restarted(service):
    """Exit 0 ends the unit successfully: the run is completed."""
    service.configure(target_step=7, step_s=0.01)
    service.start(check=False)
    service.box.wait_for(service.unit, ActiveState="inactive", ExecMainStatus="0", NRestarts="0")
    assert service.show("Result") == "success"
    assert service.status()["state"] == "completed"


def test_a_second_start_resumes(service, until):
    """What was stopped goes on from its last step when the unit is started again."""
    service.configure()
    service.start()
    until(lambda: service.step() >= 3, "the worker makes steps")
    service.stop()
    stopped_at = service.step()
    service.start()
    until(lambda: service.step() > stopped_at, "the worker goes on")
    assert "run.resumed" in service.events()


def test_the_account_can_be_made(installed):
    """The account file gives a system user whose shared memory logind leaves alone."""
    uid = int(installed.run("id", "-u", "humigence").stdout)
    assert 0 < uid < 1000
    assert os.path.isabs(installed.run("sh", "-c", "echo ~humigence").stdout.strip())  # noqa: PTH117
