"""A run as a judge: what it says is the objective's own likelihood."""

import pytest
import torch

from atat_zoo import UserError
from atat_zoo.evaluation.judges import RunJudge
from atat_zoo.generation.model import Model
from atat_zoo.modeling.bounds import ExactKBound
from atat_zoo.testing import check_judge
from tests.evaluation.making import make_run


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("judges")


@pytest.fixture(scope="module")
def run(root):
    return make_run(root, "judge")


def likelihood(run, rows):
    """Return −log p of rows of equal length, asked of the objective itself."""
    model = Model.from_run(run)
    x = torch.tensor(rows)
    keys = torch.zeros(len(x), dtype=torch.int64)
    with torch.no_grad():
        return model.module.bound(x, torch.ones_like(x, dtype=torch.bool), keys, 1, ExactKBound())["nelbo"].contribution


@pytest.mark.parametrize(
    ("name", "data", "size", "start"),
    [
        ("plain", {}, 16, []),
        ("sequence", {"special": "sequence"}, 14, [256]),
        ("both", {"special": "both"}, 14, [256]),
        ("rows", {"special": "document", "rows": "document"}, 15, []),
    ],
)
def test_a_full_chunk_has_room_for_what_stood_around_the_sequences(root, name, data, size, start):
    """At the place of EOS the judge has never seen text; before it there was BOS, which is not counted."""
    run, text = make_run(root, f"framed-{name}", data=data), "the old man saw a sea"
    check_judge(RunJudge(path=str(run)))
    nats, tokens = RunJudge(path=str(run)).build("cpu").nats([text])
    assert tokens.tolist() == [21]
    chunks = [likelihood(run, [[*start, *part.encode()]])[0, len(start) :] for part in (text[:size], text[size:])]
    assert nats.item() == pytest.approx(float(torch.cat(chunks).sum()), rel=1e-5)


def test_a_feature_is_the_mean_of_the_hidden_states(run):
    module, ids = Model.from_run(run).module, list(b"the old man saw a sea")
    with torch.no_grad():
        states = [module.hidden(torch.tensor([ids[i : i + 16]]), None)[0] for i in (0, 16)]
    (found,) = RunJudge(path=str(run)).build("cpu").features(["the old man saw a sea"])
    assert torch.allclose(found, torch.cat(states).mean(0), atol=1e-5)


def test_what_the_tokenizer_cannot_write_is_refused_in_a_sentence(root):
    judge = RunJudge(path=str(make_run(root, "letters", tokenizer="characters"))).build("cpu")
    assert judge.nats(["the sea"])[1].tolist() == [7]
    with pytest.raises(UserError, match=r"judge letters .* cannot read the text: .*; name a judge whose tokenizer can"):
        judge.nats(["the sea", "7 seas"])


def test_a_judge_that_is_not_there_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(UserError, match=r"no run folder"):
        RunJudge(path=str(tmp_path / "nothing")).build("cpu")


def test_no_text_and_empty_texts(run):
    judge = RunJudge(path=str(run)).build("cpu")
    for ask in (judge.nats, judge.features):
        with pytest.raises(UserError, match="no text to judge"):
            ask([])
    with pytest.raises(UserError, match="text 2 of 2 is empty"):
        judge.features(["a", ""])
