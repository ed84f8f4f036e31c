"""Intervals over sequences: what must hold exactly, and how often they hold the truth."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from atat_zoo.diffusion.statistics import ratio
from atat_zoo.evaluation.results.intervals import (
    Interval,
    interval,
    of_difference,
    of_mean,
    of_seeds_and_sequences,
    paired,
    resampled,
    unpaired,
)


def drawn(seed, n, shared=1.0, apart=0.1, gap=0.0):
    """Nats of n sequences by two models that agree on which are hard, and their tokens."""
    generator = torch.Generator().manual_seed(seed)

    def normal():
        return torch.randn(n, generator=generator, dtype=torch.float64)

    count = torch.randint(20, 65, (n,), generator=generator)
    hard = 4 + shared * normal()
    a, b = hard + gap + apart * normal(), hard + apart * normal()
    return a * count.double(), b * count.double(), count


sequences = st.tuples(st.integers(0, 2**32), st.integers(1, 60))


@given(sequences)
def test_it_is_antisymmetric_and_its_value_the_ratio_of_the_sums(given_):
    a, b, count = drawn(*given_)
    found, turned = paired(a, b, count, resamples=500), paired(b, a, count, resamples=500)
    assert (found.value, found.low, found.high) == (-turned.value, -turned.high, -turned.low)
    assert found.value == pytest.approx(ratio(a - b, count)[0], rel=1e-12)
    assert found.low <= found.value <= found.high
    assert len(count) > 1 or found.width == math.inf
    assert unpaired(a, b, count, resamples=500).value == pytest.approx(found.value, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("function", [paired, unpaired])
def test_it_covers_the_truth_as_often_as_it_says(function):
    gap, trials = 0.03, 200
    held = 0
    for trial in range(trials):
        a, b, count = drawn(trial, 60, gap=gap)
        if function is unpaired:  # as it assumes: of other sequences
            _, b, _ = drawn(trial + 10_000, 60)
            generator = torch.Generator().manual_seed(trial + 20_000)
            b = (4 + torch.randn(60, generator=generator, dtype=torch.float64)) * count.double()
        found = function(a, b, count, resamples=400)
        held += found.low <= gap <= found.high
    # A deviation of the count is 1.5 %; with 60 sequences the bootstrap is about 1 % too narrow.
    assert 0.90 < held / trials < 0.985


def test_a_resample_draws_each_sequence_as_often_as_any_other():
    n, resamples = 7, 4000
    times = resampled(torch.eye(n), purpose="test", seed=0, resamples=resamples)
    assert torch.equal(times.sum(1), torch.full((resamples,), float(n), dtype=torch.float64))
    # Each count is binomial(n, 1/n).
    assert times.mean(0).tolist() == pytest.approx([1] * n, abs=5 * (1 / resamples) ** 0.5)
    assert float(times.var(0).mean()) == pytest.approx(1 - 1 / n, rel=0.05)


def test_a_resample_is_the_same_on_every_machine():
    drawn = resampled(torch.arange(1000.0)[:, None], purpose="test", seed=5, resamples=400)
    assert float(drawn.sum()) == 199_690_250


def test_the_chunks_change_nothing(monkeypatch):
    values = torch.rand(40, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    whole = resampled(values, purpose="test", seed=5, resamples=101)
    monkeypatch.setattr("atat_zoo.evaluation.results.intervals._CHUNK", 400)
    torch.testing.assert_close(resampled(values, purpose="test", seed=5, resamples=101), whole, rtol=0, atol=1e-12)


def test_the_interval_is_made_of_order_statistics():
    found = interval(0.0, torch.arange(999.0).flip(0))
    # 1000 · 0.025 = 25: the 25th from either end.
    assert (found.low, found.high, found.width) == (24, 974, 950)


def test_the_t_interval_by_hand():
    """t(0.975) is 12.7062 with 1 degree of freedom, 4.30265 with 2 (any table of Student's t)."""
    two, three = of_mean([0.0, 2.0]), of_mean([1.0, 2.0, 3.0])  # s/√n = 1 and 1/√3
    assert (two.value, two.high) == (1.0, pytest.approx(1 + 12.70620, abs=1e-4))
    assert three.low == pytest.approx(2 - 4.302653 / math.sqrt(3), abs=1e-5)
    assert of_mean([0.3]) is None


# Shares of the variance of a mean over seeds and sequences that are of the seeds, of the sequences, and of both.
@pytest.mark.parametrize("shares", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (9, 1, 0), (1, 1, 0), (1, 9, 0), (1, 1, 1)])
@pytest.mark.parametrize("seeds", [2, 3])
def test_an_interval_for_other_seeds_and_sequences_covers_the_truth(seeds, shares):
    """Whatever has the larger part of the chance; without the other kind it is no wider than it has to be."""
    trials, n = 2000, 40
    random, (of_seed, of_sequence, of_both) = np.random.default_rng(7), np.sqrt(shares) / np.sqrt(sum(shares))
    rows = of_seed * math.sqrt(seeds) * random.normal(size=(trials, seeds, 1))
    columns = of_sequence * math.sqrt(n) * random.normal(size=(trials, 1, n))
    d = rows + columns + of_both * math.sqrt(seeds * n) * random.normal(size=(trials, seeds, n))
    held, half = 0, stats.t.ppf(0.975, n - 1) * d.mean(1).std(1, ddof=1) / math.sqrt(n)
    for each, mean, margin in zip(d.mean(2), d.mean((1, 2)), half, strict=True):
        sequences = Interval(value=mean, low=mean - margin, high=mean + margin)
        found = of_seeds_and_sequences(each.tolist(), sequences) or sequences  # without a spread of the seeds
        held += found.low <= 0 <= found.high
    assert held / trials > 0.94
    assert held / trials < 0.965 or sum(map(bool, shares)) > 1 or of_both


values = st.lists(st.floats(-3, 3, width=32), min_size=2, max_size=5)
margins = st.tuples(st.floats(0, 2), st.floats(0, 2))


@given(values, margins)
def test_the_margins_of_seeds_and_of_sequences_add_up_as_squares(each, ends):
    mean = sum(each) / len(each)
    sequences = Interval(value=mean, low=mean - ends[0], high=mean + ends[1])
    found = of_seeds_and_sequences(each, sequences)
    if len({round(value, 12) for value in each}) == 1:
        assert found is None
        return
    by_seed = of_mean(each)
    assert found.value == pytest.approx(mean)
    assert found.value - found.low == pytest.approx(math.hypot(by_seed.width / 2, ends[0]))
    assert found.high - found.value == pytest.approx(math.hypot(by_seed.width / 2, ends[1]))


def test_nothing_is_known_of_another_seed_from_one_or_from_equal_ones():
    sequences = Interval(value=0.2, low=0.1, high=0.3)
    assert of_seeds_and_sequences([0.2], sequences) is None
    assert of_seeds_and_sequences([0.1 + 0.1, 0.2, 0.3 - 0.1], sequences) is None  # rounding is no spread
    assert of_seeds_and_sequences([0.2, 0.2 + 1e-9], sequences) is not None


@given(st.integers(2, 9), st.integers(2, 9), st.integers(0, 999))
def test_welchs_interval_is_that_of_scipy(n, m, seed):
    random = np.random.default_rng(seed)
    a, b = random.normal(3, 1, n), random.normal(2, 2, m)
    found, wanted = of_difference(a, b), stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high), rel=1e-9)
    assert found.value == pytest.approx(a.mean() - b.mean())
    back = of_difference(b, a)
    assert (back.low, back.high) == (-found.high, -found.low)
    assert of_difference(a[:1], b) is None
