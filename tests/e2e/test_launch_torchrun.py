"""The keeper, the doorway and the watch around a real torchrun."""

import math
import os
import select
import signal
import time

import pytest
from support import PYTHON, RANK_ENTRY, eventually, open_run

from humigence_supervise import launch
from humigence_supervise.contract import LAUNCHER_LOG
from humigence_supervise.domain import Launcher
from humigence_supervise.observe.exits import RankWatch

RANK = """
import os, signal, sys, time
rank = os.environ["RANK"]
def save(signum, frame):
    time.sleep(float(sys.argv[2]))
    open(f"saved-{rank}", "w").close()
    os._exit(143)
signal.signal(signal.SIGTERM, signal.SIG_IGN if rank in sys.argv[1] else save)
print(f"out of {rank}")
print(f"err of {rank}", file=sys.stderr)
open(f"ready-{rank}", "w").write(str(os.getpid()))
while True:
    signal.pause()
"""


@pytest.fixture
def run(tmp_path):
    """A run directory with the ranks' script, in which nothing may be alive at the end."""
    (tmp_path / "rank.py").write_text(RANK)
    with open_run(tmp_path) as opened:
        yield opened


def start(run, *, deaf="", save_s=0.0, grace_s=20.0, torchrun_waits_s=None):
    """Start two ranks under torchrun; return the keeper, with both ranks at work."""
    waits_s = math.ceil(grace_s) if torchrun_waits_s is None else torchrun_waits_s
    argv = [
        *(PYTHON, "-m", "torch.distributed.run", "--nnodes=1", "--nproc-per-node=2"),
        *("--max-restarts=0", "--rdzv-backend=static", "--master-addr=127.0.0.1"),
        *(f"--master-port={launch.free_port()}", f"--rdzv-id={run.id}-1"),
        *(str(RANK_ENTRY), "rank.py", deaf or "-", str(save_s)),
    ]
    kept = run.start(
        *argv,
        world_size=2,
        grace_s=grace_s,
        launcher=Launcher.TORCHRUN,
        env={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(waits_s)},
    )
    for rank in range(2):
        eventually(
            lambda rank=rank: (run.dir / f"ready-{rank}").exists() or kept.ended,
            "the rank is at work",
            within_s=60.0,
        )
        assert not kept.ended, (run.attempt_dir() / LAUNCHER_LOG).read_text()
    return kept


def test_dead_rank_is_seen_and_the_deaf_one_cleared(run):
    """A killed rank is seen in 0.2 s with its signal; clear() leaves nothing of the rest in 1 s."""
    kept = start(run, deaf="1")
    watch = RankWatch(run.attempt_dir(), 2)
    watch.discover()
    pids = {rank: run.pid_from(f"ready-{rank}") for rank in range(2)}
    assert len(watch.fds) == 2
    for rank in range(2):
        folder = run.attempt_dir() / "ranks" / str(rank)
        assert (folder / "stdout.log").read_text() == f"out of {rank}\n"
        assert (folder / "stderr.log").read_text() == f"err of {rank}\n"
    begun = time.monotonic()
    os.kill(pids[0], signal.SIGKILL)
    (ended,) = watch.exits(select.select(watch.fds, [], [], 0.2)[0])
    assert time.monotonic() - begun < 0.2
    assert (ended.rank, ended.pid, ended.status.signal) == (0, pids[0], signal.SIGKILL)
    kept.clear()
    record = run.ended(kept, within_s=1.0)
    assert record["stop"] == "kill"
    assert record["launcher"]["signal"] == signal.SIGKILL
    watch.close()


def test_graceful_stop_waits_for_saving_ranks(run):
    """Ranks that need 2 s to save get them, and all is over as soon as they have ended."""
    kept = start(run, save_s=2.0, grace_s=20.0)
    begun = time.monotonic()
    kept.stop()
    record = run.ended(kept)
    assert 2.0 <= time.monotonic() - begun < 10.0
    assert {f"saved-{rank}" for rank in range(2)} <= {path.name for path in run.dir.iterdir()}
    assert (record["stop"], record["launcher"]["code"]) == ("graceful", 1)


def test_graceful_stop_ends_with_the_grace(run):
    """A deaf rank cannot make the stop longer than the grace, although the other one saved."""
    kept = start(run, deaf="1", grace_s=1.5)
    begun = time.monotonic()
    kept.stop()
    record = run.ended(kept)
    assert 1.5 <= time.monotonic() - begun < 3.5
    assert (run.dir / "saved-0").exists()
    assert record["stop"] == "graceful"


@pytest.mark.slow
def test_torchruns_own_limit_would_cut_the_grace(run):
    """Why the plan sets TORCH_ELASTIC_SHUTDOWN_TIMEOUT: torchrun kills ranks by its own clock."""
    kept = start(run, save_s=5.0, grace_s=20.0, torchrun_waits_s=1)
    kept.stop()
    run.ended(kept)
    assert not (run.dir / "saved-0").exists()
