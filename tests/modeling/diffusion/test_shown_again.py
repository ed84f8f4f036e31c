"""Masks by what they show: how many tokens, which of an order, and which of them are shown again."""

from math import ceil, floor, isclose

import torch
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.modeling.diffusion.bounds import uniform_order
from atat_zoo.modeling.diffusion.calibration import count_masked, first_masked, lowest


def test_the_count_is_exact_on_average():
    maskable = torch.ones(1, 7, dtype=torch.bool)
    for rate in (0.0, 0.1, 0.5, 1.0):
        grid = (torch.arange(10_000, dtype=torch.float64) + 0.5) / 10_000
        counts = count_masked(torch.full((1,), rate, dtype=torch.float64), maskable, grid)
        assert isclose(float(counts.double().mean()), 7 * rate, abs_tol=1e-9)
        assert set(counts.tolist()) <= {floor(7 * rate), ceil(7 * rate)}


def test_a_score_that_is_no_number_changes_no_count():
    maskable = torch.ones(3, 9, dtype=torch.bool)
    order, count = uniform_order(maskable, torch.arange(3)), torch.tensor([0, 2, 4])
    hidden = first_masked(order, count, 2.0, maskable)
    for value in (torch.nan, torch.inf, -torch.inf):
        mask = lowest(torch.full((3, 9), value), order, count, hidden)
        assert torch.equal(mask.sum(1), count)
        assert not (mask & ~hidden).any()


def test_the_count_is_of_the_maskable_tokens():
    maskable = torch.arange(6) < torch.tensor([[0], [3], [6]])
    rate = torch.full((3,), 0.5)
    assert count_masked(rate, maskable, torch.tensor([0.0, 0.4999, 0.0])).tolist() == [0, 2, 3]
    assert count_masked(rate, maskable, torch.tensor([0.9, 0.5, 0.9])).tolist() == [0, 1, 3]


@given(st.integers(0, 99), st.floats(1, 3), st.lists(st.integers(0, 3), min_size=40, max_size=40))
def test_the_lowest_of_the_first_are_hidden(seed, excess, scores):
    maskable = torch.arange(40) < torch.tensor([[40], [25], [0]])
    order, count = uniform_order(maskable, torch.arange(3) + seed), torch.tensor([20, 7, 0])
    hidden = first_masked(order, count, excess, maskable)
    scores = torch.tensor(scores).float().expand(3, -1)
    mask = lowest(scores, order, count, hidden)
    for row, n in enumerate((40, 25, 0)):
        k = int(count[row])
        first = sorted(range(40), key=lambda i, row=row: int(order[row, i]))[: min(n, ceil(k * excess))]
        assert hidden[row].nonzero().flatten().tolist() == sorted(first)
        kept = sorted(first, key=lambda i, row=row: (float(scores[row, i]), int(order[row, i])))[:k]
        assert mask[row].nonzero().flatten().tolist() == sorted(kept)
