"""The main job, whole: a real torchrun job fails, the run falls back, resumes and finishes."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest
from main_job import LADDER, Job, assert_every_step_once, in_order, names, write
from support import eventually

from humigence_supervise.contract import EXIT_CONFIG, EXIT_HOPELESS, EXIT_SIGTERM
from humigence_supervise.observe.host import read_host
from humigence_supervise.records import Event
from humigence_supervise.run_lock import holder

FALLBACK = "⚠️ NCCL multi-GPU failed, falling back to single GPU training on cuda:0."


def test_an_nccl_failure_falls_back_and_finishes(job: Job) -> None:
    """The journal tells the story in order; nothing is lost, nothing repeated, redone counted."""
    write(job, worker={"faults": [{"name": "nccl_error", "step": 13, "rank": 1}]})
    code, out, _ = job.finish()
    events = job.events()
    assert code == 0, names(events)
    first, _, diagnosis, changed, second, _ = in_order(
        events,
        Event.ATTEMPT_STARTED,
        Event.ATTEMPT_EXITED,
        Event.DIAGNOSIS_MADE,
        Event.RUNG_CHANGED,
        Event.ATTEMPT_STARTED,
        Event.RUN_COMPLETED,
    )
    assert (first.rung, first.facts["world_size"]) == ("multi_gpu", 2)
    assert str(diagnosis.facts["kind"]).startswith("nccl_")
    assert (diagnosis.facts["rank"], changed.message) == (1, FALLBACK)
    assert (second.rung, second.facts["resume_step"]) == ("single_gpu", 10)
    assert_every_step_once(job, redone=2)
    printed = [json.loads(line) for line in out.splitlines()]
    journaled = (job.run_dir / "journal.jsonl").read_text().splitlines()
    assert printed == [json.loads(line) for line in journaled]
    final = job.run_dir / "attempts" / "0002" / "ranks" / "0" / "stdout.log"
    assert "unigram" in final.read_text()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_is_retried_and_loses_nothing(job: Job, rank: int) -> None:
    """A bare SIGKILL has no proven cause: the same rung again, from the newest checkpoint."""
    write(job, worker={"faults": [{"name": "sigkill", "step": 13, "rank": rank}]})
    code, _, _ = job.finish()
    events = job.events()
    assert code == 0, names(events)
    exited, diagnosis, second, _ = in_order(
        events,
        Event.ATTEMPT_EXITED,
        Event.DIAGNOSIS_MADE,
        Event.ATTEMPT_STARTED,
        Event.RUN_COMPLETED,
    )
    assert (exited.facts["rank"], exited.facts["signal"]) == (rank, signal.SIGKILL)
    assert diagnosis.facts["kind"] in {"unknown", "preempted"}
    assert (second.rung, second.facts["resume_step"]) == ("multi_gpu", 10)
    assert_every_step_once(job, redone=2)


def test_a_killed_torchrun_leaves_no_orphan_training(job: Job) -> None:
    """Torchrun killed by SIGKILL: its ranks are gone before the next attempt starts."""
    write(job)
    process = job.start()
    job.wait_for_step(7)
    keeper = json.loads((job.run_dir / "attempts" / "0001" / "keeper.json").read_text())
    ranks = [
        psutil.Process(json.loads(file.read_text())["pid"])
        for file in job.run_dir.glob("attempts/0001/ranks/*/process.json")
    ]
    assert len(ranks) == 2
    os.kill(keeper["launcher_pid"], signal.SIGKILL)
    eventually(lambda: Event.TREE_CLEARED.value in names(job.events()), "tree.cleared", 30)
    assert not [rank for rank in ranks if rank.is_running() and rank.status() != "zombie"]
    code, _, _ = job.finish(process)
    assert code == 0, names(job.events())
    redone = job.status()["redone_steps"]
    assert isinstance(redone, int)
    assert_every_step_once(job, redone)


def test_an_oom_is_the_cause_and_the_closed_connection_its_symptom(job: Job) -> None:
    """Rank 1 runs out of memory, rank 0 reports a closed connection: the kind is cuda_oom."""
    write(job, worker={"faults": [{"name": "cuda_oom", "step": 8, "rank": 1}]})
    code, _, _ = job.finish()
    events = job.events()
    assert code == 0, names(events)
    diagnosis, changed, second = in_order(
        events, Event.DIAGNOSIS_MADE, Event.RUNG_CHANGED, Event.ATTEMPT_STARTED
    )
    assert (diagnosis.facts["kind"], diagnosis.facts["rank"]) == ("cuda_oom", 1)
    assert "falling back to single GPU training on cuda:0." in changed.message
    assert second.rung == "single_gpu"
    assert_every_step_once(job, redone=2)


def test_a_wrong_import_stops_after_one_attempt(job: Job) -> None:
    """What cannot work is not tried again: 93, and the line is named."""
    script = job.folder / "wrong.py"
    script.write_text('"""A worker with a typo."""\n\nimport torchh\n')
    write(job, worker=None)
    document = json.loads(job.config.read_text())
    document["worker"] = {"script": "wrong.py"}
    job.config.write_text(json.dumps(document))
    code, _, _ = job.finish()
    events = job.events()
    assert code == EXIT_HOPELESS, names(events)
    assert names(events).count("attempt.started") == 1
    (diagnosis,) = [one for one in events if one.event is Event.DIAGNOSIS_MADE]
    assert diagnosis.facts["kind"] == "import_error"
    assert "wrong.py:3" in json.dumps([diagnosis.facts, diagnosis.message])
    assert job.status()["state"] == "failed"


def test_a_wrong_dataset_is_a_configuration_error(job: Job) -> None:
    """A broken JSONL line ends the run with 78 after one attempt; file and line are named."""
    write(job, worker={"data": "broken.jsonl"})
    (job.folder / "broken.jsonl").write_text('{"text": "fine"}\n{"text": "torn\n')
    code, _, _ = job.finish()
    events = job.events()
    assert code == EXIT_CONFIG, names(events)
    assert names(events).count("attempt.started") == 1
    assert "broken.jsonl: line 2" in events[-1].message


def test_a_full_disk_is_waited_for(job: Job) -> None:
    """On a small tmpfs the run waits, says how much is missing, and goes on when space returns."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    small = job.folder / "small"
    small.mkdir()
    write(
        job,
        worker={"faults": [{"name": "fill_disk", "step": 12, "rank": 0, "folder": str(small)}]},
        checkpoints={"dir": str(small / "checkpoints")},
    )
    shell = f'mount -t tmpfs -o size=4m none {small} && exec "$@"'
    process = job.start(("unshare", "--mount", "--propagation", "private", "sh", "-c", shell, "sh"))
    eventually(lambda: process.poll() is not None or holder(job.run_dir), "a supervisor", 30)
    if process.poll() is not None:
        pytest.skip(f"no private mounts here: {process.communicate()[1].strip()}")
    eventually(
        lambda: Event.BACKOFF_STARTED.value in names(job.events()) or process.poll() is not None,
        "the wait",
        within_s=90,
    )
    diagnosis, waiting = in_order(job.events(), Event.DIAGNOSIS_MADE, Event.BACKOFF_STARTED)
    assert diagnosis.facts["kind"] == "disk_full"
    assert f"{waiting.facts['missing_mib']} MiB are missing" in waiting.message
    assert (job.status()["state"], process.poll()) == ("waiting", None)
    supervisor = holder(job.run_dir)
    assert supervisor is not None
    inside = Path(f"/proc/{supervisor.pid}/root{small}")
    fillers = [path for path in inside.iterdir() if path.is_file()]
    assert fillers, list(inside.iterdir())
    for filler in fillers:
        filler.unlink()
    code, _, _ = job.finish(process)
    assert code == 0, names(job.events())
    in_order(job.events(), Event.BACKOFF_STARTED, Event.BACKOFF_ENDED, Event.RUN_COMPLETED)


@pytest.mark.gpu
def test_the_main_job_on_gpus(job: Job) -> None:
    """The same on real GPUs: NCCL on two, then the healthiest one as cuda:0."""
    gpus = len(read_host(Path(sys.executable)).gpus)
    if gpus < 2:
        pytest.skip(f"needs 2 NVIDIA GPUs, this machine shows {gpus}")
    write(
        job,
        worker={"faults": [{"name": "nccl_error", "step": 13, "rank": 1}]},
        accelerator="cuda",
        ladder=[{**LADDER[0], "gpus": 2}, LADDER[1]],
    )
    code, _, _ = job.finish()
    assert code == 0, names(job.events())
    assert_every_step_once(job, redone=2)
    output = (job.run_dir / "attempts" / "0002" / "ranks" / "0" / "stdout.log").read_text()
    assert "✅ Single GPU Training: cuda:0" in output


def test_a_stop_saves_and_the_next_start_goes_on(job: Job) -> None:
    """SIGTERM loses no step and ends with 143; the second start completes the run."""
    write(job)
    process = job.start()
    job.wait_for_step(3)
    os.kill(process.pid, signal.SIGTERM)
    code, _, _ = job.finish(process)
    assert code == EXIT_SIGTERM, names(job.events())
    stopped = job.status()
    assert stopped["state"] == "stopped"
    assert stopped["checkpoint"]["step"] == stopped["step"]
    code, _, _ = job.finish()
    assert code == 0, names(job.events())
    in_order(job.events(), Event.RUN_STOPPED, Event.RUN_RESUMED, Event.RUN_COMPLETED)
    assert_every_step_once(job, redone=0)
