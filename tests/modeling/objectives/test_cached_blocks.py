"""Blocks that were read are cached: their logits are those of a pass over the text."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.testing.sampling import noisy
from tests.examples import at_most
from tests.modeling.objectives.blockwise import SIZE, V, module


def banded(built, z, window, size):
    """Log-probabilities [B, L, V] of the whole text read at once, each position seeing its block and a window."""
    inputs = torch.cat([torch.full_like(z[:, :1], V), z[:, :-1]], 1) if size == 1 else z
    place = torch.arange(z.shape[1])
    end = (place[:, None] // size + 1) * size
    hidden = built.backbone(inputs, positions=place, attention=(place < end) & (place >= end - window))
    return built.backbone.head(hidden).log_softmax(-1)


@pytest.mark.parametrize("use", ["block", "autoregressive"])
@at_most(12)
@given(data=st.data())
def test_logits_with_the_cache_are_those_without(use, data):
    """Whatever is read in how many pieces, with a window as long as the text or shorter, for some rows or all."""
    built, size = module(use), SIZE if use == "block" else 1
    blocks = data.draw(st.integers(1, 6))
    window = size * data.draw(st.integers(1, blocks + 1)) if use == "block" else data.draw(st.integers(1, 6))
    rows, length = 3, blocks * size
    z = noisy(rows, length, V, data.draw(st.integers(0, 99))).clamp(max=V - 1)
    last = length - size
    z[:, last:] = V
    if size > 1:
        z[1, last] = 2
    cuts = sorted(data.draw(st.sets(st.integers(0, blocks - 1))) | {0, blocks - 1})
    some = torch.tensor(data.draw(st.sampled_from([[0, 1, 2], [0, 2], [1]])))
    with torch.no_grad():
        reading = built.denoiser().begin(rows, window)
        for a, b in itertools.pairwise(cuts):
            reading.read(z[:, a * size : b * size])
        where = (z[some, last:] == V).nonzero().unbind(1)
        found = reading.of(some)(z[some, last:], None, where)
        if window >= length:
            whole = torch.zeros(len(some), length, dtype=torch.bool)
            whole[:, last:] = z[some, last:] == V
            anew = built.denoiser()(z[some], None, whole)
            torch.testing.assert_close(found, anew, rtol=1e-11, atol=1e-11)
        at_once = banded(built, z, window, size)[some][:, last:][where]
        torch.testing.assert_close(found, at_once, rtol=1e-11, atol=1e-11)
