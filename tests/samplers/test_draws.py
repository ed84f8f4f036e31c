"""Draws are exact, tails included."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from atat_zoo.diffusion import categorical
from atat_zoo.diffusion.randomness import fold
from atat_zoo.samplers.draw import CategoricalDraw, ConfidenceTemperedDraw
from atat_zoo.testing.sampling import check_draw, example_step

STEP = example_step(frozenset({"history"}), rows=2)
STEP.history = torch.tensor([[torch.nan, 0.2, 0.4], [torch.nan, torch.nan, 1.0]], dtype=torch.float64)


def key_of(u: Fraction) -> int:
    """Return the int64 key whose uniform is u, a multiple of 2^-53."""
    bits = int(u * 2**64)
    return bits - 2**64 if bits >= 2**63 else bits


@pytest.mark.slow
@pytest.mark.parametrize(
    "draw",
    [CategoricalDraw(), CategoricalDraw(temperature=0.3), CategoricalDraw(temperature=0), ConfidenceTemperedDraw()],
)
def test_conformance(draw):
    check_draw(draw)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_frequencies_are_the_probabilities(temperature):
    n = 400_000
    # From 1/2 down to 2^-14: the rarest is expected 25 times.
    logits = -torch.arange(1, 15).double() * torch.log(torch.tensor(2.0)) * min(temperature, 1.0)
    p = (logits / temperature).softmax(0)
    drawn = CategoricalDraw(temperature=temperature)(
        logits.expand(n, -1), fold(torch.arange(n), 3), STEP, torch.zeros(n)
    )
    counts = torch.bincount(drawn, minlength=len(p)).double()
    assert chisquare(counts.numpy(), (p * n).numpy()).pvalue > 0.001


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=12).filter(any), st.integers(0, 2**53 - 1))
def test_a_token_is_the_inverse_of_the_cumulative_distribution(weights, numerator):
    u = Fraction(numerator, 2**53)
    total, below = sum(weights), 0
    for expected, weight in enumerate(weights):  # noqa: B007
        below += weight
        if u < Fraction(below, total):
            break
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


def test_chunks_do_not_change_the_tokens(monkeypatch):
    log_probs = torch.randn(50, 7, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    keys, temperature = fold(torch.arange(50), 1), torch.linspace(0.5, 2, 50)
    whole = [categorical.draw(log_probs, keys), categorical.draw(log_probs, keys, temperature)]
    monkeypatch.setattr(categorical, "_AT_ONCE", 21)
    assert torch.equal(categorical.draw(log_probs, keys), whole[0])
    assert torch.equal(categorical.draw(log_probs, keys, temperature), whole[1])


def test_no_distributions_no_tokens():
    nothing = categorical.draw(torch.zeros(0, 5), torch.zeros(0, dtype=torch.int64))
    assert nothing.shape == (0,)
    assert nothing.dtype == torch.int64


def test_the_temperature_follows_the_running_confidence():
    n = 200_000
    p = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
    rows = torch.arange(n) % 2
    draw = ConfidenceTemperedDraw(sure=0.5, unsure=1.5, window=2)
    drawn = draw(p.log().expand(n, 3), fold(torch.arange(n), 5), STEP, rows)
    # Running confidences 0.3 (the NaN is out of the window) and 1.
    for row, temperature in enumerate([1.5 - 0.3, 0.5]):
        counts = torch.bincount(drawn[rows == row], minlength=3).double()
        expected = (p.log() / temperature).softmax(0) * n / 2
        assert chisquare(counts.numpy(), expected.numpy()).pvalue > 0.001


def test_a_low_temperature_does_not_underflow():
    log_probs = torch.tensor([[-900.0, -901.0]])
    assert CategoricalDraw(temperature=1e-3)(log_probs, torch.tensor([12345]), STEP, torch.zeros(1)).tolist() == [0]


def test_out_of_range():
    with pytest.raises(ValueError, match="temperature must be at least 0"):
        CategoricalDraw(temperature=-1.0)
    with pytest.raises(ValueError, match="sure must be greater than 0"):
        ConfidenceTemperedDraw(sure=0.0)
