"""Shards → sequences: whole shards through webdataset, or single rows from where they lie in the file.

A shard is an uncompressed tar of uncompressed arrays, whose places follow from the manifest: rows are read in any
order, and nothing of the shard stays in memory.

L: tokens in a sequence; V: tokens in the vocabulary.
"""

from __future__ import annotations

import io
import os
import re
import tarfile
import weakref
import zlib
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from atat_zoo.data import remote
from atat_zoo.data.manifest import array_of, broken
from atat_zoo.data.pack import pad_of
from atat_zoo.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from atat_zoo.data.manifest import Shard, ShardManifest

_MEMBER = re.compile(r"\d{6,}\.npy")
_CHANGED = "its SHA-256 is not the manifest's"


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
            file, whole = _opened(folder, shard)
            weakref.finalize(self, file.close)
            self.file = file.fileno()
            if not whole:
                self._refuse(_CHANGED)
            place = tarfile.BLOCKSIZE
            for number in range(len(self.members)):
                rows = min(self.block, shard.sequences - number * self.block)
                header = _header(contents, rows)
                size = len(header) + rows * self.width
                data = os.pread(self.file, len(header) if whole else size, place)
                if data.startswith(header) and (whole or shard.crc32[number : number + 1] == (zlib.crc32(data),)):
                    self.members[number] = place + len(header)
                else:
                    self._refuse(f"its member {number:06d}.npy is not what the manifest says")
                place += (1 - -size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
        except OSError as error:
            self._refuse(error.strerror or str(error))

    def read(self, row: int, out: NDArray[Any]) -> None:
        """Read a row into an array of the stored type, [L]; padding alone if it is damaged and skipped."""
        number, inside = divmod(row, self.block)
        first = self.members[number]
        if first is not None:
            why = "it ends too early"
            try:
                if os.preadv(self.file, [out.data], first + inside * self.width) == self.width:
                    if np.maximum.reduce(out) < self.size:
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
    path, size = folder / shard.name, contents.vocabulary_size
    try:
        file, whole = _opened(folder, shard)
    except OSError as error:
        raise UserError(broken(path, error.strerror or str(error))) from None
    with file:
        if not whole:
            raise UserError(broken(path, _CHANGED))
        rows = _rows(file, path, shard.sequences, contents.length, contents.dtype)
    strange = rows[(rows >= size) & (rows != pad_of(contents.dtype))]
    if len(strange):
        raise UserError(broken(path, f"it holds the token {strange[0]}, and the vocabulary has {size}"))
    return rows


def read_shard(path: Path, rows: int, length: int, dtype: str) -> NDArray[Any]:
    """Return the sequences of a shard, [rows, L], without checking its hash.

    Raises:
        UserError: when the shard is damaged, with advice.
    """
    with path.open("rb") as file:
        return _rows(file, path, rows, length, dtype)


def _opened(folder: Path, shard: Shard) -> tuple[IO[bytes], bool]:
    """Open a shard, fetched first if the folder is a cache, and say whether its hash is the manifest's."""
    origin = remote.origin_of(folder)
    if origin:
        return origin.opened(folder, shard), True
    file = (folder / shard.name).open("rb")
    return file, remote.hash_of(file) == shard.sha256


def _header(contents: ShardManifest, rows: int) -> bytes:
    """Return what a member of so many rows begins with."""
    file = io.BytesIO()
    shape = (rows, contents.length)
    header = {"descr": np.dtype(contents.dtype).str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue()


def _rows(stream: IO[bytes], path: Path, rows: int, length: int, dtype: str) -> NDArray[Any]:
    """Read a whole shard through webdataset; the path is for messages."""
    # Read at import: webdataset's `pipe:` addresses must never run a shell here.
    os.environ.setdefault("WDS_SECURE", "1")
    from webdataset.tariterators import group_by_keys, tar_file_expander

    try:
        # Opened here and not by webdataset, which would treat a name with ':' or '#' as an address.
        _check_members(stream)
        samples = group_by_keys(tar_file_expander([{"url": path.name, "stream": stream}]))
        rows_read: NDArray[Any] = np.concatenate([array_of(sample["npy"]) for sample in samples])
    except Exception as error:  # damaged headers make tarfile and numpy raise nearly anything
        raise UserError(broken(path, str(error.args[0]) if error.args else type(error).__name__)) from None
    if rows_read.shape != (rows, length) or rows_read.dtype != np.dtype(dtype):
        holds = f"{rows_read.dtype} {list(rows_read.shape)}"
        raise UserError(broken(path, f"it holds {holds}, not {dtype} [{rows}, {length}]"))
    return rows_read


def _check_members(stream: IO[bytes]) -> None:
    """Check that a tar file is as `write_shard` wrote it, up to its contents, and go back to its beginning.

    Other members, like links, sparse or compressed ones, could ask for more memory than the file has bytes.
    """
    end = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    while (header := stream.read(tarfile.BLOCKSIZE)).strip(b"\0"):
        member = tarfile.TarInfo.frombuf(header, "utf-8", "strict")
        place = stream.tell()
        if not _MEMBER.fullmatch(member.name) or member.type != tarfile.REGTYPE or not 0 <= member.size <= end - place:
            raise ValueError(f"there is a strange member {member.name!r} in it")
        stream.seek(place + -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE)
    stream.seek(0)
