"""The keeper on a full disk, and with a process that no signal can kill."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support import FAST_PYTHON, PYTHON, RANK_ENTRY

PRELUDE = """
import errno, json, os, subprocess, sys, time
sys.path[:] = json.loads(sys.argv[1])
from pathlib import Path
from support import Run, eventually
from humigence_supervise import launch, proc
run = Run(Path(sys.argv[2]))
run.id = sys.argv[3]
def fill():
    with open(run.dir / "filler", "ab", buffering=0) as stream:
        try:
            while True:
                stream.write(bytes(4096))
        except OSError as error:
            assert error.errno == errno.ENOSPC, error
"""


def in_mount_namespace(run, mount: str, scenario: str):
    """Run a scenario where a shell line has mounted a disk on $1; return the JSON it printed.

    The disk is seen by nobody else and gone with the last process of the scenario.
    """
    unshare = ["unshare", "--mount", "--propagation", "private", "sh", "-c"]
    probe = subprocess.run(
        [*unshare, f"{mount}; umount $1", "sh", run.dir], capture_output=True, check=False
    )
    if probe.returncode != 0:
        pytest.skip(f"no disk can be mounted here: {probe.stderr.decode().strip()}")
    paths = json.dumps([str(Path(__file__).parents[1]), *filter(None, sys.path)])
    answer = subprocess.run(
        [
            *(*unshare, f'{mount} && exec "$2" -c "$3" "$4" "$1" "$5"', "sh"),
            *(run.dir, PYTHON, PRELUDE + scenario, paths, run.id),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


SMALL_TMPFS = "mount -t tmpfs -o size=1m none $1"


def test_end_is_told_on_a_full_disk(run):
    """The worker fills the disk and dies: exit.json is written into the room kept for it."""
    scenario = """
kept = run.start_python(
    "try:\\n    f = open('more', 'ab', buffering=0)\\n    while f.write(bytes(512)): pass\\n"
    "except OSError as error: raise SystemExit(error.errno)")
eventually(lambda: kept.ended, "the keeper ends")
fill()
print(json.dumps([launch.read_exit(run.attempt_dir()), os.listdir(run.attempt_dir())]))
"""
    record, files = in_mount_namespace(run, SMALL_TMPFS, scenario)
    assert (record["launcher"]["code"], record["cleared"]) == (28, True)
    assert "keeper.ballast" not in files


def test_no_room_to_start(run):
    """A disk full before the start: one sentence that says so, and nothing is alive."""
    scenario = """
fill()
try:
    run.start_python("open('started', 'w')")
except launch.LaunchError as error:
    print(json.dumps([str(error), os.path.exists(run.dir / "started")]))
"""
    said, started = in_mount_namespace(run, SMALL_TMPFS, scenario)
    assert said.startswith("attempt 1 ")
    assert "No space left on device" in said
    assert not started


def test_no_room_for_the_keeper(run):
    """Room for the plan but not for the keeper's files: the keeper's sentence arrives."""
    scenario = """
Path(run.attempt_dir(1)).mkdir(parents=True)
fill()
os.truncate(run.dir / "filler", os.path.getsize(run.dir / "filler") - 2 * 4096)
try:
    run.start_python("open('started', 'w')")
except launch.LaunchError as error:
    print(json.dumps([str(error), launch.lock_held(run.dir)]))
"""
    said, held = in_mount_namespace(run, SMALL_TMPFS, scenario)
    assert "has no keeper: the keeper cannot set up" in said
    assert "No space left on device" in said
    assert not held


def test_doorway_on_a_full_disk(run):
    """A rank that cannot write its process file says so where its launcher's errors go."""
    scenario = f"""
folder = run.attempt_dir() / "ranks" / "0"
folder.mkdir(parents=True)
fill()
environ = {{"RANK": "0", "LOCAL_RANK": "0", "HUMIGENCE_ATTEMPT_DIR": str(run.attempt_dir())}}
answer = subprocess.run({[*FAST_PYTHON, str(RANK_ENTRY), "x.py"]!r}, env=environ,
                        capture_output=True, text=True)
print(json.dumps([answer.returncode, answer.stderr]))
"""
    code, said = in_mount_namespace(run, SMALL_TMPFS, scenario)
    assert code == 70
    assert "rank 0 cannot use its folder" in said
    assert "No space left on device" in said


@pytest.mark.slow
def test_unkillable_process_is_told_and_waited_for(run):
    """A process in D state is listed as a survivor; the keeper ends only when it has died."""
    mount = (
        "truncate -s 8M $1.img && mkfs.ext4 -q $1.img && mount -o loop $1.img $1"
        " && fsfreeze -f $1 && fsfreeze -u $1"
    )
    scenario = """
frozen = run.dir
run.dir = Path(f"{frozen}.run")
run.dir.mkdir()
subprocess.run(["fsfreeze", "-f", frozen], check=True)
try:
    kept = run.start("/bin/sh", "-c", 'echo $$ > stuck; echo x > "$0"/x', str(frozen))
    stuck = run.pid_from("stuck")
    eventually(lambda: proc.stat(stuck).state == "D", "D state")
    kept.clear()
    record = eventually(lambda: launch.read_exit(run.attempt_dir()), "exit.json")
    alive = not kept.ended
finally:
    subprocess.run(["fsfreeze", "-u", frozen], check=True)
print(json.dumps([stuck, record, alive, run.ended(kept)]))
"""
    stuck, while_stuck, alive, at_last = in_mount_namespace(run, mount, scenario)
    assert alive
    assert (while_stuck["survivors"], while_stuck["cleared"]) == ([stuck], False)
    assert (while_stuck["launcher"], while_stuck["stop"]) == (None, "kill")
    assert (at_last["survivors"], at_last["cleared"]) == ([], True)
    assert at_last["launcher"]["signal"] == 9
