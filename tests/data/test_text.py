"""A corpus as sequences in memory."""

import pytest
import torch
from in_memory import Memory, experiment_of

from atat_zoo import UserError, Zoo
from atat_zoo.data.build import build
from atat_zoo.data.manifest import load, load_counts
from atat_zoo.data.sequences import held_out, sequences
from atat_zoo.data.tokenizers import BytesTokenizer
from atat_zoo.modeling.backbones.neighbours import count_table

TEXT = "To be, or not to be: that is the question.\n" * 3


@pytest.fixture
def corpus(tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    return Zoo.load().spec(
        "corpus", {"use": "files", "train": [str(tmp_path / "a.txt")], "validation_share": 0.0, "test_share": 0.0}
    )


def packed(corpus, **kwargs):
    given = {"length": 16, "special": "none", "limit": 0} | kwargs
    return sequences(corpus, BytesTokenizer().train(lambda: iter(())), given.pop("split", "train"), **given)


def test_no_text_is_left_out(corpus):
    tokens, maskable = packed(corpus)
    assert bytes(tokens[maskable].tolist()).decode() == TEXT
    assert maskable.sum() == len(TEXT)
    assert not maskable[-1].all()
    assert tokens.shape[1] == 16


def test_a_limit_takes_sequences_from_all_over(corpus):
    every, _ = packed(corpus)
    some, _ = packed(corpus, limit=4)
    wanted = torch.arange(4) * len(every) // 4
    assert torch.equal(some, every[wanted])
    assert torch.equal(packed(corpus, limit=10_000)[0], every)


@pytest.mark.parametrize("special", ["none", "document", "sequence", "both"])
def test_documents_of_their_own_are_the_same_in_memory_and_in_shards(tmp_path, special):
    texts = tuple("to be, or not to be"[: i % 19] for i in range(1, 60))
    corpus, form = Memory(train=texts, validation=texts), {"special": special, "rows": "document"}
    folder = build(experiment_of(tmp_path, corpus=corpus, **form))
    tokens, maskable = held_out(folder, "validation")
    again = sequences(corpus, BytesTokenizer().train(lambda: iter(())), "validation", length=16, limit=0, **form)
    assert torch.equal(tokens, again[0])
    assert torch.equal(maskable, again[1])
    assert len(tokens) == sum(map(bool, texts))
    ends = (special in ("sequence", "both")) + (special != "none")
    assert maskable.sum(1).tolist() == [min(16, len(text) + ends) for text in texts if text]
    assert (maskable.int().diff(dim=1) <= 0).all(), "padding is at the end"
    train = load(folder).splits["train"]
    assert train.tokens == load_counts(folder).sum() == count_table(folder).tokens.sum() == maskable.sum()
    assert train.padded == (~maskable).sum()


def test_a_split_without_text_is_refused(corpus):
    with pytest.raises(UserError, match=r"corpus 'files' has no text in its test split"):
        packed(corpus, split="test")
