"""Shards as files: their bytes, and what damage says."""

from __future__ import annotations

import gzip
import io
import tarfile
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.data.reading import read_shard
from atat_zoo.data.shards import write_shard
from atat_zoo.errors import UserError
from atat_zoo.run import sha256_of
from tests.limited import limited

if TYPE_CHECKING:
    from pathlib import Path

ROWS = np.arange(7 * 5, dtype=np.uint16).reshape(7, 5)


@given(
    st.integers(1, 20), st.integers(1, 6), st.integers(1, 25), st.sampled_from(["uint16", "uint32"]), st.integers(0, 99)
)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, rows: int, length: int, block: int, dtype: str, seed: int
) -> None:
    path = tmp_path_factory.mktemp("shard") / "train-000000.tar"
    stored = np.random.default_rng(seed).integers(0, np.iinfo(dtype).max, (rows, length), dtype, endpoint=True)
    shard = write_shard(path, stored, block)
    assert (shard.sequences, shard.bytes, shard.sha256) == (rows, path.stat().st_size, sha256_of(path))
    np.testing.assert_array_equal(read_shard(path, rows, length, dtype), stored)
    with tarfile.open(path) as tar:
        assert tar.getnames() == [f"{i:06d}.npy" for i in range(-(-rows // block))]
        assert all((m.mtime, m.uid, m.gid, m.uname) == (0, 0, 0, "") for m in tar.getmembers())


@pytest.mark.parametrize("name", ["a b", "x#y?z", "pipe:echo hello", "{1..3}", "ü"])
def test_folders_with_odd_names(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    write_shard(folder / "train-000000.tar", ROWS, 3)
    np.testing.assert_array_equal(read_shard(folder / "train-000000.tar", 7, 5, "uint16"), ROWS)


def test_the_cache_and_rewriting_of_webdataset_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WDS_CACHE", str(tmp_path / "nowhere"))
    monkeypatch.setenv("GOPEN_REWRITE", "/=/nowhere/")
    write_shard(tmp_path / "train-000000.tar", ROWS, 3)
    np.testing.assert_array_equal(read_shard(tmp_path / "train-000000.tar", 7, 5, "uint16"), ROWS)


@given(st.data())
def test_a_truncated_shard_names_itself_and_the_remedy(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("shard") / "train-000003.tar"
    write_shard(path, ROWS, 3)
    whole = path.read_bytes()
    used = len(whole.rstrip(b"\0"))
    path.write_bytes(whole[: data.draw(st.integers(0, used - 1))])
    with pytest.raises(UserError) as error:
        read_shard(path, 7, 5, "uint16")
    assert str(path) in str(error.value)
    assert f"delete the folder {path.parent} and run `atat data build` again" in str(error.value)


def test_a_shard_of_another_shape(tmp_path: Path) -> None:
    path = tmp_path / "train-000000.tar"
    write_shard(path, ROWS, 3)
    with pytest.raises(UserError, match=r"holds uint16 \[7, 5\], not uint16 \[6, 5\]"):
        read_shard(path, 6, 5, "uint16")
    with pytest.raises(UserError, match="not uint32"):
        read_shard(path, 7, 5, "uint32")


def test_pickles_are_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "train-000000.tar"
    member = io.BytesIO()
    np.save(member, np.array([{"code": 1}], dtype=object), allow_pickle=True)
    with tarfile.open(path, "w") as tar:
        info = tarfile.TarInfo("000000.npy")
        info.size = member.tell()
        member.seek(0)
        tar.addfile(info, member)
    with pytest.raises(UserError, match="damaged"):
        read_shard(path, 1, 1, "uint16")


def tar_of(path: Path, member: tarfile.TarInfo, content: bytes) -> None:
    """Write a member whose header may claim another size than it has."""
    path.write_bytes(member.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512 + 1024))


def npy(shape: object, descr: object = "<u2", data: bytes = b"") -> bytes:
    header = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    return b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header.encode() + data


@pytest.mark.parametrize(
    "content",
    [
        npy((2**40, 5)),
        npy((2**62, 2**62)),
        npy((-1, 5), data=bytes(70)),
        npy((7, 5), descr="<U1000000000"),
        npy((7, 5), descr="|V0"),
        npy("(" * 5000),
        npy((7, 5), descr=[("a", "<u2")] * 3),
        npy((7, 5)).replace(b"NUMPY\1", b"NUMPY\2"),
        b"PK\3\4" + bytes(100),
        b"",
    ],
    ids=range(10),
)
def test_arrays_that_claim_what_they_do_not_have(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "train-000000.tar"
    member = tarfile.TarInfo("000000.npy")
    member.size = len(content)
    tar_of(path, member, content)
    with limited(), pytest.raises(UserError, match="damaged"):
        read_shard(path, 7, 5, "uint16")


@pytest.mark.parametrize("size", [2**20, 2**40, 2**80, -1, -(2**40)])
def test_members_that_claim_more_than_the_file_has(tmp_path: Path, size: int) -> None:
    path = tmp_path / "train-000000.tar"
    member = tarfile.TarInfo("000000.npy")
    member.size = size
    tar_of(path, member, npy((7, 5), data=bytes(70)))
    with limited(), pytest.raises(UserError, match=r"damaged \(there is a strange member '000000\.npy' in it\)"):
        read_shard(path, 7, 5, "uint16")


def test_a_compressed_shard_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "train-000000.tar"
    write_shard(path, np.zeros((1 << 20, 5), np.uint16), 1 << 20)
    path.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(UserError, match="damaged"):
        read_shard(path, 1 << 20, 5, "uint16")


def test_a_sparse_member_is_not_filled(tmp_path: Path) -> None:
    path = tmp_path / "train-000000.tar"
    member = tarfile.TarInfo("000000.npy")
    member.type, member.size = tarfile.GNUTYPE_SPARSE, 512
    tar_of(path, member, bytes(512))
    with pytest.raises(UserError, match="strange member"):
        read_shard(path, 7, 5, "uint16")


@given(st.data())
def test_a_damaged_shard_is_refused_or_read(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("shard") / "train-000003.tar"
    write_shard(path, ROWS, 3)
    content = bytearray(path.read_bytes())
    for place in data.draw(st.lists(st.integers(0, 700), min_size=1, max_size=4)):
        content[place] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    with suppress(UserError):
        assert read_shard(path, 7, 5, "uint16").shape == (7, 5)
