"""Shards → sequences: single rows from where they lie in the file, or all of them.

A shard is an uncompressed tar of uncompressed arrays, whose positions follow from the manifest: rows are read in any
order, and nothing of the shard stays in memory. A file that is laid out otherwise is refused, whatever it holds.

L: tokens in a sequence; V: tokens in the vocabulary.
"""

from __future__ import annotations

import io
import os
import tarfile
import weakref
import zlib
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from atat_zoo.data import remote
from atat_zoo.data.manifest import broken
from atat_zoo.data.pack import pad_of
from atat_zoo.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from atat_zoo.data.manifest import Shard, ShardManifest

_AT_ONCE = 1 << 30  # bytes that are read at once; Linux reads no more than twice as many


class ShardRows:
    """The rows of a shard, one by one, after checking its hash in one pass; the file is closed with this object.

    Args:
        folder: the folder of the shard.
        contents: the folder's manifest.
        shard: its entry there.
        skip: whether what is damaged is left out; then a row of a damaged member is padding alone. Of a shard that is
            changed, the members with their own checksum are used.

    Raises:
        UserError: when the shard is damaged and `skip` is not set, or it cannot be fetched.
    """

    def __init__(self, folder: Path, contents: ShardManifest, shard: Shard, *, skip: bool = False) -> None:
        self.path, self.skip = folder / shard.name, skip
        self.size, self.pad = contents.vocabulary_size, pad_of(contents.dtype)
        self.block = min(contents.block, shard.sequences)
        self.width = contents.length * np.dtype(contents.dtype).itemsize
        self.members: list[int | None] = [None] * -(-shard.sequences // self.block)  # where the first row of each is
        try:
            file, whole = _open(folder, shard)
            weakref.finalize(self, file.close)
            self.file = file.fileno()
            if not whole:
                self._refuse("its SHA-256 is not the manifest's")
            position = tarfile.BLOCKSIZE
            for number in range(len(self.members)):
                rows = min(self.block, shard.sequences - number * self.block)
                header = _header(contents, rows)
                size = len(header) + rows * self.width
                data = os.pread(self.file, len(header) if whole else size, position)
                if data.startswith(header) and (whole or shard.crc32[number : number + 1] == (zlib.crc32(data),)):
                    self.members[number] = position + len(header)
                else:
                    self._refuse(f"its member {number:06d}.npy is not what the manifest says")
                position += (1 - -size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
            if whole and position - tarfile.BLOCKSIZE > os.fstat(self.file).st_size:
                self._refuse("it ends too early")
        except OSError as error:
            self._refuse(error.strerror or str(error))

    def read(self, row: int, out: NDArray[Any]) -> None:
        """Read a row into an array of the stored type, [L], or rows of a member, [n, L], into one.

        Where a row is damaged and skipped, the array has padding alone.
        """
        number, inside = divmod(row, self.block)
        first = self.members[number]
        if first is not None:
            why = "it ends too early"
            try:
                if os.preadv(self.file, [out.data], first + inside * self.width) == out.nbytes:
                    if np.maximum.reduce(out, axis=None) < self.size:
                        return
                    strange = out[(out >= self.size) & (out != self.pad)]
                    if not len(strange):
                        return
                    why = f"it holds the token {strange[0]}, and the vocabulary has {self.size}"
            except OSError as error:
                why = error.strerror or str(error)
            self._refuse(why)
        out.fill(self.pad)

    def _refuse(self, why: str) -> None:
        if not self.skip:
            raise UserError(broken(self.path, why))


def read(folder: Path, contents: ShardManifest, shard: Shard) -> NDArray[Any]:
    """Return the sequences of a shard of a folder, [rows, L], after checking its hash and its tokens.

    Raises:
        UserError: when the shard is damaged, with advice, or cannot be fetched.
    """
    reader = ShardRows(folder, contents, shard)
    rows = np.empty((shard.sequences, contents.length), contents.dtype)
    step = max(1, min(reader.block, _AT_ONCE // reader.width))
    for member in range(0, shard.sequences, reader.block):
        for first in range(member, min(member + reader.block, shard.sequences), step):
            reader.read(first, rows[first : min(first + step, member + reader.block)])
    return rows


def _open(folder: Path, shard: Shard) -> tuple[IO[bytes], bool]:
    """Open a shard, fetched first if the folder is a cache, and say whether its hash is the manifest's."""
    origin = remote.origin_of(folder)
    if origin:
        return origin.open(folder, shard), True
    file = (folder / shard.name).open("rb")
    return file, remote.hash_of(file) == shard.sha256


def _header(contents: ShardManifest, rows: int) -> bytes:
    """Return what a member of so many rows begins with."""
    file = io.BytesIO()
    shape = (rows, contents.length)
    header = {"descr": np.dtype(contents.dtype).str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue()
