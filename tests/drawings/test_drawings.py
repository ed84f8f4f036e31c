import torch
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.diffusion.randomness import row_keys
from atat_zoo.drawings.bernoulli import Bernoulli


def keys(rows, seed=0):
    return row_keys(seed, "mask", torch.arange(rows))


def test_bernoulli_hits_the_marginals():
    p = torch.tensor([0.0, 0.1, 0.5, 0.93, 1.0])
    share = Bernoulli()(p.expand(40_000, 5), keys(40_000)).float().mean(0)
    assert share[0] == 0
    assert share[-1] == 1
    # Five standard errors of a share over 40,000 draws.
    assert bool(((share - p).abs() <= 5 * (p * (1 - p) / 40_000).sqrt()).all())


@given(st.integers(0, 2**31), st.integers(1, 64))
def test_bernoulli_is_nested_in_p_and_does_not_depend_on_the_batch(seed, length):
    p = torch.rand(3, length, generator=torch.Generator().manual_seed(seed))
    key = keys(3, seed)
    low, high = Bernoulli()(p / 2, key), Bernoulli()(p, key)
    assert not bool((low & ~high).any())
    assert torch.equal(high[1:2], Bernoulli()(p[1:2], key[1:2]))
