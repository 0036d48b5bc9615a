"""Who holds memory of a GPU: real processes, named without their secrets, nobody touched."""

import os
import pwd
import subprocess
from pathlib import Path

import pytest
from support import eventually

from humigence_supervise import proc
from humigence_supervise.domain import GpuProcess, GpuState
from humigence_supervise.observe.gpu_tenants import COMMAND_CHARS, read_tenants


def on_a_card(*pids, held_mib=900):
    """Return one GPU with these processes on it."""
    return (GpuState(0, "GPU-aa", processes=tuple(GpuProcess(pid, held_mib) for pid in pids)),)


@pytest.fixture
def start():
    """Start shells that wait, with a command line of the test's; they end with the test."""
    started = []

    def begin(*words, **options):
        argv = ("/bin/sh", "-c", "read end", *words)
        one = subprocess.Popen(argv, stdin=subprocess.PIPE, **options)
        started.append(one)
        whole = b"\0".join(map(os.fsencode, argv)) + b"\0"
        # Between fork and exec it shows the command line of the tests.
        shown = Path(f"/proc/{one.pid}/cmdline")
        eventually(lambda: shown.read_bytes() == whole, "the shell runs")
        return one

    yield begin
    for one in started:
        one.kill()
        one.communicate()


def only(found):
    """Return the one tenant."""
    (tenant,) = found
    return tenant


def test_a_stranger_is_named(start):
    """User, command and MiB; our own processes are no tenants."""
    stranger, ours = start("serve"), start()
    states = on_a_card(stranger.pid, ours.pid)
    tenant = only(read_tenants(states, {ours.pid}, pids_comparable=True))
    assert (tenant.gpu, tenant.pid, tenant.held_mib) == ("GPU-aa", stranger.pid, 900)
    assert tenant.user == pwd.getpwuid(os.geteuid()).pw_name
    assert tenant.command == "/bin/sh -c read end serve"
    assert len(read_tenants(states, pids_comparable=True)) == 2


def test_the_dead_are_no_tenants(start):
    """The driver lists a process until it has freed its memory: a zombie, then nobody at all."""
    dead = start()
    states = on_a_card(dead.pid)
    assert len(read_tenants(states, pids_comparable=True)) == 1
    dead.kill()
    eventually(lambda: proc.stat(dead.pid).dead, "a zombie")
    assert read_tenants(states, pids_comparable=True) == ()
    dead.wait()
    assert read_tenants(states, pids_comparable=True) == ()


def test_pids_of_another_namespace_name_nobody(start):
    """In a container an equal number is another process: unknown, and it counts as living."""
    stranger = start()
    gone = 2**22 + 1  # beyond what pid_max allows
    for pid in (stranger.pid, gone):
        tenant = only(read_tenants(on_a_card(pid, held_mib=None), pids_comparable=False))
        assert (tenant.user, tenant.command, tenant.held_mib) == ("unknown", "unknown", None)
    assert read_tenants(on_a_card(gone, 2**70), pids_comparable=True) == ()


@pytest.mark.parametrize(
    "secret",
    [
        ("--api-key", "hunter2"),
        ("HF_TOKEN=hunter2",),
        ("--url=https://me:hunter2@host/",),
        ("job --password hunter2",),  # a title that a process gave itself is one word
    ],
)
def test_secrets_are_not_shown(start, secret):
    """A command line with a secret is shown without it."""
    tenant = only(read_tenants(on_a_card(start(*secret).pid), pids_comparable=True))
    assert "hunter2" not in tenant.command
    assert "<redacted>" in tenant.command


def test_a_command_is_short_and_harms_no_terminal(start):
    """Foreign text: bounded, without control characters."""
    stranger = start("\x1b[31m\x07\u202e", "x" * 10_000)
    command = only(read_tenants(on_a_card(stranger.pid), pids_comparable=True)).command
    assert len(command) == COMMAND_CHARS
    assert command.isascii()
    assert command.isprintable()
    assert "x07" in command


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_another_user_is_named(start):
    """By name, or by number where the number has none; also where /proc says root."""
    nobody = pwd.getpwnam("nobody")
    tenant = only(read_tenants(on_a_card(start(user=nobody.pw_uid).pid), pids_comparable=True))
    assert tenant.user == "nobody"
    tenant = only(read_tenants(on_a_card(start(user=54321).pid), pids_comparable=True))
    assert tenant.user == "54321"


def test_unknown_processes_are_none():
    """A driver that does not tell its processes names nobody."""
    assert read_tenants((GpuState(0, "GPU-aa"), GpuState(1, "GPU-bb", processes=()))) == ()
