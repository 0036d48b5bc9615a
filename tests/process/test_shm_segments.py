"""Segments that NCCL's dead left: removed when nobody uses them, and only then."""

import json
import os
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest
from support import FAST_PYTHON, eventually

from humigence_supervise.observe import shm_segments
from humigence_supervise.observe.shm_segments import Removed, remove_stale_segments

MAPS = """
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
held = mmap.mmap(fd, 4096)
os.closerange(3, 64)  # also the copy that mmap keeps: NCCL's ranks only map
print(flush=True)
sys.stdin.read()
"""
OPENS = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
print(flush=True)
sys.stdin.read()
"""
SIZE = 8192
OTHER_UID = 54321


@pytest.fixture
def folder():
    """Give a folder on the tmpfs where NCCL's segments are, open to every user."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as path:
        Path(path).chmod(0o777)
        yield Path(path)


def aged(path):
    """Return a segment when it is old enough to be removed."""
    age = shm_segments._LEAST_AGE_S  # noqa: SLF001 - the very figure
    eventually(lambda: time.time() - path.lstat().st_ctime > age, "the segment is old enough")
    return path


def segment(folder, name="nccl-Ab12Cd"):
    """Create a segment as NCCL does."""
    path = folder / name
    path.write_bytes(b"\1" * SIZE)
    path.chmod(0o600)
    return path


@pytest.fixture
def use():
    """Start processes that use a file until they are ended."""
    users = []

    def begin(program, path):
        one = subprocess.Popen(
            [*FAST_PYTHON, "-c", program, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        users.append(one)
        assert one.stdout.readline()
        return one

    yield begin
    for one in users:
        one.kill()
        one.stdin.close()
        one.stdout.close()
        one.wait()


@pytest.mark.parametrize("program", [MAPS, OPENS])
@pytest.mark.parametrize("on", ["tmpfs", "disk"])
def test_in_use_it_stays_and_after_a_kill_it_goes(tmp_path, folder, use, program, on):
    """One that a living process maps (with the file closed) or has open, then is killed."""
    where = folder if on == "tmpfs" else tmp_path
    since_s = time.time() - 0.1
    path = aged(segment(where))
    user = use(program, path)
    assert remove_stale_segments(since_s, where) == Removed()
    assert path.exists()
    user.kill()
    user.wait()
    assert remove_stale_segments(since_s, where) == Removed((path.name,), SIZE)
    assert not path.exists()


def test_one_in_use_beside_one_that_is_not(folder, use):
    """Each is judged for itself."""
    since_s = time.time() - 0.1
    used, free = segment(folder, "nccl-used"), aged(segment(folder, "nccl-free"))
    use(MAPS, used)
    assert remove_stale_segments(since_s, folder).names == ("nccl-free",)
    assert (used.exists(), free.exists()) == (True, False)


def test_a_child_that_inherited_the_mapping_keeps_it(folder, use):
    """The process that mapped it is gone, its forked child lives: like a DataLoader's worker."""
    since_s = time.time() - 0.1
    path = aged(segment(folder))
    forks = MAPS.replace("print(", "child = os.fork()\nif child: os._exit(0)\nprint(")
    parent = use(forks, path)
    parent.wait()
    assert remove_stale_segments(since_s, folder) == Removed()
    parent.stdin.close()
    eventually(lambda: remove_stale_segments(since_s, folder).names, "removed with its last user")


def test_what_is_not_ncclss_is_not_touched(folder):
    """Torch's and POSIX semaphores, other names, folders, FIFOs."""
    since_s = time.time() - 0.1
    for name in ("torch_1_2_3", "sem.nccl-x", "xnccl-a", "nccl-", "nccl-a b", "nccl"):
        segment(folder, name)
    (folder / "nccl-folder").mkdir()
    os.mkfifo(folder / "nccl-fifo", 0o600)
    mine = aged(segment(folder, "nccl-mine"))
    assert remove_stale_segments(since_s, folder).names == (mine.name,)
    assert len(list(folder.iterdir())) == 8


def test_a_link_is_never_followed(folder):
    """Neither the link nor what it leads to is removed."""
    since_s = time.time() - 0.1
    target = aged(segment(folder, "target"))
    (folder / "nccl-link").symlink_to(target)
    eventually(lambda: aged(folder / "nccl-link"), "the link is old enough")
    assert remove_stale_segments(since_s, folder) == Removed()
    assert target.exists()
    assert (folder / "nccl-link").is_symlink()


def test_one_of_before_the_attempt_or_of_this_moment_stays(folder):
    """Another job's, and one whose users may not be seen yet."""
    since_s = time.time() - 0.1
    path = segment(folder)
    assert remove_stale_segments(since_s, folder) == Removed()
    aged(path)
    assert remove_stale_segments(time.time(), folder) == Removed()
    os.utime(path, (since_s - 100, since_s - 100))
    aged(path)
    assert remove_stale_segments(since_s, folder) == Removed()
    assert path.exists()
    assert remove_stale_segments(since_s - 200, folder).names == (path.name,)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")
def test_one_of_another_user_or_open_to_others_stays(folder):
    """Whose users could be somebody we may not look at."""
    since_s = time.time() - 0.1
    os.chown(segment(folder, "nccl-theirs"), OTHER_UID, OTHER_UID)
    segment(folder, "nccl-shared").chmod(0o660)
    aged(segment(folder, "nccl-mine"))
    assert remove_stale_segments(since_s, folder).names == ("nccl-mine",)


def test_without_the_folder_it_is_said(tmp_path):
    """A machine without /dev/shm."""
    (said,) = remove_stale_segments(0, tmp_path / "none").unread
    assert said == f"{tmp_path}/none was not searched for old segments: No such file or directory"


def test_a_look_that_takes_too_long_removes_nothing(folder, monkeypatch):
    """It is bounded, and says so."""
    since_s = time.time() - 0.1
    path = aged(segment(folder))
    monkeypatch.setattr(shm_segments, "SCAN_S", 0.0)
    found = remove_stale_segments(since_s, folder)
    assert found.names == ()
    assert "1 segments of NCCL stay" in found.unread[0]
    assert "took more than 0 s" in found.unread[0]
    assert path.exists()


# --- a user who is not root ---------------------------------------------------------------------


def as_other_user(folder, since_s):
    """Return what another user removes: in a forked child, since our Python is root's alone."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            os.setresuid(OTHER_UID, OTHER_UID, OTHER_UID)
            found = remove_stale_segments(since_s, folder)
            os.write(writing, json.dumps([found.names, found.unread]).encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as answer:  # noqa: PTH123 - a descriptor
        told = json.loads(answer.read())
    os.waitpid(child, 0)
    return told


@pytest.fixture
def hidden():
    """Give the pid of another user's process that this user may not inspect."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        # A process that gave up root is not dumpable until it executes a program, thus hidden.
        with suppress(BaseException):
            os.close(writing)
            os.setresuid(OTHER_UID, OTHER_UID, OTHER_UID)
            os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    status = Path(f"/proc/{child}/status")
    eventually(lambda: f"Uid:\t{OTHER_UID}" in status.read_text(), "it gave up root")
    yield child
    os.close(writing)
    os.waitpid(child, 0)


def segment_of_other_user(folder):
    """Return a segment that is old enough, of the user who is not root."""
    path = segment(folder)
    os.chown(path, OTHER_UID, OTHER_UID)
    return aged(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_where_a_process_of_the_attempt_may_be_hidden_all_stay(folder, hidden):
    """It began since the attempt did, it is of this user, and nobody can tell what it maps."""
    path = segment_of_other_user(folder)
    names, unread = as_other_user(folder, path.lstat().st_mtime - 0.1)
    assert names == []
    assert f"process {hidden} of this user cannot be inspected (Permission denied)" in unread[0]
    assert path.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
@pytest.mark.usefixtures("hidden")
def test_one_hidden_since_before_the_attempt_hinders_nobody(folder):
    """An ssh-agent is; root's processes are hidden too; one that can be seen is looked at."""
    began_s = time.time()
    eventually(lambda: time.time() - began_s > 1.5, "the attempt begins well after")
    path = segment_of_other_user(folder)
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, user=OTHER_UID) as seen:
        assert as_other_user(folder, path.lstat().st_mtime - 0.1) == [[path.name], []]
        seen.stdin.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_a_user_who_is_not_root_sees_its_own_users(folder):
    """A segment that a visible process of this user has open stays."""
    path = segment_of_other_user(folder)
    argv = ["/bin/sh", "-c", f"exec 3<{path}; echo; read end"]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, user=OTHER_UID
    ) as one:
        one.stdout.readline()
        assert as_other_user(folder, path.lstat().st_mtime - 0.1) == [[], []]
        one.communicate()
    assert as_other_user(folder, path.lstat().st_mtime - 0.1) == [[path.name], []]
