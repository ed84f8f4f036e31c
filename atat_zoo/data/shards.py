"""Sequences ↔ WebDataset shards: tar files whose members are blocks of sequences.

A member `000000.npy` is [rows, L] in uint16 or uint32. One sequence per member
would use half of the bytes for tar headers.

A split is written in groups of C shards. After each group the state is saved beside them: the number of batches
read, the waiting tokens, the counts, the shards with their hashes. After an interruption, a build skips those batches
without encoding them again, checks the hashes, and continues.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
import zipfile
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from atat_zoo.data.manifest import Shard, broken
from atat_zoo.data.pack import batches
from atat_zoo.errors import UserError
from atat_zoo.run import sha256_of
from atat_zoo.run.atomic import replacing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from atat_zoo.data import Progress, Split
    from atat_zoo.data.pack import Packer
    from atat_zoo.experiment.schema import DataSpec


def write_split(
    work: Path,
    split: Split,
    documents: Iterable[str],
    packer: Packer,
    spec: DataSpec,
    report: Progress,
    characters: int | None,
) -> list[Shard]:
    """Write the shards of a split, or the missing ones.

    Full groups are C shards of `spec.sequences_per_shard` sequences; the last group is C smaller ones, or a single one
    if it has fewer than C sequences. Only the training split has lanes: C is 1 for the others.

    Args:
        work: folder of the unfinished build.
        split: its name, the prefix of the file names.
        documents: all of them, in order, even when resuming.
        packer: a fresh one; afterwards it has the counts of the split.
        spec: the sizes of shards and members, and the lanes.
        report: called with the split, the characters done, and `characters`.
        characters: of all documents, if known.

    Raises:
        UserError: when there are fewer sequences than lanes, or the disk is full.
    """
    lanes, block = spec.lanes if split == "train" else 1, spec.sequences_per_member
    path = work / f"{split}.state.npz"
    shards, done, finished = _resume(path, work, packer)
    if not finished:
        group = lanes * spec.sequences_per_shard
        number = 0
        report(split, packer.totals.characters, characters)
        for number, batch in enumerate(batches(documents), 1):
            if number <= done:
                continue
            if packer.full:
                break
            packer.add(batch)
            before = len(shards)
            while packer.ready >= group:
                shards += _write_group(work, split, packer.take(group), lanes, len(shards), block)
            if len(shards) > before:
                _save(path, packer, shards, number, finished=False)
            report(split, packer.totals.characters, characters)
        rows = np.concatenate([packer.take(packer.ready), packer.finish()]) if packer.ready else packer.finish()
        if not shards and len(rows) < lanes and split == "train":
            raise UserError(
                f"the training text makes {len(rows)} sequences of data.length = {packer.length}, fewer than "
                f"data.lanes = {lanes}; use more text, shorter sequences or fewer lanes"
            )
        if len(rows):
            shards += _write_group(work, split, rows, lanes if len(rows) >= lanes else 1, len(shards), block)
        _save(path, packer, shards, number, finished=True)
    return shards


def forget_states(work: Path) -> None:
    """Remove the saved states and incomplete files, when the build is complete."""
    for path in [*work.glob("*.state.npz"), *work.glob(".*.part")]:
        path.unlink()


def _write_group(work: Path, split: str, rows: NDArray[Any], count: int, first: int, block: int) -> list[Shard]:
    """Write rows as `count` shards whose sizes differ by one at most."""
    parts = np.array_split(rows, count)
    return [write_shard(work / f"{split}-{first + i:06d}.tar", part, block) for i, part in enumerate(parts)]


def _save(path: Path, packer: Packer, shards: list[Shard], done: int, *, finished: bool) -> None:
    totals, waiting, counts = packer.state()
    table = {"totals": totals, "shards": [attrs.asdict(s) for s in shards], "done": done, "finished": finished}
    text = np.frombuffer(json.dumps(table).encode(), np.uint8)
    with replacing(path) as beside, beside.open("wb") as file:
        np.savez(file, table=text, waiting=waiting, counts=counts)


def _resume(path: Path, work: Path, packer: Packer) -> tuple[list[Shard], int, bool]:
    """Return the finished shards, the number of batches they contain, and whether the split is complete.

    If anything is missing or damaged, the split starts again.
    """
    if not path.is_file():
        return [], 0, False
    try:
        with np.load(path, allow_pickle=False) as saved:
            table = json.loads(saved["table"].tobytes())
            waiting, counts = saved["waiting"], saved["counts"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return [], 0, False
    shards = [Shard(**shard) for shard in table["shards"]]
    for shard in shards:
        file = work / shard.name
        if not file.is_file() or file.stat().st_size != shard.bytes or sha256_of(file) != shard.sha256:
            return [], 0, False
    packer.restore(table["totals"], waiting, counts)
    return shards, table["done"], table["finished"]


def write_shard(path: Path, rows: NDArray[Any], block: int) -> Shard:
    """Write sequences [rows, L] as one shard; the same sequences give the same bytes.

    Raises:
        UserError: when it cannot be written, as on a full disk.
    """
    with replacing(path) as beside, tarfile.open(beside, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for number, start in enumerate(range(0, len(rows), block)):
            member = io.BytesIO()
            np.save(member, np.ascontiguousarray(rows[start : start + block]), allow_pickle=False)
            info = tarfile.TarInfo(f"{number:06d}.npy")  # time, owner and group are 0
            info.size = member.tell()
            member.seek(0)
            tar.addfile(info, member)
    return Shard(name=path.name, sequences=len(rows), bytes=path.stat().st_size, sha256=sha256_of(path))


def read_shard(path: Path, rows: int, length: int, dtype: str, sha256: str | None = None) -> NDArray[Any]:
    """Return the sequences of a shard, [rows, L], read through webdataset; its hash is checked if given.

    Raises:
        UserError: when the shard is damaged, with advice.
    """
    # Read at import: webdataset's `pipe:` addresses must never run a shell here.
    os.environ.setdefault("WDS_SECURE", "1")
    from webdataset.tariterators import group_by_keys, tar_file_expander

    def blocks() -> Iterator[NDArray[Any]]:
        # Opened here and not by webdataset, which would treat a name with ':' or '#' as an address.
        with path.open("rb") as stream:
            for sample in group_by_keys(tar_file_expander([{"url": path.name, "stream": stream}])):
                yield np.load(io.BytesIO(sample["npy"]), allow_pickle=False)

    try:
        if sha256 is not None and sha256_of(path) != sha256:
            raise ValueError("its SHA-256 is not the manifest's")
        rows_read: NDArray[Any] = np.concatenate(list(blocks()))
    except (OSError, EOFError, ValueError, KeyError, tarfile.TarError) as error:
        raise UserError(broken(path, str(error.args[0]) if error.args else type(error).__name__)) from None
    if rows_read.shape != (rows, length) or rows_read.dtype != np.dtype(dtype):
        holds = f"{rows_read.dtype} {list(rows_read.shape)}"
        raise UserError(broken(path, f"it holds {holds}, not {dtype} [{rows}, {length}]"))
    return rows_read
