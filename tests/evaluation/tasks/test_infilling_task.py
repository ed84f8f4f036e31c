"""The likelihood of the true words of gaps: exact on a joint, and the same for models that read from the left."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.errors import UserError
from atat_zoo.evaluation.infilling import log_likelihood, place_gaps
from atat_zoo.evaluation.tasks.infilling import InfillingTask
from atat_zoo.evaluation.text import held_out_text, special_ids
from atat_zoo.generation.model import Model
from atat_zoo.generation.writer import Writer
from atat_zoo.modeling.bounds import ExactKBound
from atat_zoo.testing.toys import Joint
from tests.evaluation.making import make_run


@pytest.fixture(scope="module")
def joint():
    generator = torch.Generator().manual_seed(4)
    return Joint(torch.rand(3**5, generator=generator, dtype=torch.float64) ** 3 + 1e-3, length=5, vocabulary_size=3)


def probability(joint, tokens, shown):
    """Return P of the tokens at some positions, for each row."""
    agrees = (joint.states[None, :, shown] == tokens[:, None, shown]).all(2)
    return (agrees * joint.p).sum(1)


@pytest.mark.parametrize("right", [True, False])
def test_the_chain_is_the_conditional_of_the_joint(joint, right):
    tokens, given_ = joint.states, [0, 4] if right else [0]
    expected = probability(joint, tokens, sorted([*given_, 1, 2, 3])).log() - probability(joint, tokens, given_).log()
    found = log_likelihood(joint.denoiser, tokens, torch.ones_like(tokens[:, 0]), 3, mask_id=3, right=right)
    assert found.shape == (len(tokens), 3)
    torch.testing.assert_close(found.sum(1), expected, rtol=0, atol=1e-9)


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
    starts = place_gaps(tokens, torch.ones_like(tokens, dtype=torch.bool), [], 3, seed=1)
    counts = starts.bincount(minlength=5)
    assert counts[0] == 0
    assert counts[1:].tolist() == pytest.approx([1500] * 4, abs=150)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    made = tmp_path_factory.mktemp("infilling")
    make_run(made, "autoregressive")
    make_run(made, "mdlm", "mdlm", sampler={"use": "ancestral", "steps": 4})
    return made


@pytest.fixture
def found(monkeypatch, root):
    """Return the scores of a run, with other parameters of the task."""
    monkeypatch.chdir(root)

    def measure(run, *, seed=4, **parameters):
        return InfillingTask(**parameters).measure(Model.from_run(root / run), root / run, seed=seed)

    return measure


def test_what_is_gained_is_the_difference_of_two_prices(found, root):
    scores = found("mdlm", gap=3, texts=12)
    assert list(scores) == ["exact match", "price", "gain", "better"]
    assert {score.items for score in scores.values()} == {12}
    assert scores["price"].value > 0
    assert scores["gain"].value != 0
    better = sum(gain > 0 for gain in scores["gain"].sums) / 12
    assert scores["better"].value == pytest.approx(better)
    assert scores["price"].weights == (3.0,) * 12
    model = Model.from_run(root / "mdlm")
    text = held_out_text(model, root / "mdlm", "validation", 12)
    starts = place_gaps(text.tokens, text.maskable, special_ids(model.tokenizer), 3, 4)
    denoiser, mask_id = model.writer().denoiser, model.context.mask_id
    both, left = (
        log_likelihood(denoiser, text.tokens, starts, 3, mask_id=mask_id, right=right).sum(1) for right in (True, False)
    )
    for name, nats in (("price", -both), ("gain", both - left)):
        torch.testing.assert_close(torch.tensor(scores[name].sums).double(), nats, rtol=0, atol=1e-5)
    assert found("mdlm", gap=3, texts=12, seed=2)["price"].of != scores["price"].of


def test_a_model_that_knows_the_text_fills_every_gap_with_it(found, root, monkeypatch):
    """And one that is never right fills none."""
    model = Model.from_run(root / "mdlm")
    true = held_out_text(model, root / "mdlm", "validation", 8).tokens
    filled = []

    def fill(self, sampler, tokens, **how):
        filled.append((sampler, (tokens == model.context.mask_id).sum(1).tolist()))
        result = true[how["rows"]].clone()
        result[::2] = torch.where(tokens == model.context.mask_id, ord("?"), true[how["rows"]])[::2]
        return SimpleNamespace(tokens=result)

    monkeypatch.setattr(Writer, "fill", fill)
    scores = found("mdlm", texts=8, sampler={"use": "ancestral", "steps": 2})
    assert scores["exact match"].value == 0.5
    assert scores["exact match"].sums == (0.0, 1.0) * 4
    assert [counts for _, counts in filled] == [[5] * 4] * 2  # evaluation.batch_size of them at once
    assert {sampler.name for sampler, _ in filled} == {"ancestral"}


def test_a_model_that_reads_from_the_left_gains_nothing(found, root):
    """And what is measured is its likelihood, token by token, as evaluations have it."""
    scores = found("autoregressive", texts=12)
    assert (scores["gain"].value, scores["better"].value) == (0, 0)
    model = Model.from_run(root / "autoregressive")
    tokens = torch.randint(0, 256, (4, 16), generator=torch.Generator().manual_seed(0))
    starts = torch.tensor([1, 4, 9, 2])
    price = log_likelihood(model.writer().denoiser, tokens, starts, 4, mask_id=258, right=True)
    everywhere = torch.ones_like(tokens, dtype=torch.bool)
    keys = torch.zeros(4, dtype=torch.int64)
    nats = model.module.bound(tokens, everywhere, keys, 1, ExactKBound())["nelbo"].contribution
    expected = torch.stack([-nats[i, start : start + 4] for i, start in enumerate(starts.tolist())])
    torch.testing.assert_close(price, expected, rtol=0, atol=1e-4)


def test_a_gap_that_leaves_no_text(atat, found, root, monkeypatch):
    code, _, err = atat("eval", "mdlm", "--task", "{use = 'infilling', gap = 15}")
    assert (code, err.partition("; ")[2]) == (2, "ask for at most 14\n")
    assert found("mdlm", gap=14, texts=3)["price"].items == 3
    model = Model.from_run(root / "mdlm")
    monkeypatch.setattr(model.tokenizer, "bos", ord(" "))
    with pytest.raises(UserError, match="none of the 5 held-out texts has 14 tokens together"):
        InfillingTask(gap=14, texts=5).measure(model, root / "mdlm", seed=0)
