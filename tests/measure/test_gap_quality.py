"""The likelihood of the true words of gaps: exact on a joint, and the same for models that read from the left."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.bounds import ExactKBound
from atat_zoo.errors import UserError
from atat_zoo.measure.infilling import infilling_of_run, log_likelihood, place_gaps
from atat_zoo.model import Model
from atat_zoo.testing.toys import Joint
from tests.measure.making import make_run


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
def bench(atat, monkeypatch, root):
    """Run `atat bench infilling …` in this process; returns exit code, standard output and standard error."""
    monkeypatch.chdir(root)
    return lambda *words: atat("bench", "infilling", *words)


def test_the_command_prints_and_records(bench, root):
    code, out, err = bench("mdlm", "--gap", "3", "--number", "12", "--batch-size", "5", "--json")
    assert (code, err) == (0, "")
    said = json.loads(out)
    assert (said["number"], said["gap"], said["length"], said["split"]) == (12, 3, 16, "validation")
    assert 0 != said["difference"] == pytest.approx(said["both"] - said["left"])
    (path,) = (root / "mdlm" / "evaluations").glob("infilling-validation-12x3-seed4-step00000003.json")
    assert json.loads(path.read_text()) == {key: value for key, value in said.items() if key != "run"}
    again = json.loads(bench("mdlm", "--gap", "3", "--number", "12", "--json")[1])
    assert again["both"] == pytest.approx(said["both"], abs=1e-6)
    code, out, _ = bench("mdlm", "--gap", "3", "--number", "12", "--seed", "2", "--split", "test")
    assert "12 test texts of 16 tokens with a gap of 3, seed 2; step 3, final weights" in out
    assert [line.split("  ")[0] for line in out.splitlines()[-4:-1]] == ["both sides", "left side only", "difference"]


def test_a_model_that_reads_from_the_left_sees_no_difference(bench, root):
    """And what is measured is its likelihood, token by token, as evaluations have it."""
    code, out, err = bench("autoregressive", "--number", "12")
    assert (code, err) == (0, "")
    assert "It is the same: the model does not look at the right side." in out
    model = Model.from_run(root / "autoregressive")
    tokens = torch.randint(0, 256, (4, 16), generator=torch.Generator().manual_seed(0))
    starts = torch.tensor([1, 4, 9, 2])
    found = log_likelihood(model.writer().denoiser, tokens, starts, 4, mask_id=258, right=True)
    everywhere = torch.ones_like(tokens, dtype=torch.bool)
    keys = torch.zeros(4, dtype=torch.int64)
    nats = model.module.bound(tokens, everywhere, keys, 1, ExactKBound())["nelbo"].contribution
    expected = torch.stack([-nats[i, start : start + 4] for i, start in enumerate(starts.tolist())])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_a_gap_that_leaves_no_text(bench, root, monkeypatch):
    code, _, err = bench("mdlm", "--gap", "15")
    assert (code, err.partition("; ")[2]) == (2, "ask for at most 14\n")
    assert bench("mdlm", "--gap", "14", "--number", "3")[0] == 0
    model = Model.from_run(root / "mdlm")
    monkeypatch.setattr(model.tokenizer, "bos", ord(" "))
    with pytest.raises(UserError, match="none of the 5 held-out texts has 14 tokens together"):
        infilling_of_run(model, root / "mdlm", split="validation", number=5, gap=14, seed=0)
