"""Classes of positions that are s apart, one in each step."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo import Zoo
from atat_zoo.samplers.order import StridedOrder
from atat_zoo.samplers.pace import FixedPace, StridedPace
from atat_zoo.samplers.published import LeftToRightSampler
from atat_zoo.samplers.strided import StridedSampler
from atat_zoo.testing import check_order, check_pace, check_policy, check_sampler
from atat_zoo.testing.sampling import assemble, noisy, traced
from atat_zoo.testing.toys import Hashed


@given(st.integers(1, 20), st.integers(1, 15), st.integers(0, 1000))
def test_every_step_fills_what_is_open_of_one_class(stride, length, seed):
    z = noisy(5, length, 4, seed)
    made, trace = traced(StridedSampler(stride=stride), Hashed(4), z, torch.arange(5))
    for record in trace:
        assert {position % stride for position in record["positions"]} == {record["step"]}
    filled = {
        (row, position) for record in trace for row, position in zip(record["rows"], record["positions"], strict=True)
    }
    assert filled == {(int(row), int(position)) for row, position in (z == 4).nonzero()}
    # A row without an open position of a class skips it.
    classes = [{int(i) % stride for i in (row == 4).nonzero()} for row in z]
    assert made.nfe.tolist() == [len(each) for each in classes]
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
        mine = [(position, step) for each, position, step in filled if each == row]
        offsets = {(step - position) % classes for position, step in mine}
        assert len(offsets) <= 1
        assert int(made.nfe[row]) == len({step for _, step in mine})


def test_every_offset_is_as_frequent():
    z = torch.full((4000, 8), 4)
    _, (first, *_) = traced(StridedSampler(stride=4, offset="random"), Hashed(4), z, torch.arange(4000))
    counts = torch.bincount(torch.tensor(first["positions"]) % 4) / 2
    # Binomial with p = 1/4: 1000 ± 27.
    assert (counts - 1000).abs().max() < 5 * 27.4


def test_as_many_classes_as_positions_is_left_to_right():
    z = noisy(4, 9, 5, 1)

    def places(sampler):
        _, trace = traced(sampler, Hashed(5), z, torch.arange(4))
        filled = [each for record in trace for each in zip(record["rows"], record["positions"], strict=True)]
        return sorted(filled, key=lambda each: each[0])

    assert places(StridedSampler(stride=9)) == places(LeftToRightSampler())


def test_an_even_pace_takes_a_class_a_step_where_nothing_is_given():
    z = torch.full((2, 12), 5)
    by_class, even = (
        traced(assemble(order=StridedOrder(stride=4), pace=pace), Hashed(5), z, torch.arange(2))[1]
        for pace in (StridedPace(stride=4), FixedPace(steps=4))
    )
    assert by_class == even


def test_the_order_draws_the_offset_that_the_sampler_draws():
    z, seeds = torch.full((6, 12), 5), torch.arange(6)

    def classes(sampler):
        _, trace = traced(sampler, Hashed(5), z, seeds)
        return sorted(
            (step["step"], *place) for step in trace for place in zip(step["rows"], step["positions"], strict=True)
        )

    order = StridedOrder(stride=4, offset="random")
    drawn = classes(assemble(order=order, pace=FixedPace(steps=4)))
    assert drawn == classes(StridedSampler(stride=4, offset="random")) != classes(StridedSampler(stride=4))
    assert not order.deterministic


def test_it_is_deterministic_by_name_alone():
    spec = Zoo.load().spec("sampler", {"use": "strided", "stride": 3})
    assert spec == StridedSampler(stride=3)
    assert spec.deterministic
    assert not StridedSampler(stride=3, offset="random").deterministic
    assert spec.uncovered is None


@pytest.mark.slow
@pytest.mark.parametrize("stride", [1, 3, 99])
def test_conformance_of_other_strides(stride):
    check_order(StridedOrder(stride=stride), examples=10)
    check_order(StridedOrder(stride=stride, offset="random"), examples=10)
    check_pace(StridedPace(stride=stride), examples=10)
    check_sampler(StridedSampler(stride=stride), examples=10)
    check_policy(StridedSampler(stride=stride), examples=10)
    check_sampler(StridedSampler(stride=stride, offset="random"), examples=10)
    check_policy(StridedSampler(stride=stride, offset="random"), examples=10)
