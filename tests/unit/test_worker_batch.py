"""The sums of a step: the same samples in the same groups, whoever runs them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from humigence_worker.batch import (
    BatchPlan,
    Sampler,
    forward_seed,
    plan_batch,
    sums_line,
    target_step,
)
from humigence_worker.settings import WorkerConfigError, WorkerSettings

TWO_DEVICES = WorkerSettings(per_device_train_batch_size=4, micro_batch=4, virtual_ranks=2)


def test_four_a_device_on_two_become_eight_on_one_without_larger_micro_batches():
    """The known numbers: 4 per device on two devices, 8 on one, cut into 2 micro-batches of 4."""
    two = plan_batch(TWO_DEVICES, 2, {})
    one = plan_batch(TWO_DEVICES, 1, {})
    assert (two.global_samples, two.per_device_samples, len(two.owned(0)) * two.accum) == (8, 4, 1)
    assert (one.global_samples, one.per_device_samples, len(one.owned(0)) * one.accum) == (8, 8, 2)
    assert one.micro_samples == two.micro_samples == 4
    assert sums_line(one) == (
        "batch: 8 samples per optimizer step = 1 process(es) x 2 virtual rank(s) "
        "x 1 micro-batch(es) of 4"
    )


@given(
    virtual_ranks=st.sampled_from([1, 2, 4, 6]),
    accum=st.integers(1, 3),
    micro=st.integers(1, 5),
    step=st.integers(0, 50),
    data=st.data(),
)
def test_every_world_size_runs_the_same_micro_batches(virtual_ranks, accum, micro, step, data):
    """The ranks of any world together run each micro-batch of a step once, in global order."""
    divisors = [n for n in range(1, virtual_ranks + 1) if virtual_ranks % n == 0]
    world = data.draw(st.sampled_from(divisors))
    plan = BatchPlan(virtual_ranks * accum * micro, micro, virtual_ranks, world)
    taken = [
        sample
        for rank in range(world)
        for virtual_rank in plan.owned(rank)
        for index in range(plan.accum)
        for sample in plan.micro_batch(step, virtual_rank, index)
    ]
    assert taken == list(plan.step_samples(step))
    assert plan.loss_scale * plan.virtual_ranks * plan.accum == pytest.approx(1.0)


def test_the_supervisors_numbers_override_and_empty_ones_do_not():
    """A smaller micro-batch means more of them; the global batch stays. Empty means not given."""
    shrunk = plan_batch(TWO_DEVICES, 1, {"HUMIGENCE_MICRO_BATCH": "1"})
    assert (shrunk.global_samples, shrunk.micro_samples, shrunk.accum) == (8, 1, 4)
    kept = plan_batch(TWO_DEVICES, 1, {"HUMIGENCE_MICRO_BATCH": "", "HUMIGENCE_GLOBAL_BATCH": ""})
    assert kept == plan_batch(TWO_DEVICES, 1, {})
    wide = plan_batch(
        TWO_DEVICES, 4, {"HUMIGENCE_GLOBAL_BATCH": "32", "HUMIGENCE_VIRTUAL_RANKS": "4"}
    )
    assert wide == BatchPlan(32, 4, 4, 4)


@pytest.mark.parametrize(
    ("world_size", "environ", "says"),
    [
        (3, {}, "2 virtual ranks cannot be shared evenly by 3 processes. Start 2 processes"),
        (1, {"HUMIGENCE_GLOBAL_BATCH": "9"}, "A global batch of 8 or 10 is."),
        (1, {"HUMIGENCE_GLOBAL_BATCH": "1"}, "A global batch of 2 is."),
        (1, {"HUMIGENCE_MICRO_BATCH": "3"}, "(8 / 2) cannot be cut into micro-batches of 3. "),
        (1, {"HUMIGENCE_MICRO_BATCH": "3"}, "Set micro_batch to 2 or 4."),
        (1, {"HUMIGENCE_MICRO_BATCH": "8"}, "Set micro_batch to 4."),
        (1, {"HUMIGENCE_MICRO_BATCH": "four"}, "HUMIGENCE_MICRO_BATCH is 'four'"),
        (1, {"HUMIGENCE_VIRTUAL_RANKS": "0"}, "not a whole number from 1"),
        (1, {"HUMIGENCE_GLOBAL_BATCH": "9" * 5000}, "HUMIGENCE_GLOBAL_BATCH is '999"),
    ],
)
def test_numbers_that_do_not_divide_are_refused_with_numbers_that_do(world_size, environ, says):
    """A refusal shows the sums and names values that would work."""
    with pytest.raises(WorkerConfigError) as refused:
        plan_batch(TWO_DEVICES, world_size, environ)
    assert says in str(refused.value)


@given(seed=st.integers(0, 2**63 - 1), size=st.integers(1, 60), batch=st.integers(1, 25))
def test_every_epoch_takes_each_sample_once_also_when_steps_cross_its_end(seed, size, batch):
    """Cut into steps of any size, each epoch is a permutation of the whole data set."""
    sampler = Sampler(seed, size)
    steps = -(-3 * size // batch)
    taken = list(
        itertools.chain.from_iterable(
            sampler.indices(range(step * batch, (step + 1) * batch)) for step in range(steps)
        )
    )
    for epoch in range(3):
        assert sorted(taken[epoch * size : (epoch + 1) * size]) == list(range(size))
        assert sampler.epoch(epoch * size) == epoch == sampler.epoch((epoch + 1) * size - 1)


def test_the_order_is_fixed_for_ever_and_differs_by_seed_and_epoch():
    """A golden value: a run that resumes under newer libraries must find the same order."""
    assert Sampler(0, 10).indices(range(10)) == GOLDEN
    assert Sampler(1, 10).indices(range(10)) != GOLDEN
    assert Sampler(0, 10).indices(range(10, 20)) != GOLDEN


def test_every_forward_pass_has_its_own_seed_below_2_to_63():
    """No two of a few thousand (step, virtual rank, micro-batch) share a stream."""
    seeds = {
        forward_seed(seed, step, rank, micro)
        for seed, step, rank, micro in itertools.product((0, 1), range(200), range(4), range(3))
    }
    assert len(seeds) == 2 * 200 * 4 * 3
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert forward_seed(0, 1, 23, 0) != forward_seed(0, 12, 3, 0)


def test_epochs_become_steps_that_leave_no_sample_out():
    """The last step of the last epoch is full; `max_steps` is taken as it stands."""
    plan = plan_batch(TWO_DEVICES, 2, {})
    by_epochs = WorkerSettings(max_steps=None, epochs=2)
    assert [target_step(by_epochs, plan, size) for size in (16, 17, 20)] == [4, 5, 5]
    assert target_step(WorkerSettings(max_steps=7), plan, 16) == 7


GOLDEN = [5, 4, 8, 0, 2, 7, 1, 6, 3, 9]
