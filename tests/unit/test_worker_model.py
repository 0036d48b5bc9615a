"""The worker's model: causal, deterministic, with a loss that means what it says."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from humigence_worker.model import IGNORED, VOCABULARY, ModelShape, Transformer, model_shape
from humigence_worker.settings import WorkerSettings

SHAPE = ModelShape(seq_len=16, d_model=32, n_layers=2, n_heads=4, dropout=0.1)


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny tensors on one thread: several only wait for each other on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def build(shape=SHAPE, seed=0):
    """Return a model whose weights are a function of `seed`."""
    torch.manual_seed(seed)
    return Transformer(shape)


@pytest.fixture
def batch():
    """Inputs and targets [3, 16]."""
    numbers = torch.randint(VOCABULARY, (3, 17), generator=torch.Generator().manual_seed(1))
    return numbers[:, :-1], numbers[:, 1:]


def test_shapes_and_first_loss(batch):
    """An untrained model knows nothing: its loss is about that of a uniform guess."""
    logits, loss = build()(*batch)
    assert logits.shape == (3, 16, VOCABULARY)
    assert float(loss.detach()) == pytest.approx(torch.tensor(256.0).log().item(), abs=0.3)
    assert build()(batch[0])[1] is None


def test_the_seed_decides_the_weights():
    """Two builds with one seed are equal to the last bit, with two seeds they are not."""
    one, same, other = build(), build(), build(seed=1)
    pairs = zip(one.state_dict().values(), same.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not torch.equal(one.embedding.weight, other.embedding.weight)


def test_no_position_sees_the_future(batch):
    """A change at one place changes the logits there and after it, not before."""
    model = build().eval()
    inputs = batch[0]
    changed = inputs.clone()
    changed[:, 9] = (changed[:, 9] + 1) % VOCABULARY
    before, after = model(inputs)[0], model(changed)[0]
    assert torch.allclose(before[:, :9], after[:, :9], atol=1e-6)
    assert not torch.allclose(before[:, 9:], after[:, 9:], atol=1e-3)


def test_order_matters():
    """Positions are seen: the same bytes in another order mean something else."""
    model = build().eval()
    one = model(torch.tensor([[1, 2, 3, 4]]))[0][0, -1]
    other = model(torch.tensor([[2, 1, 3, 4]]))[0][0, -1]
    assert not torch.allclose(one, other, atol=1e-5)


def test_the_loss_is_the_mean_over_what_is_not_ignored(batch):
    """Ignored targets count neither in the sum nor in the mean."""
    model = build().eval()
    inputs, targets = batch
    targets = targets.clone()
    targets[:, :10] = IGNORED
    logits, loss = model(inputs, targets)
    expected = functional.cross_entropy(logits[:, 10:].flatten(0, 1), targets[:, 10:].flatten())
    assert torch.allclose(loss, expected)


def test_nothing_to_learn_is_a_loss_of_zero_with_gradients(batch):
    """A micro-batch without targets moves nothing and breaks nothing."""
    model = build()
    _, loss = model(batch[0], torch.full_like(batch[1], IGNORED))
    assert float(loss.detach()) == 0.0
    loss.backward()
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


def test_the_head_is_the_embedding():
    """The output head adds no parameters, and no tensor stands in the state twice."""
    model = build()
    assert len(model.state_dict()) == len(list(model.parameters()))
    assert sum(p.numel() for p in model.parameters()) == 256 * 32 + 2 * (12 * 32 * 32 + 2 * 32) + 32


def test_gradient_checkpointing_changes_no_bit(batch):
    """Recomputed activations, dropout masks included, give the very same gradients."""
    gradients = []
    for recompute in (False, True):
        model = build(replace(SHAPE, gradient_checkpointing=recompute))
        torch.manual_seed(7)
        model(*batch)[1].backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_dropout_is_a_function_of_the_seed_and_off_in_evaluation(batch):
    """Training draws masks from torch's stream; evaluation draws nothing."""
    model = build()

    def loss(seed):
        torch.manual_seed(seed)
        return float(model(*batch)[1].detach())

    assert loss(1) == loss(1) != loss(2)
    model.eval()
    assert loss(1) == loss(2)
    state = torch.get_rng_state()
    model(*batch)
    assert torch.equal(state, torch.get_rng_state())


def test_it_learns():
    """Some steps down the gradient on a short pattern leave little of the first loss."""
    model = build(replace(SHAPE, dropout=0.0))
    row = torch.tensor([list(b"abcdefgh" * 3)[:17]])
    losses = []
    for _ in range(100):
        loss = model(row[:, :-1], row[:, 1:])[1]
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.sub_(gradient, alpha=0.1)
        losses.append(float(loss.detach()))
    assert losses[0] > 5
    assert losses[-1] < 0.2


def test_the_shape_comes_from_the_settings():
    """Every setting that shapes the model reaches it."""
    settings = WorkerSettings(
        seq_len=32, d_model=64, n_layers=3, n_heads=2, dropout=0.2, gradient_checkpointing=True
    )
    assert model_shape(settings) == ModelShape(32, 64, 3, 2, 0.2, gradient_checkpointing=True)
