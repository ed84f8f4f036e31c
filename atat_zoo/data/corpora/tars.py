"""The members of a tar archive: all of them, or an error that says where the archive is damaged.

`tarfile`, and webdataset with it, takes a damaged header for the end of the archive: what follows would be lost. Joined
archives, as `cat a.tar b.tar` makes them, are read one after the other.
"""

import bz2
import gzip
import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import IO, Any, Self, cast

from typing_extensions import override

#: What reading a damaged archive raises, besides an `OSError` without a number.
DAMAGED = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError)
_errors: Any = tarfile  # whose stubs lack some of them
_NAMES = (b"L", b"K", b"x", b"g", b"X")  # types of members that hold the name or the attributes of the next one
_LARGEST = 1 << 20  # bytes of a name and its attributes
_PACKED: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}


class _Header(tarfile.TarInfo):
    """A header of which damage is an error anywhere in an archive."""

    @classmethod
    @override
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        found = super().frombuf(buf, encoding, errors)
        if found.size < 0 or (found.type in _NAMES and found.size > _LARGEST):
            raise tarfile.HeaderError(f"a size of {found.size:,} bytes")
        if found.type == tarfile.GNUTYPE_SPARSE:  # its maps may go on for ever
            raise tarfile.HeaderError("a sparse file")
        return found

    @classmethod
    @override
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> Self:
        tar = cast(_Archive, tarfile_)
        try:
            found = super().fromtarfile(tar)
        except _errors.EOFHeaderError:  # zeros, after which another archive may follow
            tar.ended = True
            raise
        except (_errors.EmptyHeaderError, _errors.TruncatedHeaderError) as error:
            if tar.ended and isinstance(error, _errors.EmptyHeaderError):
                raise
            raise tarfile.ReadError("it has no end of an archive; it may be cut off") from None
        except (tarfile.HeaderError, ValueError, RecursionError) as error:
            raise tarfile.ReadError(f"its header at byte {tar.offset:,} is damaged: {error}") from None
        tar.ended = False
        return found


class _Archive(tarfile.TarFile):
    tarinfo = _Header
    ended = False  # whether the last header was one of zeros, which ends an archive


def members(stream: IO[bytes]) -> Iterator[tuple[str, Callable[[], IO[bytes]]]]:
    """Yield the name of each member of a tar stream but its folders, and what opens it until the next one.

    The stream may be compressed by gzip, bzip2 or xz.

    Raises:
        tarfile.TarError: where a header is damaged, or the archive ends too early.
    """
    start: bytes = cast(Any, stream).peek(6)
    opener = next((opener for magic, opener in _PACKED.items() if start.startswith(magic)), None)
    with _Archive.open(fileobj=opener(stream) if opener else stream, mode="r|", ignore_zeros=True) as tar:
        while (member := tar.next()) is not None:
            if not member.isdir():
                yield member.name, partial(_opened, tar, member)
            cast(Any, tar).members = []  # it would keep all of them


def _opened(tar: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    if not member.isreg() or member.issparse():
        kind = "a sparse file" if member.isreg() else "a link or a device"
        raise tarfile.ReadError(f"{member.name} is {kind}; pack it with --hard-dereference and without --sparse")
    return cast(IO[bytes], tar.extractfile(member))
