"""Context probes: prices of whole words in their contexts, whatever a tokenizer makes of them."""

from types import SimpleNamespace

import pytest
import torch

from atat_zoo.evaluation.tasks.context_probe import ContextProbeTask, Placed, _Row
from atat_zoo.generation.model import Model
from atat_zoo.system.errors import UserError
from tests.evaluation.making import runs

PAIRS = {"ab": ("of [the] us", "to [a] war"), "é": ("an [é] x", "in [no] y")}
root = runs(run={"objective": "mdlm"}, framed={"objective": "mdlm", "data": {"special_tokens": "both"}})


def test_a_word_is_dearer_where_it_does_not_belong(root, monkeypatch):
    """With prices that are known: 1 nat in its own context, 3 in the other's."""
    own, made, model = {("of ", "the"), ("to ", "a"), ("an ", "é"), ("in ", "no")}, [], Model.from_run(root / "run")

    def init(self, model, placed):
        made.append(placed)
        self.placed = placed

    monkeypatch.setattr(_Row, "__init__", init)
    monkeypatch.setattr(_Row, "log_likelihood", lambda self: -1.0 if self.placed[:2] in own else -3.0)
    monkeypatch.setattr(_Row, "importance", lambda self: 0.25 if self.placed[:2] in own else 0.5)
    scores = ContextProbeTask(pairs=PAIRS).measure(model, root / "run", seed=0)
    assert (scores["right"].value, scores["margin"].value, scores["right"].items) == (1, 2, 4)
    assert Placed("to ", "the", " war") in made
    own.remove(("to ", "a"))
    scores = ContextProbeTask(pairs=PAIRS).measure(model, root / "run", seed=0)
    assert (scores["right"].value, scores["margin"].sums) == (0.75, (2.0, 0.0, 2.0, 2.0))


@pytest.mark.parametrize("run", ["run", "framed"])
def test_a_word_is_all_tokens_that_have_a_byte_of_it_and_its_price_is_the_chain(root, run, monkeypatch):
    model = Model.from_run(root / run)
    row = _Row(model, Placed("an ", "é", " x"))
    ids = list("an é x".encode())
    assert (row.places, row.before) == ([3, 4], run == "framed")  # two bytes
    assert row.row == ([256, *ids, 257] if run == "framed" else ids)
    mask, tokens, total = model.context.mask_id, torch.tensor([row.row]), 0.0
    denoiser, first = model.text_generator("fp32").denoiser, row.before + 3
    for hidden in ([first, first + 1], [first + 1]):
        z, where = tokens.clone(), torch.zeros_like(tokens, dtype=torch.bool)
        z[0, hidden], where[0, hidden[0]] = mask, True
        with torch.no_grad():
            total += float(denoiser(z, None, where)[0, tokens[0, hidden[0]]])
    precisions, made = [], Model.text_generator
    monkeypatch.setattr(Model, "text_generator", lambda self, precision: precisions.append(precision) or made(self))
    assert row.log_likelihood() == pytest.approx(total, abs=1e-5)
    assert precisions == ["fp32"]
    seen, values = [], (0.9, 0.9, 0.9, 0.25, 0.5, 0.9, 0.9)
    row.model = SimpleNamespace(importance=lambda text: seen.append(text) or [SimpleNamespace(value=v) for v in values])
    assert (row.importance(), seen) == (0.375, ["an é x"])  # the mean of its tokens


def test_a_sentence_that_does_not_fit_is_named(root):
    with pytest.raises(UserError, match=r"has 2\d tokens including special tokens, more than the training length 16"):
        _Row(Model.from_run(root / "run"), Placed("a long sentence ", "no", " end"))


def test_the_shipped_pairs_are_pairs_of_different_words():
    task = ContextProbeTask()
    pairs = task.inputs(None)
    assert not list(task.absent())
    assert "bank" in pairs
    assert all(one[1] != other[1] and one[0].endswith(" ") for one, other in pairs.values())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "pairs.toml cannot be read"),
        ("a = [", "pairs.toml cannot be read"),
        ("", "pairs.toml does not contain a pair"),
        ("a = ['The [x] is', 'no word']", "the pair a is not valid; write two sentences"),
        ("a = ['The [x] is', 'An [x] was']", "the pair a is not valid"),
        ("a = 3", "the pair a is not valid"),
    ],
)
def test_a_file_of_pairs_that_is_none_is_refused(root, atat, tmp_path, monkeypatch, text, said):
    monkeypatch.chdir(tmp_path)
    if text is not None:
        (tmp_path / "pairs.toml").write_text(text)
    code, _, err = atat("eval", str(root / "run"), "--task", "{use = 'context_probe', file = 'pairs.toml'}")
    assert (code, said in err) == (2, True), err
