"""Dialogues of files: the same in each format, held out like documents, and refused with their place."""

import gzip
import json

import pytest

from atat_zoo.data import SPLITS
from atat_zoo.data.corpora import MixtureCorpus, SotuCorpus
from atat_zoo.data.corpora.files import FilesCorpus
from atat_zoo.data.dialogues import from_text
from atat_zoo.errors import UserError

ROWS = [{"prompt": f"{i}?", "response": f"ä {i}", "reward": i} for i in range(20)]
SAID = [[("user", f"{i}?"), ("assistant", f"ä {i}")] for i in range(20)]
LINES = "".join(f"{json.dumps(row)}\n" for row in ROWS)


def written(folder, name):
    path = folder / name
    if name.endswith(".parquet"):
        arrow = pytest.importorskip("pyarrow", reason="the extra atat-zoo[parquet] is not installed")
        __import__("pyarrow.parquet").parquet.write_table(arrow.Table.from_pylist(ROWS), path)
    else:
        path.write_bytes(gzip.compress(LINES.encode()) if name.endswith(".gz") else f"\ufeff{LINES}".encode())
    return str(path)


def said(corpus, split):
    return [from_text(text) for text in corpus.dialogues(split)]


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson.gz", "a.parquet"])
def test_a_row_is_a_dialogue_in_each_format(tmp_path, name):
    path = written(tmp_path, name)
    whole = FilesCorpus(train=(path,), validation_share=0.0, test_share=0.0)
    assert [said(whole, split) for split in SPLITS] == [SAID, [], []]
    shares = FilesCorpus(train=(path,), validation_share=0.1, test_share=0.3)
    found = [said(shares, split) for split in SPLITS]
    places = {from_text(text)[0].content: text.place for split in SPLITS for text in shares.dialogues(split)}
    each = "row" if name.endswith("parquet") else "line"
    assert places == {f"{i}?": f"{path}, {each} {i + 1}" for i in range(20)}
    assert [len(part) for part in found] == [12, 2, 6]
    assert sorted(each for part in found for each in part) == sorted(SAID)
    named = FilesCorpus(train=(path,), validation=(written(tmp_path, f"b{name[1:]}"),), test_share=0.0)
    assert [said(named, split) for split in SPLITS] == [SAID, SAID, []]


def test_the_library_datasets_reads_the_columns_of_dialogues(tmp_path):
    pytest.importorskip("datasets", reason="the extra atat-zoo[huggingface] is not installed")
    from atat_zoo.data.corpora.huggingface import HuggingFaceCorpus

    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.jsonl").write_text(LINES)
    settings = {"path": str(tmp_path / "set"), "cache": str(tmp_path / "cache")}
    corpus = HuggingFaceCorpus(**settings, validation_share=0.0, test_share=0.0)
    assert said(corpus, "train") == SAID
    with open(tmp_path / "set" / "train.jsonl", "a") as file:
        file.write('{"prompt": "20?", "response": null, "reward": 0}\n')
    with pytest.raises(UserError, match=r"^corpus: .*set, row 21 has 'prompt'; write \{"):
        said(HuggingFaceCorpus(**settings, validation_share=0.0, test_share=0.0), "train")


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("a.jsonl", '{"text": "a"}', r"^corpus: .*a\.jsonl, line 21 has no messages; write \{"),
        ("a.jsonl", "{", r"^corpus: .*a\.jsonl, line 21 is not JSON"),
        ("a.txt", "", r"a\.txt has no dialogues, which are in \.jsonl, \.json, \.parquet or \.arrow; convert it"),
        ("a.csv", "", r"a\.csv has no dialogues"),
    ],
)
def test_what_is_no_dialogue_is_said_with_its_place(tmp_path, name, line, message):
    (tmp_path / name).write_text(LINES + line)
    with pytest.raises(UserError, match=message):
        said(FilesCorpus(train=(str(tmp_path / name),), validation_share=0.0, test_share=0.0), "train")


def test_a_corpus_of_texts_has_no_dialogues():
    with pytest.raises(UserError, match=r"^corpus 'sotu' has no dialogues; set data\.form = \"text\"$"):
        SotuCorpus().dialogues("train")


# Sizes and identities


def test_the_size_is_that_of_the_documents_by_the_beginning_of_each_form(tmp_path):
    (tmp_path / "a.txt").write_text("ä" * 100)
    (tmp_path / "b.txt").write_text("x" * 50)
    lines = '{"text": "abcde", "number": 1}\n'
    (tmp_path / "c.jsonl").write_text(lines * 30)
    text = "".join(f"{i} " for i in range(40_000))
    (tmp_path / "d.txt.gz").write_bytes(gzip.compress(text.encode()))
    for names, size in (
        (["a.txt"], 200),
        (["a.txt", "b.txt"], 250),
        (["c.jsonl"], 150),
        (["a.txt", "b.txt", "c.jsonl", "d.txt.gz"], 400 + len(text)),
    ):
        first, *others = (str(tmp_path / name) for name in names)
        corpus = FilesCorpus(train=tuple(others), validation=(first,)) if others else FilesCorpus(train=(first,))
        assert corpus.size() == size
    (tmp_path / "e.parquet").touch()
    with pytest.raises(UserError, match=r"e\.parquet cannot be read as parquet .* it may be cut off$"):
        FilesCorpus(train=(str(tmp_path / "a.txt"), str(tmp_path / "e.parquet"))).size()


def test_a_long_file_is_measured_by_its_beginning(tmp_path, monkeypatch):
    monkeypatch.setattr("atat_zoo.data.corpora.documents._BEGINNING", 1 << 16)
    line = json.dumps({"text": "abcde" * 20, "note": "x" * 93}) + "\n"
    (tmp_path / "a.jsonl").write_text(line * 8000 + "damaged behind what is read\n")
    size = FilesCorpus(train=(str(tmp_path / "a.jsonl"),)).size()
    assert size == pytest.approx(8000 * 100, rel=0.2)


def test_the_identity_leaves_out_what_changes_no_text(tmp_path):
    files = FilesCorpus(train=("a",), source="the attic")
    assert "source" not in files.identity()
    assert "detokenizer" not in files.identity()
    assert files.identity()["document"] == "file"
    assert FilesCorpus(train=("a",), detokenizer="ptb").identity()["detokenizer"] == {"use": "ptb"}
    mixed = MixtureCorpus(of=(files, SotuCorpus()), weights=(1.0, 2.0))
    assert mixed.identity()["of"] == [files.identity(), SotuCorpus().identity()]
    assert mixed.identity()["weights"] == [1.0, 2.0]
    assert SotuCorpus(seed=3).identity()["seed"] == 3
    assert SotuCorpus(last_year=1791).size() == sum(len(text) for _, text in SotuCorpus(last_year=1791)._chosen())
