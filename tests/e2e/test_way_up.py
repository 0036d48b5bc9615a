"""The way back up, and the way through a shortage of memory: real torchrun, real checkpoints."""

from __future__ import annotations

import json
import signal
import subprocess

import pytest
from main_job import TARGET, Job, assert_every_step_once, in_order, names, write
from support import eventually

from humigence_supervise.contract import EXIT_HOPELESS, EXIT_SIGTERM
from humigence_supervise.records import Event

SLOW = {"seq_len": 128, "d_model": 128, "n_layers": 4}
"""A model whose steps take so long that the supervisor sees each checkpoint, not the last only."""


def final_tensors(job: Job) -> dict[str, str]:
    """Return the digests of the tensors in the last checkpoint, as its manifest says."""
    folder = job.run_dir / "checkpoints" / f"step-{TARGET:08d}"
    manifest = json.loads((folder / "MANIFEST.json").read_text())
    found = {one["path"]: one["sha256"] for one in manifest["files"]}
    return {name: digest for name, digest in found.items() if name.endswith(".safetensors")}


def undisturbed(job: Job) -> Job:
    """Return the same job, finished without any fault in a folder beside it."""
    folder = job.folder / "undisturbed"
    folder.mkdir()
    twin = Job(folder, job.name)
    write(twin, worker=SLOW)
    assert twin.finish()[0] == 0, names(twin.events())
    return twin


def test_a_run_goes_back_up_after_a_transient_fault(job: Job) -> None:
    """One NCCL fault, one step down; after a checkpoint a probe passes and two ranks finish."""
    write(
        job,
        worker={**SLOW, "faults": [{"name": "nccl_error", "step": 8, "rank": 1}]},
        promote={"after_s": 0.0},
    )
    code, _, _ = job.finish()
    events = job.events()
    assert code == 0, names(events)
    _, leaving, probing, tried, decision, changed, third, _ = in_order(
        events,
        Event.RUNG_CHANGED,
        Event.ATTEMPT_LEAVING,
        Event.PROMOTION_STARTED,
        Event.PROMOTION_TRIED,
        Event.DECISION_MADE,
        Event.RUNG_CHANGED,
        Event.ATTEMPT_STARTED,
        Event.RUN_COMPLETED,
    )
    assert leaving.facts["to_rung_index"] == 0
    assert (probing.facts["to"], tried.facts["passed"]) == ("multi_gpu", True)
    assert (decision.facts["decision"], changed.message) == (
        "StepUp",
        "Going back up to multi_gpu.",
    )
    assert (third.rung, third.facts["world_size"]) == ("multi_gpu", 2)
    assert_every_step_once(job, redone=2)
    tensors = final_tensors(job)
    assert len(tensors) >= 2, tensors
    assert tensors == final_tensors(undisturbed(job))


def test_a_failed_probe_costs_no_step(job: Job) -> None:
    """Two ranks cannot meet any more: the run goes on with one, from the step it left at."""
    broken = job.folder / "sitecustomize.py"
    broken.write_text(
        "import os, sys\n"
        "if any('collective_probe' in one for one in sys.orig_argv):\n"
        "    os.environ['GLOO_SOCKET_IFNAME'] = 'no-such-interface'\n"
    )
    write(
        job,
        worker={**SLOW, "faults": [{"name": "nccl_error", "step": 8, "rank": 1}]},
        promote={"after_s": 0.0, "max_promotions": 1},
    )
    document = json.loads(job.config.read_text())
    document["worker"]["env"] = {"PYTHONPATH": str(job.folder)}
    job.config.write_text(json.dumps(document))
    code, _, _ = job.finish()
    events = job.events()
    assert code == 0, names(events)
    leaving, tried, again, _ = in_order(
        events,
        Event.ATTEMPT_LEAVING,
        Event.PROMOTION_TRIED,
        Event.ATTEMPT_STARTED,
        Event.RUN_COMPLETED,
    )
    assert (leaving.rung, tried.facts["passed"], again.rung) == ("single_gpu", False, "single_gpu")
    assert "multi_gpu" in tried.message
    assert "rank 0: " in tried.message or "rank 1: " in tried.message
    assert names(events).count("promotion.tried") == 1
    assert_every_step_once(job, redone=2)


def probing(job: Job) -> subprocess.Popen[str]:
    """Return a supervisor whose run has just begun to probe the higher rung."""
    write(
        job,
        worker={**SLOW, "faults": [{"name": "nccl_error", "step": 8, "rank": 1}]},
        promote={"after_s": 0.0},
    )
    process = job.start()
    eventually(
        lambda: "promotion.started" in names(job.events()) or process.poll() is not None,
        "the probe",
        within_s=90,
    )
    assert process.poll() is None, names(job.events())
    return process


@pytest.mark.slow
def test_a_probe_outlives_its_supervisor(job: Job) -> None:
    """Killed while it probes: the next supervisor adopts the probe, or takes it for failed."""
    probing(job).kill()
    assert job.supervisor is not None
    job.supervisor.wait()
    code, _, _ = job.finish()
    events = job.events()
    assert code == 0, names(events)
    in_order(events, Event.PROMOTION_STARTED, Event.RUN_ADOPTED, Event.PROMOTION_TRIED)
    assert names(events).count("promotion.started") == names(events).count("promotion.tried")
    assert_every_step_once(job, redone=2)


@pytest.mark.slow
def test_a_stop_ends_a_probe(job: Job) -> None:
    """Nobody waits for a probe that is not wanted any more; the next start goes on."""
    process = probing(job)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == EXIT_SIGTERM
    events = job.events()
    assert events[-1].event is Event.RUN_STOPPED, names(events)
    assert names(events)[-3:-1] == ["run.stopping", "promotion.tried"]
    assert job.finish()[0] == 0
    assert_every_step_once(job, redone=2)


def test_memory_short_on_the_last_rung_halves_the_micro_batch(job: Job) -> None:
    """Two OOMs: down to one rank, then smaller micro-batches; the global batch stays the same."""
    write(
        job,
        worker={
            "faults": [
                {"name": "cuda_oom", "step": 8, "rank": 1},
                {"name": "cuda_oom", "step": 9, "rank": 0},
            ]
        },
        policy={"grow_after_checkpoints": 0},
    )
    code, _, _ = job.finish()
    events = job.events()
    assert code == 0, names(events)
    down, shrink = [e for e in events if e.event is Event.DECISION_MADE][:2]
    assert (down.facts["decision"], shrink.facts["decision"]) == ("StepDown", "ShrinkMicroBatch")
    plans = [json.loads(f.read_text()) for f in sorted(job.run_dir.glob("attempts/*/plan.json"))]
    sums = [plan["batch"] for plan in plans]
    assert [one["global"] for one in sums] == [8, 8, 8]
    assert [(one["micro"], one["grad_accum"], one["world_size"]) for one in sums] == [
        (4, 1, 2),
        (4, 2, 1),
        (2, 4, 1),
    ]
    status = job.status()
    assert (status["state"], status["samples_done"]) == ("completed", TARGET * 8)


@pytest.mark.slow
def test_a_quiet_stretch_brings_the_larger_micro_batch_back_once(job: Job) -> None:
    """After quiet checkpoints the larger micro-batch is tried again; it holds, and that is all."""
    write(
        job,
        worker={
            **SLOW,
            "save_steps": 3,
            "faults": [
                {"name": "cuda_oom", "step": 5, "rank": 1},
                {"name": "cuda_oom", "step": 6, "rank": 0},
            ],
        },
        policy={"grow_after_checkpoints": 2},
    )
    code, _, _ = job.finish()
    events = job.events()
    assert code == 0, names(events)
    decisions = [e.facts["decision"] for e in events if e.event is Event.DECISION_MADE]
    assert decisions == ["StepDown", "ShrinkMicroBatch", "GrowMicroBatch", "Complete"]
    plans = [json.loads(f.read_text()) for f in sorted(job.run_dir.glob("attempts/*/plan.json"))]
    assert [plan["batch"]["micro"] for plan in plans] == [4, 4, 2, 4]
    assert {plan["batch"]["global"] for plan in plans} == {8}


def test_the_same_exception_at_the_same_step_twice_stops(job: Job) -> None:
    """It failed after progress, so it is tried once more; the second time it is known: 93."""
    twice = [{"name": "exception", "step": 13, "rank": 0}] * 2
    write(job, worker={"faults": twice})
    code, _, _ = job.finish()
    events = job.events()
    assert code == EXIT_HOPELESS, names(events)
    retry, stop = [e for e in events if e.event is Event.DECISION_MADE]
    assert (retry.facts["decision"], stop.facts["decision"]) == ("Retry", "Stop")
    assert "The same failure at step 12 twice" in events[-1].message
    assert events[-1].event is Event.RUN_FAILED


def test_a_worker_that_forgets_its_checkpoint_is_stopped(job: Job) -> None:
    """It begins at 0 although step 10 was promised: said loudly, ended, nothing overwritten."""
    script = job.folder / "forgetful.py"
    script.write_text(FORGETFUL)
    write(job)
    document = json.loads(job.config.read_text())
    document["worker"] = {"script": "forgetful.py", "args": ["--config", "worker.json"]}
    document["ladder"] = [{"name": "single", "gpus": 1}]
    job.config.write_text(json.dumps(document))
    (job.folder / "worker.json").write_text(
        json.dumps(
            {
                **json.loads((job.folder / "worker.json").read_text()),
                **SLOW,
                "faults": [{"name": "sigkill", "step": 13, "rank": 0}],
            }
        )
    )
    code, _, _ = job.finish()
    events = job.events()
    assert code == EXIT_HOPELESS, names(events)
    wrong, diagnosis, _ = in_order(
        events, Event.RESUME_MISMATCH, Event.DIAGNOSIS_MADE, Event.RUN_FAILED
    )
    assert (wrong.facts["promised_step"], wrong.facts["began_step"]) == (10, 0)
    assert "10 steps of progress were silently lost" in diagnosis.message
    left = {path.name for path in (job.run_dir / "checkpoints").iterdir()}
    assert {"step-00000005", "step-00000010"} <= left


FORGETFUL = """
import os
os.environ["HUMIGENCE_RESUME_FROM"] = ""
from humigence_worker.train import main
main()
"""
