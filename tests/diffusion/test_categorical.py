"""Drawing from log-probabilities, by exact arithmetic and by plain code."""

import itertools
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.diffusion import categorical
from atat_zoo.diffusion.categorical import nucleus, top_k
from atat_zoo.diffusion.randomness import fold, to_unit

WEIGHTS = st.lists(st.integers(0, 20), min_size=1, max_size=9).filter(any)
LOGITS = torch.randn(40, 7, generator=torch.Generator().manual_seed(0)) * 3


def key_of(u):
    """Return the int64 key whose uniform is u, a multiple of 2^-53."""
    bits = int(u * 2**64)
    return bits - 2**64 if bits >= 2**63 else bits


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=12).filter(any), st.integers(0, 2**53 - 1))
def test_a_token_is_the_inverse_of_the_cumulative_distribution(weights, numerator):
    u = Fraction(numerator, 2**53)
    total = sum(weights)
    expected = next(i for i, below in enumerate(itertools.accumulate(weights)) if u < Fraction(below, total))
    # Beside a boundary, rounding may fall on either side of it.
    boundary = min(abs(u - Fraction(sum(weights[:i]), total)) for i in range(1, len(weights) + 1))
    log_probs = torch.tensor([weights], dtype=torch.float64).log()
    drawn = int(categorical.draw(log_probs, torch.tensor([key_of(u)])))
    assert weights[drawn] > 0
    assert drawn == expected or boundary < Fraction(1, 2**45)


def test_the_tail_is_not_cut_off():
    """Token 0 has probability 2^-40, far below the 2^-24 at which float32 uniforms end."""
    rare = torch.tensor([2.0**-40, 0.5, 0.5 - 2.0**-40], dtype=torch.float64).log()[None]
    inside, outside = Fraction(1, 2**41), Fraction(3, 2**41)
    keys = torch.tensor([key_of(inside), key_of(outside)])
    assert categorical.draw(rare.expand(2, 3), keys).tolist() == [0, 1]
    # The same at the other end, where float64 has 53 bits and no more.
    keys = torch.tensor([key_of(1 - inside), key_of(1 - outside)])
    assert categorical.draw(rare.flip(1).expand(2, 3), keys).tolist() == [2, 1]


@given(st.lists(st.floats(1e-300, 1e300), min_size=1, max_size=6), st.integers(0, 3), st.integers(0, 3))
def test_the_ends_of_the_uniform_never_draw_what_has_no_probability(weights, before, after):
    p = torch.tensor([0.0] * before + weights + [0.0] * after, dtype=torch.float64)
    p = p / p.sum()
    for key in (0, -1):
        assert p[categorical.draw(p.log()[None], torch.tensor([key]))] > 0


@given(WEIGHTS, st.integers(1, 10))
def test_the_k_likeliest_and_their_equals_stay(weights, k):
    kept = top_k(torch.tensor([weights]).double().log(), k)[0] > -torch.inf
    least = sorted(weights, reverse=True)[min(k, len(weights)) - 1]
    assert kept.tolist() == [w >= least and w > 0 for w in weights]


@given(WEIGHTS, st.floats(1e-6, 1.0), st.floats(0.05, 3.0))
def test_the_nucleus_is_the_fewest_that_reach_p(weights, p, temperature):
    log_probs = torch.tensor([weights]).double().log()
    kept = nucleus(log_probs, p, temperature)[0] > -torch.inf
    probs = (log_probs[0] / temperature).softmax(0)
    within, without = probs[kept], probs[~kept]
    assert p == 1 or within.sum() >= p - 1e-9
    # Without its least likely ones it would not reach p.
    assert p == 1 or within[within > within.min()].sum() < p + 1e-9
    assert not len(without) or within.min() > without.max() or without.max() == 0
    # What stays is not changed.
    assert torch.equal(nucleus(log_probs, p, temperature)[0][kept], log_probs[0][kept])


def test_a_nucleus_that_reaches_p_exactly_takes_no_further_token():
    log_probs = torch.tensor([[0.5, 0.25, 0.25]], dtype=torch.float64).log()
    assert (nucleus(log_probs, 0.5) > -torch.inf).tolist() == [[True, False, False]]


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_many_nuclei_are_found_in_parts(rows, monkeypatch):
    log_probs = torch.randn(rows, 10, generator=torch.Generator().manual_seed(1)).log_softmax(-1)
    at_once = nucleus(log_probs, 0.6)
    monkeypatch.setattr(categorical, "_AT_ONCE", 25)
    assert torch.equal(nucleus(log_probs, 0.6), at_once)


@pytest.mark.parametrize("temperature", [1.0, 0.3, 2, 0, torch.linspace(0.1, 3, 40), torch.zeros(40)], ids=repr)
def test_tokens_and_their_probabilities_are_those_of_the_tempered_distribution(temperature, monkeypatch):
    log_probs, keys = LOGITS.log_softmax(-1), fold(torch.arange(40), 1)
    log_probs[::3, 2] = -torch.inf
    column = temperature[:, None] if isinstance(temperature, torch.Tensor) else torch.full((40, 1), temperature)
    greedy = torch.nn.functional.one_hot(log_probs.argmax(1), 7).double().log()
    law = torch.where(column > 0, (log_probs.double() / column.clamp(min=1e-9)).log_softmax(-1), greedy)
    for at_once in (categorical._AT_ONCE, 21):
        monkeypatch.setattr(categorical, "_AT_ONCE", at_once)
        drawn = categorical.draw(log_probs, keys, temperature)
        below = (law.exp().cumsum(1) <= to_unit(keys, torch.float64)[:, None]).sum(1)
        assert torch.equal(drawn, torch.where(column[:, 0] > 0, below, log_probs.argmax(1)))
        for token in range(7):
            found = categorical.log_prob(log_probs, torch.full((40,), token), temperature)
            assert found.dtype == torch.float64
            torch.testing.assert_close(found.exp(), law[:, token].exp(), rtol=1e-6, atol=1e-12)


def test_a_low_temperature_does_not_underflow():
    log_probs, key = torch.tensor([[-900.0, -901.0]]), torch.tensor([12345])
    for temperature in (1e-3, torch.tensor([1e-3])):
        assert categorical.draw(log_probs, key, temperature).tolist() == [0]
        assert categorical.log_prob(log_probs, torch.tensor([0]), temperature).tolist() == [0]
    assert (nucleus(log_probs, 0.5, 1e-3) > -torch.inf).tolist() == [[True, False]]
