"""Bits per byte on held-out samples, beside what a unigram model needs for the same bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from humigence_worker.data import Corpus, unigram_bits
from humigence_worker.model import IGNORED, Transformer, model_shape
from humigence_worker.settings import WorkerConfigError, WorkerSettings

WEIGHTS_FILE: Final = "model.safetensors"


@dataclass(frozen=True, slots=True)
class EvalResult:
    """Both figures are over the same `bytes` targets (separators counted) in `samples` samples."""

    bits_per_byte: float
    unigram_bits_per_byte: float
    samples: int
    bytes: int


def evaluate_checkpoint(
    checkpoint: Path, corpus: Corpus, settings: WorkerSettings, device: torch.device
) -> EvalResult:
    """Evaluate the weights in `checkpoint` with a model built for nothing else.

    Raises:
        WorkerConfigError: when the weights are not those of the model in `settings`.
        safetensors.SafetensorError, OSError: when they cannot be read.
    """
    with torch.random.fork_rng(devices=[]):  # the initial weights are drawn, then overwritten
        model = Transformer(model_shape(settings)).to(device)
    weights = load_file(checkpoint / WEIGHTS_FILE, device=str(device))
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise WorkerConfigError(
            f"{checkpoint / WEIGHTS_FILE}: these are weights of another model than the "
            f"configuration's. Use the configuration they were trained with. ({error})"
        ) from None
    return evaluate_model(model, corpus, settings, device)


@torch.no_grad()
def evaluate_model(
    model: nn.Module, corpus: Corpus, settings: WorkerSettings, device: torch.device
) -> EvalResult:
    """Evaluate `model` as it stands; its mode and every random number stream stay as they were.

    `model` must be bare, not wrapped for distributed training: other ranks take no part.
    """
    chosen = _spread(len(corpus.heldout), settings.max_eval_samples)
    unigram = unigram_bits(corpus.train)
    was_training = model.training
    model.eval()
    model_bits = unigram_total = 0.0
    count = 0
    try:
        for start in range(0, len(chosen), settings.per_device_eval_batch_size):
            indices = chosen[start : start + settings.per_device_eval_batch_size]
            inputs, targets = corpus.heldout.batch(indices)
            counted = targets[targets != IGNORED]
            model_bits += _bits(model, inputs.to(device), targets.to(device), bf16=settings.bf16)
            unigram_total += float(unigram[counted].sum())
            count += len(counted)
    finally:
        model.train(was_training)
    return EvalResult(model_bits / count, unigram_total / count, len(chosen), count)


def format_result(result: EvalResult, step: int) -> str:
    """Return the line that puts model and unigram side by side."""
    return (
        f"evaluation at step {step}: model {result.bits_per_byte:.3f} bits per byte, "
        f"unigram {result.unigram_bits_per_byte:.3f} bits per byte "
        f"({result.samples} held-out samples, {result.bytes} bytes)"
    )


def _bits(model: nn.Module, inputs: Tensor, targets: Tensor, *, bf16: bool) -> float:
    with torch.autocast(inputs.device.type, dtype=torch.bfloat16, enabled=bf16):
        logits: Tensor = model(inputs)[0]
    nats = functional.cross_entropy(
        logits.float().flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum"
    )
    return float(nats) / math.log(2)


def _spread(available: int, wanted: int) -> list[int]:
    """Return at most `wanted` indices, evenly spread, so that every part of the data counts."""
    count = min(available, wanted)
    return [index * available // count for index in range(count)]
