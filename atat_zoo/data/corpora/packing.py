"""Files that are compressed, by their suffix, and the suffix of what is in them."""

import bz2
import gzip
import io
import lzma
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from atat_zoo.errors import UserError

PACKED = (".gz", ".zst", ".bz2", ".xz")
UTF8 = "utf-8-sig"  # the encoding of text, without a byte order mark at the start
_OPENERS: dict[str, Any] = {".gz": gzip.open, ".tgz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_PIECE = 1 << 12  # bytes decompressed at once: a frame can make 128 KiB of four of them


def suffix(path: Path) -> str:
    """Return the suffix that tells the format, in lower case: that before `.gz`, `.zst`, `.bz2` or `.xz`."""
    name = path.with_suffix("") if path.suffix.lower() in PACKED else path
    return name.suffix.lower()


@contextmanager
def unpacked(path: Path, raw: IO[bytes]) -> Iterator[IO[bytes]]:
    """Open what an open file holds, decompressed by its suffix."""
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
            raise UserError(f"corpus: {path} needs zstandard; run `pip install atat-zoo[zstd]`") from None
        try:
            yield io.BufferedReader(_Frames(raw, zstandard.ZstdDecompressor().decompressobj))
        except zstandard.ZstdError as error:
            raise EOFError(error) from None
    else:
        yield raw


class _Frames(io.RawIOBase):
    """What the frames of a Zstandard file hold; the library's own reader does not say that the last one has no end."""

    # pyarrow's says so, but is ten times the package; Python 3.14 has `compression.zstd.open`, which can replace this.

    def __init__(self, file: IO[bytes], begin: Callable[[], Any]) -> None:
        self.file, self.begin, self.frame = file, begin, begin()
        self.packed, self.text = b"", memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.text:
            packed = self.packed or self.file.read(_PIECE)
            if not packed and not self.frame.eof:
                raise EOFError("its last frame has no end")
            if not packed:
                return 0
            if self.frame.eof:
                self.frame = self.begin()
            self.text, self.packed = memoryview(self.frame.decompress(packed)), self.frame.unused_data
        size = min(len(buffer), len(self.text))
        buffer[:size], self.text = self.text[:size], self.text[size:]
        return size
