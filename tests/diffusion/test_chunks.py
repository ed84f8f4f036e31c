"""Logits a bounded number of positions at a time: the same losses, bounds and gradients."""

from itertools import product

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from atat_zoo import Zoo
from atat_zoo.diffusion import chunks
from atat_zoo.diffusion.ngram_prior import NGramPrior
from tests.examples import at_most
from tests.modeling.objectives.small_objectives import BACKBONE, BASELINES, CONTEXT, Largest, V, batch, build

OBJECTIVES = BASELINES | {
    "mdlm": {"use": "mdlm", "importance_loss_weight": 0.0, "correction": "horvitz_thompson"},
    "adaptive": {"use": "adaptive"},
}


@at_most(20)
@given(st.integers(0, 20), st.integers(1, 25), st.booleans())
def test_any_number_of_rows_gives_the_same(positions, rows, absent):
    torch.manual_seed(0)
    weight = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    hidden = torch.randn(positions, 3, dtype=torch.float64, requires_grad=True)
    x = torch.randint(0, 5, (positions,))

    def losses(hidden, nothing, x):
        assert (nothing is None) == absent
        logits = hidden @ weight.T
        return {"ce": F.cross_entropy(logits, x, reduction="none"), "top": logits.amax(1)}

    other = None if absent else x
    whole, cut = losses(hidden, other, x), chunks.in_chunks(losses, rows, hidden, other, x)
    assert whole.keys() == cut.keys()
    for name in whole:
        torch.testing.assert_close(cut[name], whole[name], rtol=1e-12, atol=1e-12)
    scale = torch.rand(positions, dtype=torch.float64)
    wanted, found = (
        torch.autograd.grad((each["ce"] * scale).sum() + each["top"].sum(), (hidden, weight)) for each in (whole, cut)
    )
    for one, two in zip(wanted, found, strict=True):
        torch.testing.assert_close(two, one, rtol=1e-12, atol=1e-12)


class Learned(nn.Module):
    """What a head may read: weights, perhaps a bias, a factor of given scores, and something that it does not read."""

    def __init__(self, biased):
        super().__init__()
        torch.manual_seed(1)
        self.weight, self.bias = (nn.Parameter(torch.randn(*shape, dtype=torch.float64)) for shape in ((5, 3), (5,)))
        self.gain, self.unread = (nn.Parameter(torch.ones(1, dtype=torch.float64)) for _ in range(2))
        self.biased = biased

    def forward(self, hidden, scores, x):
        logits = F.linear(hidden, self.weight, self.bias if self.biased else None)
        if scores is not None:
            logits = logits + self.gain * scores
        ce = F.cross_entropy(logits, x, reduction="none")
        # More than the cross-entropy is minimised, and what is minimised is no linear function of it.
        return {"cross_entropy": ce, "loss": ce.square() + logits.logsumexp(1)}


@at_most(20)
@given(st.integers(1, 20), st.integers(1, 25), st.booleans(), st.booleans(), st.floats(-3, 3))
def test_a_weighted_sum_and_all_its_gradients_are_those_of_plain_code(positions, rows, biased, scored, scale):
    module = Learned(biased)
    hidden = torch.randn(positions, 3, dtype=torch.float64, requires_grad=True)
    scores = torch.randn(positions, 5, dtype=torch.float64) if scored else None
    x, weight = torch.randint(0, 5, (positions,)), torch.randn(positions, dtype=torch.float64)
    whole = module(hidden, scores, x)
    learned = list(module.parameters())
    total, found = chunks.weighted_sum(module, rows, weight, learned, hidden, scores, x)
    assert found.keys() == whole.keys()
    for name in whole:
        assert not found[name].requires_grad
        torch.testing.assert_close(found[name], whole[name].detach(), rtol=1e-12, atol=1e-12)
    plain = (weight * whole["loss"]).sum()
    torch.testing.assert_close(total, plain, rtol=1e-12, atol=1e-12)

    def gradients(value):
        return torch.autograd.grad(scale * value, (hidden, *learned), allow_unused=True, retain_graph=True)

    for _ in range(2):
        for one, other in zip(gradients(total), gradients(plain), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@given(st.integers(0, 50), st.integers(1, 60))
def test_cuts_cover_every_place_once_and_are_as_few_and_as_equal_as_can_be(positions, rows):
    found = [list(range(positions))[cut] for cut in chunks.cuts(positions, rows)]
    assert [place for some in found for place in some] == list(range(positions))
    assert len(found) == -(-positions // rows)
    assert all(0 < len(some) <= rows for some in found)
    assert max(map(len, found), default=0) == (-(-positions // len(found)) if found else 0)


HEADS = [{"tied": True, "output_bias": "none"}, {"ngram_prior": 2}]


@pytest.mark.parametrize(("name", "head"), [*((name, {}) for name in OBJECTIVES), *product(("mdlm", "d3pm"), HEADS)])
def test_losses_bounds_and_gradients_are_the_same(name, head, monkeypatch):
    context = attrs.evolve(CONTEXT, ngram_prior=lambda: NGramPrior.count([batch(4).tokens.numpy()], V))
    backbone = {"use": "dit", "layers": 1, "width": 16, "heads": 2, "max_length": 16, **head}
    module = build(OBJECTIVES[name], backbone=backbone, context=context)
    given, found = batch(3), {}
    method = Zoo.load().spec("bound", "exact_k")
    for logits in (chunks.LOGITS, 5 * V):
        monkeypatch.setattr(chunks, "LOGITS", logits)
        module.zero_grad()
        figures = module.train().loss(given)
        figures["loss"].backward()
        with torch.no_grad():
            bounds = module.eval().bound(given.tokens, given.maskable, torch.arange(8), 2, method)
        gradients = {key: p.grad.clone() for key, p in module.named_parameters() if p.grad is not None}
        figures = {key: each.detach() for key, each in figures.items()}
        found[logits] = (figures, gradients, {key: each.nelbo for key, each in bounds.items()})
    (figures, gradients, bounds), (same_figures, same_gradients, same_bounds) = found.values()
    torch.testing.assert_close(same_figures, figures)
    torch.testing.assert_close(same_gradients, gradients, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(same_bounds, bounds)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_logits_of_all_places_are_never_in_memory(name, monkeypatch):
    vocabulary, rows = 400, 4
    monkeypatch.setattr(chunks, "LOGITS", rows * vocabulary)
    context = attrs.evolve(CONTEXT, vocabulary_size=vocabulary, width=8)
    module = build(OBJECTIVES[name], backbone=BACKBONE | {"width": 8}, context=context)
    given = batch(3, context=context)
    method = Zoo.load().spec("bound", "exact_k")
    with Largest() as largest:
        module.train().loss(given)["loss"].backward()
        with torch.no_grad():
            module.eval().bound(given.tokens, given.maskable, torch.arange(8), 2, method)
    rows_for = [chunks.rows_for(vocabulary, torch.device(kind)) for kind in ("cpu", "cuda")]
    assert rows_for == [rows, chunks.ON_ACCELERATOR // vocabulary]  # an accelerator has more at once
    assert chunks.rows_for(1 << 30, torch.device("cpu")) == 1
    # Weights of head and embedding are 8 · 400; the masked positions would be some 20 · 400.
    assert largest.elements <= 8 * (vocabulary + 1)
