"""Rows read one by one from where they lie: the same rows, in little memory, without what is damaged."""

from __future__ import annotations

import json
import tracemalloc
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from in_memory import Memory, experiment_of, texts

from atat_zoo.data import manifest
from atat_zoo.data.build import build
from atat_zoo.data.reading import ShardRows, read
from atat_zoo.data.shards import write_shard
from atat_zoo.data.stream import TokenStream, train_loader
from atat_zoo.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

PAD = 65535


def contents_of(length: int, dtype: str, block: int) -> Any:
    """Return what is read of a manifest."""
    return manifest.ShardManifest(
        **{"format": 1, "settings": "", "made_by": {}, "length": length, "special": "none", "remainder": "drop"},
        **{"dtype": dtype, "block": block, "lanes": 1, "vocabulary_size": 60_000, "bos": None, "eos": None},
        **{"tokenizer": {}, "corpus": {}, "fingerprint": {}, "sha256": {}, "splits": {}},
    )


def rows_of(folder: Path, contents: Any, shard: manifest.Shard, **options: Any) -> np.ndarray[Any, Any]:
    """Return every row of a shard, read from the last to the first."""
    opened = ShardRows(folder, contents, shard, **options)
    found = np.empty((shard.sequences, contents.length), contents.dtype)
    for row in reversed(range(shard.sequences)):
        opened.read(row, found[row])
    return found


@given(
    st.integers(1, 20),
    st.integers(1, 300),
    st.integers(1, 25),
    st.sampled_from(["uint16", "uint32"]),
    st.integers(0, 9),
)
def test_the_rows_are_those_of_the_whole_shard(
    tmp_path_factory: pytest.TempPathFactory, rows: int, length: int, block: int, dtype: str, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("shard")
    stored = np.random.default_rng(abs(seed)).integers(0, 60_000, (rows, length), dtype)
    stored[-1, length // 2 :] = np.iinfo(dtype).max  # padding
    shard = write_shard(folder / "train-000000.tar", stored, block)
    contents = contents_of(length, dtype, block)
    np.testing.assert_array_equal(read(folder, contents, shard), stored)
    np.testing.assert_array_equal(rows_of(folder, contents, shard), stored)


def test_a_large_shard_is_read_in_little_memory(tmp_path: Path) -> None:
    stored = np.random.default_rng(0).integers(0, 60_000, (8192, 1024), np.uint16)
    shard = write_shard(tmp_path / "train-000000.tar", stored, 256)
    contents, row = contents_of(1024, "uint16", 256), np.empty(1024, np.uint16)
    tracemalloc.start()
    try:
        opened = ShardRows(tmp_path, contents, shard)
        for i in range(0, 8192, 101):
            opened.read(i, row)
            np.testing.assert_array_equal(row, stored[i])
        assert tracemalloc.get_traced_memory()[1] < 1 << 20  # of 16 MB
    finally:
        tracemalloc.stop()


STORED = np.arange(30 * 40, dtype=np.uint16).reshape(30, 40)
MEMBER = 512 + 1024  # bytes of a member of 8 rows: its header in the tar, 128 of numpy and 640 of tokens


@given(st.data())
def test_damaged_members_are_an_error_or_left_out(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("shard")
    path = folder / "train-000000.tar"
    shard = write_shard(path, STORED, 8)
    contents = contents_of(40, "uint16", 8)
    whole, expected = bytearray(path.read_bytes()), STORED.copy()
    if data.draw(st.booleans(), label="truncated"):
        cut = data.draw(st.integers(0, 4 * MEMBER), label="at")
        del whole[cut:]
        gone = [number for number in range(4) if number * MEMBER + 512 + 128 + 80 * min(8, 30 - 8 * number) > cut]
    else:
        gone = data.draw(st.lists(st.integers(0, 3), min_size=1, unique=True), label="members")
        for number in gone:
            place = data.draw(st.integers(0, 128 + 80 * min(8, 30 - 8 * number) - 1), label="place")
            whole[number * MEMBER + 512 + place] ^= 1 << data.draw(st.integers(0, 7), label="bit")
    path.write_bytes(whole)
    for number in gone:
        expected[8 * number : 8 * number + 8] = PAD
    told = rf"^shard {path} is damaged \(its SHA-256 is not the manifest's\); if it was built here, delete"
    with pytest.raises(UserError, match=told):
        ShardRows(folder, contents, shard)
    np.testing.assert_array_equal(rows_of(folder, contents, shard, skip=True), expected)
    # Without checksums of its members nothing of it can be told from what it should be.
    assert (rows_of(folder, contents, attrs.evolve(shard, crc32=()), skip=True) == PAD).all()


def test_a_shard_that_is_gone(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "train-000000.tar", STORED, 8)
    (tmp_path / shard.name).unlink()
    contents = contents_of(40, "uint16", 8)
    for reading in (ShardRows, read):
        with pytest.raises(UserError, match=r"damaged \(No such file or directory\)"):
            reading(tmp_path, contents, shard)
    assert (rows_of(tmp_path, contents, shard, skip=True) == PAD).all()


def test_tokens_and_members_that_the_manifest_does_not_allow(tmp_path: Path) -> None:
    stored = STORED.copy()
    stored[3, 5] = 60_000
    shard = write_shard(tmp_path / "train-000000.tar", stored, 8)
    with pytest.raises(UserError, match=r"damaged \(it holds the token 60000, and the vocabulary has 60000\)"):
        rows_of(tmp_path, contents_of(40, "uint16", 8), shard)
    found = rows_of(tmp_path, contents_of(40, "uint16", 8), shard, skip=True)
    assert (found[3] == PAD).all()
    np.testing.assert_array_equal(np.delete(found, 3, 0), np.delete(stored, 3, 0))
    with pytest.raises(UserError, match=r"damaged \(its member 000000\.npy is not what the manifest says\)"):
        rows_of(tmp_path, contents_of(40, "uint16", 9), shard)


def test_a_shard_that_is_cut_while_it_is_read(tmp_path: Path) -> None:
    shard, row = write_shard(tmp_path / "train-000000.tar", STORED, 8), np.empty(40, np.uint16)
    opened = ShardRows(tmp_path, contents_of(40, "uint16", 8), shard)
    with (tmp_path / shard.name).open("rb+") as file:
        file.truncate(2 * MEMBER)
    opened.read(9, row)
    np.testing.assert_array_equal(row, STORED[9])
    with pytest.raises(UserError, match=r"damaged \(it ends too early\)"):
        opened.read(16, row)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_skipped_rows_keep_their_place(tmp_path: Path, workers: int) -> None:
    folder = build(experiment_of(tmp_path, corpus=Memory(train=texts(40))))
    options: dict[str, Any] = {"seed": 17, "lanes": 4, "batch_size": 40}
    whole = next(iter(train_loader(TokenStream(folder, **options), workers=workers)))
    for name in ("train-000001.tar", "train-000004.tar"):
        content = bytearray((folder / name).read_bytes())
        content[700] ^= 1  # in its first member of 4 rows
        (folder / name).write_bytes(content)
    (folder / "train-000005.tar").write_bytes(content[:9000])  # another one's
    with pytest.raises(UserError, match="is damaged"):
        next(iter(train_loader(TokenStream(folder, **options), workers=workers)))
    found = next(iter(train_loader(TokenStream(folder, skip=True, **options), workers=workers)))
    kept = found["maskable"].any(1)
    assert 0 < (~kept).sum() < 30
    assert found["maskable"][kept].all()
    assert (found["index"] == whole["index"]).all()
    assert (found["tokens"][kept] == whole["tokens"][kept]).all()
    assert not found["tokens"][~kept].any()


def test_an_older_manifest_knows_no_checksums(tmp_path: Path) -> None:
    folder = build(experiment_of(tmp_path))
    path = folder / manifest.FILE
    shards = manifest.load(folder).splits["train"].shards
    assert all(len(shard.crc32) == -(-shard.sequences // 4) for shard in shards)
    text = path.read_text()
    path.write_text(text.replace('"crc32"', '"older"'))
    with pytest.raises(UserError, match="is not a manifest of shards"):
        manifest.load(folder)
    table = json.loads(text)
    for split in table["splits"].values():
        for shard in split["shards"]:
            del shard["crc32"]
    path.write_text(json.dumps(table))
    assert all(shard.crc32 == () for shard in manifest.load(folder).splits["train"].shards)
