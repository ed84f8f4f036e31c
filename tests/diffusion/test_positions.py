"""Small things: positions and pairs, the precision of a network, rank correlation and the error of a ratio."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from atat_zoo.diffusion.positions import document_starts, pairs, positions, positions_in_documents
from atat_zoo.diffusion.precision import computes_in_bf16
from atat_zoo.diffusion.statistics import average_ranks, largest_spearman, ratio, spearman, spearman_by_chance


def test_positions_are_those_of_nonzero():
    generator = torch.Generator().manual_seed(0)
    for share in (0.0, 0.3, 1.0):
        which = torch.rand(6, 11, generator=generator) < share
        row, position = positions(which, which.sum(1))
        assert torch.equal(torch.stack([row, position], 1), which.nonzero())
        assert torch.equal(torch.stack(pairs(which)), torch.stack(pairs((row, position))))


def test_documents_begin_where_their_numbers_change():
    documents = torch.tensor([[0, 0, 1, 1, 1, 1], [7, 4, 4, 4, 7, 7], [1, 1, 1, 1, 1, 1]])
    first = [[1, 0, 1, 0, 0, 0], [1, 1, 0, 0, 1, 0], [1, 0, 0, 0, 0, 0]]
    assert torch.equal(document_starts(documents), torch.tensor(first).bool())
    assert positions_in_documents(documents).tolist() == [[0, 1, 0, 1, 2, 3], [0, 0, 1, 2, 0, 1], [0, 1, 2, 3, 4, 5]]


@pytest.mark.parametrize("native", [False, True])
def test_auto_is_what_the_hardware_has_instructions_for(native, monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: native)
    found = [computes_in_bf16(precision, "cpu") for precision in ("fp32", "bf16", "auto")]
    assert found == [False, True, native]


few_values = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=30)
any_values = st.lists(st.tuples(*[st.floats(-1e6, 1e6, allow_subnormal=False)] * 2), min_size=2, max_size=30)


@given(pairs=few_values | any_values)
def test_spearman_is_scipys_with_ties_and_without(pairs):
    a, b = (torch.tensor(column, dtype=torch.float64) for column in zip(*pairs, strict=True))
    assume(len(a.unique()) > 1 and len(b.unique()) > 1)
    assert spearman(a, b) == pytest.approx(stats.spearmanr(a.numpy(), b.numpy()).statistic, abs=1e-12)


@given(values=st.lists(st.integers(-3, 3), min_size=1, max_size=30))
def test_ranks_are_scipys(values):
    found = average_ranks(torch.tensor(values))
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found.numpy(), stats.rankdata(values) - 1)


@pytest.mark.parametrize("depends", [0.0, 0.5, 1.0])
def test_the_chance_of_spearman_is_its_spread_over_random_numbers_for_each_id(depends):
    """Of 60 ids as frequent as words are, on which the values depend not at all, a little, or alone."""
    draw = torch.Generator().manual_seed(0)
    ids = torch.multinomial(1 / torch.arange(1.0, 61), 900, replacement=True, generator=draw)
    of_ids = torch.rand(60, generator=draw)[ids]
    values = depends * of_ids + (1 - depends) * torch.rand(900, generator=draw)
    found = torch.tensor([spearman(torch.rand(60, generator=draw)[ids], values) for _ in range(400)])
    assert spearman_by_chance(ids, values) == pytest.approx(float(found.square().mean().sqrt()), rel=0.15)


def test_the_chance_of_spearman_is_that_of_independent_values_where_all_ids_differ():
    assert spearman_by_chance(torch.arange(400), torch.rand(400)) == pytest.approx(1 / 20)
    assert math.isnan(spearman_by_chance(torch.zeros(1, dtype=int), torch.zeros(1)))
    assert math.isnan(spearman_by_chance(torch.arange(3), torch.ones(3)))


def test_the_largest_spearman_is_that_of_the_expected_rank():
    """Losses with a common part of the token: their ranks under two masks have the correlation 6/π · asin(ρ/2)."""
    draw = torch.Generator().manual_seed(0)
    token, noise = torch.randn(900, 1, 40, generator=draw), torch.randn(2, 900, 3, 40, generator=draw)
    losses = token + noise
    losses[torch.rand(losses.shape, generator=draw) < 0.3] = math.nan
    found = largest_spearman(*losses)
    assert found == pytest.approx(math.sqrt(6 / math.pi * math.asin(0.5 / 2)), abs=0.01)
    seen = losses[0].isfinite()
    assert spearman(token.expand(losses[0].shape)[seen], losses[0][seen]) == pytest.approx(found, abs=0.01)
    assert largest_spearman(*noise) == pytest.approx(0, abs=0.05)
    assert largest_spearman(token, token) == pytest.approx(1)
    assert math.isnan(largest_spearman(losses[0], torch.full_like(losses[1], math.nan)))


def test_spearman_without_an_order_is_nan():
    for a, b in (([], []), ([1.0], [2.0]), ([1.0, 1.0], [1.0, 2.0]), ([1.0, 2.0], [3.0, 3.0])):
        assert math.isnan(spearman(torch.tensor(a), torch.tensor(b)))


def test_ratio_is_the_ratio_of_the_sums():
    value, error = ratio(torch.tensor([1.0, 2.0, 6.0]), torch.tensor([1, 1, 2]))
    assert value == 9 / 4
    # By hand: residuals −5/4, −1/4, 6/4; variance of their mean by n/(n−1); over the mean of b.
    assert error == pytest.approx(math.sqrt((25 + 1 + 36) / 16 * 3 / 2) / 4)


def test_a_constant_ratio_has_no_error_and_one_entry_an_unknown_one():
    b = torch.tensor([3.0, 5.0, 8.0])
    value, error = ratio(2 * b, b)
    assert (value, error) == (2.0, pytest.approx(0, abs=1e-15))
    value, error = ratio(torch.tensor([3.0]), torch.tensor([2.0]))
    assert value == 1.5
    assert math.isnan(error)
