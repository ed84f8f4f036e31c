"""Count tables beside the head: what they say of a token by its neighbours, as defined, and how they are saved."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.diffusion.ngram_prior import NGramPrior
from atat_zoo.modeling.backbones.ngram_prior_module import NGramPriorModule
from tests.examples import at_most

V, L, REACH = 7, 6, 2
TEXT = np.random.default_rng(3).zipf(1.6, (200, L)) % V
TABLE = NGramPrior.count([TEXT], V)


def by_definition(table, reach, logits, gain, beside, x):
    """Logits [N, V] plus Σ γ·s, from tables of all pairs, float64."""
    v = len(table.tokens)
    p = torch.from_numpy(table.unigram_prob(np.arange(v)))
    for position in range(2 * reach):
        keys, times = (torch.from_numpy(each) for each in table.pairs_at(position // 2 + 1))
        c = torch.zeros(v * v).double().index_put((keys,), times.double()).view(v, v)
        c = torch.cat([c if position % 2 == 0 else c.T, torch.zeros(1, v)])  # nothing is visible
        types = (c > 0).sum(1, keepdim=True).clamp(min=1)
        less = (c.sum(1, keepdim=True) / types).log1p()[beside[:, position]]
        c, types = c[beside[:, position]], types[beside[:, position]]
        if x is not None:
            c = c.scatter_add(1, x[:, None], torch.full((len(x), 1), -1.0).double()).clamp(min=0)
        logits = logits + gain[position] * ((c / (types * p)).log1p() - less)
    return logits


@at_most(15)
@given(st.integers(0, 2**32), st.integers(1, 90), st.integers(0, 60), st.sampled_from([1, 2]), st.booleans())
def test_with_rows_in_full_or_not_it_is_as_defined_and_so_is_its_gradient(seed, v, rows, reach, left_out):
    rng = np.random.default_rng(seed)
    table = NGramPrior.count([rng.zipf(1.4, (rows, L)) % v], v)
    module = NGramPriorModule(v, reach, table).double()
    torch.manual_seed(seed)
    torch.nn.init.normal_(module.gain)
    beside, x = torch.from_numpy(rng.zipf(1.4, (20, 2 * reach)) % (v + 1)), torch.randint(0, v, (20,))
    beside[0] = v
    logits = torch.randn(20, v, dtype=torch.float64, requires_grad=True)
    x = x if left_out else None
    found, wanted = module(logits, beside, x), by_definition(table, reach, logits, module.gain, beside, x)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)
    if x is not None:
        torch.testing.assert_close(module.without(x, module(logits, beside), beside), found, rtol=0, atol=1e-12)
    torch.testing.assert_close(found.log_softmax(1), wanted.log_softmax(1), rtol=0, atol=1e-9)
    scale = torch.randn_like(logits)  # no softmax: nothing cancels
    of_found, of_wanted = (torch.autograd.grad((scale * y).sum(), (logits, module.gain)) for y in (found, wanted))
    torch.testing.assert_close(of_found, of_wanted, rtol=1e-9, atol=1e-9)


@at_most(15)
@given(st.integers(0, 2**32), st.integers(1, 90), st.integers(0, 60), st.sampled_from([1, 2]), st.booleans())
def test_the_scores_of_true_tokens_are_those_that_the_logits_get(seed, v, rows, reach, training):
    rng = np.random.default_rng(seed)
    table = NGramPrior.count([rng.zipf(1.4, (rows, L)) % v], v)
    module = NGramPriorModule(v, reach, table).double().train(training)
    beside, x = torch.from_numpy(rng.zipf(1.4, (20, 2 * reach)) % (v + 1)), torch.randint(0, v, (20,))
    x[0] = v  # a mask
    surprisal, *scores = module.token_scores(x, beside).unbind(1)
    true = x[1:]
    torch.testing.assert_close(surprisal[1:], -torch.from_numpy(table.unigram_prob(true.numpy())).log())
    for offset, found in enumerate(scores):
        one = torch.eye(2 * reach, dtype=torch.float64)[offset]
        nothing = torch.zeros(19, v, dtype=torch.float64)
        wanted = by_definition(table, reach, nothing, one, beside[1:], true if training else None)
        torch.testing.assert_close(found[1:], wanted[torch.arange(19), true], rtol=0, atol=1e-9)
    assert module.token_scores(x, beside)[0].eq(0).all()


@at_most(15)
@given(st.integers(0, 2**32), st.integers(1, 60), st.integers(0, 60), st.sampled_from([1, 2]))
def test_what_a_neighbour_tells_is_the_entropy_that_it_takes_away(seed, v, rows, reach):
    rng = np.random.default_rng(seed)
    table = NGramPrior.count([rng.zipf(1.4, (rows, L)) % v], v)
    module = NGramPriorModule(v, reach, table).double()
    unigram = torch.from_numpy(table.unigram_prob(np.arange(v)))
    for offset in range(2 * reach):
        beside, gain = torch.full((v + 1, 2 * reach), v), torch.eye(2 * reach, dtype=torch.float64)[offset]
        beside[:, offset] = torch.arange(v + 1)
        p = by_definition(table, reach, unigram.log().expand(v + 1, v), gain, beside, None).exp()
        torch.testing.assert_close(p.sum(1), torch.ones(v + 1, dtype=torch.float64))
        found = module.information(beside)
        lost = torch.special.entr(unigram).sum() - torch.special.entr(p).sum(1)
        torch.testing.assert_close(found[:, offset], lost, rtol=0, atol=1e-9)
        assert found[v].eq(0).all()


def test_a_step_asks_nothing_of_the_device():
    """The meta device has no data: whoever asks how many tokens a row has fails there."""
    v = 40
    module = NGramPriorModule(v, REACH, NGramPrior.count([np.random.default_rng(5).zipf(1.4, (9, L)) % v], v))
    known = module.scores()
    assert len(known.full) > 1
    assert known.token.shape[1]
    module.to("meta")
    module._scores = type(known)(*(each.to("meta") for each in known))
    beside, x = (torch.zeros(5, *shape, dtype=torch.int64, device="meta") for shape in ((2 * REACH,), ()))
    module(torch.zeros(5, v, device="meta"), beside, x).sum().backward()
    module.information(beside)
    module.token_scores(x, beside)


def test_without_counts_nothing_is_added():
    logits, beside = torch.randn(4, V, dtype=torch.float64), torch.zeros(4, 2 * REACH, dtype=torch.int64)
    torch.testing.assert_close(NGramPriorModule(V, REACH, None).double()(logits, beside), logits, rtol=0, atol=0)


def test_a_saved_prior_is_loaded_where_there_is_no_text():
    beside, logits = torch.randint(0, V + 1, (9, 2 * REACH)), torch.randn(9, V)
    saved, empty = NGramPriorModule(V, REACH, TABLE), NGramPriorModule(V, REACH, None)
    empty(logits, beside)  # its tables are made, and have to be made again
    empty.load_state_dict(saved.state_dict())
    torch.testing.assert_close(empty(logits, beside), saved(logits, beside), rtol=0, atol=0)


@pytest.mark.parametrize(("value", "column"), [(V, 0), (-1, 1), (-1, 2)])
def test_damaged_counts_are_refused(value, column):
    state = NGramPriorModule(V, REACH, TABLE).state_dict()
    state["apart_2"] = state["apart_2"].clone()
    state["apart_2"][3, column] = value
    with pytest.raises(RuntimeError, match="apart_2 has negative counts, or token ids outside the vocabulary"):
        NGramPriorModule(V, REACH, None).load_state_dict(state)
