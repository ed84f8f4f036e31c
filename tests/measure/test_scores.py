"""The scores of predictions at masked tokens: by hand, against enumeration, and not computed unless asked for."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from atat_zoo import Zoo
from atat_zoo.diffusion.randomness import row_keys
from atat_zoo.experiment import EvaluationSpec
from atat_zoo.measure.compare import SCORES, brier
from atat_zoo.measure.likelihood import measure
from atat_zoo.noise import LinearNoise
from atat_zoo.registry import Context
from atat_zoo.testing.toys import toy

V, L = 2, 3


@given(values=st.lists(st.floats(-30, 30, width=16), min_size=2, max_size=8), shift=st.floats(-50, 50), data=st.data())
def test_they_are_of_the_distribution_and_bounded(values, shift, data):
    logits, x = torch.tensor([values], dtype=torch.float64), torch.tensor([data.draw(st.integers(0, len(values) - 1))])
    direct = (logits.softmax(-1) - nn.functional.one_hot(x, len(values))).square().sum(-1)
    for score in SCORES.values():
        torch.testing.assert_close(score(logits + shift, x), score(logits, x))
        assert -1e-12 <= float(score(logits, x)) <= 2 + 1e-12
    torch.testing.assert_close(brier(logits, x), direct)


class Backbone(nn.Module):
    """A backbone whose logits are a fixed function of z and the position, and far from sensible."""

    reads_time = False

    def __init__(self):
        super().__init__()
        self.head, self.embedding = nn.Identity(), nn.Embedding(V + 1, V)

    def forward(self, tokens, t=None, *, positions=None, attention=None, cache=None):
        position = torch.arange(tokens.shape[1], dtype=torch.float64)
        causal = isinstance(attention, str)
        seen = tokens.double().cumsum(1) if causal else tokens.double().sum(1, keepdim=True).expand(tokens.shape)
        return torch.stack([(1.7 * seen + position).sin(), (0.3 * seen - position).cos()], -1)


def module(objective):
    context = Context(vocabulary_size=V, length=L, width=V)
    parts = {"backbone": Backbone(), "noise": LinearNoise()}
    return Zoo.load().spec("objective", objective).build(context, parts, 4).double().eval()


def scored(module, x, draws, bound="exact_k"):
    spec = EvaluationSpec(draws=draws, batch_size=4096, bound=Zoo.load().spec("bound", bound))
    return measure(module, x, torch.ones_like(x) > 0, spec, seed=3, scores=SCORES)


def enumerated(module, x):
    """Return each score by its definition: over k uniform, over the masks of k tokens, over their tokens; [B, 2]."""
    total = torch.zeros(len(x), len(SCORES), dtype=torch.float64)
    for bits in range(1, 2**L):
        masked = torch.tensor([bool(bits >> i & 1) for i in range(L)]).expand(x.shape)
        k, true = int(masked[0].sum()), x[masked]
        p = module.denoiser()(torch.where(masked, V, x), None, masked).exp()
        values = [(p - nn.functional.one_hot(true, V)).square().sum(-1), (p.argmax(-1) == true).double()]
        total += torch.stack(values, -1).view(len(x), k, -1).mean(1) / (L * math.comb(L, k))
    return total


@pytest.mark.parametrize("objective", ["sedd", "mlm", "d3pm"])
@pytest.mark.parametrize("bound", ["exact_k", "continuous_t"])
def test_they_agree_with_enumeration_on_a_toy(objective, bound):
    made, states, groups = module(objective), toy().states, 4000
    with torch.no_grad():
        expected = enumerated(made, states).mean(0)
    found = scored(made, states.repeat(groups, 1), 3, bound)
    for value, name in zip(expected, SCORES, strict=True):
        sums = found.scores[name].view(groups, -1, 2).sum(1)
        residual = sums[:, 0] - value * sums[:, 1]
        assert abs(float(residual.mean() / residual.std())) * math.sqrt(groups) < 4
        ratio = float(sums[:, 0].sum() / sums[:, 1].sum())
        assert ratio == pytest.approx(float(value), abs=0.02)
    if bound == "exact_k":  # n/k · k: the weights of a sequence sum to its tokens
        torch.testing.assert_close(found.scores["brier_score"][:, 1], torch.full((8 * groups,), float(L)).double())


def test_where_the_likelihood_is_exact_they_are_over_all_tokens():
    made, x = module("autoregressive"), toy().states
    found = scored(made, x, 7)
    with torch.no_grad():
        logits = made.hidden(x, None)
    p = logits.softmax(-1)
    expected = (p - nn.functional.one_hot(x, V)).square().sum((1, 2))
    torch.testing.assert_close(found.scores["brier_score"], torch.stack([expected, torch.full_like(expected, L)], 1))
    right = (p.argmax(-1) == x).sum(1).double()
    torch.testing.assert_close(found.scores["top_1_accuracy"][:, 0], right)


@pytest.mark.parametrize("objective", ["sedd", "d3pm", "autoregressive", {"use": "block", "size": 3}])
def test_the_bounds_are_the_same_with_and_without_them(objective):
    made, x = module(objective), toy().states
    keys, everywhere = row_keys(3, "evaluation", torch.arange(len(x))), torch.ones_like(x) > 0
    asked = x, everywhere, keys, 3, Zoo.load().spec("bound", "exact_k")
    with torch.no_grad():
        plain, more = made.bound(*asked), made.bound(*asked, SCORES)
    assert next(iter(more)) == next(iter(plain)) == "nelbo"
    assert set(more) == {*plain, *SCORES}
    assert all(torch.equal(plain[name].contribution, more[name].contribution) for name in plain)


def test_they_are_not_computed_unless_asked_for(monkeypatch):
    asked, made, x = [], module("mlm"), toy().states
    monkeypatch.setitem(SCORES, "brier_score", lambda logits, x: asked.append(1) or torch.zeros(len(x)))
    scored(made, x, 1)
    assert asked == [1]
    found = measure(made, x, x >= 0, EvaluationSpec(draws=1), seed=3)
    assert (asked, found.scores) == ([1], {})
