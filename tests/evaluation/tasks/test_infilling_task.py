"""The likelihood of the true words of gaps: exact on a joint, and the same for models that read from the left."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.evaluation.held_out_text import held_out_text, special_ids
from atat_zoo.evaluation.tasks.infilling import InfillingTask, log_likelihood, place_gaps
from atat_zoo.generation.model import Model
from atat_zoo.generation.text_generator import TextGenerator
from atat_zoo.modeling.bounds import ExactKBound
from atat_zoo.system.errors import UserError
from atat_zoo.testing.toys import Joint
from tests.evaluation.making import runs

root = runs(autoregressive={}, mdlm={"objective": "mdlm", "sampler": {"use": "ancestral", "steps": 4}})


@pytest.mark.parametrize("right", [True, False])
def test_the_chain_is_the_conditional_of_the_joint(right):
    generator = torch.Generator().manual_seed(4)
    p = torch.rand(3**5, generator=generator, dtype=torch.float64) ** 3 + 1e-3
    joint = Joint(p, length=5, vocabulary_size=3)
    tokens, shown = joint.states, [0, 4] if right else [0]

    def log_p(places):
        agrees = (joint.states[None, :, places] == tokens[:, None, places]).all(2)
        return (agrees * joint.p).sum(1).log()

    found = log_likelihood(joint.denoiser, tokens, torch.ones_like(tokens[:, 0]), 3, mask_id=3, right=right)
    assert found.shape == (len(tokens), 3)
    torch.testing.assert_close(found.sum(1), log_p(sorted([*shown, 1, 2, 3])) - log_p(shown), rtol=0, atol=1e-9)


@given(st.integers(0, 2**32), st.integers(1, 7), st.data())
def test_gaps_hold_text_alone(seed, gap, data):
    rows = st.tuples(st.lists(st.integers(0, 3), min_size=8, max_size=8), st.integers(0, 8))
    texts, lengths = zip(*data.draw(st.lists(rows, min_size=1, max_size=6)), strict=True)
    tokens, maskable = torch.tensor(texts), torch.arange(8) < torch.tensor(lengths)[:, None]
    starts = place_gaps(tokens, maskable, [3], gap, seed)
    for row, start in enumerate(starts.tolist()):
        plain = (tokens[row] != 3).unfold(0, gap, 1).all(1)
        free = [at for at in range(1, 8 - gap) if plain[at] and maskable[row, at : at + gap + 1].all()]
        assert start in free if free else start == -1
    # A row's position does not depend on the others.
    assert torch.equal(place_gaps(tokens[:1], maskable[:1], [3], gap, seed), starts[:1])


def test_every_place_is_as_likely():
    tokens = torch.zeros(6000, 8, dtype=torch.int64)
    counts = place_gaps(tokens, torch.ones_like(tokens, dtype=torch.bool), [], 3, seed=1).bincount(minlength=5)
    assert counts.tolist() == [0, *[pytest.approx(1500, abs=150)] * 4]


def found(root, run, *, seed=4, **parameters):
    """Return a run, and its scores with other parameters of the task."""
    model = Model.from_run(root / run)
    return model, InfillingTask(**parameters).measure(model, root / run, seed=seed)


def test_what_is_gained_is_the_difference_of_two_prices(root):
    model, scores = found(root, "mdlm", gap=3, texts=12)
    assert list(scores) == ["exact match", "price", "gain", "better"]
    assert {score.items for score in scores.values()} == {12}
    assert scores["better"].value == pytest.approx(sum(gain > 0 for gain in scores["gain"].sums) / 12)
    assert scores["price"].weights == (3.0,) * 12
    text = held_out_text(model, root / "mdlm", "validation", 12)
    starts = place_gaps(text.tokens, text.maskable, special_ids(model.tokenizer), 3, 4)
    how = {"mask_id": model.context.mask_id}
    both, left = (
        log_likelihood(model.text_generator().denoiser, text.tokens, starts, 3, right=right, **how).sum(1)
        for right in (True, False)
    )
    for name, nats in (("price", -both), ("gain", both - left)):
        torch.testing.assert_close(torch.tensor(scores[name].sums).double(), nats, rtol=0, atol=1e-5)
    assert found(root, "mdlm", gap=3, texts=12, seed=2)[1]["price"].of != scores["price"].of


def test_a_model_that_knows_half_of_the_texts_fills_half_of_the_gaps(root, monkeypatch):
    model, filled = Model.from_run(root / "mdlm"), []
    true = held_out_text(model, root / "mdlm", "validation", 8).tokens

    def fill(self, sampler, tokens, **how):
        hidden = tokens == model.context.mask_id
        filled.append((sampler.name, hidden.sum(1).tolist()))
        result = true[how["rows"]].clone()
        result[::2] = torch.where(hidden, ord("?"), result)[::2]
        return SimpleNamespace(tokens=result)

    monkeypatch.setattr(TextGenerator, "fill", fill)
    _, scores = found(root, "mdlm", texts=8, sampler={"use": "ancestral", "steps": 2})
    assert (scores["exact match"].value, scores["exact match"].sums) == (0.5, (0.0, 1.0) * 4)
    assert filled == [("ancestral", [5] * 4)] * 2  # evaluation.batch_size of them at once


def test_a_model_that_reads_from_the_left_gains_nothing(root):
    """And what is measured is its likelihood, token by token, as evaluations have it."""
    model, scores = found(root, "autoregressive", texts=12)
    assert (scores["gain"].value, scores["better"].value) == (0, 0)
    tokens = torch.randint(0, 256, (4, 16), generator=torch.Generator().manual_seed(0))
    starts = torch.tensor([1, 4, 9, 2])
    price = log_likelihood(model.text_generator().denoiser, tokens, starts, 4, mask_id=258, right=True)
    keys, everywhere = torch.zeros(4, dtype=torch.int64), torch.ones_like(tokens, dtype=torch.bool)
    nats = model.module.bound(tokens, everywhere, keys, 1, ExactKBound())["nelbo"].contribution
    expected = torch.stack([-nats[i, start : start + 4] for i, start in enumerate(starts.tolist())])
    torch.testing.assert_close(price, expected, rtol=0, atol=1e-4)


def test_a_gap_that_leaves_no_text(atat, root, monkeypatch):
    code, _, err = atat("eval", str(root / "mdlm"), "--task", "{use = 'infilling', gap = 15}")
    assert (code, err.partition("; ")[2]) == (2, "set gap to at most 14\n")
    model, scores = found(root, "mdlm", gap=14, texts=3)
    assert scores["price"].items == 3
    monkeypatch.setattr(model.tokenizer, "bos", ord(" "))
    with pytest.raises(UserError, match="none of the 5 held-out texts contains 14 adjacent tokens"):
        InfillingTask(gap=14, texts=5).measure(model, root / "mdlm", seed=0)
