"""Sequences → WebDataset shards: tar files whose members are blocks of sequences.

A member `000000.npy` is [rows, L] in uint16 or uint32. One sequence per member
would use half of the bytes for tar headers.

A split is written in groups of C shards. After each group the state is saved beside them: the number of batches
read, the waiting tokens, the counts, the shards with their hashes. After an interruption, a build skips those batches
without encoding them again, checks the hashes, and continues.
"""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
import zlib
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from atat_zoo.data.manifest import Shard, array_of
from atat_zoo.errors import UserError
from atat_zoo.machine import require
from atat_zoo.run import sha256_of
from atat_zoo.run.atomic import replacing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from atat_zoo.data import Progress, Split
    from atat_zoo.data.pack import Encoded, Packer
    from atat_zoo.experiment.schema import DataSpec


def write_split(
    work: Path,
    split: Split,
    encoded: Callable[[int], Iterator[Encoded]],
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
        encoded: gives the batches in order, without so many at the beginning.
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
        report(split, packer.totals.characters, characters)
        for number, batch in enumerate(encoded(done), done + 1):
            if packer.full:
                break
            packer.add(batch)
            before = len(shards)
            while packer.ready >= group:
                shards += _write_group(work, split, packer.take(group), lanes, len(shards), block)
            what = f"data.sequences_per_shard = {spec.sequences_per_shard} for {lanes} lanes"
            require(packer.waiting, what, "the tokens of a group of shards", "lower it")
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
        _save(path, packer, shards, 0, finished=True)
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
        text, waiting, counts = arrays_of(path, "table", "waiting", "counts")
        table = json.loads(text.tobytes())
        shards = [Shard(**shard) for shard in table["shards"]]
        if any(not _is_whole(work / shard.name, shard) for shard in shards):
            return [], 0, False
        packer.restore(table["totals"], waiting, counts)
        return shards, table["done"], table["finished"]
    except Exception:  # whatever is wrong with it
        return [], 0, False


def arrays_of(path: Path, *names: str) -> list[NDArray[Any]]:
    """Return arrays of an `.npz` file that we wrote; raise nearly any exception if it is damaged."""
    with zipfile.ZipFile(path) as saved:
        if sum(member.file_size for member in saved.infolist()) > path.stat().st_size:
            raise ValueError("it is compressed, which we never do")
        return [array_of(saved.read(f"{name}.npy")) for name in names]


def _is_whole(path: Path, shard: Shard) -> bool:
    return path.is_file() and path.stat().st_size == shard.bytes and sha256_of(path) == shard.sha256


def write_shard(path: Path, rows: NDArray[Any], block: int) -> Shard:
    """Write sequences [rows, L] as one shard; the same sequences give the same bytes.

    Raises:
        UserError: when it cannot be written, as on a full disk.
    """
    sums = []
    with replacing(path) as beside, tarfile.open(beside, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for number, start in enumerate(range(0, len(rows), block)):
            member = io.BytesIO()
            np.save(member, np.ascontiguousarray(rows[start : start + block]), allow_pickle=False)
            info = tarfile.TarInfo(f"{number:06d}.npy")  # time, owner and group are 0
            info.size = member.tell()
            sums.append(zlib.crc32(member.getbuffer()))
            member.seek(0)
            tar.addfile(info, member)
    size, digest = path.stat().st_size, sha256_of(path)
    return Shard(name=path.name, sequences=len(rows), bytes=size, sha256=digest, crc32=tuple(sums))
