"""Where a rank finds itself: under the supervisor, under torchrun, and alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from humigence_supervise.catalogue import load_catalogue
from humigence_supervise.domain import Kind
from humigence_worker.runtime import read_runtime
from humigence_worker.settings import WorkerConfigError

CONFIG = Path("configs/demo.json")


@pytest.fixture(autouse=True)
def without_gpu(monkeypatch):
    """These tests speak of a machine without GPU; the choice of GPUs has its own."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_under_the_supervisor_everything_is_given():
    """Folders, run and checkpoint are the supervisor's; nothing is looked for."""
    runtime = read_runtime(
        {
            "RANK": "1",
            "LOCAL_RANK": "1",
            "WORLD_SIZE": "2",
            "HUMIGENCE_RUN_DIR": "/r",
            "HUMIGENCE_CHECKPOINT_DIR": "/elsewhere",
            "HUMIGENCE_RUN_ID": "demo-1",
            "HUMIGENCE_RESUME_FROM": "/elsewhere/step-00000004",
        },
        CONFIG,
        None,
        fallback_single_gpu=False,
    )
    assert (runtime.rank, runtime.local_rank, runtime.world_size) == (1, 1, 2)
    assert (runtime.run_dir, runtime.checkpoint_dir) == (Path("/r"), Path("/elsewhere"))
    assert (runtime.run, runtime.resume_from) == ("demo-1", Path("/elsewhere/step-00000004"))
    assert not runtime.finds_own_checkpoint
    assert runtime.device == torch.device("cpu")


@pytest.mark.parametrize(
    ("environ", "resume_from", "finds_own"),
    [
        ({}, None, True),
        ({"HUMIGENCE_RESUME_FROM": ""}, None, False),
        ({"HUMIGENCE_RESUME_FROM": "/c"}, Path("/c"), False),
    ],
)
def test_an_empty_checkpoint_means_from_scratch_and_a_missing_one_means_the_newest(
    environ, resume_from, finds_own
):
    """The supervisor's "none" must not be read as "look yourself"."""
    runtime = read_runtime(environ, CONFIG, None, fallback_single_gpu=True)
    assert (runtime.resume_from, runtime.finds_own_checkpoint) == (resume_from, finds_own)


@pytest.mark.parametrize(
    ("config", "option", "run_dir"),
    [
        ("runs/humigence/config.snapshot.json", None, "runs/humigence"),
        ("configs/demo.json", None, "runs/demo"),
        ("configs/demo.json", "there", "there"),
    ],
)
def test_by_hand_the_run_directory_follows_from_the_configuration(config, option, run_dir):
    """The folder of a snapshot, else runs/NAME, unless the option says where."""
    given = Path(option) if option else None
    runtime = read_runtime({}, Path(config), given, fallback_single_gpu=False)
    assert runtime.run_dir == Path(run_dir)
    assert runtime.checkpoint_dir == Path(run_dir) / "checkpoints"


def test_contradictions_are_refused():
    """The single-GPU option under torchrun, and a rank that is no number."""
    with pytest.raises(WorkerConfigError, match="WORLD_SIZE is 2"):
        read_runtime({"WORLD_SIZE": "2"}, CONFIG, None, fallback_single_gpu=True)
    with pytest.raises(WorkerConfigError, match="RANK is 'one'"):
        read_runtime({"RANK": "one"}, CONFIG, None, fallback_single_gpu=False)


def test_a_single_process_takes_cuda_0_and_more_processes_than_gpus_are_refused(monkeypatch):
    """Whatever LOCAL_RANK says, one process is on cuda:0; three processes need three GPUs."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    alone = read_runtime({"LOCAL_RANK": "1"}, CONFIG, None, fallback_single_gpu=True)
    assert alone.device == torch.device("cuda", 0)
    second = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}
    runtime = read_runtime(second, CONFIG, None, fallback_single_gpu=False)
    assert runtime.device == torch.device("cuda", 1)
    with pytest.raises(WorkerConfigError, match="3 processes, but only 2 GPUs are visible"):
        read_runtime({"WORLD_SIZE": "3"}, CONFIG, None, fallback_single_gpu=False)


@pytest.mark.parametrize(
    ("torch_says", "kind"),
    [
        (RuntimeError("No CUDA GPUs are available"), Kind.GPU_FAULT),
        (AssertionError("Torch not compiled with CUDA enabled"), Kind.GPU_UNSUPPORTED),
        (RuntimeError("The NVIDIA driver on your system is too old"), Kind.GPU_UNSUPPORTED),
    ],
)
def test_gpus_that_were_named_and_are_not_seen_are_a_failure_and_not_the_cpu(
    monkeypatch, torch_says, kind
):
    """Named and gone is a failure the supervisor knows by its line; "", -1 and unset are not."""

    def init():
        raise torch_says

    monkeypatch.setattr(torch.cuda, "init", init)
    environ = {"CUDA_VISIBLE_DEVICES": "GPU-5e1f"}
    with pytest.raises(RuntimeError, match="CUDA_VISIBLE_DEVICES=GPU-5e1f") as caught:
        read_runtime(environ, CONFIG, None, fallback_single_gpu=False)
    row = load_catalogue().match(f"RuntimeError: {caught.value}")
    assert row is not None
    assert row.kind is kind
    for environ in ({}, {"CUDA_VISIBLE_DEVICES": ""}, {"CUDA_VISIBLE_DEVICES": "-1"}):
        runtime = read_runtime(environ, CONFIG, None, fallback_single_gpu=False)
        assert runtime.device == torch.device("cpu")


def test_one_of_two_named_gpus_that_is_gone_is_a_gpu_fault_and_no_wrong_configuration(monkeypatch):
    """Two were named and one is seen: lost. One was named for two ranks: a mistake."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    two = {"WORLD_SIZE": "2", "CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2"}
    with pytest.raises(RuntimeError, match="torch sees 1") as caught:
        read_runtime(two, CONFIG, None, fallback_single_gpu=False)
    row = load_catalogue().match(f"RuntimeError: {caught.value}")
    assert row is not None
    assert row.kind is Kind.GPU_FAULT
    with pytest.raises(WorkerConfigError, match="only 1 GPUs are visible"):
        read_runtime({**two, "CUDA_VISIBLE_DEVICES": "0"}, CONFIG, None, fallback_single_gpu=False)
