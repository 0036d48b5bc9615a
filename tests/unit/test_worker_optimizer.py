"""AdamW as torch's own class computes it, without what that class imports."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import pytest
import torch
from torch import nn

from humigence_worker.optimizer import AdamW, learning_rate
from humigence_worker.settings import LrSchedule, WorkerSettings

SETTINGS = WorkerSettings(
    weight_decay=0.1, learning_rate=1.0, warmup_steps=4, final_lr_fraction=0.1
)


def model_of(seed):
    """Return a small model with matrices and gains."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7))


def give_gradients(model, step):
    """Set the same gradients for the same step."""
    generator = torch.Generator().manual_seed(step)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def test_updates_are_those_of_torchs_class_also_across_a_checkpoint():
    """Bit-equal weights after six steps, the last three from saved moments."""
    ours, theirs = model_of(1), model_of(1)
    matrices = [p for p in theirs.parameters() if p.dim() >= 2]
    gains = [p for p in theirs.parameters() if p.dim() < 2]
    reference = torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": 0.1},
            {"params": gains, "weight_decay": 0.0},
        ],
        betas=(SETTINGS.beta1, SETTINGS.beta2),
        eps=1e-8,
        fused=True,
    )
    optimizer = AdamW(ours.named_parameters(), SETTINGS)
    for step in range(6):
        if step == 3:
            saved = {name: each.clone() for name, each in optimizer.state_tensors().items()}
            optimizer = AdamW(ours.named_parameters(), SETTINGS)
            optimizer.load(saved, steps=3)
        rate = 0.01 * (step + 1)
        for group in reference.param_groups:
            group["lr"] = rate
        for model in (ours, theirs):
            give_gradients(model, step)
        optimizer.step(rate)
        reference.step()
    for mine, wanted in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine, wanted)


def test_a_whole_training_on_one_process_never_imports_torch_dynamo(tmp_path):
    """The second that import takes would be added to every restart on the single rung."""
    (tmp_path / "text.txt").write_text("a small text to learn from. " * 40)
    (tmp_path / "c.json").write_text(
        '{"data": "text.txt", "seq_len": 16, "d_model": 16, "n_layers": 1, "n_heads": 2, '
        '"max_steps": 2}'
    )
    program = f"""
import sys
from humigence_worker.train import main
code = main(["--config", "{tmp_path}/c.json", "--run-dir", "{tmp_path}/run"])
sys.exit(code or "torch._dynamo" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "evaluation at step 2" in done.stdout


@pytest.mark.parametrize(
    ("schedule", "middle", "last"),
    [
        (LrSchedule.CONSTANT, 1.0, 1.0),
        (LrSchedule.LINEAR, 0.55, 0.1),
        (LrSchedule.COSINE, 0.55, 0.1),
    ],
)
def test_the_rate_warms_up_and_falls_to_its_final_fraction(schedule, middle, last):
    """Warm-up of 4 steps to the peak, half-way values, and the end, for each schedule."""
    settings = WorkerSettings(
        learning_rate=1.0, warmup_steps=4, final_lr_fraction=0.1, lr_schedule=schedule
    )
    rates = [learning_rate(settings, step, 24) for step in range(25)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4] == pytest.approx(1.0)
    assert rates[14] == pytest.approx(middle)
    assert rates[24] == pytest.approx(last)
    assert all(earlier >= later for earlier, later in pairwise(rates[4:]))


def test_a_run_without_or_all_warm_up_has_a_rate_for_every_step():
    """No division by zero at either extreme."""
    none = WorkerSettings(learning_rate=1.0, warmup_steps=0)
    assert learning_rate(none, 0, 1) == pytest.approx(1.0)
    all_of_it = WorkerSettings(learning_rate=1.0, warmup_steps=8)
    assert learning_rate(all_of_it, 7, 8) == pytest.approx(1.0)
