"""The order of the stream, against definitions written out."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.data.order import SampleOrder, key_of, permutation
from atat_zoo.errors import UserError

Case = tuple[list[int], dict[str, int]]


@st.composite
def orders(draw: st.DrawFn) -> Case:
    lanes = draw(st.integers(1, 5))
    sizes = draw(st.lists(st.integers(1, 7), min_size=lanes, max_size=12))
    return sizes, {"lanes": lanes, "seed": draw(st.integers(0, 2**63 - 1)), "together": draw(st.integers(1, 4))}


def lane_samples(
    sizes: list[int], lane: int, epochs: int, *, lanes: int, seed: int, together: int
) -> list[tuple[int, int, int]]:
    """The definition, without cleverness."""
    found = []
    for epoch in range(epochs):
        shards = permutation(len(sizes), seed, epoch)[lane::lanes].tolist()
        while shards:
            group, shards = shards[:together], shards[together:]
            rows = [(epoch, shard, row) for shard in group for row in range(sizes[shard])]
            found += [rows[i] for i in permutation(len(rows), seed, epoch, *group).tolist()]
    return found


@given(orders())
def test_follows_the_definition(case: Case) -> None:
    sizes, options = case
    order, lanes = SampleOrder(sizes, **options), options["lanes"]
    for lane in range(lanes):
        expected = lane_samples(sizes, lane, epochs=3, **options)
        found = [tuple(order.locate(q * lanes + lane)) for q in range(len(expected))]
        assert found == expected


@given(orders())
def test_an_epoch_is_every_row_once(case: Case) -> None:
    sizes, options = case
    order, lanes = SampleOrder(sizes, **options), options["lanes"]
    seen: Counter[tuple[int, int, int]] = Counter()
    for lane in range(lanes):
        q = 0
        while (place := order.locate(q * lanes + lane)).epoch < 2:
            seen[tuple(place)] += 1
            q += 1
    assert seen == Counter((e, s, r) for e in range(2) for s, size in enumerate(sizes) for r in range(size))


@given(orders(), st.lists(st.integers(0, 2000), min_size=1, max_size=20))
def test_does_not_depend_on_what_was_asked_before(case: Case, wanted: list[int]) -> None:
    sizes, options = case
    order = SampleOrder(sizes, **options)
    assert [order.locate(n) for n in wanted] == [SampleOrder(sizes, **options).locate(n) for n in wanted]


def test_permutations_stay_what_they_were() -> None:
    # A run that was begun with an older version must find its order again.
    assert permutation(8, 17, 0).tolist() == [0, 1, 7, 2, 4, 5, 6, 3]
    assert key_of(17, 0, 3) == 6687265196499114412


def test_permutations_are_even() -> None:
    # Where row 0 goes over 6,000 keys: 20 cells with 300 expected; chi-square of 19 degrees beyond 50 has p < 2e-4.
    places = np.bincount([int(np.flatnonzero(permutation(20, 5, e) == 0)[0]) for e in range(6000)], minlength=20)
    assert ((places - 300.0) ** 2 / 300).sum() < 50


def test_a_shuffle_over_several_shards_is_even() -> None:
    # Where the rows of the first shard of a group of 3 go among the group's 30 places, over 400 seeds: 30 cells with
    # 133.3 expected; chi-square of 29 degrees beyond 70 has p < 3e-5. One after another, they would go to 10 of them.
    places: Counter[int] = Counter()
    for seed in range(400):
        order = SampleOrder([10] * 6, lanes=2, seed=seed, together=3)
        first = order.shards_of(0, 0)[0]
        places.update(q for q in range(30) if order.locate(2 * q).shard == first)
    assert sum((places[q] - 400 / 3) ** 2 / (400 / 3) for q in range(30)) < 70


def test_too_few_shards_for_the_lanes() -> None:
    with pytest.raises(UserError, match=r"data\.lanes = 4, but the training split has 3 shards"):
        SampleOrder([5, 5, 5], lanes=4, seed=0)


def test_a_sample_far_away_is_found_soon() -> None:
    order = SampleOrder([100] * 64, lanes=8, seed=3)
    place = order.locate(10_000_000)
    assert place.epoch == 10_000_000 // 8 // 800
