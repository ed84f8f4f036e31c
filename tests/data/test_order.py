"""The order of the stream, against definitions written out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.data.order import SampleOrder, key_of, permutation
from atat_zoo.errors import UserError


@st.composite
def orders(draw):
    lanes = draw(st.integers(1, 5))
    sizes = draw(st.lists(st.integers(1, 7), min_size=lanes, max_size=12))
    return sizes, {"lanes": lanes, "seed": draw(st.integers(0, 2**63 - 1)), "together": draw(st.integers(1, 4))}


def lane_samples(sizes, lane, epochs, *, lanes, seed, together):
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
def test_follows_the_definition(case):
    sizes, options = case
    order, lanes = SampleOrder(sizes, **options), options["lanes"]
    for lane in range(lanes):
        expected = lane_samples(sizes, lane, epochs=3, **options)
        found = [tuple(order.locate(q * lanes + lane)) for q in range(len(expected))]
        assert found == expected


@given(orders(), st.lists(st.integers(0, 2000), min_size=1, max_size=20))
def test_does_not_depend_on_what_was_asked_before(case, wanted):
    sizes, options = case
    order = SampleOrder(sizes, **options)
    assert [order.locate(n) for n in wanted] == [SampleOrder(sizes, **options).locate(n) for n in wanted]


def test_permutations_stay_what_they_were():
    # A run that was begun with an older version must find its order again.
    assert permutation(8, 17, 0).tolist() == [0, 1, 7, 2, 4, 5, 6, 3]
    assert key_of(17, 0, 3) == 6687265196499114412


def test_too_few_shards_for_the_lanes():
    with pytest.raises(UserError, match=r"data\.lanes = 4, but the training split has 3 shards"):
        SampleOrder([5, 5, 5], lanes=4, seed=0)
