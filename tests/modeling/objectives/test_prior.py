"""Count tables beside the head: their memory, what is left out in a training, and that no objective leaks by them."""

import numpy as np
import pytest
import torch
from small_objectives import BACKBONE, BASELINES, Largest, N, batch, build
from test_baseline_bounds import EXACT_K

from atat_zoo.diffusion.ngram_prior import NGramPrior
from atat_zoo.modeling.backbones.dit import DiTBackbone
from atat_zoo.modeling.backbones.ngram_prior_module import NGramPriorModule
from atat_zoo.registry import Context

V, L, REACH = 7, 6, 2
TEXT = np.random.default_rng(3).zipf(1.6, (200, L)) % V
TABLE = NGramPrior.count([TEXT], V)
CONTEXT = Context(vocabulary_size=V, length=L, width=16, steps=100, seed=5, ngram_prior=lambda: TABLE)
COUNTED = BACKBONE | {"ngram_prior": REACH}
OBJECTIVES = {"mdlm": {"use": "mdlm"}, "adaptive": {"use": "adaptive"}, **BASELINES}


def made(name):
    return build(OBJECTIVES[name], context=CONTEXT, backbone=COUNTED)


def test_memory_grows_with_the_pairs_at_any_vocabulary():
    v = 50_257
    text = np.random.default_rng(4).zipf(1.3, (500, L)) % v
    context = Context(vocabulary_size=v, length=L, steps=1, seed=0, ngram_prior=lambda: NGramPrior.count([text], v))
    module = DiTBackbone(ngram_prior=2, layers=1, width=8, heads=2).build(context).prior
    beside, x = torch.from_numpy(text[:8, [1, 3, 0, 4]]), torch.from_numpy(text[:8, 2])
    # A few numbers of each row, 2R of every token, and of each pair.
    kept = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in module.scores()}
    assert sum(kept.values()) <= 250 * v + 64 * 4 * text.size
    with Largest() as largest:
        module(torch.zeros(8, v), beside, x).logsumexp(1).sum().backward()
    assert module.gain.grad.all()
    assert largest.elements <= 8 * v


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_leaves_out_what_it_predicts_and_only_in_a_training(name, monkeypatch):
    module, given = made(name), []
    forward = NGramPriorModule.forward
    monkeypatch.setattr(
        NGramPriorModule, "forward", lambda self, *given_: given.append(given_) or forward(self, *given_)
    )
    a_batch = batch(context=CONTEXT)
    module.train().loss(a_batch)
    assert given
    text = a_batch.tokens.tolist()
    for logits, _, x in given:
        assert x.shape == logits.shape[:1]
    left_out = torch.cat([x for *_, x in given])
    assert set(left_out.tolist()) <= {token for row in text for token in row}
    assert len(left_out) > N
    given.clear()
    with torch.no_grad():
        module.eval().bound(a_batch.tokens, a_batch.maskable, torch.arange(N), 1, EXACT_K)
    assert given
    assert all(x is None for _, _, x in given)


@pytest.mark.parametrize("name", [name for name in OBJECTIVES if name not in ("autoregressive", "strided")])
def test_a_prediction_reads_no_hidden_token(name):
    module = made(name).eval()
    x = batch(context=CONTEXT, padded=False).tokens
    masked = torch.rand(x.shape, generator=torch.Generator().manual_seed(1)) < 0.5
    masked[:, -1] = True
    z = torch.where(masked, V, x)
    # Of what is hidden, a model of blocks reads that of earlier blocks: only the last block changes.
    changed = torch.where(masked & (torch.arange(L) >= L - 2 if name == "block" else True), (x + 1) % V, x)
    with torch.no_grad():
        one, other = (module.logits(module.head_inputs_of(z, None, masked, each).at(masked)) for each in (x, changed))
    torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["autoregressive", "strided_causal", "block"])
def test_the_likelihoods_of_all_texts_add_up_to_one(name):
    v, length = 3, 4
    table = NGramPrior.count([TEXT % v], v)
    context = Context(vocabulary_size=v, length=length, width=16, steps=100, seed=5, ngram_prior=lambda: table)
    blocks = {"use": "block", "block_size": 1}  # of one token: its bound is exact
    objective = {"strided_causal": {"use": "strided_causal", "stride": 2}, "block": blocks}.get(name, name)
    module = build(objective, context=context, backbone=COUNTED).eval()
    x = torch.cartesian_prod(*[torch.arange(v)] * length)
    every = torch.ones_like(x, dtype=torch.bool)
    with torch.no_grad():
        nats = module.bound(x, every, torch.arange(len(x)), 1, EXACT_K)["nelbo"].nelbo
    assert float((-nats.double()).exp().sum()) == pytest.approx(1, abs=1e-5)
