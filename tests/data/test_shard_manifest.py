"""The manifest: a roundtrip, and every way in which it does not match."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from atat_zoo.data import manifest
from atat_zoo.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def folder(shards: Path, tmp_path: Path) -> Path:
    return shutil.copytree(shards, tmp_path / "copy")


def edited(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "manifest.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_reads_what_it_writes(folder: Path) -> None:
    text = (folder / "manifest.json").read_text()
    found = manifest.verify(folder, full=True)
    assert found.to_json() == text
    assert found.vocabulary_size == 258
    assert manifest.load_counts(folder).sum() == found.splits["train"].tokens


def test_no_manifest(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(UserError, match=r"holds no manifest\.json; build the shards with `atat data build`"):
            manifest.load(folder)


@pytest.mark.parametrize("text", ["", "{", '{"format": 1', "\x00\xff"])
def test_unreadable_json(folder: Path, text: str) -> None:
    (folder / "manifest.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match=r"is not readable JSON .* delete the folder"):
        manifest.load(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.pop("length"),
        lambda m: m.update(length="16"),
        lambda m: m.update(length=True),
        lambda m: m.update(more=1),
        lambda m: m["splits"].pop("test"),
        lambda m: m["splits"]["train"].update(words=None),
        lambda m: m["splits"]["train"]["shards"].pop(),
        lambda m: m["splits"]["train"]["shards"][0].update(name="../../secret"),
        lambda m: m["splits"]["train"]["shards"][0].update(name="pipe:rm -r x"),
        lambda m: m.update(sha256={"/etc/passwd": ""}),
        lambda m: m.update(splits=3),
    ],
)
def test_not_a_manifest(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    edited(folder, change)
    with pytest.raises(UserError, match="is not a manifest of shards"):
        manifest.load(folder)


@pytest.mark.parametrize("text", ["[]", "3", "null", '"x"'])
def test_json_of_something_else(folder: Path, text: str) -> None:
    (folder / "manifest.json").write_text(text)
    with pytest.raises(UserError, match="is not a manifest of shards"):
        manifest.load(folder)


def test_another_format(folder: Path) -> None:
    edited(folder, lambda m: m.update(format=99))
    with pytest.raises(UserError, match="is of format 99, this version reads 1"):
        manifest.load(folder)


def test_a_missing_shard(folder: Path) -> None:
    (folder / "train-000001.tar").unlink()
    with pytest.raises(UserError, match=r"train-000001\.tar is missing; delete the folder"):
        manifest.verify(folder)


def test_a_truncated_shard(folder: Path) -> None:
    path = folder / "validation-000000.tar"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"validation-000000\.tar is damaged \(it has \d+ bytes, the manifest says"):
        manifest.verify(folder)


def test_a_flipped_bit_is_found_by_the_full_check(folder: Path) -> None:
    path = folder / "train-000000.tar"
    content = bytearray(path.read_bytes())
    content[700] ^= 1
    path.write_bytes(content)
    manifest.verify(folder)
    with pytest.raises(UserError, match=r"train-000000\.tar is damaged \(its SHA-256 is not the manifest's\)"):
        manifest.verify(folder, full=True)


@pytest.mark.parametrize("name", ["tokenizer.json", "counts.npy"])
def test_another_tokenizer_or_counts(folder: Path, name: str) -> None:
    (folder / name).write_bytes(b"other")
    with pytest.raises(UserError, match=f"{name} is not the file that the manifest describes"):
        manifest.verify(folder)
    (folder / name).unlink()
    with pytest.raises(UserError, match=f"{name} is missing"):
        manifest.verify(folder)


def test_counts_that_cannot_be_read(folder: Path) -> None:
    np.save(folder / "counts.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(UserError, match=r"counts\.npy cannot be read"):
        manifest.load_counts(folder)
