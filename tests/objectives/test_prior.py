"""Count tables beside the head: what they say, what is left out in a training, and that no objective leaks by them."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_objectives import BACKBONE, BASELINES, Largest, N, batch, build
from test_baseline_bounds import EXACT_K

from atat_zoo.backbones.dit import DiTBackbone
from atat_zoo.backbones.ngram import NgramModel
from atat_zoo.data.neighbours import CountTable
from atat_zoo.registry import Context

V, L, REACH = 7, 6, 2
TEXT = np.random.default_rng(3).zipf(1.6, (200, L)) % V
TABLE = CountTable.count([TEXT], V)
CONTEXT = Context(vocabulary_size=V, length=L, width=16, steps=100, seed=5, count_table=lambda: TABLE)
COUNTED = BACKBONE | {"neighbours": REACH}
OBJECTIVES = {"mdlm": {"use": "mdlm"}, "adaptive": {"use": "adaptive"}, **BASELINES}


def made(name):
    return build(OBJECTIVES[name], context=CONTEXT, backbone=COUNTED)


@pytest.mark.parametrize("distance", [1, 2])
def test_pairs_are_counted_at_their_distance(distance):
    expected = np.zeros((V, V), int)
    np.add.at(expected, (TEXT[:, :-distance].ravel(), TEXT[:, distance:].ravel()), 1)
    keys, times = TABLE.apart(distance)
    found = np.zeros(V * V, int)
    found[keys] = times
    np.testing.assert_array_equal(found.reshape(V, V), expected)


def by_definition(table, reach, logits, gain, beside, x):
    """Logits [N, V] plus Σ γ·s, from tables of all pairs, float64."""
    v = len(table.tokens)
    p = torch.from_numpy(table.alone(np.arange(v)))
    for position in range(2 * reach):
        keys, times = (torch.from_numpy(each) for each in table.apart(position // 2 + 1))
        c = torch.zeros(v * v).double().index_put((keys,), times.double()).view(v, v)
        c = torch.cat([c if position % 2 == 0 else c.T, torch.zeros(1, v)])  # nothing is visible
        types = (c > 0).sum(1, keepdim=True).clamp(min=1)
        less = (c.sum(1, keepdim=True) / types).log1p()[beside[:, position]]
        c, types = c[beside[:, position]], types[beside[:, position]]
        if x is not None:
            c = c.scatter_add(1, x[:, None], torch.full((len(x), 1), -1.0).double()).clamp(min=0)
        logits = logits + gain[position] * ((c / (types * p)).log1p() - less)
    return logits


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.integers(1, 90), st.integers(0, 60), st.sampled_from([1, 2]), st.booleans())
def test_with_rows_in_full_or_not_it_is_as_defined_and_so_is_its_gradient(seed, v, rows, reach, left_out):
    rng = np.random.default_rng(seed)
    table = CountTable.count([rng.zipf(1.4, (rows, L)) % v], v)
    module = NgramModel(v, reach, table).double()
    torch.manual_seed(seed)
    torch.nn.init.normal_(module.gain)
    beside, x = torch.from_numpy(rng.zipf(1.4, (20, 2 * reach)) % (v + 1)), torch.randint(0, v, (20,))
    beside[0] = v
    logits = torch.randn(20, v, dtype=torch.float64, requires_grad=True)
    x = x if left_out else None
    found, wanted = module(logits, beside, x), by_definition(table, reach, logits, module.gain, beside, x)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)
    torch.testing.assert_close(found.log_softmax(1), wanted.log_softmax(1), rtol=0, atol=1e-9)
    scale = torch.randn_like(logits)  # no softmax: nothing cancels
    of_found, of_wanted = (torch.autograd.grad((scale * y).sum(), (logits, module.gain)) for y in (found, wanted))
    torch.testing.assert_close(of_found, of_wanted, rtol=1e-9, atol=1e-9)


def test_memory_grows_with_the_pairs_at_any_vocabulary():
    v = 50_257
    text = np.random.default_rng(4).zipf(1.3, (500, L)) % v
    context = Context(vocabulary_size=v, length=L, steps=1, seed=0, count_table=lambda: CountTable.count([text], v))
    module = DiTBackbone(neighbours=2, layers=1, width=8, heads=2).build(context).prior
    beside, x = torch.from_numpy(text[:8, [1, 3, 0, 4]]), torch.from_numpy(text[:8, 2])
    # A few numbers of each row, 2R of every token, and of each pair.
    kept = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in module.scores()}
    assert sum(kept.values()) <= 250 * v + 64 * 4 * text.size
    with Largest() as largest:
        module(torch.zeros(8, v), beside, x).logsumexp(1).sum().backward()
    assert module.gain.grad.all()
    assert largest.elements <= 8 * v


def test_a_step_asks_nothing_of_the_device():
    """The meta device has no data: whoever asks how many tokens a row has fails there."""
    v = 40
    module = NgramModel(v, REACH, CountTable.count([np.random.default_rng(5).zipf(1.4, (9, L)) % v], v))
    known = module.scores()
    assert len(known.full) > 1
    assert known.token.shape[1]
    module.to("meta")
    module._scores = type(known)(*(each.to("meta") for each in known))
    beside, x = (torch.zeros(5, *shape, dtype=torch.int64, device="meta") for shape in ((2 * REACH,), ()))
    module(torch.zeros(5, v, device="meta"), beside, x).sum().backward()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_leaves_out_what_it_predicts_and_only_in_a_training(name, monkeypatch):
    module, given = made(name), []
    forward = NgramModel.forward
    monkeypatch.setattr(NgramModel, "forward", lambda self, *given_: given.append(given_) or forward(self, *given_))
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


def test_without_counts_nothing_is_added():
    logits, beside = torch.randn(4, V, dtype=torch.float64), torch.zeros(4, 2 * REACH, dtype=torch.int64)
    torch.testing.assert_close(NgramModel(V, REACH, None).double()(logits, beside), logits, rtol=0, atol=0)


def test_a_saved_prior_is_loaded_where_there_is_no_text():
    beside, logits = torch.randint(0, V + 1, (9, 2 * REACH)), torch.randn(9, V)
    saved, empty = NgramModel(V, REACH, TABLE), NgramModel(V, REACH, None)
    empty(logits, beside)  # its tables are made, and have to be made again
    empty.load_state_dict(saved.state_dict())
    torch.testing.assert_close(empty(logits, beside), saved(logits, beside), rtol=0, atol=0)


@pytest.mark.parametrize(("value", "column"), [(V, 0), (-1, 1), (-1, 2)])
def test_damaged_counts_are_refused(value, column):
    state = NgramModel(V, REACH, TABLE).state_dict()
    state["apart_2"] = state["apart_2"].clone()
    state["apart_2"][3, column] = value
    with pytest.raises(RuntimeError, match="apart_2 has counts of tokens that there are not"):
        NgramModel(V, REACH, None).load_state_dict(state)


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


@pytest.mark.parametrize("name", ["autoregressive", "strided", "block"])
def test_the_likelihoods_of_all_texts_add_up_to_one(name):
    v, length = 3, 4
    table = CountTable.count([TEXT % v], v)
    context = Context(vocabulary_size=v, length=length, width=16, steps=100, seed=5, count_table=lambda: table)
    blocks = {"use": "block", "size": 1}  # of one token: its bound is exact
    objective = {"strided": {"use": "strided", "stride": 2}, "block": blocks}.get(name, name)
    module = build(objective, context=context, backbone=COUNTED).eval()
    x = torch.cartesian_prod(*[torch.arange(v)] * length)
    every = torch.ones_like(x, dtype=torch.bool)
    with torch.no_grad():
        nats = module.bound(x, every, torch.arange(len(x)), 1, EXACT_K)["nelbo"].nelbo
    assert float((-nats.double()).exp().sum()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(("name", "size"), [("autoregressive", 1), ("block", 2)])
def test_cached_tokens_predict_as_the_whole_text_does(name, size):
    module = made(name).eval()
    x = batch(context=CONTEXT, padded=False).tokens
    denoiser = module.denoiser()
    with torch.no_grad():
        decoder = denoiser.begin(N, L)
        for step in range(L // size):
            own = torch.arange(step * size, (step + 1) * size)
            z = torch.where(torch.arange(L) < step * size, x, V)
            where = torch.zeros(N, L, dtype=torch.bool)
            where[:, own] = True
            some = decoder.of(torch.tensor([4, 1]))
            everywhere = torch.ones(N, len(own), dtype=torch.bool)
            expected = denoiser(z, None, where).view(N, len(own), V)
            found = decoder(z[:, own], None, everywhere).view(N, len(own), V)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
            part = some(z[[4, 1]][:, own], None, everywhere[:2]).view(2, len(own), V)
            torch.testing.assert_close(part, expected[[4, 1]], rtol=1e-4, atol=1e-4)
            decoder.read(x[:, own])
