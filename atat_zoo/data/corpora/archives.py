"""Open compressed files according to their suffix, and read the members of tar archives.

`tarfile`, and therefore webdataset, mistakes a damaged header for the end of the archive and would lose the rest. Here,
a damaged header raises an error that names its position. Concatenated archives (`cat a.tar b.tar`) are read one after
the other.
"""

import bz2
import gzip
import io
import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, Self, cast

from typing_extensions import override

from atat_zoo.system.errors import UserError

PACKED = (".gz", ".zst", ".bz2", ".xz")
UTF8 = "utf-8-sig"  # the encoding of text, without a byte order mark at the start
_OPENERS: dict[str, Any] = {".gz": gzip.open, ".tgz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_PIECE = 1 << 12  # bytes decompressed at once; a frame can turn four bytes into 128 KiB


def suffix(path: Path) -> str:
    """Return the suffix that determines the format, in lower case, ignoring `.gz`, `.zst`, `.bz2` and `.xz`."""
    name = path.with_suffix("") if path.suffix.lower() in PACKED else path
    return name.suffix.lower()


@contextmanager
def unpacked(path: Path, raw: IO[bytes]) -> Iterator[IO[bytes]]:
    """Yield the content of the open file `raw` as a stream, decompressed according to the suffix of `path`."""
    packing = path.suffix.lower()
    if packing in PACKED:
        if not raw.read(1):
            raise EOFError("it is empty")
        raw.seek(0)
    if packing in _OPENERS:
        with _OPENERS[packing](raw) as file:
            yield cast(IO[bytes], file)
    elif packing == ".zst":
        try:
            import zstandard
        except ImportError:
            raise UserError(f"corpus: {path} needs zstandard; run `pip install 'atat-zoo[zstd]'`") from None
        try:
            yield io.BufferedReader(_Frames(raw, zstandard.ZstdDecompressor().decompressobj))
        except zstandard.ZstdError as error:
            raise EOFError(error) from None
    else:
        yield raw


class _Frames(io.RawIOBase):
    """The decompressed frames of a Zstandard file; unlike the library's reader, it reports a truncated last frame."""

    # pyarrow's reader does too, but is ten times as large a package. Python 3.14's `compression.zstd.open` can replace
    # this.

    def __init__(self, file: IO[bytes], begin: Callable[[], Any]) -> None:
        self.file, self.begin, self.frame = file, begin, begin()
        self.packed, self.text = b"", memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.text:
            packed = self.packed or self.file.read(_PIECE)
            if not packed and not self.frame.eof:
                raise EOFError("its last frame is truncated")
            if not packed:
                return 0
            if self.frame.eof:
                self.frame = self.begin()
            self.text, self.packed = memoryview(self.frame.decompress(packed)), self.frame.unused_data
        size = min(len(buffer), len(self.text))
        buffer[:size], self.text = self.text[:size], self.text[size:]
        return size


#: Exceptions raised when reading a damaged archive, besides an `OSError` without a number.
DAMAGED = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError)
_errors: Any = tarfile  # whose stubs lack some of them
_NAMES = (b"L", b"K", b"x", b"g", b"X")  # types of members that hold the name or the attributes of the next one
_LARGEST = 1 << 20  # bytes of a name and its attributes
_PACKED: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}


class _Header(tarfile.TarInfo):
    """A tar header that raises an error if it is damaged, anywhere in the archive."""

    @classmethod
    @override
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        found = super().frombuf(buf, encoding, errors)
        if found.size < 0 or (found.type in _NAMES and found.size > _LARGEST):
            raise tarfile.HeaderError(f"it declares {found.size:,} bytes")
        if found.type == tarfile.GNUTYPE_SPARSE:  # whose maps may be endless
            raise tarfile.HeaderError("it declares a sparse file")
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
            raise tarfile.ReadError("the end of the archive is missing; it may be truncated") from None
        except (tarfile.HeaderError, ValueError, RecursionError) as error:
            raise tarfile.ReadError(f"its header at byte {tar.offset:,} is damaged: {error}") from None
        tar.ended = False
        return found


class _Archive(tarfile.TarFile):
    tarinfo = _Header
    ended = False  # whether the last header was all zeros, which ends an archive


def members(stream: IO[bytes]) -> Iterator[tuple[str, Callable[[], IO[bytes]]]]:
    """Yield each file in a tar stream as its name and a function that opens it, valid until the next file is read.

    The stream may be compressed with gzip, bzip2 or xz.

    Raises:
        tarfile.TarError: if a header is damaged or the archive ends too early.
    """
    start: bytes = cast(Any, stream).peek(6)
    opener = next((opener for magic, opener in _PACKED.items() if start.startswith(magic)), None)
    with _Archive.open(fileobj=opener(stream) if opener else stream, mode="r|", ignore_zeros=True) as tar:
        while (member := tar.next()) is not None:
            if not member.isdir():
                yield member.name, partial(_opened, tar, member)
            cast(Any, tar).members = []  # otherwise it would keep all members


def _opened(tar: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    if not member.isreg() or member.issparse():
        kind = "a sparse file" if member.isreg() else "a link or a device"
        raise tarfile.ReadError(f"{member.name} is {kind}; use `tar -h --hard-dereference` without `--sparse`")
    return cast(IO[bytes], tar.extractfile(member))
