"""The corpus `huggingface`, by its library, on files that are written here."""

import json
import sys

import pytest

from atat_zoo.data.corpora.huggingface import HuggingFaceCorpus
from atat_zoo.system.errors import UserError
from atat_zoo.testing import check_corpus

pytestmark = pytest.mark.slow

datasets = pytest.importorskip("datasets", reason="the extra atat-zoo[huggingface] is not installed")
parquet = pytest.importorskip("pyarrow.parquet")

TEXTS = {"train": [f"text {i}" for i in range(40)], "validation": ["held"], "test": ["out", "side"]}


@pytest.fixture(params=["jsonl", "parquet", "txt"])
def folder(tmp_path, request):
    made = tmp_path / "set"
    made.mkdir()
    for split, texts in TEXTS.items():
        rows = [{"text": text, "language": "en" if i % 2 else "de", "number": i} for i, text in enumerate(texts)]
        lines = texts if request.param == "txt" else map(json.dumps, rows)
        (made / f"{split}.{request.param}").write_text("".join(f"{line}\n" for line in lines))
        if request.param == "parquet":
            datasets.Dataset.from_list(rows).to_parquet(made / f"{split}.parquet")
    return made


def corpus(folder, **settings):
    settings = {"validation": "validation", "test": "test"} | settings
    return HuggingFaceCorpus(path=str(folder), cache=str(folder.parent / "cache"), **settings)


@pytest.mark.parametrize("streaming", [False, True])
def test_the_splits_of_a_folder(folder, streaming):
    made = corpus(folder, streaming=streaming)
    assert {split: list(made.documents(split)) for split in TEXTS} == TEXTS
    check_corpus(made)
    before = made.fingerprint()
    file = next(file for file in folder.iterdir() if file.stem == "validation")
    file.write_bytes(file.read_bytes() + b" ")
    assert made.fingerprint() != before


def test_it_knows_how_much_text_there_is(folder, monkeypatch):
    monkeypatch.setattr("atat_zoo.data.corpora.huggingface._FIRST", 30)
    size = sum(len(text) for texts in TEXTS.values() for text in texts)
    assert corpus(folder, streaming=True).size() is None, "files do not say it"
    assert corpus(folder).size() == pytest.approx(size, rel=0.05)
    assert corpus(folder, streaming=True).size() == pytest.approx(size, rel=0.05), "the library has counted them"
    assert corpus(folder, validation=None, test=None, train="train[:10]").size() == len("text 0") * 10
    assert corpus(folder, keep=("language=en",)).size() is None


def test_a_part_of_a_split_and_shares(folder):
    made = corpus(folder, train="train[:-10]", validation="train[-10:]", test=None, test_share=0.0)
    assert list(made.documents("train")) == TEXTS["train"][:-10]
    assert list(made.documents("validation")) == TEXTS["train"][-10:]
    assert list(made.documents("test")) == []
    shares = corpus(folder, validation=None, test=None, validation_share=0.1, test_share=0.1)
    found = {split: list(shares.documents(split)) for split in TEXTS}
    assert {split: len(texts) for split, texts in found.items()} == {"train": 32, "validation": 4, "test": 4}
    assert sorted(text for texts in found.values() for text in texts) == sorted(TEXTS["train"])
    check_corpus(shares)


def test_rows_are_chosen(folder):
    if next(folder.iterdir()).suffix == ".txt":
        with pytest.raises(UserError, match=r"corpus\.keep: .* has no column 'language'"):
            next(corpus(folder, keep=("language=en",)).documents("train"))
        return
    made = corpus(folder, keep=("language=en", "number=3"), detokenizer="lambada")
    assert list(made.documents("train")) == ["\ntext 3"]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"text_field": "tekst"}, r"corpus\.text_field: .* has no column 'tekst'; did you mean 'text'\? \(available: "),
        ({"train": "tran"}, r"corpus\.path: split 'tran' of .* cannot be read: .*[Ss]plit"),
        ({"train": "train[:3]", "streaming": True}, r"a slice of a split cannot be streamed"),
        ({"config_name": "other"}, r"cannot be read: .*other"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, settings, sentence):
    (tmp_path / "set").mkdir()
    (tmp_path / "set/train.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(UserError, match=sentence):
        next(corpus(tmp_path / "set", **settings).documents("train"))


def test_a_data_set_on_the_hub_is_named_with_its_commit_and_needs_a_package(monkeypatch):
    with pytest.raises(UserError, match=r"corpus\.revision: nobody/nothing is not a local folder.* to a commit"):
        HuggingFaceCorpus(path="nobody/nothing").fingerprint()
    with pytest.raises(ValueError, match="'main' is not a commit of 40 hexadecimal digits"):
        HuggingFaceCorpus(path="nobody/nothing", revision="main")
    with pytest.raises(ValueError, match="'language' is not a condition"):
        HuggingFaceCorpus(path="nobody/nothing", keep=("language",))
    made = HuggingFaceCorpus(path="nobody/nothing", revision="0" * 40)
    assert made.fingerprint() == {"revision": "0" * 40}
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"run `pip install 'atat-zoo\[huggingface\]'`"):
        next(made.read("train"))


@pytest.mark.parametrize("streaming", [False, True])
def test_a_damaged_file_is_named_and_the_home_of_the_user(tmp_path, streaming, monkeypatch):
    (tmp_path / "set").mkdir()
    (tmp_path / "set/train.jsonl").write_text('{"text": "a"}\n')
    monkeypatch.setenv("HOME", str(tmp_path))
    made = HuggingFaceCorpus(path="~/set", cache=str(tmp_path / "cache"), validation_share=0.0, test_share=0.0)
    assert list(made.documents("train")) == ["a"]
    (tmp_path / "set/train.jsonl").write_text('{"text": "a"}\n{"text": \n')
    with pytest.raises(UserError, match=r"corpus\.path: split 'train' of .*set cannot be read: "):
        list(corpus(tmp_path / "set", streaming=streaming).documents("train"))
