"""The order of the stream, against definitions written out."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.data.order import SampleOrder, key_of, permutation
from atat_zoo.errors import UserError


@st.composite
def orders(draw: st.DrawFn) -> tuple[list[int], int, int]:
    lanes = draw(st.integers(1, 5))
    sizes = draw(st.lists(st.integers(1, 7), min_size=lanes, max_size=12))
    return sizes, lanes, draw(st.integers(0, 2**63 - 1))


def lane_samples(sizes: list[int], lanes: int, seed: int, lane: int, epochs: int) -> list[tuple[int, int, int]]:
    """The definition, without cleverness."""
    found = []
    for epoch in range(epochs):
        for shard in permutation(len(sizes), seed, epoch)[lane::lanes].tolist():
            found += [(epoch, shard, row) for row in permutation(sizes[shard], seed, epoch, shard).tolist()]
    return found


@given(orders())
def test_follows_the_definition(case: tuple[list[int], int, int]) -> None:
    sizes, lanes, seed = case
    order = SampleOrder(sizes, lanes=lanes, seed=seed)
    for lane in range(lanes):
        expected = lane_samples(sizes, lanes, seed, lane, epochs=3)
        found = [tuple(order.locate(q * lanes + lane)) for q in range(len(expected))]
        assert found == expected


@given(orders())
def test_an_epoch_is_every_row_once(case: tuple[list[int], int, int]) -> None:
    sizes, lanes, seed = case
    order = SampleOrder(sizes, lanes=lanes, seed=seed)
    seen: Counter[tuple[int, int, int]] = Counter()
    for lane in range(lanes):
        q = 0
        while (place := order.locate(q * lanes + lane)).epoch < 2:
            seen[tuple(place)] += 1
            q += 1
    assert seen == Counter((e, s, r) for e in range(2) for s, size in enumerate(sizes) for r in range(size))


@given(orders(), st.lists(st.integers(0, 2000), min_size=1, max_size=20))
def test_does_not_depend_on_what_was_asked_before(case: tuple[list[int], int, int], wanted: list[int]) -> None:
    sizes, lanes, seed = case
    order = SampleOrder(sizes, lanes=lanes, seed=seed)
    assert [order.locate(n) for n in wanted] == [SampleOrder(sizes, lanes=lanes, seed=seed).locate(n) for n in wanted]


@given(st.integers(0, 300), st.lists(st.integers(0, 2**63 - 1), max_size=3))
def test_permutation_is_one(size: int, key: list[int]) -> None:
    assert sorted(permutation(size, *key).tolist()) == list(range(size))


def test_permutations_stay_what_they_were() -> None:
    # A run that was begun with an older version must find its order again.
    assert permutation(8, 17, 0).tolist() == [0, 1, 7, 2, 4, 5, 6, 3]
    assert key_of(17, 0, 3) == 6687265196499114412


def test_permutations_are_even() -> None:
    # Where row 0 goes over 6,000 keys: 20 cells with 300 expected; chi-square of 19 degrees beyond 50 has p < 2e-4.
    places = np.bincount([int(np.flatnonzero(permutation(20, 5, e) == 0)[0]) for e in range(6000)], minlength=20)
    assert ((places - 300.0) ** 2 / 300).sum() < 50


def test_epochs_and_seeds_differ() -> None:
    assert permutation(50, 17, 0).tolist() != permutation(50, 17, 1).tolist()
    assert permutation(50, 17, 0).tolist() != permutation(50, 18, 0).tolist()
    assert key_of(1, 2) != key_of(2, 1)


def test_too_few_shards_for_the_lanes() -> None:
    with pytest.raises(UserError, match=r"data\.lanes = 4, but the training split has 3 shards"):
        SampleOrder([5, 5, 5], lanes=4, seed=0)


def test_a_sample_far_away_is_found_soon() -> None:
    order = SampleOrder([100] * 64, lanes=8, seed=3)
    place = order.locate(10_000_000)
    assert place.epoch == 10_000_000 // 8 // 800
