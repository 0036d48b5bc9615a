"""The supervisor's lock, and those who only look who holds it."""

import subprocess

import pytest
from support import FAST_PYTHON

from humigence_supervise import contract
from humigence_supervise.run_lock import RunHeldError, RunLock, holder

LOOK = (
    "import fcntl, os, select, sys; lock = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT);"
    "fcntl.flock(lock, fcntl.LOCK_SH); print('held', flush=True);"
    "select.select([0], [], [], float(sys.argv[2]))"
)


@pytest.fixture
def look(tmp_path):
    """Start a process that holds the lock shared for so long; killed after the test."""
    started = []

    def start(held_s):
        command = [*FAST_PYTHON, "-c", LOOK, tmp_path / contract.SUPERVISOR_LOCK, str(held_s)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout.readline() == b"held\n"

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_look_at_the_lock_is_no_other_supervisor(tmp_path, look):
    """Whoever looks while a supervisor starts does not make it refuse."""
    look(0.3)
    lock = RunLock(tmp_path)
    assert holder(tmp_path) is not None
    lock.release()
    assert holder(tmp_path) is None


def test_a_lock_that_stays_held_is_refused(tmp_path, look):
    """Held for long it is another's."""
    look(60)
    with pytest.raises(RunHeldError, match="held by another supervisor"):
        RunLock(tmp_path)
