"""Read and write WebDataset shards: uncompressed tar files whose members are blocks of sequences.

A member such as `000000.npy` is an array [rows, L] of uint16 or uint32. With one sequence per member, headers would
take up half of the file.

A split is written in groups of shards, one per lane. After each group, the state is saved in the same folder: the
number of batches read, the tokens not yet written, the token counts, and the shards with their hashes. A resumed build
checks the hashes, skips these batches without encoding them again, and continues.

The manifest determines the position of each row in the file, so rows can be read in any order without keeping shards
in memory. A file with a different layout is rejected.
"""

import io
import json
import os
import tarfile
import weakref
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from atat_zoo.data import Progress, Split, downloads
from atat_zoo.data.sequence_packing import IDS, Encoded, Packer, pad_of
from atat_zoo.data.shard_manifest import Shard, ShardManifest, array_of, broken
from atat_zoo.experiment.runs import sha256_of
from atat_zoo.experiment.schema import DataSpec
from atat_zoo.system.atomic_files import replacing
from atat_zoo.system.errors import UserError
from atat_zoo.system.machine import require

_AT_ONCE = 1 << 30  # bytes read at once; Linux reads at most twice as many


def write_split(
    work: Path,
    split: Split,
    encoded: Callable[[int], Iterator[Encoded]],
    packer: Packer,
    spec: DataSpec,
    report: Progress,
    characters: int | None,
) -> list[Shard]:
    """Write the shards of a split, except those that an unfinished build has already written, and return all of them.

    Let C be `spec.lanes` for the training split and 1 for the others. Shards are written in groups of C. Each shard has
    `spec.sequences_per_shard` sequences, except in the last group, which has C smaller shards, or only one if fewer
    than C sequences are left.

    `encoded(start)` yields the batches in order, starting with number `start`; `characters` is the number of characters
    in the split, if known. `packer` must be new; afterwards, its `totals` and `counts` are those of the split. Training
    text that yields fewer than C sequences raises a `UserError`.
    """
    lanes = spec.lanes if split == "train" else 1
    path = work / f"{split}.state.npz"
    shards, done, finished = _resume(path, work, packer)
    if finished:
        return shards
    group = lanes * spec.sequences_per_shard

    def write(rows: NDArray[Any], count: int) -> None:
        """Write rows as `count` shards whose sizes differ by at most one."""
        for part in np.array_split(rows, count):
            shards.append(write_shard(work / f"{split}-{len(shards):06d}.tar", part, spec.sequences_per_member))

    report(split, packer.totals.characters, characters)
    for number, batch in enumerate(encoded(done), done + 1):
        if packer.full:
            break
        packer.add(batch)
        before = len(shards)
        while packer.ready >= group:
            write(packer.take(group), lanes)
        what = f"data.sequences_per_shard = {spec.sequences_per_shard} for {lanes} lanes"
        require(packer.waiting, what, "the tokens of a group of shards", "lower it")
        if len(shards) > before:
            _save(path, packer, shards, number, finished=False)
        report(split, packer.totals.characters, characters)
    rows = np.concatenate([packer.take(packer.ready), packer.finish()]) if packer.ready else packer.finish()
    if not shards and len(rows) < lanes and split == "train":
        if left := packer.totals.left_out(packer.length):
            longer = (
                f"set data.length = {packer.totals.needed}" if packer.totals.needed else "use dialogues with answers"
            )
            raise UserError(f"corpus.train: {left}; {longer}")
        raise UserError(
            f"the training text yields {len(rows)} sequences of data.length = {packer.length}, fewer than "
            f"data.lanes = {lanes}; use more text, or lower data.length or data.lanes"
        )
    if len(rows):
        write(rows, lanes if len(rows) >= lanes else 1)
    _save(path, packer, shards, 0, finished=True)
    return shards


def _save(path: Path, packer: Packer, shards: list[Shard], done: int, *, finished: bool) -> None:
    totals, waiting, counts = packer.state()
    table = {"totals": totals, "shards": [attrs.asdict(s) for s in shards], "done": done, "finished": finished}
    save_arrays(path, table=np.frombuffer(json.dumps(table).encode(), np.uint8), waiting=waiting, counts=counts)


def _resume(path: Path, work: Path, packer: Packer) -> tuple[list[Shard], int, bool]:
    """Return a split's finished shards, batches read and completeness; nothing finished if a shard is damaged."""
    with suppress(Exception):  # a missing or damaged file may raise any exception
        text, waiting, counts = arrays_of(path, "table", "waiting", "counts")
        table = json.loads(text.tobytes())
        shards = [Shard(**shard) for shard in table["shards"]]
        paths = {work / shard.name: shard for shard in shards}
        if all(path.stat().st_size == s.bytes and sha256_of(path) == s.sha256 for path, s in paths.items()):
            packer.restore(table["totals"], waiting, counts)
            return shards, table["done"], table["finished"]
    return [], 0, False


def save_arrays(path: Path, **arrays: Any) -> None:
    """Write arrays to an `.npz` file, for `arrays_of`."""
    with replacing(path) as beside, beside.open("wb") as file:
        np.savez(file, **arrays)


def arrays_of(path: Path, *names: str) -> list[NDArray[Any]]:
    """Return the arrays from an `.npz` file written by `save_arrays`; a damaged file may raise any exception."""
    with zipfile.ZipFile(path) as saved:
        if sum(member.file_size for member in saved.infolist()) > path.stat().st_size:
            raise ValueError("it is compressed, but must not be")
        return [array_of(saved.read(f"{name}.npy")) for name in names]


def write_shard(path: Path, rows: NDArray[Any], block: int) -> Shard:
    """Write sequences [rows, L] as a shard with members of `block` rows, always the same bytes; return a `Shard`."""
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


class ShardRows:
    """A reader of single rows of a shard, whose hash is checked when the reader is created.

    A damaged shard raises a `UserError`. With `skip`, it does not: members with a correct checksum are used, and the
    rows of damaged members consist entirely of padding. The file is closed when this object is deleted.
    """

    def __init__(self, folder: Path, contents: ShardManifest, shard: Shard, *, skip: bool = False) -> None:
        self.path, self.skip = folder / shard.name, skip
        self.size, self.pad, self.chat = contents.vocabulary_size, pad_of(contents.dtype), contents.form == "chat"
        self.block = min(contents.block, shard.sequences)
        self.width = contents.length * np.dtype(contents.dtype).itemsize
        self.members: list[int | None] = [None] * -(-shard.sequences // self.block)  # position of each one's first row
        try:
            origin = downloads.origin_of(folder)  # of a cache, which has checked the hash
            file: Any = origin.open(folder, shard) if origin else self.path.open("rb")
            weakref.finalize(self, file.close)
            self.file = file.fileno()
            whole = origin is not None or downloads.hash_of(file) == shard.sha256
            if not whole:
                self._refuse("its SHA-256 differs from the manifest")
            position = tarfile.BLOCKSIZE
            for number in range(len(self.members)):
                rows = min(self.block, shard.sequences - number * self.block)
                header = _header(contents, rows)
                size = len(header) + rows * self.width
                data = os.pread(self.file, len(header) if whole else size, position)
                if data.startswith(header) and (whole or shard.crc32[number : number + 1] == (zlib.crc32(data),)):
                    self.members[number] = position + len(header)
                else:
                    self._refuse(f"its member {number:06d}.npy differs from the manifest")
                position += (1 - -size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
            if whole and position - tarfile.BLOCKSIZE > os.fstat(self.file).st_size:
                self._refuse("it is truncated")
        except OSError as error:
            self._refuse(error.strerror or str(error))

    def read(self, row: int, out: NDArray[Any]) -> None:
        """Read a row into `out`, an array [L] of the stored dtype, or n rows of one member into an array [n, L].

        A damaged row raises a `UserError` or, with `skip`, consists entirely of padding.
        """
        number, inside = divmod(row, self.block)
        first = self.members[number]
        if first is not None:
            why = "it is truncated"
            try:
                if os.preadv(self.file, [out.data], first + inside * self.width) == out.nbytes:
                    ids = out & IDS if self.chat else out
                    if np.maximum.reduce(ids, axis=None) < self.size:
                        return
                    strange = ids[(ids >= self.size) & (out != self.pad)]
                    if not len(strange):
                        return
                    why = f"it contains the token {strange[0]}, but the vocabulary has {self.size}"
            except OSError as error:
                why = error.strerror or str(error)
            self._refuse(why)
        out.fill(self.pad)

    def _refuse(self, why: str) -> None:
        if not self.skip:
            raise UserError(broken(self.path, why))


def read(folder: Path, contents: ShardManifest, shard: Shard) -> NDArray[Any]:
    """Return the sequences [rows, L] of a shard in a folder; raise a `UserError` if its hash or a token is wrong."""
    reader = ShardRows(folder, contents, shard)
    rows = np.empty((shard.sequences, contents.length), contents.dtype)
    step = max(1, min(reader.block, _AT_ONCE // reader.width))
    for member in range(0, shard.sequences, reader.block):
        for first in range(member, min(member + reader.block, shard.sequences), step):
            reader.read(first, rows[first : min(first + step, member + reader.block)])
    return rows


def _header(contents: ShardManifest, rows: int) -> bytes:
    """Return the header of a member with a given number of rows."""
    file = io.BytesIO()
    header = {"descr": np.dtype(contents.dtype).str, "fortran_order": False, "shape": (rows, contents.length)}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue()
