"""Sequences ↔ WebDataset shards: tar files whose members are blocks of sequences.

A member `000000.npy` is [rows, L] in uint16 or uint32. One sequence per member
would spend half of the bytes on tar headers.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import tarfile
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from atat_zoo.data.manifest import Shard
from atat_zoo.errors import UserError
from atat_zoo.run.atomic import completed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write_shard(path: Path, rows: NDArray[Any], block: int) -> Shard:
    """Write sequences [rows, L] as one shard; the same sequences give the same bytes.

    The file appears under its name only when it is complete and on the disk.

    Raises:
        UserError: when the disk is full.
    """
    with whole_file(path) as file, tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for number, start in enumerate(range(0, len(rows), block)):
            member = io.BytesIO()
            np.save(member, np.ascontiguousarray(rows[start : start + block]), allow_pickle=False)
            info = tarfile.TarInfo(f"{number:06d}.npy")  # time, owner and group are 0
            info.size = member.tell()
            member.seek(0)
            tar.addfile(info, member)
    return Shard(name=path.name, sequences=len(rows), bytes=path.stat().st_size, sha256=sha256_of(path))


def read_shard(path: Path, rows: int, length: int, dtype: str, sha256: str | None = None) -> NDArray[Any]:
    """Return the sequences of a shard, [rows, L], read through webdataset; its hash is checked where it is given.

    Raises:
        UserError: when the shard is not whole; says what to do.
    """
    # Read at import: the pipe: addresses that webdataset knows must never run a shell here.
    os.environ.setdefault("WDS_SECURE", "1")
    from webdataset.tariterators import group_by_keys, tar_file_expander

    def blocks() -> Iterator[NDArray[Any]]:
        # Opened here and not by webdataset, which would take a name with ':' or '#' for an address.
        with path.open("rb") as stream:
            for sample in group_by_keys(tar_file_expander([{"url": path.name, "stream": stream}])):
                yield np.load(io.BytesIO(sample["npy"]), allow_pickle=False)

    try:
        if sha256 is not None and sha256_of(path) != sha256:
            raise ValueError("its SHA-256 is not the manifest's")
        found: NDArray[Any] = np.concatenate(list(blocks()))
    except (OSError, EOFError, ValueError, KeyError, tarfile.TarError) as error:
        raise UserError(broken(path, str(error.args[0]) if error.args else type(error).__name__)) from None
    if found.shape != (rows, length) or found.dtype != np.dtype(dtype):
        raise UserError(broken(path, f"it holds {found.dtype} {list(found.shape)}, not {dtype} [{rows}, {length}]"))
    return found


def broken(path: Path, why: str) -> str:
    """Return the sentence about a shard that cannot be used."""
    return f"shard {path} is damaged ({why}); delete the folder {path.parent} and run `atat data build` again"


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing that appears under its name only when it is complete and on the disk.

    Raises:
        UserError: when the disk is full; nothing is left of the file.
    """
    try:
        # One process builds a folder of shards, and its next attempt writes over what this one leaves.
        with completed(path, path.with_name(f"{path.name}.tmp")) as beside, beside.open("wb") as file:
            yield file
    except OSError as error:
        if disk_full(error):
            raise UserError(
                f"{path.parent}: the disk is full ({error.strerror}); free some space and run the same command again, "
                "it continues where it was"
            ) from None
        raise


def disk_full(error: OSError) -> bool:
    """Return whether an error means that there is no more room."""
    return error.errno in _FULL


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
