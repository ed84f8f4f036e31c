import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.modeling.diffusion.calibration import water_fill
from atat_zoo.modeling.diffusion.randomness import row_keys
from atat_zoo.modeling.masking.mask_drawing import BernoulliMaskDrawing, SystematicMaskDrawing, comb
from atat_zoo.testing import check_mask_drawing


def keys(rows, seed=0):
    return row_keys(seed, "mask", torch.arange(rows))


@pytest.mark.parametrize("drawing", [BernoulliMaskDrawing(), SystematicMaskDrawing()], ids=str)
def test_marginals_are_exact_and_rows_do_not_depend_on_their_batch(drawing):
    check_mask_drawing(drawing, 8)


@given(st.integers(0, 2**31), st.integers(1, 64))
def test_bernoulli_is_nested_in_p(seed, length):
    p = torch.rand(3, length, generator=torch.Generator().manual_seed(seed))
    key = keys(3, seed)
    low, high = BernoulliMaskDrawing()(p / 2, key), BernoulliMaskDrawing()(p, key)
    assert not bool((low & ~high).any())


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


def test_systematic_excludes_no_pair():
    """In a fixed order neighbours would exclude each other."""
    p = torch.tensor([0.0, 0.1, 0.5, 0.93, 1.0, 0.37])
    mask = SystematicMaskDrawing()(p.expand(40_000, 6), keys(40_000))
    assert (mask[:, 1] & mask[:, 5]).any()
