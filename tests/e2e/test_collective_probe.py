"""The collective probe under a real torchrun, with two ranks on gloo, and what it refuses."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from support import PYTHON, open_run

from humigence_supervise import ladder, launch
from humigence_supervise.config import parse_settings
from humigence_supervise.domain import Host, RunPaths
from humigence_supervise.probe_plan import probe_plan
from humigence_supervise.probe_script import probe_script

SCRIPT = probe_script()
assert SCRIPT is not None

OK = "collective probe: ok: {ranks} ranks, gloo, 64 MiB, "
LAUNCHER_S = 15.0
"""What torchrun may need to start and to end, above the deadline of the ranks."""

FAULTY = """
import ctypes, os, runpy, signal, time
import torch.distributed as dist
correct = dist.all_reduce
def all_reduce(tensor, **more):
    if os.environ["RANK"] == "1" and tensor.numel() > 1_000_000:
        FAULT
    return correct(tensor, **more)
dist.all_reduce = all_reduce
runpy.run_path("PROBE", run_name="__main__")
"""
"""The probe itself on a torch whose large all-reduce has a fault on rank 1."""


@pytest.fixture
def run(tmp_path):
    """A run directory, in which nothing may be alive at the end."""
    with open_run(tmp_path) as opened:
        yield opened


def probe(run, script: Path, deadline_s: float):
    """Run a probe for the upper rung of a run on the CPU; return the end of its launcher."""
    attempt = ladder.plan(
        parse_settings(b'{"name": "p", "worker": {"script": "none.py"}}', run.dir / "c.json"),
        RunPaths("p", run.id, run.dir, run.dir / "checkpoints"),
        0,
        host=Host(cpu_count=2),
        attempt=1,
        resume_from=None,
        port=1,
        inherited=os.environ,
    )
    plan = probe_plan(attempt, Path(PYTHON), launch.free_port(), script, deadline_s)
    run.keepers.append(launch.start(plan, run.dir, os.environ))
    record = run.ended(run.keepers[-1], within_s=deadline_s + LAUNCHER_S)
    assert record["stop"] == "none"
    return record["launcher"]["code"]


def said(run, rank: int, stream: str) -> str:
    """Return what a rank wrote."""
    return (run.attempt_dir() / "ranks" / str(rank) / f"{stream}.log").read_text()


def faulty(run, fault: str) -> Path:
    """Return a script that is the probe with a fault."""
    script = run.dir / "faulty.py"
    script.write_text(FAULTY.replace("FAULT", fault).replace("PROBE", str(SCRIPT)))
    return script


def test_ranks_that_work_together_pass(run):
    """Exit code 0 within the deadline, and one line from rank 0 that says what was tried."""
    begun = time.monotonic()
    assert probe(run, SCRIPT, deadline_s=45.0) == 0
    assert time.monotonic() - begun < 45.0
    assert said(run, 0, "stdout").startswith(OK.format(ranks=2))
    assert said(run, 0, "stdout").count("\n") == 1
    assert said(run, 1, "stdout") == ""
    assert list((run.attempt_dir() / "progress").iterdir()) == []


def test_a_wrong_value_is_refused(run):
    """One element of 16 million, wrong by one on one rank, is found and named."""
    assert probe(run, faulty(run, "tensor[12345] += 1"), deadline_s=45.0) == 1
    line = "all-reduce of 64 MiB: element 12345 is 283.0, expected 282.0 (1 of 16777216 are wrong)"
    assert line in said(run, 0, "stderr") + said(run, 1, "stderr")
    assert "ok" not in said(run, 0, "stdout")


@pytest.mark.slow
def test_a_rank_that_dies_is_refused(run):
    """The other one does not wait for the deadline."""
    begun = time.monotonic()
    assert probe(run, faulty(run, "os.kill(os.getpid(), signal.SIGKILL)"), deadline_s=100.0) == 1
    assert time.monotonic() - begun < 50.0
    assert "ok" not in said(run, 0, "stdout")


def test_a_rank_that_never_joins_is_refused_in_words(run):
    """The rank that waits says for which operation, earlier than the deadline ends it."""
    assert probe(run, faulty(run, "time.sleep(3600)"), deadline_s=6.0) == 1
    words = "collective probe: rank 0: all-reduce of 64 MiB: not done after 2 s: another rank"
    assert words in said(run, 0, "stderr")
    assert "Timeout (0:00:06)!" not in said(run, 0, "stderr")


@pytest.mark.slow
def test_the_deadline_ends_a_rank_that_nothing_else_ends(run):
    """Stuck in C with the interpreter's lock and deaf to SIGTERM: ended, and its stack is told."""
    stuck = "signal.signal(signal.SIGTERM, signal.SIG_IGN); ctypes.PyDLL(None).sleep(3600)"
    assert probe(run, faulty(run, stuck), deadline_s=6.0) == 1
    assert "Timeout (0:00:06)!" in said(run, 1, "stderr")
    assert "in all_reduce" in said(run, 1, "stderr")


def alone(script: Path, **variables: str):
    """Run the probe as a world of one, without torchrun."""
    world = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    return subprocess.run(
        [PYTHON, str(script)],
        env=os.environ | world | {"MASTER_PORT": str(launch.free_port())} | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_what_lies_beside_the_probe_is_not_imported(tmp_path):
    """A module of the worker's package may have the name of one that torch wants."""
    shutil.copy(SCRIPT, tmp_path / "probe.py")
    (tmp_path / "numpy.py").write_text("import os; os._exit(9)")
    answer = alone(tmp_path / "probe.py", CUDA_VISIBLE_DEVICES="")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.startswith(OK.format(ranks=1))


def test_gpus_that_torch_does_not_see_are_refused():
    """On the CPU all would work, and would prove nothing of the GPUs that were named."""
    answer = alone(SCRIPT, CUDA_VISIBLE_DEVICES="GPU-00000000-0000-0000-0000-000000000000")
    assert answer.returncode == 1
    assert answer.stdout == ""
    assert "collective probe: rank 0: choosing a device: local rank 0 has no GPU" in answer.stderr
