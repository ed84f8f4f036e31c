"""Slices and their join: the bytes of one process, whatever happens between them."""

import os
import shutil
import tempfile
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from in_memory import Memory, experiment_of, hashes, interrupted, killed, stages_of_a_second, texts

from atat_zoo.data import sequence_packing
from atat_zoo.data.build import build
from atat_zoo.data.corpora.text_files import FilesCorpus
from atat_zoo.data.slices import Slice, encode_slice, join
from atat_zoo.data.tokenizers.components import BPETokenizer
from atat_zoo.system.errors import UserError
from tests.tiny import folder_of

pytestmark = pytest.mark.slow

TEXTS = texts(90)


def made(root, **data):
    return experiment_of(root, **{"corpus": Memory(train=TEXTS)} | data)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(sequence_packing, "BATCH", 4)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return hashes(build(made(tmp_path_factory.mktemp("whole"))))


def test_a_slice_reports_the_characters_that_were_read(tmp_path):
    reported = []
    encode_slice(made(tmp_path), Slice(1, 2), progress=lambda *report: reported.append(report))
    assert max(done for stage, done, _ in reported if stage == "train") == sum(map(len, TEXTS))


@settings(max_examples=5)
@given(
    count=st.integers(12, 40),
    order=st.integers(1, 4).flatmap(lambda of: st.permutations(range(1, of + 1))),
    tokenizer=st.sampled_from([None, BPETokenizer(vocabulary_size=270)]),
    data=st.fixed_dictionaries(
        {"special_tokens": st.sampled_from(["none", "both"]), "packing": st.sampled_from(["packed", "document"])},
        optional={"sequences": st.integers(4, 60), "remainder": st.just("pad"), "dtype": st.just("uint32")},
    ),
)
@example(count=12, order=[2, 1], tokenizer=None, data={"special_tokens": "both", "packing": "document"})
def test_joined_slices_are_the_bytes_of_one_process(count, order, tokenizer, data):
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(sequence_packing, "BATCH", 2):
        one, parts = (
            experiment_of(Path(folder) / name, corpus=Memory(train=texts(count)), tokenizer=tokenizer, **data)
            for name in ("one", "parts")
        )
        for number in order:
            encode_slice(parts, Slice(number, len(order)))
        assert hashes(join(parts)) == hashes(build(one))
        assert sorted(path.suffix for path in (Path(folder) / "parts").iterdir()) == ["", ".lock"]


def test_slices_that_are_missing_are_named(tmp_path, whole):
    parts = made(tmp_path)
    with pytest.raises(UserError, match=r"--join: no slices found in .*\.slices; first encode each slice"):
        join(parts)
    encode_slice(parts, Slice(2, 4))
    interrupted(encode_slice, parts, Slice(1, 4), at="validation")
    with pytest.raises(UserError, match=r"slices 1, 3, 4 of 4 are missing or unfinished in .* --slice 1/4"):
        join(parts)
    for number in (1, 4):
        encode_slice(parts, Slice(number, 4))
    with pytest.raises(UserError, match=r"--join: slice 3 of 4 is missing or unfinished"):
        join(parts)
    with pytest.raises(
        UserError, match=r"--slice 3/5: .*\.slices was begun with 4 slices; use this number of slices, or delete"
    ):
        encode_slice(parts, Slice(3, 5))
    encode_slice(parts, Slice(3, 4))
    assert hashes(join(parts)) == whole
    assert encode_slice(parts, Slice(3, 4)) == folder_of(parts)


def test_text_that_is_edited_between_slices_or_in_one(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n".join(TEXTS))
    parts = made(tmp_path / "data", corpus=FilesCorpus(train=(str(path),), document="line"))
    encode_slice(parts, Slice(1, 2))

    def edit(stage, done, total):
        if stage == "test":
            path.write_text("\n".join(reversed(TEXTS)))

    with pytest.raises(UserError, match="changed during the build, so the shards were discarded"):
        encode_slice(parts, Slice(2, 2), progress=edit)
    assert [place.name for place in (tmp_path / "data").glob("*.slices/*-of-2")] == ["1-of-2"]
    encode_slice(parts, Slice(2, 2))
    with pytest.raises(UserError, match="slice 1 of 2 is missing or unfinished"):  # of the text as it is now
        join(parts)
    path.write_text(path.read_text())  # the same, but it may have been another in between
    place = encode_slice(parts, Slice(1, 2))
    before = {block: block.stat().st_mtime_ns for block in place.glob("*.npz")}
    path.write_text(path.read_text())
    assert encode_slice(parts, Slice(1, 2)) == place
    assert all(block.stat().st_mtime_ns > written for block, written in before.items())
    one = made(tmp_path / "one", corpus=parts.parts["corpus"])
    assert hashes(join(parts)) == hashes(build(one))


def test_a_damaged_slice_or_one_of_another_text_is_named(tmp_path, whole):
    parts = made(tmp_path)
    first, second = (encode_slice(parts, Slice(number, 2)) for number in (1, 2))
    block, own = first / "train-000000.npz", (first / "train-000000.npz").read_bytes()
    tokenizer = (second / "tokenizer.json").read_bytes()
    for content in ((second / "train-000001.npz").read_bytes(), own[:-100] + b"x" + own[-99:]):
        block.write_bytes(content)
        with pytest.raises(UserError, match=r"slice 1/2 is damaged \(train-000000\.npz: .* with --slice 1/2 instead$"):
            join(parts)
    block.write_bytes(own)
    other = encode_slice(made(tmp_path / "other", special_tokens="both"), Slice(1, 2))
    first.rename(tmp_path / "kept")
    shutil.copytree(other, first)  # the same tokenizer, and as many blocks
    with pytest.raises(UserError, match="slice 1/2 has another text, tokenizer or settings than this build; delete"):
        join(parts)
    shutil.rmtree(first)
    (tmp_path / "kept").rename(first)
    (second / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="slice 2/2 has another text, tokenizer or settings than this build; delete"):
        join(parts)
    (second / "tokenizer.json").write_bytes(tokenizer)
    (second / "done.json").write_text('{"train": 9, "validation": 1, "test": 1}')  # without hashes
    with pytest.raises(UserError, match=rf"slice 2/2 is damaged \(done\.json\); delete {second},"):
        join(parts)
    shutil.rmtree(second)
    encode_slice(parts, Slice(2, 2))
    assert hashes(join(parts)) == whole


def test_a_slice_that_is_being_encoded_is_waited_for(tmp_path):
    assert stages_of_a_second(encode_slice, made(tmp_path), Slice(1, 2)) == ["waiting"]


def test_shards_that_are_built_without_them_delete_the_slices(tmp_path, whole):
    parts = made(tmp_path)
    encode_slice(parts, Slice(1, 2))

    def overtake(stage, done, total):
        if stage == "test" and not folder_of(parts).exists():
            build(parts)

    assert encode_slice(parts, Slice(2, 2), progress=overtake) == folder_of(parts)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == ["", ".lock"]
    assert hashes(folder_of(parts)) == whole


@pytest.mark.parametrize("at", ["slice", "join"])
def test_what_was_killed_or_interrupted_goes_on(tmp_path, whole, at):
    parts = made(tmp_path)
    kept = {}
    if at == "slice":
        killed(encode_slice, parts, Slice(1, 2), after=4000)
        kept = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.slices/1-of-2/*.npz")}
        assert kept
    for number in (1, 2):
        encode_slice(parts, Slice(number, 2))
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    if at == "join":
        interrupted(join, parts, at="train", after=4001)
        assert list(tmp_path.glob("*.partial/train-*.tar"))
    assert hashes(join(parts)) == whole


def test_what_is_no_slice_and_where_none_can_be_written(tmp_path):
    for text in ("", "3", "0/2", "3/2", "a/b", "1/2/3", "1/100000"):
        with pytest.raises(
            UserError, match=r"^--slice .*: expected the slice number and the number of slices, such as 3/8$"
        ):
            Slice.named(text)
    assert Slice.named("3/8") == Slice(3, 8)
    (tmp_path / "root").write_text("")
    with pytest.raises(UserError, match=r"data\.root: cannot write to .*/root"):
        encode_slice(made(tmp_path / "root"), Slice(1, 2))
    assert os.listdir(tmp_path) == ["root"]
