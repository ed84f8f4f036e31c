"""Classes of positions that are s apart, one in each step."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.samplers.order import StridedOrder
from atat_zoo.samplers.pace import FixedPace, StridedPace
from atat_zoo.samplers.piecewise import StridedSampler
from atat_zoo.testing.sampling import assemble, noisy, traced
from atat_zoo.testing.toys import Hashed


@given(st.integers(1, 20), st.integers(1, 15), st.integers(0, 1000))
def test_every_step_fills_what_is_open_of_one_class(stride, length, seed):
    z = noisy(5, length, 4, seed)
    for sampler in (
        StridedSampler(stride=stride),
        assemble(order=StridedOrder(stride=stride), pace=StridedPace(stride=stride)),
    ):
        made, trace = traced(sampler, Hashed(4), z, torch.arange(5))
        for record in trace:
            assert {position % stride for position in record["positions"]} == {record["step"]}
        assert (made.tokens < 4).all()
        # A row without an open position of a class skips it.
        assert made.nfe.tolist() == [len({int(i) % stride for i in (row == 4).nonzero()}) for row in z]
        assert made.max_nfe <= stride


@given(st.integers(1, 20), st.integers(1, 15), st.integers(0, 1000))
def test_with_a_random_offset_every_text_has_classes_of_its_own(stride, length, seed):
    z = noisy(5, length, 4, seed)
    classes = min(stride, length)
    made, trace = traced(StridedSampler(stride=stride, offset="random"), Hashed(4), z, torch.arange(5))
    filled = [
        (row, position, record["step"])
        for record in trace
        for row, position in zip(record["rows"], record["positions"], strict=True)
    ]
    assert sorted((row, position) for row, position, _ in filled) == [(int(r), int(i)) for r, i in (z == 4).nonzero()]
    for row in range(5):
        mine = [(position, step) for r, position, step in filled if r == row]
        offsets = {(step - position) % classes for position, step in mine}
        assert len(offsets) <= 1
        assert int(made.nfe[row]) == len({step for _, step in mine})


def test_every_offset_is_as_frequent():
    z = torch.full((4000, 8), 4)
    _, (first, *_) = traced(StridedSampler(stride=4, offset="random"), Hashed(4), z, torch.arange(4000))
    counts = torch.bincount(torch.tensor(first["positions"]) % 4) / 2
    # Binomial with p = 1/4: 1000 ± 27.
    assert (counts - 1000).abs().max() < 5 * 27.4


def test_the_order_draws_the_offset_that_the_sampler_draws():
    z, seeds = torch.full((6, 12), 5), torch.arange(6)

    def classes(sampler):
        _, trace = traced(sampler, Hashed(5), z, seeds)
        return sorted(
            (step["step"], *pair) for step in trace for pair in zip(step["rows"], step["positions"], strict=True)
        )

    order = StridedOrder(stride=4, offset="random")
    drawn = classes(assemble(order=order, pace=FixedPace(steps=4)))
    assert drawn == classes(StridedSampler(stride=4, offset="random")) != classes(StridedSampler(stride=4))
    assert not order.deterministic
