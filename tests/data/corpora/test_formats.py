"""Files of text and dialogues: each format gives the same rows, whatever is odd in it, or a sentence."""

import bz2
import csv
import gzip
import io
import json
import lzma
import os
import struct
import sys
import tarfile
import warnings
from functools import partial

import attrs
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.data import SPLITS
from atat_zoo.data.build import build
from atat_zoo.data.corpora import documents
from atat_zoo.data.corpora.documents import text_of
from atat_zoo.data.corpora.huggingface import HuggingFaceCorpus
from atat_zoo.data.corpora.text_files import FilesCorpus
from atat_zoo.data.corpora.webdataset import WebDatasetCorpus
from atat_zoo.data.dialogues import from_text
from atat_zoo.system.errors import Note, UserError
from tests.data.in_memory import experiment_of

arrow = pytest.importorskip("pyarrow", reason="the extra atat-zoo[parquet] is not installed")
parquet = pytest.importorskip("pyarrow.parquet")
datasets = pytest.importorskip("datasets", reason="the extra atat-zoo[huggingface] is not installed")

WHOLE = {"validation_share": 0.0, "test_share": 0.0}
PACK = {".gz": partial(gzip.compress, compresslevel=1), ".zst": zstandard.compress, ".bz2": bz2.compress}
PACK |= {".xz": lzma.compress, "": bytes}
# One that looks like a date, a number and nothing, with quotes, separators and half of a pair of quotes.
TEXTS = ["2020-01-01", "007", "NA", 'she said "no", twice', "a;b\tc|d", "naïve 日本 🙂\u2028x", "null", "\u0085x"]
TEXTS += [f"text {i} " * 9 for i in range(60)]
FORMATS = ["txt", "txt.gz", "jsonl", "json", "json.gz", "ndjson.zst", "csv", "tsv.xz", "txt.bz2", "parquet", "arrow"]
FORMATS += ["saved", "tar"]
ODDITIES = ("mark", "crlf", "nulls", "dots", "empty", "path")


def undivided(*paths, **settings):
    """Return a corpus of which nothing is held out."""
    return FilesCorpus(train=tuple(map(str, paths)), **WHOLE | settings)


def read(*paths, **settings):
    return list(undivided(*paths, **settings).documents("train"))


def splits(corpus):
    return {split: list(corpus.documents(split)) for split in SPLITS}


def tar_of(path, members):
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def corpus_of(folder, form, texts, oddity):
    """Write texts in a format with an oddity, and return the corpus that reads it."""
    folder = folder / ("日本 ä [1]" if oddity == "path" else "plain")
    folder.mkdir()
    if oddity == "empty":
        texts = [text for each in texts for text in ("", each, " ")]
    rows = [text for each in texts for text in (None, each)] if oddity == "nulls" else texts
    key = "meta.text" if oddity == "dots" else "text"
    options = WHOLE | ({"missing": "skip"} if oddity == "nulls" else {})
    end, mark = "\r\n" if oddity == "crlf" else "\n", b"\xef\xbb\xbf" if oddity == "mark" else b""
    path = folder / f"{'a.v1.0' if oddity == 'dots' else 'ä' if oddity == 'path' else 'a'}.{form}"
    table = arrow.table({"n": list(range(len(rows))), key: rows})
    if oddity == "mark":  # of a table: texts as bytes, the first with a mark
        table = arrow.table({key: [mark + text.encode() for text in rows]})
    if form == "tar":
        names = [f"v1.0/doc.{i}" if oddity == "dots" else f"{i}" for i in range(len(rows))]
        named = zip(names, rows, strict=True)
        tar_of(
            path, {f"{n}.cls" if t is None else f"{n}.txt": b"1" if t is None else mark + t.encode() for n, t in named}
        )
        options |= {"key_ends": "last"} if oddity == "dots" else {}
        return WebDatasetCorpus(train=(str(path),), **options)
    if form == "saved":
        datasets.Dataset(table).save_to_disk(path)
        return HuggingFaceCorpus(path=str(path), text_field=key, **options)
    if form == "parquet":
        parquet.write_table(table, path, row_group_size=50)
    elif form == "arrow":
        with arrow.OSFile(str(path), "wb") as file, arrow.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    else:
        kind, _, packing = form.partition(".")
        if kind == "txt":
            content = end.join("" if text is None else text for text in rows)
        elif form == "json":
            content = json.dumps([{key: text} for text in rows], indent=1, ensure_ascii=False).replace("\n", end)
        elif "json" in kind:
            content = "".join(json.dumps({"n": {"a": i}, key: text}) + end for i, text in enumerate(rows))
        else:
            sheet = io.StringIO()
            writer = csv.writer(sheet, delimiter="\t" if kind == "tsv" else ",", lineterminator=end)
            writer.writerows([["n", key], *enumerate(rows)])
            content = sheet.getvalue()
        path.write_bytes(PACK[f".{packing}" if packing else ""](mark + content.encode()))
    return FilesCorpus(train=(str(path),), text_field=key, document="line", **options)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return shards(tmp_path_factory.mktemp("rows"), corpus_of(tmp_path_factory.mktemp("text"), "jsonl", TEXTS, ""))


def shards(root, corpus):
    folder = build(experiment_of(root, corpus=corpus, special_tokens="both", length=64, sequences_per_shard=64))
    return {path.name: path.read_bytes() for path in folder.glob("train-*.tar")}


# Each format with two oddities, and each oddity with four formats or more.
PAIRS = [(form, ODDITIES[(i + k) % 6]) for i, form in enumerate(FORMATS) for k in (0, 2, 3)]


@pytest.mark.parametrize(("form", "oddity"), PAIRS)
def test_each_format_makes_the_same_rows_whatever_is_odd_in_it(tmp_path, rows, form, oddity):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert shards(tmp_path / "shards", corpus_of(tmp_path, form, TEXTS, oddity)) == rows
    counted = {f"{len(TEXTS)} of {2 * len(TEXTS)} records have no text and were skipped"}
    skipped = oddity == "nulls" and form[:3] not in ("txt", "csv", "tsv")  # where a null is an empty line or cell
    found = {str(note.message).partition(": ")[2].partition(", the first")[0] for note in said}
    assert found == (counted if skipped else set())
    assert len(rows) == 4


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
        with pytest.raises(UserError, match=r"a\.txt\.(gz|zst) cannot be decompressed \(.*\); it may be truncated"):
            splits(corpus)


@pytest.mark.parametrize(
    ("name", "document"),
    [("a.txt.gz", "file"), ("a.txt.zst", "line"), ("a.txt.zst", "paragraph"), ("a.jsonl.gz", "line")],
)
def test_a_document_that_a_compressed_file_only_claims(tmp_path, name, document):
    raw = b"x" * (70 << 20) if document == "line" else (b"x" * (1 << 20) + b"\n") * 70
    (tmp_path / name).write_bytes(PACK[(tmp_path / name).suffix](raw))
    corpus = undivided(tmp_path / name, document=document)
    with pytest.raises(UserError, match=r"a document of more than 67,108,864 characters, .* a compressed file of this"):
        next(corpus.documents("train"))
    if document == "paragraph":  # many documents are read
        lines = attrs.evolve(corpus, document="line").documents("train")
        assert [len(text) for text in lines] == [1 << 20] * 70


@pytest.mark.parametrize("cell", ["x" * 1001, '"' + ("x" * 98 + "\n") * 40])
def test_what_this_machine_cannot_hold(tmp_path, cell, monkeypatch):
    path, text = tmp_path / "a.csv", tmp_path / "a.txt"
    path.write_text(f"text\n{'x' * 200_000}\n")  # more than Python takes by itself
    assert read(path) == ["x" * 200_000]
    monkeypatch.setattr(documents, "memory", lambda: 16_000)
    path.write_text(f"text\n{cell}\n")
    with pytest.raises(UserError, match="of more than 1,000 characters, the limit for this machine"):
        read(path)
    text.write_text("x" * 1000)
    assert read(text) == ["x" * 1000]
    text.write_text(cell)
    with pytest.raises(UserError, match=r"of more than 1,000 characters, .*; set corpus\.document"):
        read(text)


# -- splits -----------------------------------------------------------------------------------------------------------


def test_files_for_each_split_and_shares_of_one(tmp_path):
    for name in ("train-1", "train-2", "valid", "test"):
        (tmp_path / f"{name}.txt").write_text(name)
    train, valid, test = ((f"{tmp_path}/{name}.txt",) for name in ("train-*", "valid", "test"))
    every = splits(FilesCorpus(train=train, validation=valid, test=test))
    assert every == {"train": ["train-1", "train-2"], "validation": ["valid"], "test": ["test"]}
    found = splits(FilesCorpus(train=train, validation=valid, test_share=0.5))
    assert (found["validation"], len(found["test"])) == (["valid"], 1)
    assert sorted(found["train"] + found["test"]) == ["train-1", "train-2"]
    lines = FilesCorpus(train=test, validation_share=0.0, test_share=0.5, document="line")
    for count in (10, 40):  # of the text as it is now
        (tmp_path / "test.txt").write_text("".join(f"{i}\n" for i in range(count)))
        assert len(splits(lines)["test"]) == count // 2
    before = FilesCorpus(train=valid).fingerprint()
    (tmp_path / "moved.txt").write_text("valid")
    assert FilesCorpus(train=(f"{tmp_path}/moved.txt",)).fingerprint() == before
    (tmp_path / "valid.txt").write_text("Valid")
    assert FilesCorpus(train=valid).fingerprint() != before


def test_where_only_one_held_out_text_is_named_it_is_that_one():
    for named, split, wanted in (
        ({}, "validation", "validation"),
        ({"test": ("b",)}, "validation", "test"),
        ({"validation": ("b",)}, "test", "validation"),
        ({"validation": ("b",), "test": ("c",)}, "validation", "validation"),
    ):
        assert FilesCorpus(train=("a",), **named).held_out_split(split) == wanted


def test_missing_files_and_packages(tmp_path, monkeypatch):
    (tmp_path / "corpus.txt").write_text("x")
    here = str(tmp_path / "corpus.txt")
    for settings, message in (
        ({"train": (f"{tmp_path}/corpsu.txt",)}, r"corpus\.train: file not found: .*; did you mean 'corpus\.txt'"),
        ({"train": (here,), "test": (f"{tmp_path}/*.gz",)}, r"corpus\.test: file not found: .*/\*\.gz"),
        ({"train": (f"{tmp_path}/*",), "test": (here,)}, r"corpus\.test: .*corpus\.txt is also in corpus\.train"),
    ):
        with pytest.raises(UserError, match=message):
            next(FilesCorpus(**settings).documents("train"))
    for settings in ({"train": ()}, {"train": ("a", "")}, {"train": ("a",), "test_share": 0.95}):
        with pytest.raises(ValueError, match=r"train is empty|must add up to less than 1"):
            FilesCorpus(**settings)
    with pytest.raises(UserError, match=r"too few documents \(1\) to hold out any"):
        splits(undivided(here, test_share=0.05))
    (tmp_path / "b.txt").write_text("y")
    found = undivided(f"{tmp_path}/*.txt").documents("train")
    assert next(found) == "y"
    (tmp_path / "corpus.txt").unlink()
    with pytest.raises(UserError, match=r"corpus\.txt cannot be read: No such file or directory; restore it"):
        list(found)
    for name, package in (("a.txt.zst", "zstandard"), ("a.parquet", "pyarrow")):
        (tmp_path / name).write_bytes(zstandard.compress(b"x"))
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(UserError, match=rf"needs {package}; run `pip install '?atat-zoo\[(zstd|parquet)\]'?`"):
            read(tmp_path / name)


# -- rows -------------------------------------------------------------------------------------------------------------


def test_json_of_several_lines_or_several_values(tmp_path):
    for content, texts in [
        ('[{"text": "a"}, {"text": "b"}]', ["a", "b"]),
        ('{"text": "a"}\n{"text": "b"}\n', ["a", "b"]),
        ('{\n "text": "a"\n}\n\n{\n "text": "b"\n}', ["a", "b"]),
        ("[]", []),
        ("", []),
    ]:
        (tmp_path / "a.JSON").write_text(content)
        assert read(tmp_path / "a.JSON") == texts
    (tmp_path / "a.jsonl").write_text('[{"text": "a"}, {"text": "b"}]\n{"text": "c"}')
    assert read(tmp_path / "a.jsonl") == ["a", "b", "c"]
    (tmp_path / "a.jsonl").write_text('{"a": {"b": "x\\ud800y"}}\n\n{"a": {"b": ""}}\n')
    assert read(tmp_path / "a.jsonl", text_field="a.b") == ["x\ufffdy"]


@given(
    st.lists(st.sampled_from(["a", "b", "a.b", "a.", ".b"]), min_size=1, max_size=4),
    st.text(),
    st.dictionaries(st.sampled_from("cd"), st.none() | st.integers()),
)
def test_a_key_is_found_by_a_path_of_keys_with_dots_and_first_by_its_exact_name(path, text, others):
    value = text
    for key in reversed(path):
        value = {**others, key: value}
    assert text_of(value, ".".join(path), "here") == text
    assert text_of({**value, ".".join(path): "exact"}, ".".join(path), "here") == "exact"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", b'[{"text": "a"},\n{"text": }]', r"a\.json, line 2 is not valid JSON"),
        ("a.json", b'[\n{"text": "a"},\n{"txt": "b"}]', r"a\.json, item 2 has no 'text'; did you mean 'txt'"),
        ("a.json", b'{\n"text": "a"}\n{"text"', r"a\.json, line 3 is not valid JSON"),
        ("a.jsonl", b'{"text": "a"}\n{"text": null}', r"l, line 2: 'text' is null; set corpus\.missing = \"skip\""),
        ("a.jsonl", b'{"a": {"txt": "b"}}', r"line 1 has no 'a\.text'; did you mean 'a\.txt'"),
        ("a.jsonl", b'{"text": "a"}\n{', "line 2 is not valid JSON"),
        ("a.jsonl", b'["a"]', "line 1 has no 'text'"),
        ("a.jsonl", b"[" * 100_000, "line 1 is not valid JSON"),
        ("a.jsonl", b'{"text": 3}', r"'text' is not text: 3"),
        ("a.csv", b"id,texts\n1,x\n", "has no column 'text'; did you mean 'texts'. in its first line"),
        ("a.csv", b"id,text\n1\n", "line 2 has no 'text', because it ends before that column"),
        ("a.csv", b'id,text\n1,"x\n', "line 2 is not valid CSV .unexpected end of data.; correct it"),
        ("a.csv", b"id,text\n1,a\n2,b,c\n", r"a\.csv, line 3 has 3 cells for 2 columns; quote cells"),
        ("a.tar", b"x" * 1024, r"a\.tar is an archive; .* corpus\.use = \"webdataset\""),
        ("a.txt", b"\xff\xfe", "is not UTF-8 text"),
        ("a.txt.zst", b"hello", "cannot be decompressed"),
        ("a.txt.bz2", b"x", r"a\.txt\.bz2 cannot be decompressed"),
        ("a.txt.xz", lzma.compress(b"x" * 99)[:-9], r"a\.txt\.xz cannot be decompressed"),
        ("a.arrow", b"x" * 99, r"a\.arrow cannot be read as arrow"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_place(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        read(tmp_path / name, text_field="a.text" if b'"a":' in content else "text")


def test_cells_and_rows_of_tables(tmp_path):
    path = tmp_path / "a.csv"
    for mark in ",;\t|":  # and rows may end with one
        path.write_text(f'n{mark}text{mark}\r\n1{mark}"a{mark} ""b""\nc"{mark}\r\n\r\n')
        assert read(path) == [f'a{mark} "b"\nc']
    path = tmp_path / "a.parquet"
    for column in (arrow.array([b"a", "ä".encode()]), arrow.array(["a", "ä"]).dictionary_encode()):
        parquet.write_table(arrow.table({"text": column}), path)
        assert read(path) == ["a", "ä"]
    parquet.write_table(arrow.table({"meta": [{"text": "no"}], "meta.text": ["yes"]}), path)
    assert read(path, text_field="meta.text") == ["yes"]
    parquet.write_table(arrow.table({"meta": [{"a.b": "yes"}], "me": ["no"], "texts": [1]}), path)
    assert read(path, text_field="meta.a.b") == ["yes"]
    for field, message in (
        ("text", "no column 'text'; did you mean 'texts'"),
        ("texts", "row 1: 'texts' is not text: 1"),
    ):
        with pytest.raises(UserError, match=message):
            read(path, text_field=field)
    parquet.write_table(arrow.table({"text": [b"\xff"]}), path)
    with pytest.raises(UserError, match=r"a\.parquet, row 1: 'text' is not UTF-8 text \(invalid start byte\)"):
        read(path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"a\.parquet cannot be read as parquet .* it may be truncated"):
        read(path)


def test_rows_without_a_text_are_counted_on_request_but_never_all_of_them(tmp_path):
    path = tmp_path / "a.parquet"
    parquet.write_table(arrow.table({"text": ["a", None, "b", None]}), path)
    with pytest.raises(UserError, match=r"a\.parquet, row 2: 'text' is null; set corpus\.missing = \"skip\""):
        read(path)
    with pytest.warns(
        Note, match=r"^corpus\.train: 2 of 4 records have no text and were skipped, the first at .*, row 2$"
    ):
        assert read(path, missing="skip") == ["a", "b"]
    (tmp_path / "a.jsonl").write_text('{"txt": "a"}\n{"txt": "b"}\n')
    with pytest.raises(UserError, match=r"line 1 has no 'text'; did you mean 'txt'"):
        read(tmp_path / "a.jsonl", missing="skip")


def test_what_save_to_disk_wrote(tmp_path):
    whole = datasets.Dataset.from_dict({"text": TEXTS, "doc": [{"body": text} for text in TEXTS]})
    whole.save_to_disk(tmp_path / "one", num_shards=3)
    datasets.DatasetDict({"train": whole, "test": whole.select([0])}).save_to_disk(tmp_path / "several")
    settings = WHOLE | {"cache": str(tmp_path / "cache")}
    for name in ("one", "several"):
        corpus = HuggingFaceCorpus(path=str(tmp_path / name), text_field="doc.body", **settings)
        assert list(corpus.documents("train")) == TEXTS
    part = HuggingFaceCorpus(path=str(tmp_path / "one"), train="train[2:5]", validation="train[-1:]", test_share=0.0)
    assert [list(part.documents(split)) for split in ("train", "validation")] == [TEXTS[2:5], TEXTS[-1:]]
    with pytest.raises(UserError, match=r"corpus\.path: split 'test' of .*one cannot be read: Unknown split"):
        list(HuggingFaceCorpus(path=str(tmp_path / "one"), train="test", **settings).documents("train"))
    with pytest.warns(Note, match=r"skipped: 2 \(different format"):
        assert read(tmp_path / "one") == TEXTS


def test_the_size_is_that_of_the_documents_by_the_beginning_of_each_form(tmp_path, monkeypatch):
    for name, text in (("a.txt", "ä" * 100), ("b.txt", "x" * 50), ("c.jsonl", '{"text": "abcde", "number": 1}\n' * 30)):
        (tmp_path / name).write_text(text)
    text = "".join(f"{i} " for i in range(40_000))
    (tmp_path / "d.txt.gz").write_bytes(gzip.compress(text.encode()))
    four = ["a.txt", "b.txt", "c.jsonl", "d.txt.gz"]
    for names, size in ((four[:1], 200), (four[:2], 250), (four[2:3], 150), (four, 400 + len(text))):
        assert undivided(*(tmp_path / name for name in names)).size() == size
    (tmp_path / "e.parquet").touch()
    with pytest.raises(UserError, match=r"e\.parquet cannot be read as parquet .* it may be truncated$"):
        undivided(tmp_path / "a.txt", tmp_path / "e.parquet").size()
    monkeypatch.setattr(documents, "_BEGINNING", 1 << 16)
    line = json.dumps({"text": "abcde" * 20, "note": "x" * 93}) + "\n"
    (tmp_path / "a.jsonl").write_text(line * 8000 + "damaged behind what is read\n")
    assert undivided(tmp_path / "a.jsonl").size() == pytest.approx(8000 * 100, rel=0.2)


# -- dialogues --------------------------------------------------------------------------------------------------------

ASKED = [{"prompt": f"{i}?", "response": f"ä {i}", "reward": i} for i in range(20)]
SAID = [[("user", f"{i}?"), ("assistant", f"ä {i}")] for i in range(20)]
LINES = "".join(f"{json.dumps(row)}\n" for row in ASKED)


def dialogues_in(folder, name):
    if name.endswith(".parquet"):
        parquet.write_table(arrow.Table.from_pylist(ASKED), folder / name)
    else:
        (folder / name).write_bytes(PACK[".gz"](LINES.encode()) if name.endswith(".gz") else f"\ufeff{LINES}".encode())
    return str(folder / name)


def said(corpus, split="train"):
    return [from_text(text) for text in corpus.dialogues(split)]


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson.gz", "a.parquet"])
def test_a_row_is_a_dialogue_in_each_format(tmp_path, name):
    path = dialogues_in(tmp_path, name)
    assert [said(undivided(path), split) for split in SPLITS] == [SAID, [], []]
    shares = FilesCorpus(train=(path,), validation_share=0.1, test_share=0.3)
    found = [said(shares, split) for split in SPLITS]
    places = {from_text(text)[0].content: text.place for split in SPLITS for text in shares.dialogues(split)}
    each = "row" if name.endswith("parquet") else "line"
    assert places == {f"{i}?": f"{path}, {each} {i + 1}" for i in range(20)}
    assert [len(part) for part in found] == [12, 2, 6]
    assert sorted(each for part in found for each in part) == sorted(SAID)
    named = FilesCorpus(train=(path,), validation=(dialogues_in(tmp_path, f"b{name[1:]}"),), test_share=0.0)
    assert [said(named, split) for split in SPLITS] == [SAID, SAID, []]


def test_the_library_datasets_reads_the_columns_of_dialogues(tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.jsonl").write_text(LINES)
    settings = WHOLE | {"path": str(tmp_path / "set"), "cache": str(tmp_path / "cache")}
    assert said(HuggingFaceCorpus(**settings)) == SAID
    assert said(HuggingFaceCorpus(**settings, keep=("reward=3",))) == SAID[3:4]
    with open(tmp_path / "set" / "train.jsonl", "a") as file:
        file.write('{"prompt": "20?", "response": null, "reward": 0}\n')
    with pytest.raises(UserError, match=r"^corpus: .*set, row 21 has 'prompt'; write \{"):
        said(HuggingFaceCorpus(**settings))


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("a.jsonl", '{"text": "a"}', r"^corpus: .*a\.jsonl, line 21 has no messages; write \{"),
        ("a.jsonl", "{", r"^corpus: .*a\.jsonl, line 21 is not valid JSON"),
        ("a.csv", "", r"a\.csv cannot contain dialogues; convert it to \.jsonl, \.json, \.parquet or \.arrow"),
    ],
)
def test_what_is_no_dialogue_is_said_with_its_place(tmp_path, name, line, message):
    (tmp_path / name).write_text(LINES + line)
    with pytest.raises(UserError, match=message):
        said(undivided(tmp_path / name))


# -- folders and patterns ---------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    for name in ("here/a.txt", "here/in/b.txt", "there/c.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path / "here"


def test_a_folder_is_read_with_its_links_and_each_file_once(folder):
    (folder / "linked").symlink_to("../there")
    assert read(folder) == ["here/a.txt", "here/in/b.txt", "there/c.txt"]
    (folder.parent / "same").symlink_to("here")
    with pytest.warns(
        Note, match=r"skipped: 2 \(folder: .*/same/in\), 1 \(already read under a different name: .*/same/a\.txt\)"
    ):
        assert read(f"{folder}/*.txt", f"{folder.parent}/same/*") == ["here/a.txt"]
    (folder / "in" / "up").symlink_to("..")  # a circle
    (folder / "z.txt").symlink_to("a.txt")
    (folder / "gone.txt").symlink_to("nothing")
    os.mkfifo(folder / "pipe.txt")
    for name in (".hidden.txt", "x.pdf", "LICENSE", "a.source.json", ".git/d.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("not this")
    told = (
        f"corpus.train: skipped: 1 (hidden: {folder}/.hidden.txt), 3 (different format: {folder}/LICENSE), 1 (broken "
        f"link: {folder}/gone.txt), 1 (device or pipe: {folder}/pipe.txt), 2 (already read under a different name: "
        f"{folder}/in/up)"
    )
    with pytest.warns(Note) as notes:
        assert read(folder) == ["here/a.txt", "here/in/b.txt", "there/c.txt"]
    assert {str(note.message) for note in notes} == {told}


def test_a_folder_without_text_or_that_may_not_be_read(folder, monkeypatch):
    (folder.parent / "stories").mkdir()
    with pytest.raises(UserError, match=r"^corpus.train: no file in the folder .* ends in .txt, .jsonl.*/stories/\*$"):
        read(folder.parent / "stories")

    def refused(path):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(UserError, match=r"here cannot be read: Permission denied"):
        read(folder)


@pytest.mark.parametrize("name", ["br[1]", "[a-z]", "br[", "[!x]*"])
def test_a_bracket_is_a_sign_where_such_a_path_is_there(tmp_path, name):
    folder = tmp_path / name / "in"
    folder.mkdir(parents=True)
    both = ["part-0[x].txt", "part-1[x].txt"]
    for file in both:
        (folder / file).write_text(file)
    for pattern in ("in/*.txt", "in/part-[01]*.txt", "in/*[x].txt", "", "in/"):
        assert read(f"{tmp_path}/{name}/{pattern}") == both
    assert read(f"{folder}/part-1[x].txt") == both[1:]
    with pytest.raises(UserError, match=r"file not found: .*; \[ begins a pattern, so write \[\[\] for .*; paths"):
        read(f"{folder}/part-[5]*.txt")


# -- samples of a webdataset ------------------------------------------------------------------------------------------


def samples(path, **settings):
    return list(WebDatasetCorpus(train=(str(path),), **WHOLE | settings).documents("train"))


def test_keys_with_dots(tmp_path):
    dots = tar_of(tmp_path / "a.tar", {f"v1.0/doc.{i}.txt.gz": gzip.compress(b"%d" % i) for i in range(2)})
    with pytest.raises(UserError) as caught:
        samples(dots)
    told = str(caught.value)
    assert told.startswith(
        f"corpus.key_ends: {dots}, sample 'v1.0/doc' contains several samples (it has 0.txt.gz, 1.txt.gz)"
    )
    assert told.endswith('set corpus.key_ends = "last"')
    assert samples(dots, key_ends="last") == ["0", "1"]
    mixed = tar_of(tmp_path / "b.tar", {"a.b.txt": b"x", "a.b.cls": b"1", ".a.c.txt": b"no", "d/._e.txt": b"no"})
    with pytest.warns(Note, match="2 files without a name or an extension"):
        assert samples(mixed, key_ends="last") == ["x"]
    assert WebDatasetCorpus(train=("a",), key_ends="last").identity()["key_ends"] == "last"
    assert not {"key_ends", "missing"} & WebDatasetCorpus(train=("a",)).identity().keys()


@pytest.mark.parametrize("packing", [".gz", ".zst", ".xz"])
def test_members_that_are_compressed(tmp_path, packing):
    pack = PACK[packing]
    members = {f"0.txt{packing}": pack(b"ab"), "1.txt": b"c", f"1.json{packing}": pack(b"{}")}
    tar = tar_of(tmp_path / "a.tar", members)
    assert samples(tar, extension="txt") == ["ab", "c"]
    with pytest.raises(UserError, match=rf"sample '.*1' has no 'txt\{packing}'"):
        samples(tar, extension=f"txt{packing}")
    bad = tar_of(tmp_path / "b.tar", {f"0.txt{packing}": pack(b"ab")[:-5]})
    with pytest.raises(UserError, match=rf"sample '0': its txt\{packing} cannot be read"):
        samples(bad)


def test_samples_without_a_text_and_tar_files_without_samples(tmp_path):
    named = {i: "cls" if i == 3 else "json" for i in range(5)}
    members = {f"{i}.{end}": b'{"text": null}' if i == 1 else b'{"text": "a"}' for i, end in named.items()}
    tar = tar_of(tmp_path / "a.tar", members)
    with pytest.raises(UserError, match=r"sample '1': 'text' is null; set corpus\.missing = \"skip\""):
        samples(tar)
    with pytest.warns(Note, match=r"2 of 5 records have no text and were skipped, the first at .*a\.tar, sample '1'"):
        assert samples(tar, missing="skip") == ["a"] * 3
    with pytest.raises(UserError, match=r"sample '0' has no 'txt' \(it has json\)"):
        samples(tar, missing="skip", extension="txt")
    tar_of(tmp_path / "b.tar", {})
    with pytest.raises(UserError, match=r'b\.tar contains no samples, .*; remove it, or set corpus\.missing = "skip"'):
        samples(tmp_path / "b.tar")
    with pytest.warns(Note, match="2 of 5 records"):
        assert samples(tmp_path, missing="skip") == ["a"] * 3
    assert samples(tar_of(tmp_path / "{0}.tar", {"0.txt": b"x"})) == ["x"]
