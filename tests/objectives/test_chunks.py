"""Logits a bounded number of places at a time: the same losses, bounds and gradients."""

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from atat_zoo import Zoo
from atat_zoo.objectives import chunks
from tests.objectives.small_objectives import BACKBONE, BASELINES, CONTEXT, V, batch, build

OBJECTIVES = BASELINES | {
    "mdlm": {"use": "mdlm", "importance_loss_weight": 0.0, "correction": "horvitz_thompson"},
    "adaptive": {"use": "adaptive"},
}


@given(st.integers(0, 20), st.integers(1, 25), st.booleans())
def test_any_number_of_rows_gives_the_same(places, rows, absent):
    torch.manual_seed(0)
    weight = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    hidden = torch.randn(places, 3, dtype=torch.float64, requires_grad=True)
    x = torch.randint(0, 5, (places,))

    def losses(hidden, nothing, x):
        assert (nothing is None) == absent
        logits = hidden @ weight.T
        return {"ce": F.cross_entropy(logits, x, reduction="none"), "top": logits.amax(1)}

    other = None if absent else x
    whole, cut = losses(hidden, other, x), chunks.in_chunks(losses, rows, hidden, other, x)
    assert whole.keys() == cut.keys()
    for name in whole:
        torch.testing.assert_close(cut[name], whole[name], rtol=1e-12, atol=1e-12)
    scale = torch.rand(places, dtype=torch.float64)
    wanted, found = (
        torch.autograd.grad((each["ce"] * scale).sum() + each["top"].sum(), (hidden, weight)) for each in (whole, cut)
    )
    for one, two in zip(wanted, found, strict=True):
        torch.testing.assert_close(two, one, rtol=1e-12, atol=1e-12)


@given(st.integers(1, 20), st.integers(1, 25), st.booleans())
def test_head_and_cross_entropy_together(places, rows, biased):
    torch.manual_seed(1)
    hidden, weight, bias = (torch.randn(*shape, dtype=torch.float64) for shape in ((places, 3), (5, 3), (5,)))
    given_ = [each.requires_grad_() for each in (hidden, weight, *([bias] if biased else []))]
    x, scale = torch.randint(0, 5, (places,)), torch.randn(places, dtype=torch.float64)
    other = bias if biased else None
    whole = F.cross_entropy(F.linear(hidden, weight, other), x, reduction="none")
    cut = chunks.linear_cross_entropy(hidden, weight, other, x, rows)
    torch.testing.assert_close(cut, whole, rtol=1e-12, atol=1e-12)
    wanted, found = (torch.autograd.grad((each * scale).sum(), given_) for each in (whole, cut))
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def test_together_in_the_precision_of_autocast():
    torch.manual_seed(2)
    hidden, weight = torch.randn(64, 32, requires_grad=True), torch.randn(100, 32, requires_grad=True)
    x = torch.randint(0, 100, (64,))
    exact = F.cross_entropy(hidden @ weight.T, x, reduction="none")
    with torch.autocast("cpu", torch.bfloat16):
        whole = F.cross_entropy(F.linear(hidden, weight).float(), x, reduction="none")
        cut = chunks.linear_cross_entropy(hidden, weight, None, x, 7)
    assert cut.dtype == torch.float32
    torch.testing.assert_close(cut, whole, rtol=1e-6, atol=1e-5)
    assert 1e-4 < float((cut - exact).abs().max()) < 0.5
    for one, two in zip(*(torch.autograd.grad(each.mean(), (hidden, weight)) for each in (exact, cut)), strict=True):
        assert two.dtype == torch.float32
        torch.testing.assert_close(two, one, rtol=0.1, atol=2e-2)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_losses_bounds_and_gradients_are_the_same(name, monkeypatch):
    module = build(OBJECTIVES[name], backbone={"use": "dit", "layers": 1, "width": 16, "heads": 2, "max_length": 16})
    given, found = batch(3), {}
    method = Zoo.load().spec("bound", "exact_k")
    for logits in (chunks.LOGITS, 5 * V):
        monkeypatch.setattr(chunks, "LOGITS", logits)
        module.zero_grad()
        loss = module.train().loss(given)["loss"]
        loss.backward()
        with torch.no_grad():
            bounds = module.eval().bound(given.tokens, given.maskable, torch.arange(8), 2, method)
        gradients = {key: p.grad.clone() for key, p in module.named_parameters() if p.grad is not None}
        found[logits] = (loss.detach(), gradients, {key: each.nelbo for key, each in bounds.items()})
    (loss, gradients, bounds), (same_loss, same_gradients, same_bounds) = found.values()
    torch.testing.assert_close(same_loss, loss)
    torch.testing.assert_close(same_gradients, gradients, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(same_bounds, bounds)


class Largest(TorchDispatchMode):
    """The largest tensor that an operation returns."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for each in out if isinstance(out, tuple | list) else [out]:
            if isinstance(each, torch.Tensor):
                self.elements = max(self.elements, each.numel())
        return out


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
    # Weights of head and embedding are 8 · 400; the masked places would be some 20 · 400.
    assert largest.elements <= 8 * (vocabulary + 1)


@pytest.mark.parametrize(("vocabulary", "rows"), [(2048, 8192), (50_257, 333), (1 << 30, 1)])
def test_small_vocabularies_are_not_cut(vocabulary, rows):
    assert chunks.rows_for(vocabulary) == rows
