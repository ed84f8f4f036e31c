"""The count table of a folder of shards: counted when it is first asked for, and kept beside them.

    neighbours.npz   arrays that are not compressed; `about` names the training shards that were counted

A file that is damaged, or of other shards, is counted again; where nothing can be written, every process counts.
"""

from __future__ import annotations

import json
import zipfile
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from atat_zoo import machine
from atat_zoo.data import manifest
from atat_zoo.data.manifest import array_of
from atat_zoo.data.neighbours import Counted, CountTable
from atat_zoo.data.shard_rows import read
from atat_zoo.errors import UserError
from atat_zoo.run.atomic import replacing
from atat_zoo.run.locks import locked

if TYPE_CHECKING:
    from pathlib import Path

    from atat_zoo.data.manifest import ShardManifest

FILE = "neighbours.npz"
_FORMAT = 1
# Training tokens: a minute or two of sorting, and as much as takes a quarter of the memory at 64 bytes each.
_MOST, _EACH, _SHARE = 1 << 27, 64, 4
_PAIR = 12  # bytes of a key and its count in the file


def count_table(folder: Path) -> CountTable:
    """Return the count table of the training shards of a folder.

    Raises:
        UserError: when there is more text than can be counted here, or a shard is damaged.
    """
    contents = manifest.load(folder)
    tokens, most = contents.splits["train"].tokens, min(_MOST, machine.memory() // _SHARE // _EACH)
    if tokens > most:
        raise UserError(f"at most {most:,} training tokens are counted on this machine, and {folder} has {tokens:,}")
    path = folder / FILE
    with ExitStack() as stack:
        with suppress(OSError):
            stack.enter_context(locked(path.with_name(f"{FILE}.lock"), lambda _: None))  # another process counts
        with suppress(Exception):  # whatever is wrong with it
            return _kept(path, contents)
        return _count(folder, path, contents)


def _count(folder: Path, path: Path, contents: ShardManifest) -> CountTable:
    """Count the training shards, and write the table to a file where that is possible."""
    blocks = (read(folder, contents, shard) for shard in contents.splits["train"].shards)
    table = CountTable.count(blocks, contents.vocabulary_size)
    arrays: dict[str, Any] = {"about": np.frombuffer(json.dumps(_about(contents)).encode(), np.uint8)}
    arrays["tokens"] = table.tokens
    for name, counted in (("pairs", table.pairs), ("triples", table.triples)):
        arrays |= {f"{name}_keys": counted.keys, f"{name}_counts": counted.counts.astype(np.uint32)}
    with suppress(UserError), replacing(path) as beside, beside.open("wb") as file:
        np.savez(file, **arrays)
    return table


def _about(contents: ShardManifest) -> dict[str, Any]:
    return {"format": _FORMAT, "shards": contents.digest, "vocabulary_size": contents.vocabulary_size}


def _kept(path: Path, contents: ShardManifest) -> CountTable:
    """Read the file; its size says how much memory it takes at most, and every array has a checksum.

    Raises:
        Exception: nearly any, if it is absent, damaged, or of other shards.
    """
    V, split = contents.vocabulary_size, contents.splits["train"]
    if path.stat().st_size > 2 * _PAIR * split.tokens + 8 * V + (1 << 16):
        raise ValueError("it is larger than the counts of so many tokens")
    with zipfile.ZipFile(path) as saved:
        if sum(member.file_size for member in saved.infolist()) > path.stat().st_size:
            raise ValueError("it is compressed, which we never do")
        arrays = {name.removesuffix(".npy"): array_of(saved.read(name)) for name in saved.namelist()}
    if json.loads(arrays["about"].tobytes()) != _about(contents):
        raise ValueError("it is of other shards")
    tokens = arrays["tokens"]
    if tokens.shape != (V,) or tokens.dtype != np.int64 or tokens.sum() != split.tokens or tokens.min() < 0:
        raise ValueError("its tokens are not those of the shards")
    counted = {}
    for order, name in ((2, "pairs"), (3, "triples")):
        keys, counts = arrays[f"{name}_keys"], arrays[f"{name}_counts"]
        if keys.ndim != 1 or keys.shape != counts.shape or keys.dtype != np.int64 or counts.dtype != np.uint32:
            raise ValueError(f"its {name} are no counts")
        if len(keys) and (keys[0] < 0 or keys[-1] >= V**order or np.diff(keys).min(initial=1) < 1 or counts.min() < 1):
            raise ValueError(f"its {name} are not in order")
        counted[name] = Counted(keys, counts.astype(np.int64))
    return CountTable(tokens=tokens, sequences=split.sequences, **counted)
