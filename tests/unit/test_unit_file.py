"""The systemd unit is valid, agrees with the exit codes, and stops what nobody will adopt."""

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from humigence_supervise import contract

UNIT = Path(__file__).parents[2] / "systemd" / "humigence-supervise@.service"
PROGRAM = "/opt/humigence/venv/bin/humigence-supervise"
MAX_EXPOSURE = "40"  # tenths; systemd 252 says 30, other versions count a little differently

needs_systemd_analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


def settings(key):
    """Give all values of a key, continued lines not expected."""
    lines = UNIT.read_text().splitlines()
    return [line.partition("=")[2] for line in lines if line.startswith(key + "=")]


@pytest.fixture
def unit(tmp_path):
    """Give a copy of the unit whose program exists on this machine."""
    copy = tmp_path / "humigence-supervise@demo.service"
    copy.write_text(UNIT.read_text().replace(PROGRAM, "/bin/true"))
    return copy


def analyze(*arguments):
    """Run systemd-analyze."""
    return subprocess.run(
        ["systemd-analyze", *arguments], text=True, capture_output=True, check=False, timeout=60
    )


@needs_systemd_analyze
def test_the_unit_is_clean(unit):
    """The service manager knows every key and value, and complains of nothing."""
    result = analyze("verify", "--recursive-errors=yes", unit)
    assert result.returncode == 0, result.stderr
    assert unit.name not in result.stderr


@needs_systemd_analyze
@pytest.mark.parametrize(
    ("right", "wrong"),
    [("OOMPolicy=", "OOMPolicies="), ("Type=notify", "Type=notifies"), ("/bin/true", "/bin/tru")],
)
def test_a_planted_mistake_is_found(unit, right, wrong):
    """The check above does fail for an unknown key, a bad value and a missing program."""
    unit.write_text(unit.read_text().replace(right, wrong))
    result = analyze("verify", "--recursive-errors=yes", unit)
    assert result.returncode != 0
    assert result.stderr


@needs_systemd_analyze
def test_the_hardening_does_not_erode(unit):
    """The exposure score of systemd-analyze stays low, as it would not without the hardening."""
    result = analyze("security", "--offline=true", f"--threshold={MAX_EXPOSURE}", unit)
    assert result.returncode == 0, result.stdout[-200:]
    unit.write_text(unit.read_text().partition("# Hardening:")[0])
    assert analyze("security", "--offline=true", f"--threshold={MAX_EXPOSURE}", unit).returncode


def test_exit_codes_agree_with_the_contract():
    """No restart where it cannot help; an orderly stop is a success; and nothing else is either."""
    assert settings("RestartPreventExitStatus") == [
        f"{contract.EXIT_USAGE} {contract.EXIT_CONFIG} {contract.EXIT_HOPELESS}"
    ]
    assert settings("SuccessExitStatus") == [f"{contract.EXIT_SIGTERM} {contract.EXIT_SIGINT}"]
    assert settings("Restart") == ["on-failure"]


def test_a_crash_of_the_supervisor_spares_the_training():
    """Adoption needs the ranks alive: only the main process dies, and no OOM kill spreads."""
    assert settings("KillMode") == ["process"]
    assert settings("OOMPolicy") == ["continue"]
    assert settings("PrivateTmp") == []
    assert settings("RuntimeDirectory") == []


@pytest.mark.parametrize(
    ("result", "status", "stops"),
    [
        ("success", "0", True),
        ("success", "143", True),
        ("timeout", "KILL", True),
        ("exit-code", str(contract.EXIT_USAGE), True),
        ("exit-code", str(contract.EXIT_CONFIG), True),
        ("exit-code", str(contract.EXIT_HOPELESS), True),
        ("exit-code", str(contract.EXIT_RUN_HELD), False),
        ("exit-code", str(contract.EXIT_INTERNAL), False),
        ("exit-code", str(contract.EXIT_GAVE_UP), False),
        ("signal", "KILL", False),
        ("core-dump", "ABRT", False),
        ("watchdog", "ABRT", False),
        ("oom-kill", "KILL", False),
    ],
)
def test_stop_post_stops_only_what_nobody_will_adopt(tmp_path, result, status, stops):
    """After an end without a restart the run is stopped; before a restart it is left alone."""
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\necho "called $*"\n')
    program.chmod(0o755)
    (line,) = settings("ExecStopPost")
    line = line.replace("$$", "$").replace(PROGRAM, str(program))
    (tmp_path / "journal.jsonl").touch()
    ended = subprocess.run(
        shlex.split(line.replace("%S/humigence/%i", str(tmp_path))),
        env={"PATH": "/usr/bin:/bin", "SERVICE_RESULT": result, "EXIT_STATUS": status},
        text=True,
        capture_output=True,
        check=True,
        timeout=10,
    )
    assert ended.stdout == (f"called stop {tmp_path}\n" if stops else "")


def test_stop_post_says_nothing_of_a_run_that_never_began(tmp_path):
    """A config refused before the first journal line leaves no run to stop, and no complaint."""
    (line,) = settings("ExecStopPost")
    line = line.replace("$$", "$").replace(PROGRAM, "/bin/false")
    ended = subprocess.run(
        shlex.split(line.replace("%S/humigence/%i", str(tmp_path))),
        env={"PATH": "/usr/bin:/bin", "SERVICE_RESULT": "exit-code", "EXIT_STATUS": "78"},
        check=False,
        timeout=10,
    )
    assert ended.returncode == 0
