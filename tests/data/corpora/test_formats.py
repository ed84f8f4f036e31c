"""Other people's files: each format gives the same rows, whatever its names, marks and gaps are, or a sentence."""

import bz2
import csv
import gzip
import io
import json
import lzma
import os
import tarfile
import warnings

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.data.build import build
from atat_zoo.data.corpora.documents import text_of
from atat_zoo.data.corpora.files import FilesCorpus
from atat_zoo.data.corpora.huggingface import HuggingFaceCorpus
from atat_zoo.data.corpora.webdataset import WebDatasetCorpus
from atat_zoo.errors import Note, UserError
from tests.data.in_memory import experiment_of

arrow = pytest.importorskip("pyarrow", reason="the extra atat-zoo[parquet] is not installed")
parquet = pytest.importorskip("pyarrow.parquet")
datasets = pytest.importorskip("datasets", reason="the extra atat-zoo[huggingface] is not installed")

WHOLE = {"validation_share": 0.0, "test_share": 0.0}
PACK = {".gz": gzip.compress, ".zst": zstandard.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
# One that looks like a date, a number and nothing, with quotes, separators and half of a pair of quotes.
TEXTS = [
    "2020-01-01",
    "007",
    "NA",
    'she said "no", twice',
    "a;b\tc|d",
    "naïve 日本 🙂\u2028x",
    "null",
    *[f"text {i} " * 9 for i in range(60)],
]
FORMATS = (
    "txt",
    "txt.gz",
    "jsonl",
    "json",
    "json.gz",
    "ndjson.zst",
    "csv",
    "tsv.xz",
    "parquet",
    "arrow",
    "saved",
    "tar",
)
ODDITIES = ("mark", "crlf", "nulls", "dots", "empty", "path")


def read(path, **settings):
    return list(FilesCorpus(train=(str(path),), **WHOLE | settings).documents("train"))


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
        with tarfile.open(path, "w") as tar:
            for i, text in enumerate(rows):
                name = f"v1.0/doc.{i}" if oddity == "dots" else f"{i}"
                raw = b"1" if text is None else mark + text.encode()
                info = tarfile.TarInfo(f"{name}.cls" if text is None else f"{name}.txt")
                info.size = len(raw)
                tar.addfile(info, io.BytesIO(raw))
        options |= {"key_ends": "last"} if oddity == "dots" else {}
        return WebDatasetCorpus(train=(str(path),), **options)
    if form == "saved":
        datasets.Dataset(table).save_to_disk(path)
        return HuggingFaceCorpus(path=str(path), column=key, **options)
    if form == "parquet":
        parquet.write_table(table, path)
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
        raw = mark + content.encode()
        path.write_bytes(PACK[f".{packing}"](raw) if packing else raw)
    return FilesCorpus(train=(str(path),), text_field=key, document="line", **options)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return shards(tmp_path_factory.mktemp("rows"), corpus_of(tmp_path_factory.mktemp("text"), "jsonl", TEXTS, ""))


def shards(root, corpus):
    folder = build(experiment_of(root, corpus=corpus, special="both", length=64, sequences_per_shard=64))
    return {path.name: path.read_bytes() for path in folder.glob("train-*.tar")}


@pytest.mark.parametrize("oddity", ODDITIES)
@pytest.mark.parametrize("form", FORMATS)
def test_each_format_makes_the_same_rows_whatever_is_odd_in_it(tmp_path, rows, form, oddity):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert shards(tmp_path / "shards", corpus_of(tmp_path, form, TEXTS, oddity)) == rows
    counted = {f"{len(TEXTS)} of {2 * len(TEXTS)} rows have no text and are left out"}
    skipped = oddity == "nulls" and form[:3] not in ("txt", "csv", "tsv")  # where a null is an empty line or cell
    assert {str(note.message).partition(": ")[2].partition(", the first")[0] for note in said} == (
        counted if skipped else set()
    )
    assert len(rows) == 4


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
        ("a.json", b'[{"text": "a"},\n{"text": }]', r"a\.json, line 2 is not JSON"),
        ("a.json", b'[\n{"text": "a"},\n{"txt": "b"}]', r"a\.json, item 2 has no 'text'; did you mean 'txt'"),
        ("a.json", b'{\n"text": "a"}\n{"text"', r"a\.json, line 3 is not JSON"),
        (
            "a.jsonl",
            b'{"text": "a"}\n{"text": null}',
            r"a\.jsonl, line 2: 'text' is null; set corpus\.missing = \"skip\"",
        ),
        ("a.jsonl", b'{"a": {"txt": "b"}}', r"line 1 has no 'a\.text'; did you mean 'a\.txt'"),
        ("a.jsonl", b'{"text": 3}', r"'text' is no text: 3"),
        ("a.csv", b"id,text\n1,a\n2,b,c\n", r"a\.csv, line 3 has 3 cells for 2 columns; put a text .* in quotes"),
        ("a.tar", b"x" * 1024, r"a\.tar is an archive; .* corpus\.use = \"webdataset\""),
        ("a.txt.bz2", b"x", r"a\.txt\.bz2 cannot be decompressed"),
        ("a.txt.xz", lzma.compress(b"x" * 99)[:-9], r"a\.txt\.xz cannot be decompressed"),
        ("a.txt", "x".encode("utf-16"), r"a\.txt is not UTF-8 text"),
        ("a.arrow", b"x" * 99, r"a\.arrow cannot be read as arrow"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_place(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        read(tmp_path / name, text_field="a.text" if b'"a":' in content else "text")


def test_cells_may_be_divided_by_other_signs_and_rows_may_end_with_one(tmp_path):
    for mark in ",;\t|":
        (tmp_path / "a.csv").write_text(f'n{mark}text{mark}\n1{mark}"a{mark}b"{mark}\n')
        assert read(tmp_path / "a.csv") == [f"a{mark}b"]


def test_a_table_of_bytes_of_a_dictionary_and_of_both_a_dot_and_a_path(tmp_path):
    path = tmp_path / "a.parquet"
    for column in (arrow.array([b"a", "ä".encode()]), arrow.array(["a", "ä"]).dictionary_encode()):
        parquet.write_table(arrow.table({"text": column}), path)
        assert read(path) == ["a", "ä"]
    parquet.write_table(arrow.table({"meta": [{"text": "no"}], "meta.text": ["yes"]}), path)
    assert read(path, text_field="meta.text") == ["yes"]
    parquet.write_table(arrow.table({"meta": [{"a.b": "yes"}], "me": ["no"]}), path)
    assert read(path, text_field="meta.a.b") == ["yes"]
    parquet.write_table(arrow.table({"text": [b"\xff"]}), path)
    with pytest.raises(UserError, match=r"a\.parquet, row 1: 'text' is not UTF-8 text \(invalid start byte\)"):
        read(path)


def test_rows_without_a_text_are_counted_on_request_but_never_all_of_them(tmp_path):
    path = tmp_path / "a.parquet"
    parquet.write_table(arrow.table({"text": ["a", None, "b", None]}), path)
    with pytest.raises(UserError, match=r"a\.parquet, row 2: 'text' is null; set corpus\.missing = \"skip\""):
        read(path)
    with pytest.warns(Note, match=r"^corpus\.train: 2 of 4 rows have no text and are left out, the first .*, row 2$"):
        assert read(path, missing="skip") == ["a", "b"]
    (tmp_path / "a.jsonl").write_text('{"txt": "a"}\n{"txt": "b"}\n')
    with pytest.raises(UserError, match=r"line 1 has no 'text'; did you mean 'txt'"):
        read(tmp_path / "a.jsonl", missing="skip")
    assert "missing" not in FilesCorpus(train=("a",)).identity()
    assert FilesCorpus(train=("a",), missing="skip").identity()["missing"] == "skip"


def test_what_save_to_disk_wrote(tmp_path):
    whole = datasets.Dataset.from_dict({"text": TEXTS, "doc": [{"body": text} for text in TEXTS]})
    whole.save_to_disk(tmp_path / "one", num_shards=3)
    datasets.DatasetDict({"train": whole, "test": whole.select([0])}).save_to_disk(tmp_path / "several")
    settings = WHOLE | {"cache": str(tmp_path / "cache")}
    for name in ("one", "several"):
        corpus = HuggingFaceCorpus(path=str(tmp_path / name), column="doc.body", **settings)
        assert list(corpus.documents("train")) == TEXTS
    part = HuggingFaceCorpus(path=str(tmp_path / "one"), train="train[2:5]", validation="train[-1:]", test_share=0.0)
    assert [list(part.documents(split)) for split in ("train", "validation")] == [TEXTS[2:5], TEXTS[-1:]]
    with pytest.raises(UserError, match=r"corpus\.path: .*one, split 'test', cannot be read: Unknown split"):
        list(HuggingFaceCorpus(path=str(tmp_path / "one"), train="test", **settings).documents("train"))
    with pytest.warns(Note, match=r"left out: 2 of another format"):
        assert read(tmp_path / "one") == TEXTS


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
    (folder / "in" / "up").symlink_to("..")  # a circle
    (folder / "z.txt").symlink_to("a.txt")
    (folder / "gone.txt").symlink_to("nothing")
    os.mkfifo(folder / "pipe.txt")
    for name in (".hidden.txt", "x.pdf", "LICENSE", "a.source.json", ".git/d.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("not this")
    said = (
        f"corpus.train: left out: 1 hidden ({folder}/.hidden.txt), 3 of another format ({folder}/LICENSE), 1 a link to "
        f"nothing ({folder}/gone.txt), 1 a device or a pipe ({folder}/pipe.txt), 2 read under another name "
        f"({folder}/in/up)"
    )
    with pytest.warns(Note) as notes:
        assert read(folder) == ["here/a.txt", "here/in/b.txt", "there/c.txt"]
    assert {str(note.message) for note in notes} == {said}


def test_a_file_of_two_patterns_is_read_once(folder):
    (folder.parent / "same").symlink_to("here")
    both = FilesCorpus(train=(f"{folder}/*.txt", f"{folder.parent}/same/*"), **WHOLE)
    with pytest.warns(Note, match=r"left out: 1 a folder \(.*/same/in\), 1 read under another name \(.*/same/a\.txt\)"):
        assert list(both.documents("train")) == ["here/a.txt"]


@pytest.mark.parametrize("name", ["br[1]", "[a-z]", "br[", "br]", "[!x]*"])
def test_a_bracket_is_a_sign_where_such_a_path_is_there(tmp_path, name):
    folder = tmp_path / name / "in"
    folder.mkdir(parents=True)
    for file in ("part-0[x].txt", "part-1[x].txt"):
        (folder / file).write_text(file)
    both = ["part-0[x].txt", "part-1[x].txt"]
    for pattern in (
        f"{folder}/*.txt",
        f"{folder}/part-[01]*.txt",
        f"{folder}/*[x].txt",
        f"{tmp_path}/{name}",
        f"{folder}/",
    ):
        assert read(pattern) == both
    assert read(f"{folder}/part-1[x].txt") == both[1:]
    with pytest.raises(
        UserError, match=r"there is no file .*; \[ begins a pattern, and \[\[\] is the sign; name files"
    ):
        read(f"{folder}/part-[5]*.txt")


def test_a_folder_that_may_not_be_read_is_named(folder, monkeypatch):
    def refused(path):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(UserError, match=r"here cannot be read: Permission denied"):
        read(folder)


# -- webdatasets ------------------------------------------------------------------------------------------------------


def tar_of(path, members):
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def samples(path, **settings):
    return list(WebDatasetCorpus(train=(str(path),), **WHOLE | settings).documents("train"))


def test_keys_with_dots(tmp_path):
    dots = tar_of(tmp_path / "a.tar", {f"v1.0/doc.{i}.txt.gz": gzip.compress(b"%d" % i) for i in range(2)})
    with pytest.raises(UserError) as caught:
        samples(dots)
    said = str(caught.value)
    assert said.startswith(f"corpus.key_ends: {dots}, sample 'v1.0/doc' is several samples (it has 0.txt.gz, 1.txt.gz)")
    assert said.endswith('ends the key of its sample; set corpus.key_ends = "last"')
    assert samples(dots, key_ends="last") == ["0", "1"]
    mixed = tar_of(tmp_path / "b.tar", {"a.b.txt": b"x", "a.b.cls": b"1", ".a.c.txt": b"no", "d/._e.txt": b"no"})
    with pytest.warns(Note, match="2 files without an extension"):
        assert samples(mixed, key_ends="last") == ["x"]
    identity = WebDatasetCorpus(train=("a",), key_ends="last").identity()
    assert identity["key_ends"] == "last"
    assert not {"key_ends", "missing"} & WebDatasetCorpus(train=("a",)).identity().keys()


@pytest.mark.parametrize("packing", PACK)
def test_members_that_are_compressed(tmp_path, packing):
    content = PACK[packing](b"ab")
    tar = tar_of(
        tmp_path / "a.tar", {f"0.txt{packing}": content, "1.txt": b"c", f"1.json{packing}": PACK[packing](b"{}")}
    )
    for extension in ("txt", f"txt{packing}"):
        if extension == "txt":
            assert samples(tar, extension=extension) == ["ab", "c"]
        else:
            with pytest.raises(UserError, match=rf"sample '.*1' has no 'txt\{packing}'"):
                samples(tar, extension=extension)
    bad = tar_of(tmp_path / "b.tar", {f"0.txt{packing}": content[:-5]})
    with pytest.raises(UserError, match=rf"sample '0': its txt\{packing} cannot be read"):
        samples(bad)


def test_samples_without_a_text_and_tar_files_without_samples(tmp_path):
    members = {
        f"{i}.{'cls' if i == 3 else 'json'}": b'{"text": null}' if i == 1 else b'{"text": "a"}' for i in range(5)
    }
    tar = tar_of(tmp_path / "a.tar", members)
    with pytest.raises(UserError, match=r"sample '1': 'text' is null; set corpus\.missing = \"skip\""):
        samples(tar)
    with pytest.warns(Note, match=r"2 of 5 rows have no text and are left out, the first .*a\.tar, sample '1'"):
        assert samples(tar, missing="skip") == ["a"] * 3
    with pytest.raises(UserError, match=r"sample '0' has no 'txt' \(it has json\)"):
        samples(tar, missing="skip", extension="txt")
    tar_of(tmp_path / "b.tar", {})
    with pytest.raises(UserError, match=r'b\.tar has no samples: .*; leave it out, or set corpus\.missing = "skip"'):
        samples(tmp_path / "b.tar")
    with pytest.warns(Note, match="2 of 5 rows"):
        assert samples(tmp_path, missing="skip") == ["a"] * 3
    assert samples(tar_of(tmp_path / "{0}.tar", {"0.txt": b"x"})) == ["x"]
