import torch
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.diffusion.calibration import water_fill
from atat_zoo.diffusion.randomness import row_keys
from atat_zoo.masking.mask_drawing import BernoulliMaskDrawing, SystematicMaskDrawing, comb


def keys(rows, seed=0):
    return row_keys(seed, "mask", torch.arange(rows))


def test_bernoulli_hits_the_marginals():
    p = torch.tensor([0.0, 0.1, 0.5, 0.93, 1.0])
    share = BernoulliMaskDrawing()(p.expand(40_000, 5), keys(40_000)).float().mean(0)
    assert share[0] == 0
    assert share[-1] == 1
    # Five standard errors of a share over 40,000 draws.
    assert bool(((share - p).abs() <= 5 * (p * (1 - p) / 40_000).sqrt()).all())


@given(st.integers(0, 2**31), st.integers(1, 64))
def test_bernoulli_is_nested_in_p_and_does_not_depend_on_the_batch(seed, length):
    p = torch.rand(3, length, generator=torch.Generator().manual_seed(seed))
    key = keys(3, seed)
    low, high = BernoulliMaskDrawing()(p / 2, key), BernoulliMaskDrawing()(p, key)
    assert not bool((low & ~high).any())
    assert torch.equal(high[1:2], BernoulliMaskDrawing()(p[1:2], key[1:2]))


@given(st.lists(st.integers(0, 64), min_size=1, max_size=12))
def test_a_comb_has_exactly_the_marginals_p(sixty_fourths):
    p = torch.tensor([sixty_fourths], dtype=torch.float32) / 64
    # p is in 64ths, so which pieces are hit is constant between the points of this grid: the sum is the integral.
    starts = (torch.arange(64, dtype=torch.float64) + 0.5) / 64
    hit = comb(p.expand(64, -1), starts)
    assert torch.equal(hit.double().mean(0), p[0].double())
    total = p.double().sum()
    counts = hit.sum(-1)
    assert bool((counts >= total.floor()).all())
    assert bool((counts <= total.ceil()).all())


@given(st.integers(0, 2**31), st.sampled_from([1, 2, 50, 1024]), st.floats(0, 1))
def test_systematic_masks_the_expected_number(seed, length, rate):
    importance = torch.rand(8, length, generator=torch.Generator().manual_seed(seed))
    p = water_fill(importance / 0.1, torch.full((8,), rate), torch.ones(8, length) > 0)
    counts = SystematicMaskDrawing()(p, keys(8, seed)).sum(-1)
    total = p.double().sum(-1)
    assert bool((counts >= (total - 1e-9).floor()).all())
    assert bool((counts <= (total + 1e-9).ceil()).all())


def test_systematic_hits_the_marginals_in_a_random_order():
    p = torch.tensor([0.0, 0.1, 0.5, 0.93, 1.0, 0.37])
    mask = SystematicMaskDrawing()(p.expand(40_000, 6), keys(40_000)).float()
    share = mask.mean(0)
    assert share[0] == 0
    assert share[4] == 1
    assert bool(((share - p).abs() <= 5 * (p * (1 - p) / 40_000).sqrt()).all())
    # The shuffle is there so that no pair is impossible: in a fixed order neighbours would exclude each other.
    pair = (mask[:, 1] * mask[:, 5]).mean()
    assert pair > 0


def test_systematic_rows_do_not_depend_on_their_batch():
    p = torch.rand(4, 33, generator=torch.Generator().manual_seed(5))
    whole = SystematicMaskDrawing()(p, keys(4))
    assert torch.equal(torch.cat([SystematicMaskDrawing()(p[i : i + 1], keys(4)[i : i + 1]) for i in range(4)]), whole)
