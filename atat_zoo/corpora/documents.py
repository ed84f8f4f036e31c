"""The documents of one file: plain text, JSON lines, CSV or Parquet, told by the suffix; and dialogues."""

import csv
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from atat_zoo.corpora.boundaries import Boundary, lines
from atat_zoo.data.digests import unreadable
from atat_zoo.errors import UserError, nearest
from atat_zoo.machine import memory
from atat_zoo.tokenizers.dialogues import KEYS, messages_of, to_text

_JSON = (".jsonl", ".ndjson")
_CSV = {".csv": ",", ".tsv": "\t"}
_PARQUET = ".parquet"
_PACKED = (".gz", ".zst")
_UTF8 = "utf-8-sig"  # without a byte order mark at the start
_UNPACKED = 64 << 20  # characters that a document may have in a compressed file of any size
_RATIO = 100  # characters in a byte beyond that: more than any text has
_BEGINNING = 8 << 20  # bytes of text that tell how much is in a file
_PIECE = 1 << 12  # bytes decompressed at once: a frame can make 128 KiB of four of them
_ROWS = 256  # of a Parquet file, read at once


def suffix(path: Path) -> str:
    """Return the suffix that tells the format, in lower case: that before `.gz` or `.zst`."""
    name = path.with_suffix("") if path.suffix in _PACKED else path
    return name.suffix.lower()


def package(path: Path) -> tuple[str, str] | None:
    """Return the optional package that reading a file needs, and how it is installed; None where it needs none."""
    if suffix(path) == _PARQUET:
        return "pyarrow", "atat-zoo[parquet]"
    return ("zstandard", "atat-zoo[zstd]") if path.suffix == ".zst" else None


def documents(path: Path, boundary: Boundary, field: str, stream: IO[bytes] | None = None) -> Iterator[str]:
    """Yield the documents of a file in their order, empty ones included.

    `field` is the key of the text in JSON lines and Parquet, a.b for a nested key, or its column in CSV; `stream` is
    the open file, to see how far it is read.
    """

    def columns(there: list[str]) -> list[str]:
        first = field.partition(".")[0]
        if first not in there:
            raise UserError(
                f"corpus.text_field: {path} has no column {first!r}{nearest(first, there)}; "
                "set corpus.text_field to the column of the text"
            )
        return [first]

    def read(value: Any, position: str) -> str:
        return text_of(value, field, position)

    with _readable(path) as most:
        if suffix(path) == _PARQUET:
            yield from _parquet(path, columns, read, most)
            return
        with stream or path.open("rb") as raw, unpacked(path, raw) as content:
            file = io.TextIOWrapper(content, encoding=_UTF8)
            if suffix(path) in _JSON:
                yield from _json(path, file, read, most)
            elif suffix(path) in _CSV:
                yield from _csv(path, file, field, most)
            else:
                yield from boundary.documents(file, most)


def dialogues(path: Path) -> Iterator[str]:
    """Yield the dialogues of a file of JSON lines or Parquet in their order; see `Corpus.dialogues`."""
    with _readable(path) as most:
        if suffix(path) == _PARQUET:
            yield from _parquet(path, lambda there: [key for key in KEYS if key in there], dialogue_of, most)
        elif suffix(path) in _JSON:
            with path.open("rb") as raw, unpacked(path, raw) as content:
                file = io.TextIOWrapper(content, encoding=_UTF8)  # closed with what it reads
                yield from _json(path, file, dialogue_of, most)
        else:
            raise UserError(f"corpus: {path} has no dialogues, which are in .jsonl, .ndjson or .parquet; convert it")


def dialogue_of(value: Any, position: str) -> str:
    """Return a dialogue as a text; its position, a line or a row of a file, is for messages."""
    try:
        return to_text(messages_of(value), position)
    except ValueError as error:
        raise UserError(f"corpus: {position} {error}") from None


@contextmanager
def _readable(path: Path) -> Iterator[int]:
    """Give how many characters a document of a file may have, and make a sentence of what goes wrong in reading it."""
    most = 0
    try:
        most = _most(path)
        yield most
    except UnicodeDecodeError as error:
        raise UserError(f"corpus: {path} is not UTF-8 text ({error.reason}); convert it") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"corpus: {path} cannot be decompressed ({error}); it may be cut off") from None
    except OSError as error:
        raise unreadable(path, error) from None
    except MemoryError:
        raise UserError(
            f"corpus: {path} has a document of more than {most:,} characters, more than this machine or a "
            "compressed text of its size can hold; "
            'set corpus.document = "paragraph" or "line", or cut it into documents'
        ) from None


def text_in(path: Path, boundary: Boundary, field: str) -> float | None:
    """Return roughly how many bytes of documents a byte of a file stands for, by its beginning; None for Parquet."""
    if suffix(path) == _PARQUET:
        return None
    size = 0
    with path.open("rb") as raw:
        for text in documents(path, boundary, field, raw):
            size += len(text.encode())
            if size > _BEGINNING:
                return size / raw.tell()
    return size / max(1, path.stat().st_size)


@contextmanager
def unpacked(path: Path, raw: IO[bytes]) -> Iterator[IO[bytes]]:
    """Open what an open file holds, decompressed by its suffix."""
    if path.suffix in _PACKED and not path.stat().st_size:
        raise EOFError("it is empty")
    if path.suffix in (".gz", ".tgz"):
        with gzip.GzipFile(fileobj=raw) as file:
            yield cast(IO[bytes], file)
    elif path.suffix == ".zst":
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


def _json(path: Path, file: IO[str], read: Callable[[Any, str], str], most: int) -> Iterator[str]:
    for number, line in enumerate(lines(file, most), 1):
        if line.strip():
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise UserError(f"corpus: {path}, line {number} is not JSON ({error})") from None
            yield read(value, f"{path}, line {number}")


def _csv(path: Path, file: IO[str], field: str, most: int) -> Iterator[str]:
    size = 0

    def limited() -> Iterator[str]:
        nonlocal size
        for line in lines(file, most):
            size += len(line)
            if size > most:  # a quoted cell may go on for ever
                raise MemoryError
            yield line

    # Python's own limit is for all readers of the process.
    csv.field_size_limit(max(csv.field_size_limit(), most))
    rows = csv.reader(limited(), delimiter=_CSV[suffix(path)], strict=True)
    column = None
    try:
        for row in rows:
            size = 0
            if column is None and field not in row:
                raise UserError(
                    f"corpus.text_field: {path} has no column {field!r}{nearest(field, row)} in its first line; set "
                    "corpus.text_field to the column of the text, or write the names of the columns above them"
                )
            if column is None:
                column = row.index(field)
            elif len(row) > column:
                yield row[column]
            elif row:
                raise UserError(f"corpus: {path}, line {rows.line_num} has no {field!r}: it ends before that column")
    except csv.Error as error:
        raise UserError(f"corpus: {path}, line {rows.line_num} is not CSV ({error}); mend it") from None


def _parquet(
    path: Path, columns: Callable[[list[str]], list[str]], read: Callable[[Any, str], str], most: int
) -> Iterator[str]:
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise UserError(f"corpus: {path} needs pyarrow; run `pip install 'atat-zoo[parquet]'`") from None
    if path.suffix in _PACKED:
        raise UserError(f"corpus: {path} is compressed, as a Parquet file is within itself; decompress it")
    number = 0
    try:
        with parquet.ParquetFile(path, memory_map=True) as file:
            wanted = columns(file.schema_arrow.names)
            for batch in file.iter_batches(_ROWS, columns=wanted or None):
                for row in batch.to_pylist():
                    number += 1
                    text = read(row, f"{path}, row {number}")
                    if len(text) > most:
                        raise MemoryError
                    yield text
    except arrow.ArrowException as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"corpus: {path} cannot be read as Parquet ({reason}); it may be cut off") from None


def text_of(value: Any, field: str, position: str) -> str:
    """Return the text of an object; its position, a line or a row of a file, is for messages."""
    for key in field.split("."):
        if not isinstance(value, dict) or key not in value:
            hint = nearest(key, list(value)) if isinstance(value, dict) else ""
            raise UserError(
                f"corpus.text_field: {position} has no {field!r}{hint}; set corpus.text_field to the key of the text"
            )
        value = value[key]
    if not isinstance(value, str):
        raise UserError(f"corpus.text_field: {position}: {field!r} is no text: {value!r:.60}")
    if value.isascii():
        return value
    # JSON can contain half of a surrogate pair, but UTF-8 cannot.
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _most(path: Path) -> int:
    """Return how many characters a document of a file may have."""
    # A character takes up to four bytes, while it is read twice that, and the shuffling holds documents too.
    most = memory() // 16
    return min(most, max(_UNPACKED, path.stat().st_size * _RATIO)) if path.suffix in _PACKED else most


class _Frames(io.RawIOBase):
    """What the frames of a Zstandard file hold; the library's own reader does not say that the last one has no end."""

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
