"""A corpus as sequences in memory."""

import pytest
import torch

from atat_zoo import UserError, Zoo
from atat_zoo.data.sequences import sequences
from atat_zoo.tokenizers import BytesTokenizer

TEXT = "To be, or not to be: that is the question.\n" * 3


@pytest.fixture
def corpus(tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    return Zoo.load().spec(
        "corpus", {"use": "files", "train": [str(tmp_path / "a.txt")], "validation_share": 0.0, "test_share": 0.0}
    )


def encoder():
    return BytesTokenizer().train(lambda: iter(()))


def packed(corpus, **kwargs):
    given = {"length": 16, "special": "none", "limit": 0} | kwargs
    return sequences(corpus, encoder(), given.pop("split", "train"), **given)


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


def test_special_tokens_are_those_of_the_training(corpus):
    tokens, maskable = packed(corpus, special="sequence")
    model = encoder()
    assert (tokens[:, 0] == model.bos).all()
    assert (tokens[:-1, -1] == model.eos).all()
    assert int(maskable.sum()) == len(TEXT) + 2 * len(tokens)


def test_a_split_without_text_is_refused(corpus):
    with pytest.raises(UserError, match=r"corpus 'files' has no text in its test split"):
        packed(corpus, split="test")


def test_shards_of_another_tokenizer_are_refused(tmp_path):
    shards = Zoo.load().spec("corpus", {"use": "shards", "path": str(tmp_path)})
    with pytest.raises(UserError, match="is tokens already"):
        packed(shards)
