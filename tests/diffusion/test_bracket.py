"""The two ends of the bracket, by enumeration of a toy's orders."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.diffusion.bracket import bracket

# −log p(x | σ) of the six orders of three positions, of some texts.
ORDERS = torch.tensor([[2.0, 2.4, 1.9, 3.0, 2.2, 2.1], [0.3, 5.0, 1.0, 0.9, 4.0, 0.2]], dtype=torch.float64)
TRUE = -(-ORDERS).exp().mean(1).log()


def expected(K):
    """The means of both ends over all draws of K orders."""
    draws = torch.tensor(list(itertools.product(range(6), repeat=K)))
    return tuple(
        torch.stack([end.mean() for end in ends])
        for ends in zip(*(bracket(row[draws])[:2] for row in ORDERS), strict=True)
    )


def test_the_likelihood_lies_between_the_ends_which_meet():
    upper, lower = zip(*map(expected, (2, 4, 6)), strict=True)
    for above, below in zip(upper, lower, strict=True):
        assert (above > TRUE).all()
        assert (below < TRUE).all()
    assert (upper[0] > upper[1]).all()
    assert (upper[1] > upper[2]).all()
    assert (lower[0] < lower[1]).all()
    assert (lower[1] < lower[2]).all()


@given(st.lists(st.floats(0, 800), min_size=1, max_size=4), st.data())
def test_the_ends_are_in_order_for_any_nats(nats, data):
    nats = nats + data.draw(st.lists(st.floats(0, 800), min_size=len(nats), max_size=len(nats)))
    found = bracket(torch.tensor([nats], dtype=torch.float64))
    assert float(found.lower) <= float(found.upper) + 1e-9
    assert min(nats) - 1e-9 <= float(found.upper) <= min(nats) + math.log(len(nats)) + 1e-9
    assert 1 - 1e-9 <= float(found.effective) <= len(nats) + 1e-9


@given(st.floats(0, 20), st.floats(0, 20))
def test_two_orders_are_the_mean_of_both_tangents(one, other):
    """log ψ + w/ψ − 1 at ψ of the one and w of the other, and the other way round."""
    tangents = [math.exp(a - b) - b - 1 for a, b in ((one, other), (other, one))]
    found = bracket(torch.tensor([[one, other]], dtype=torch.float64))
    assert float(found.lower) == pytest.approx(-sum(tangents) / 2, rel=1e-9, abs=1e-9)


def test_equal_orders_leave_nothing_open():
    for orders in (0, 1, 3):
        with pytest.raises(ValueError, match="even number"):
            bracket(torch.zeros(1, orders, dtype=torch.float64))
    found = bracket(torch.full((2, 4), 3.5, dtype=torch.float64))
    torch.testing.assert_close(torch.stack(found), torch.tensor([[3.5] * 2, [3.5] * 2, [4.0] * 2], dtype=torch.float64))
