"""The manifest: a roundtrip, and every way in which it does not match."""

import hashlib
import io
import json
import shutil

import numpy as np
import pytest

from atat_zoo.data import shard_manifest
from atat_zoo.system.errors import UserError
from tests.limited import limited


@pytest.fixture
def folder(shards, tmp_path):
    return shutil.copytree(shards, tmp_path / "copy")


def edited(folder, change):
    path = folder / "manifest.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_reads_what_it_writes(folder):
    text = (folder / "manifest.json").read_text()
    found = shard_manifest.verify(folder, full=True)
    assert found.to_json() == text
    assert found.vocabulary_size == 258
    assert shard_manifest.load_counts(folder).sum() == found.splits["train"].tokens


def test_no_manifest(folder, tmp_path):
    for nothing in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(UserError, match=r"contains no manifest\.json; build the shards with `atat data build`"):
            shard_manifest.load(nothing)
    edited(folder, lambda m: m.update(format=99))
    with pytest.raises(UserError, match="has format 99, but this version reads format 1"):
        shard_manifest.load(folder)
    for text in ("{", "\x00\xff", "[" * 100_000, "[]", "null"):
        (folder / "manifest.json").write_bytes(text.encode("latin-1"))
        with pytest.raises(UserError, match=r"is not (readable JSON|a shard manifest) .* here, delete "):
            shard_manifest.load(folder)
    (folder / "manifest.json").unlink()
    (folder / "manifest.json").mkdir()
    with pytest.raises(UserError, match=r"manifest\.json cannot be read: Is a directory; if the shards were built"):
        shard_manifest.load(folder)


def claim_sequences(content, number=2**40):
    split = content["splits"]["train"]
    split["sequences"] += number - split["shards"][0]["sequences"]
    split["shards"][0]["sequences"] = number


FORGERIES = [
    *({"length": "16"}, {"length": True}, {"length": 0}, {"length": 2**40}, {"more": 1}, {"splits": 3}, {"dtype": "O"}),
    *({"rows": "sentence"}, {"dtype": "uint8"}, {"vocabulary_size": 0}, {"vocabulary_size": 2**40}, {"corpus": {}}),
    *({"sha256": {}}, {"sha256": {"/etc/passwd": ""}}),
]


@pytest.mark.parametrize(
    "change",
    [
        *(lambda m, update=update: m.update(update) for update in FORGERIES),
        lambda m: m.pop("length"),
        lambda m: m["splits"].pop("test"),
        lambda m: m["splits"]["train"].update(words=None),
        lambda m: m["splits"]["train"]["shards"].pop(),
        lambda m: m["splits"]["train"]["shards"][0].pop("crc32"),
        lambda m: m["splits"]["train"]["shards"][0].update(name="../../secret"),
        lambda m: m["splits"]["train"]["shards"][0].update(name="pipe:rm -r x"),
        lambda m: m["sha256"].pop("counts.npy"),
        claim_sequences,
        lambda m: claim_sequences(m, 0),
    ],
)
def test_not_a_manifest(folder, change):
    edited(folder, change)
    with pytest.raises(UserError, match="is not a shard manifest"):
        shard_manifest.load(folder)


@pytest.mark.parametrize(
    ("shape", "descr"), [((2**40,), "<i8"), ((257,), "<i8"), ((258, 1), "<i8"), ((2**30, 2**30), "<i8"), ((258,), "|O")]
)
def test_counts_of_another_shape_or_type(folder, shape, descr):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    content = file.getvalue() + bytes(8 * 258)
    (folder / "counts.npy").write_bytes(content)
    edited(folder, lambda m: m["sha256"].update({"counts.npy": hashlib.sha256(content).hexdigest()}))
    shard_manifest.verify(folder)
    with limited(), pytest.raises(UserError, match=r"counts\.npy cannot be read"):
        shard_manifest.load_counts(folder)


def test_files_that_are_not_those_of_the_manifest(folder):
    path = folder / "train-000000.tar"
    content = bytearray(path.read_bytes())
    content[700] ^= 1
    path.write_bytes(content)
    shard_manifest.verify(folder)
    with pytest.raises(UserError, match=r"train-000000\.tar is damaged \(its SHA-256 differs from the manifest\)"):
        shard_manifest.verify(folder, full=True)
    for other in (content[:-1], content + b"x"):
        path.write_bytes(other)
        with pytest.raises(
            UserError, match=r"train-000000\.tar is damaged \(it has \d+ bytes, but \d+ according to the manifest"
        ):
            shard_manifest.verify(folder)
    path.unlink()
    with pytest.raises(UserError, match=r"train-000000\.tar is missing; if the shards were built here, delete"):
        shard_manifest.verify(folder)
    for name in ("tokenizer.json", "counts.npy"):
        before = (folder / name).read_bytes()
        (folder / name).write_bytes(b"other")
        with pytest.raises(UserError, match=f"{name} differs from the manifest"):
            shard_manifest.verify(folder, splits=())
        (folder / name).unlink()
        with pytest.raises(UserError, match=f"{name} is missing"):
            shard_manifest.verify(folder, splits=())
        (folder / name).write_bytes(before)
    edited(folder, lambda m: m.update(vocabulary_size=60_000))
    with pytest.raises(UserError, match=r"counts\.npy has 2192 bytes, which does not match the 60000 tokens"):
        shard_manifest.verify(folder, splits=())
