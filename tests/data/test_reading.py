"""Rows read from where they lie: the same rows, in little memory, without what is damaged, and nothing forged."""

import gzip
import io
import tarfile
import tracemalloc
from types import SimpleNamespace

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from in_memory import Memory, experiment_of, texts
from webdataset.tariterators import group_by_keys, tar_file_expander

from atat_zoo.data import shard_manifest, shards
from atat_zoo.data.build import build
from atat_zoo.data.shards import ShardRows, read, write_shard
from atat_zoo.data.stream import TokenStream, train_loader
from atat_zoo.experiment.runs import sha256_of
from atat_zoo.system.errors import UserError
from tests.limited import limited

PAD = 65535


def contents_of(length, dtype, block):
    """Return what is read of a manifest."""
    return SimpleNamespace(length=length, dtype=dtype, block=block, vocabulary_size=60_000, form="text")


def rows_of(folder, contents, shard, **options):
    """Return every row of a shard, read from the last to the first."""
    opened = ShardRows(folder, contents, shard, **options)
    found = np.empty((shard.sequences, contents.length), contents.dtype)
    for row in reversed(range(shard.sequences)):
        opened.read(row, found[row])
    return found


@given(*map(st.integers, [1] * 3, [20, 300, 25]), st.sampled_from(["uint16", "uint32"]), st.integers(1, 4000))
def test_what_is_written_is_read(tmp_path_factory, rows, length, block, dtype, at_once):
    folder = tmp_path_factory.mktemp("shard")
    stored = np.random.default_rng(at_once).integers(0, 60_000, (rows, length), dtype)
    stored[-1, length // 2 :] = np.iinfo(dtype).max  # padding
    shard = write_shard(folder / "train-000000.tar", stored, block)
    contents = contents_of(length, dtype, block)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "_AT_ONCE", at_once)
        np.testing.assert_array_equal(read(folder, contents, shard), stored)
    np.testing.assert_array_equal(rows_of(folder, contents, shard), stored)
    path = folder / shard.name
    assert (shard.sequences, shard.bytes, shard.sha256) == (rows, path.stat().st_size, sha256_of(path))
    with tarfile.open(path) as tar:
        assert tar.getnames() == [f"{i:06d}.npy" for i in range(-(-rows // block))]
        assert all((m.mtime, m.uid, m.gid, m.uname) == (0, 0, 0, "") for m in tar.getmembers())


def test_webdataset_reads_them(tmp_path):
    write_shard(tmp_path / "train-000000.tar", STORED, 8)
    with (tmp_path / "train-000000.tar").open("rb") as stream:
        samples = group_by_keys(tar_file_expander([{"url": "train-000000.tar", "stream": stream}]))
        blocks = [np.load(io.BytesIO(sample["npy"])) for sample in samples]
    np.testing.assert_array_equal(np.concatenate(blocks), STORED)


def npy(shape, descr="<u2", data=b""):
    header = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    return b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header.encode() + data


def member(content, size=None, kind=tarfile.REGTYPE):
    """Return a tar file of one member, whose header may claim another size than it has."""
    info = tarfile.TarInfo("000000.npy")
    info.size, info.type = len(content) if size is None else size, kind
    return info.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512 + 1024)


WHOLE = npy((7, 5), data=bytes(70))
PICKLE = b"\x80\x04}\x94\x8c\x04code\x94K\x01s."


@pytest.mark.parametrize(
    "content",
    [
        *(member(npy(shape)) for shape in ((2**40, 5), (2**62, 2**62), "(" * 5000)),
        member(npy((-1, 5), data=bytes(70))),
        *(member(npy((7, 5), descr=descr)) for descr in ("<U1000000000", "|V0", [("a", "<u2")] * 3)),
        member(npy((7, 5), descr="|O", data=PICKLE)),
        member(WHOLE.replace(b"NUMPY\1", b"NUMPY\2")),
        member(b"PK\3\4" + bytes(100)),
        member(b""),
        b"",
        member(bytes(512), kind=tarfile.GNUTYPE_SPARSE),
        gzip.compress(member(WHOLE)),
    ],
    ids=range(14),
)
def test_a_shard_that_is_none_is_refused_though_its_hash_is_right(tmp_path, content):
    with limited(), pytest.raises(UserError, match="damaged"):
        forged(tmp_path, content, 7)


def test_what_a_header_claims_is_not_read(tmp_path):
    for size in (2**40, 2**80, -1):
        np.testing.assert_array_equal(forged(tmp_path, member(WHOLE, size), 7), np.zeros((7, 5)))
    with limited(), pytest.raises(UserError, match=r"damaged \(it is truncated\)"):
        forged(tmp_path, member(npy((2**40, 5))), 2**40)


def forged(folder, content, rows):
    """Return the rows of a file whose hash the manifest has."""
    path = folder / "train-000000.tar"
    path.write_bytes(content)
    shard = shard_manifest.Shard(name=path.name, sequences=rows, bytes=len(content), sha256=sha256_of(path), crc32=())
    return read(folder, contents_of(5, "uint16", rows), shard)


def test_a_large_shard_is_read_in_little_memory(tmp_path):
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
def test_damaged_members_are_an_error_or_left_out(tmp_path_factory, data):
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
    told = rf"^shard {path} is damaged \(its SHA-256 differs from the manifest\); if the shards were built here, delete"
    with pytest.raises(UserError, match=told):
        ShardRows(folder, contents, shard)
    np.testing.assert_array_equal(rows_of(folder, contents, shard, skip=True), expected)
    # Without checksums of its members nothing of it can be told from what it should be, as of a forged manifest.
    assert (rows_of(folder, contents, attrs.evolve(shard, crc32=()), skip=True) == PAD).all()


def test_tokens_and_members_that_the_manifest_does_not_allow(tmp_path):
    stored = STORED.copy()
    stored[3, 5] = 60_000
    shard, row = write_shard(tmp_path / "train-000000.tar", stored, 8), np.empty(40, np.uint16)
    contents = contents_of(40, "uint16", 8)
    with pytest.raises(UserError, match=r"damaged \(it contains the token 60000, but the vocabulary has 60000\)"):
        rows_of(tmp_path, contents, shard)
    found = rows_of(tmp_path, contents, shard, skip=True)
    assert (found[3] == PAD).all()
    np.testing.assert_array_equal(np.delete(found, 3, 0), np.delete(stored, 3, 0))
    with pytest.raises(UserError, match=r"damaged \(its member 000000\.npy differs from the manifest\)"):
        rows_of(tmp_path, contents_of(40, "uint16", 9), shard)
    opened = ShardRows(tmp_path, contents, shard)  # and is cut while it is read
    with (tmp_path / shard.name).open("rb+") as file:
        file.truncate(2 * MEMBER)
    opened.read(9, row)
    np.testing.assert_array_equal(row, STORED[9])
    with pytest.raises(UserError, match=r"damaged \(it is truncated\)"):
        opened.read(16, row)
    (tmp_path / shard.name).unlink()
    with pytest.raises(UserError, match=r"damaged \(No such file or directory\)"):
        read(tmp_path, contents, shard)
    assert (rows_of(tmp_path, contents, shard, skip=True) == PAD).all()


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_skipped_rows_keep_their_place(tmp_path, workers):
    folder = build(experiment_of(tmp_path, corpus=Memory(train=texts(40))))
    options = {"seed": 17, "lanes": 4, "batch_size": 40}
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
