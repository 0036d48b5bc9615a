"""The worker's evaluation: fresh weights, honest sums, nothing disturbed."""

import math
from dataclasses import replace

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from humigence_worker.data import load_dataset, unigram_bits_per_byte
from humigence_worker.evaluate import (
    EvalResult,
    evaluate_checkpoint,
    evaluate_model,
    format_result,
)
from humigence_worker.model import IGNORED, Transformer, model_shape
from humigence_worker.settings import WorkerConfigError, WorkerSettings

CPU = torch.device("cpu")
SETTINGS = WorkerSettings(
    seq_len=16, d_model=16, n_layers=1, n_heads=2, dropout=0.5, per_device_eval_batch_size=3
)


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny tensors on one thread: several only wait for each other on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def settings(tmp_path):
    """Settings with a text of two thousand bytes."""
    path = tmp_path / "text.txt"
    path.write_text("".join(f"line {index % 7} of {index}\n" for index in range(150)))
    return replace(SETTINGS, data=str(path), heldout_fraction=0.2)


@pytest.fixture
def corpus(settings):
    """The text, split."""
    return load_dataset(settings)


@pytest.fixture
def model():
    """An untrained model."""
    torch.manual_seed(0)
    return Transformer(model_shape(SETTINGS))


def test_bits_are_counted_over_every_heldout_byte(model, corpus, settings):
    """The figure is the mean over all targets, whatever the batches, beside the unigram's own."""
    result = evaluate_model(model, corpus, settings, CPU)
    inputs, targets = corpus.heldout.batch(range(len(corpus.heldout)))
    expected = float(model.eval()(inputs, targets)[1].detach()) / math.log(2)
    assert result.bits_per_byte == pytest.approx(expected, rel=1e-5)
    assert result.bytes == int((targets != IGNORED).sum())
    assert result.samples == len(corpus.heldout)
    assert result.unigram_bits_per_byte == pytest.approx(
        unigram_bits_per_byte(corpus.train, corpus.heldout)
    )


def test_a_part_of_the_samples_is_spread_over_all(model, corpus, settings):
    """With fewer samples than there are, both figures are over the same spread ones."""
    result = evaluate_model(model, corpus, replace(settings, max_eval_samples=4), CPU)
    count = len(corpus.heldout)
    inputs, targets = corpus.heldout.batch([index * count // 4 for index in range(4)])
    expected = float(model.eval()(inputs, targets)[1].detach()) / math.log(2)
    assert (result.samples, result.bytes) == (4, 64)
    assert result.bits_per_byte == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_training_goes_on_as_if_nothing_had_been(model, corpus, settings, training):
    """Mode, random numbers and gradients are those of before."""
    model.train(training)
    state = torch.get_rng_state()
    evaluate_model(model, corpus, settings, CPU)
    assert model.training is training
    assert torch.equal(state, torch.get_rng_state())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_checkpoint_is_evaluated_on_fresh_weights(model, corpus, settings, tmp_path):
    """What counts is what is on the disk; the draw of a new model's weights is not seen outside."""
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    expected = evaluate_model(model, corpus, settings, CPU)
    state = torch.get_rng_state()
    assert evaluate_checkpoint(tmp_path, corpus, settings, CPU) == expected
    assert torch.equal(state, torch.get_rng_state())


def test_weights_of_another_model_are_refused(model, corpus, settings, tmp_path):
    """A changed configuration is told as such."""
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    with pytest.raises(WorkerConfigError, match="another model"):
        evaluate_checkpoint(tmp_path, corpus, replace(settings, d_model=32), CPU)


def test_weights_that_cannot_be_read_are_an_error(corpus, settings, tmp_path):
    """A missing and a torn file each end the evaluation."""
    with pytest.raises(FileNotFoundError):
        evaluate_checkpoint(tmp_path, corpus, settings, CPU)
    (tmp_path / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(SafetensorError):
        evaluate_checkpoint(tmp_path, corpus, settings, CPU)


def test_bfloat16_is_close(model, corpus, settings):
    """Half the bits, nearly the same figure."""
    exact = evaluate_model(model, corpus, settings, CPU)
    short = evaluate_model(model, corpus, replace(settings, bf16=True), CPU)
    assert short.bits_per_byte == pytest.approx(exact.bits_per_byte, rel=0.01)
    assert short.bits_per_byte != exact.bits_per_byte


def test_the_line_puts_both_side_by_side():
    """Model and unigram stand in one line, with the step and the amount."""
    line = format_result(EvalResult(2.5, 4.75, 10, 2560), step=120)
    assert line == (
        "evaluation at step 120: model 2.500 bits per byte, unigram 4.750 bits per byte "
        "(10 held-out samples, 2560 bytes)"
    )
