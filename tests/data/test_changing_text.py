"""Text that is edited while it is built, or afterwards: shards are never of another text than their name says."""

import hashlib
import json
import os
from pathlib import Path

import pytest
from in_memory import experiment_of, hashes, interrupted, texts

from atat_zoo.data import digests
from atat_zoo.data.build import build
from atat_zoo.data.corpora import Text8Corpus
from atat_zoo.data.corpora.files import FilesCorpus
from atat_zoo.data.tokenizers import PretrainedTokenizer
from atat_zoo.data.tokenizers.library import trained
from atat_zoo.errors import UserError
from tests.tiny import folder_of

LINES = texts(200)
FEW = {"sequences_per_shard": 4000}  # shards
OLD, NEW = "\n".join(LINES), "\n".join(reversed(LINES))


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(OLD)
    return path


def of(path, root="data", **settings):
    return experiment_of(path.parent / root, corpus=FilesCorpus(train=(str(path),), document="line"), **FEW | settings)


def edit(path, text):
    """Write a text with the time of the old one, as `cp -p` and `rsync -t` do."""
    before = path.stat()
    path.write_text(text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def editing(when, path, *contents):
    left = list(contents)

    def report(stage, done, total):
        while stage == when and left:
            edit(path, left.pop(0))

    return report


def nothing_kept(path):
    return [p.name for p in (path.parent / "data").iterdir() if not p.name.endswith(".lock")] == []


@pytest.mark.parametrize(
    ("when", "back"), [("tokenizer", False), ("train", False), ("train", True), ("validation", False), ("test", True)]
)
def test_text_edited_while_it_is_built_is_refused(path, when, back):
    contents = [NEW, OLD] if back else [NEW]
    with pytest.raises(UserError, match="was written to while its shards were built, so they are not kept; run"):
        build(of(path), progress=editing(when, path, *contents))
    assert nothing_kept(path)
    edit(path, OLD)
    assert hashes(build(of(path))) == hashes(build(of(path, "again")))


def test_text_edited_while_a_build_is_interrupted_begins_it_anew(path):
    edits = editing("tokenizer", path, NEW)

    def build_edited(progress):
        build(of(path), progress=lambda *report: (edits(*report), progress(*report)))

    interrupted(build_edited, at="test")
    edit(path, OLD)
    assert hashes(build(of(path))) == hashes(build(of(path, "again")))


def test_text8_edited_while_it_is_built_is_refused(tmp_path):
    path = tmp_path / "text8"
    path.write_text("we the people " * 300)
    made = experiment_of(tmp_path / "data", corpus=Text8Corpus(path=str(path)))
    with pytest.raises(UserError, match="was written to while its shards were built"):
        build(made, progress=editing("validation", path, "of the people " * 300))
    assert nothing_kept(path)


def test_a_tokenizer_edited_while_it_is_used_is_refused(path, tmp_path):
    files = [trained(iter(LINES), size, ("<bos>", "<eos>")).to_str() for size in (300, 310)]
    (tmp_path / "tokenizer.json").write_text(files[0])
    tokenizer = PretrainedTokenizer(path=str(tmp_path / "tokenizer.json"))
    with pytest.raises(UserError, match="or the tokenizer's file, was written to"):
        build(of(path, tokenizer=tokenizer), progress=editing("train", tmp_path / "tokenizer.json", files[1]))
    assert nothing_kept(path)


def test_the_folder_of_small_texts_keeps_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(OLD)
    made = experiment_of(Path("data"), corpus=FilesCorpus(train=("text.txt",), document="line"))
    found = made.parts["corpus"].fingerprint()
    digest = hashlib.sha256(f"{len(OLD)}\0{OLD}".encode()).hexdigest()
    assert found == {"train": {"files": 1, "bytes": len(OLD), "sha256": digest}}
    assert folder_of(made).name == "files-bytes-16-37319cd0d9"


# -- large files ------------------------------------------------------------------------------------------------------

LARGE = 4 << 20


@pytest.fixture
def large(tmp_path, monkeypatch):
    monkeypatch.setattr(digests, "_HASHED_AT_ONCE", LARGE - 1)
    path = tmp_path / "large.txt"
    path.write_bytes(b"x" * LARGE)
    return path


@pytest.fixture
def counted(monkeypatch):
    """The files that were hashed."""
    hashed = []
    whole = digests._sha256

    def count(path, *rest):
        hashed.append(Path(path).name)
        return whole(path, *rest)

    monkeypatch.setattr(digests, "_sha256", count)
    monkeypatch.setattr(digests, "_of_this_process", {})
    return hashed


def test_the_hash_of_a_large_file_is_kept_until_it_changes(large, counted, monkeypatch):
    monkeypatch.setattr(digests, "_TICK", -(10**18))  # as if the file had been there for long
    corpus, root, reported = FilesCorpus(train=(str(large),)), large.parent / "data", []

    def fingerprint():
        digests._of_this_process.clear()
        with digests.kept_in(root, lambda *progress: reported.append(progress)):
            return corpus.fingerprint()

    first = fingerprint()
    assert fingerprint() == first
    assert counted == ["large.txt"]
    assert {stage for stage, _, _ in reported} == {"hashing"}
    assert reported[-1][1:] == (LARGE, LARGE)
    edit(large, "x" * (LARGE - 1) + "y")
    second = fingerprint()
    assert second != first
    assert counted == ["large.txt"] * 2
    for damaged in ("", "{", "[1]", '{"x": 5}', '{"x": []}', json.dumps({str(large): [0, "x"]}), "[" * 10_000):
        (root / "digests.json").write_text(damaged)
        assert fingerprint() == second
    assert len(counted) == 2 + 7


def test_the_hash_of_a_file_that_was_just_written_is_not_kept(large, counted, monkeypatch):
    """It may be written again in the same tick of the clock, which here lasts longer than any test."""
    monkeypatch.setattr(digests, "_TICK", 10**18)
    corpus = FilesCorpus(train=(str(large),))
    with digests.kept_in(large.parent / "data", lambda *_: None):
        assert corpus.fingerprint() == corpus.fingerprint()
    assert counted == ["large.txt"] * 2
    assert not (large.parent / "data").exists()


def test_hashes_need_no_place(large, counted, monkeypatch):
    monkeypatch.setattr(digests, "_TICK", -(10**18))
    corpus = FilesCorpus(train=(str(large),))
    with digests.kept_in(large, lambda *_: None):  # a file, in which no other can be
        assert corpus.fingerprint() == corpus.fingerprint()
    assert counted == ["large.txt"]
