"""What ends a document by default, and what a tokenizer learns from and tells of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.data.build import build
from atat_zoo.data.sequence_packing import learnable
from atat_zoo.experiment import from_table


@pytest.mark.parametrize(
    ("table", "special"),
    [
        ({"corpus": {"use": "files", "train": ["a.txt"]}}, "document"),
        ({"corpus": {"use": "huggingface", "path": "a"}}, "document"),
        ({"corpus": {"use": "webdataset", "train": ["a.tar"]}}, "document"),
        ({"corpus": {"use": "mixture", "components": ["sotu", {"use": "files", "train": ["a.txt"]}]}}, "document"),
        ({"corpus": "sotu"}, "none"),
        ({"corpus": "text8", "tokenizer": "characters"}, "none"),
        ({"corpus": "sotu", "data": {"special_tokens": "both"}}, "both"),
        ({"corpus": {"use": "files", "train": ["a.txt"]}, "data": {"special_tokens": "none"}}, "none"),
        ({"corpus": {"use": "files", "train": ["a.jsonl"]}, "data": {"format": "chat", "packing": "document"}}, "none"),
    ],
)
def test_a_document_of_ones_own_text_ends_with_eos_by_default(table, special):
    experiment = from_table({"name": "x", "tokenizer": "bytes", "backbone": {"ngram_prior": 0}, **table})
    assert experiment.data.special_tokens == special
    assert from_table(experiment.to_table()).data == experiment.data


@given(st.text("ab \n", max_size=60), st.integers(1, 12))
def test_what_a_tokenizer_learns_from_has_no_endless_words(text, most):
    parts = list(learnable(text, most))
    assert "".join(parts) == text
    assert all(len(word) <= most for part in parts for word in part.split())
    if all(len(word) <= most for word in text.split()):
        assert parts == [text]
    assert list(learnable("x" * (3 << 20), 1 << 19)) == ["x" * (1 << 19)] * 6


@pytest.mark.slow
def test_the_progress_of_a_tokenizer_has_a_total(tmp_path):
    (tmp_path / "a.txt").write_text("\n".join(f"line {i} " + "x" * 999 for i in range(3000)))
    corpus = {"use": "files", "train": [str(tmp_path / "a.txt")], "document": "line"}
    tokenizer = {"use": "bpe", "vocabulary_size": 300}
    data = {"root": str(tmp_path / "shards"), "length": 64}
    told = []
    experiment = from_table({"name": "x", "corpus": corpus, "tokenizer": tokenizer, "data": data})
    build(experiment, progress=lambda *stage: told.append(stage))
    totals = {total for stage, done, total in told if stage == "tokenizer" and 0 < done < total}
    assert len(totals) == 1
    assert totals.pop() == pytest.approx((tmp_path / "a.txt").stat().st_size, rel=0.01)
