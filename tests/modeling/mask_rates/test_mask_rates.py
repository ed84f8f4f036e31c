"""Rates by themselves: their laws against scipy's, and what the weights are for."""

import itertools

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from atat_zoo import Zoo
from atat_zoo.diffusion.contracts import StatefulComponent
from atat_zoo.modeling.mask_rates import AdaptiveRates, BetaRates, LogitNormalRates, NoiseRates, UniformRates
from atat_zoo.modeling.noise import LinearNoise
from atat_zoo.registry import Context
from atat_zoo.testing.toys import ENTROPY, toy
from tests.diffusion.noised import noised
from tests.examples import at_most

CONTEXT = Context(vocabulary_size=4, length=8, counts=np.array([1, 1, 1, 1]))
H1 = np.log(4)
U = (torch.arange(1024, dtype=torch.float64) + 0.5) / 1024


def taught(losses, **parameters):
    """Adaptive rates that have seen one mean loss in each bin, on 10 tokens; None for nothing."""
    module = AdaptiveRates(bins=len(losses), **parameters).build(CONTEXT)
    seen = [(0.0, 0.0) if loss is None else (10 * loss, 10.0) for loss in losses]
    module.update(torch.tensor(seen, dtype=torch.float64).T, 0.0)
    return module


bells = st.builds(
    lambda m, s: LogitNormalRates(location=m, scale=s).build(CONTEXT), st.floats(-2, 2), st.floats(0.1, 2)
)
betas = st.builds(lambda a, b: BetaRates(a=a, b=b).build(CONTEXT), st.floats(0.5, 20), st.floats(0.5, 20))
adaptives = st.builds(taught, st.lists(st.floats(0, 2), min_size=2, max_size=9), floor=st.floats(0.01, 1))


# Each density


@given(st.floats(-5, 5), st.floats(0.05, 3))
def test_a_bell_is_normal_in_log_odds(location, scale):
    bell, law = LogitNormalRates(location=location, scale=scale).build(CONTEXT), stats.norm(location, scale)
    r = bell.quantile(U)
    assert 0 < bell.quantile(U.new_zeros(1)) < bell.quantile(U.new_ones(1)) < 1
    inner = (r > 1e-9) & (r < 1 - 1e-9)
    np.testing.assert_allclose(law.cdf(r[inner].logit()), U[inner], atol=1e-6)
    expected = law.pdf(r.logit()) / (r * (1 - r)).numpy()
    np.testing.assert_allclose(bell.density(r)[inner], expected[inner], rtol=1e-9)


@at_most(15)
@given(st.floats(0.5, 50), st.floats(0.5, 50))
def test_a_beta_is_scipys(a, b):
    beta, law = BetaRates(a=a, b=b).build(CONTEXT), stats.beta(a, b)
    r = beta.quantile(U)
    np.testing.assert_allclose(r, law.ppf(U), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(law.cdf(r), U, atol=1e-8)
    np.testing.assert_allclose(beta.density(r), law.pdf(r), rtol=1e-9)


@given(st.one_of(bells, betas, adaptives))
def test_quantiles_rise_and_invert_the_integral_of_the_density(module):
    assert module.density(torch.ones(1, dtype=torch.float64)).isfinite().all()
    u = torch.cat([torch.tensor([2.0**-53]), U, torch.tensor([1.0])]).double()
    r = module.quantile(u)
    assert (r.diff() >= 0).all()
    assert (r >= 0).all()
    assert (r <= 1).all()
    # Across a few quantiles, in log-odds, where every density is smooth but for the ends of bins.
    for low, high in itertools.pairwise([0.05, 0.3, 0.5, 0.7, 0.95]):
        ends = module.quantile(torch.tensor([low, high], dtype=torch.float64)).logit()
        x = torch.linspace(*ends.tolist(), 2001, dtype=torch.float64)
        r = x.sigmoid()
        found = integrate.simpson(module.density(r) * r * (1 - r), x=x)
        assert found == pytest.approx(high - low, abs=2e-3 if isinstance(module, StatefulComponent) else 1e-6)


@pytest.mark.parametrize("name", ["linear", "cosine", "polynomial", "geometric", "log_linear"])
def test_rates_of_the_noise_are_those_of_its_times_to_the_bit(name):
    noise = Zoo.load().spec("noise", name)
    t = 1 - torch.rand(1000, generator=torch.Generator().manual_seed(0))
    levels = NoiseRates().levels(t, noise, 0.5)
    assert torch.equal(levels.t, t)
    assert torch.equal(levels.rate, 1 - noise.alpha(t))
    assert torch.equal(levels.weight, noise.weight(t))
    levels = UniformRates().levels(U, noise, 0.5)
    assert torch.equal(levels.rate, U.float())
    torch.testing.assert_close(levels.t, noise.time_at(U.float()))


# The mixture


@given(st.floats(0, 1), st.floats(-3, 3), st.integers(1, 64), st.floats(0, 1, exclude_max=True))
def test_the_uniform_share_is_exact_and_both_parts_are_stratified(share, location, rows, offset):
    spec = LogitNormalRates(uniform_share=share, location=location)
    bell = spec.build(CONTEXT)
    u = ((torch.arange(rows, dtype=torch.float64) + 1 - offset) / rows).clamp(min=2.0**-53)
    levels = bell.levels(u, LinearNoise(), 0.5)
    uniform = u <= share
    assert abs(int(uniform.sum()) - share * rows) <= 1
    torch.testing.assert_close(levels.rate[uniform], (u[uniform] / max(share, 1e-300)).float())
    rest = bell.quantile((u[~uniform] - share) / (1 - share) if share < 1 else u[~uniform])
    torch.testing.assert_close(levels.rate[~uniform], rest.float())
    torch.testing.assert_close(levels.t, levels.rate)
    density = share + (1 - share) * bell.density(levels.rate.double())
    inner = (levels.rate > 1e-6) & (levels.rate < 1 - 1e-3)
    torch.testing.assert_close((1 / (levels.rate * levels.weight))[inner], density[inner].float(), rtol=1e-3, atol=0)


def test_a_rate_is_never_zero():
    """A beta with a = 0.5 has quantiles down to 1e-48, whose weight would not be finite in float32."""
    levels = BetaRates(a=0.5, b=1).build(CONTEXT).levels(torch.tensor([1e-60, 1.0]).double(), LinearNoise(), 0.5)
    assert levels.rate[0] == torch.tensor(2.0**-53)
    assert levels.weight.isfinite().all()


@pytest.mark.parametrize("cls", [LogitNormalRates, BetaRates, AdaptiveRates])
def test_stretches_of_the_training_are_uniform(cls):
    module = cls(uniform_until=0.1, uniform_from=0.8).build(CONTEXT)
    if cls is AdaptiveRates:
        module.update(torch.stack([torch.linspace(0, 10, 32), torch.full((32,), 10.0)]).double(), 0.0)
    for progress, uniform in ((0.0, True), (0.0999, True), (0.1, False), (0.7999, False), (0.8, True), (1.0, True)):
        levels = module.levels(U, LinearNoise(), progress)
        assert torch.equal(levels.rate, U.float()) == uniform
        if uniform:
            torch.testing.assert_close(levels.weight, (1 / U).float())
    # A stretch is a share of the training, so a longer one is another.
    assert cls().extends(4, 8, 16)
    assert not cls(uniform_until=0.1).extends(4, 8, 16)
    with pytest.raises(ValueError, match="uniform_until must be at most uniform_from"):
        cls(uniform_until=0.5, uniform_from=0.4)


# What the weights are for


def nelbo_at(rate):
    """E ΣCE of the toy at mask rates [B], by enumeration of its 8 masks, with the exact denoiser."""
    joint, total = toy(), torch.zeros_like(rate)
    for pattern in itertools.product([False, True], repeat=3):
        masked = torch.tensor(pattern).expand(8, 3)
        z = torch.where(masked, joint.mask_id, joint.states)
        losses = -joint.marginals(z).log().gather(2, joint.states[..., None])[..., 0]
        k = sum(pattern)
        total += rate**k * (1 - rate) ** (3 - k) * float((joint.p * (losses * masked).sum(1)).sum())
    return total


@pytest.mark.parametrize("noise", ["cosine"])
@pytest.mark.parametrize(
    "rates",
    [
        NoiseRates(),
        UniformRates(),
        LogitNormalRates(scale=0.6, uniform_share=0.05),
        LogitNormalRates(uniform_from=0.5),
        BetaRates(a=1.5, b=0.8),
        BetaRates(a=4.0, b=2.0, uniform_share=0.3),
        taught([0.2, None, 1.0]),
        taught([0.2, 0.5, 1.0, 1.3], floor=0.1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_whatever_the_rates_the_weighted_loss_is_the_bound(rates, noise):
    built = rates if isinstance(rates, torch.nn.Module) else rates.build(CONTEXT)
    u, noise = (torch.arange(2**16, dtype=torch.float64) + 0.5) / 2**16, Zoo.load().spec("noise", noise)
    levels = built.levels(u, noise, 0.5)
    torch.testing.assert_close(levels.rate, 1 - noise.alpha(levels.t), rtol=0, atol=1e-6)
    found = (levels.weight.double() * nelbo_at(levels.rate.double())).mean()
    assert float(found) == pytest.approx(ENTROPY, abs=2e-3)


def second_moment(rates, points):
    u = (torch.arange(points, dtype=torch.float64) + 0.5) / points
    levels = rates.build(CONTEXT).levels(u, LinearNoise(), 0.5)
    return float((levels.weight.double() * levels.rate.double()).square().mean())


@pytest.mark.parametrize(
    ("rates", "finite"),
    [
        (LogitNormalRates(scale=0.3), False),
        (LogitNormalRates(scale=1.0), False),
        (LogitNormalRates(uniform_share=0.01), True),
        (BetaRates(a=2.0, b=1.0), False),
        (BetaRates(a=1.0, b=3.0), False),
        (BetaRates(a=1.5, b=1.5), True),
        (BetaRates(a=5.0, b=5.0, uniform_share=0.1), True),
        (AdaptiveRates(), True),
        (LogitNormalRates(uniform_from=0.0), True),
        (LogitNormalRates(uniform_until=1.0, uniform_from=1.0), True),
    ],
    ids=str,
)
def test_the_variance_is_finite_where_it_is_said_to_be(rates, finite):
    """∫ 1/f dr is the second moment of 1/f over the draws: it converges, or grows with the number of points."""
    assert rates.finite_variance is finite
    few, many = second_moment(rates, 2**13), second_moment(rates, 2**17)
    assert (many < 1.05 * few) is finite


# Adaptive rates


def test_adaptive_rates_are_their_formula():
    module = taught([0.2, 1.0, 1.5, 0.4], floor=0.1)
    middle, loss = np.array([1, 3, 5, 7]) / 8, np.array([0.2, 1.0, 1.5, 0.4])
    wanted = 0.1 + np.maximum(0, middle * (H1 - loss))
    wanted /= wanted.mean()
    r = torch.tensor([0.01, 0.25, 0.26, 0.5, 0.51, 0.75, 0.76, 1.0], dtype=torch.float64)
    np.testing.assert_allclose(module.density(r), wanted.repeat(2))
    ends = torch.tensor(np.cumsum(wanted) / 4)
    np.testing.assert_allclose(module.quantile(ends), [0.25, 0.5, 0.75, 1.0])


@given(st.lists(st.one_of(st.none(), st.floats(0, 2)), min_size=2, max_size=6))
def test_adaptive_rates_are_uniform_until_every_bin_has_been_seen(losses):
    module = taught(losses)
    rate = module.levels(U, LinearNoise(), 0.5).rate
    if None in losses:
        torch.testing.assert_close(rate, U.float())
    elif len({(i + 0.5) * max(H1 - loss, 0) for i, loss in enumerate(losses)}) > 1:
        assert not torch.allclose(rate, U.float(), atol=1e-12, rtol=0)


def test_a_bin_has_been_seen_however_much_its_sums_have_decayed():
    module = taught([0.1, 1.0], decay=0.01)
    module.update(torch.zeros(2, 2, dtype=torch.float64), 0.0)
    torch.testing.assert_close(module.heights(), taught([0.1, 1.0]).heights())


def test_what_is_seen_is_the_loss_at_masked_tokens_by_the_bin_of_the_row():
    module = AdaptiveRates(bins=2, decay=0.5).build(CONTEXT)
    seen = noised([[True, False], [True, True], [False, True]], [0.2, 0.5, 0.9])
    total = module.statistics(seen, torch.tensor([[1.0, 0.0], [2.0, 4.0], [0.0, 8.0]]))
    assert total.tolist() == [[7.0, 8.0], [3.0, 1.0]]
    module.update(total, 0.0)
    module.update(total, 0.0)
    assert module.sums.tolist() == [[10.5, 12.0], [4.5, 1.5]]
    assert module.statistics(noised([[True]], [0.2]), torch.ones(1, 1)).tolist() == [[1.0, 0.0], [1.0, 0.0]]


def test_the_unigram_cross_entropy_is_of_the_training_tokens_and_is_saved():
    counts = np.array([3, 1, 0, 4])
    one = AdaptiveRates().build(attrs.evolve(CONTEXT, counts=counts))
    assert float(one.unigram) == pytest.approx(stats.entropy(counts))
    two = AdaptiveRates().build(attrs.evolve(CONTEXT, counts=None))
    assert float(two.unigram) == pytest.approx(H1)
    two.load_state_dict(one.state_dict())
    assert float(two.unigram) == float(one.unigram)
    assert isinstance(one, StatefulComponent)
    assert not isinstance(LogitNormalRates().build(CONTEXT), StatefulComponent)
    assert not BetaRates().build(CONTEXT).state_dict()
