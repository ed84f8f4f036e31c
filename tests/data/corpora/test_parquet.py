"""Parquet files and folders of files."""

import sys

import pytest

from atat_zoo.data.corpora.files import FilesCorpus
from atat_zoo.errors import Note, UserError

arrow = pytest.importorskip("pyarrow", reason="the extra atat-zoo[parquet] is not installed")
parquet = pytest.importorskip("pyarrow.parquet")

TEXTS = [f"document {i}, ä" for i in range(600)]


def write(path, **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(arrow.table(columns), path, row_group_size=100)
    return path


def read(path, **settings):
    return list(FilesCorpus(train=(str(path),), validation_share=0.0, test_share=0.0, **settings).documents("train"))


def test_a_row_is_a_document(tmp_path):
    path = write(tmp_path / "a.parquet", id=list(range(600)), text=TEXTS)
    assert read(path) == TEXTS
    nested = write(tmp_path / "b.parquet", meta=[{"body": text, "n": 1} for text in TEXTS])
    assert read(nested, text_field="meta.body") == TEXTS


def test_a_folder_is_its_files(tmp_path):
    write(tmp_path / "in/b/0.parquet", text=["three"])
    (tmp_path / "in/a.txt").write_text("one")
    (tmp_path / "in/b.jsonl").write_text('{"text": "two"}\n')
    (tmp_path / "in/README.md").write_text("no text of the corpus")
    with pytest.warns(Note, match=r"^corpus\.train: left out: 1 of another format \(.*/in/README\.md\)$"):
        assert read(tmp_path / "in") == ["one", "three", "two"]
    with pytest.raises(UserError, match="there is no file"):
        read(tmp_path / "nothing")


def test_what_is_wrong_is_said(tmp_path, monkeypatch):
    path = write(tmp_path / "a.parquet", texts=["a"], number=[1])
    with pytest.raises(UserError, match=r"no column 'text'; did you mean 'texts'.*corpus.text_field"):
        read(path)
    with pytest.raises(UserError, match=r"a\.parquet, row 1: 'number' is no text: 1"):
        read(path, text_field="number")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"a\.parquet cannot be read as parquet .* it may be cut off"):
        read(path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"needs pyarrow; run `pip install 'atat-zoo\[parquet\]'`"):
        read(path)
