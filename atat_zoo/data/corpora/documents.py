"""The documents of one file: plain text, or the texts of rows, told by the suffix; and dialogues."""

import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from atat_zoo.data.corpora.boundaries import Boundary
from atat_zoo.data.corpora.packing import PACKED, UTF8, suffix, unpacked
from atat_zoo.data.corpora.rows import CSV, JSON, TABLES, Missing, columns_of, rows_in, rows_of, text_of
from atat_zoo.data.digests import unreadable
from atat_zoo.data.tokenizers.dialogues import KEYS, messages_of, to_text
from atat_zoo.errors import UserError, nearest
from atat_zoo.system.machine import memory

SUFFIXES = (".txt", *JSON, *CSV, *TABLES)  # of the files that are read of a folder, compressed or not
_UNPACKED = 64 << 20  # characters that a document may have in a compressed file of any size
_RATIO = 100  # characters in a byte beyond that: more than any text has
_BEGINNING = 8 << 20  # bytes of text that tell how much is in a file


def package(path: Path) -> tuple[str, str] | None:
    """Return the optional package that reading a file needs, and how it is installed; None where it needs none."""
    if suffix(path) in TABLES:
        return "pyarrow", "atat-zoo[parquet]"
    return ("zstandard", "atat-zoo[zstd]") if path.suffix.lower() == ".zst" else None


def documents(
    path: Path, boundary: Boundary, field: str, missing: Missing, stream: IO[bytes] | None = None
) -> Iterator[str]:
    """Yield the documents of a file in their order, empty ones included.

    `field` is the key or the column of the text in rows: its exact name, or a.b for a nested key; `stream` is the open
    file, to see how far it is read.
    """

    def columns(there: list[str]) -> list[str]:
        if not (found := columns_of(field, there)):
            raise UserError(
                f"corpus.text_field: {path} has no column {field!r}{nearest(field, there)}; "
                "set corpus.text_field to the column of the text"
            )
        return found

    def read(value: Any, position: str) -> str:
        return text_of(value, field, position)

    if suffix(path) in (".tar", ".tgz"):
        raise UserError(f'corpus: {path} is an archive; unpack it, or set corpus.use = "webdataset" for one of samples')
    with _readable(path) as most:
        if suffix(path) not in (*JSON, *CSV, *TABLES):
            with stream or path.open("rb") as raw, unpacked(path, raw) as content:
                file = io.TextIOWrapper(content, encoding=UTF8)  # closed with what it reads
                yield from boundary.documents(file, most)
            return
        for text in missing.texts(rows_of(path, columns, most, field, stream), read):
            if len(text) > most:
                raise MemoryError
            yield text


def dialogues(path: Path) -> Iterator[str]:
    """Yield the dialogues of a file of JSON, Parquet or Arrow in their order; see `Corpus.dialogues`."""
    if suffix(path) not in (*JSON, *TABLES):
        raise UserError(f"corpus: {path} has no dialogues, which are in .jsonl, .json, .parquet or .arrow; convert it")
    with _readable(path) as most:
        for position, row in rows_of(path, lambda there: [key for key in KEYS if key in there], most):
            text = dialogue_of(row, position)
            if len(text) > most:
                raise MemoryError
            yield text


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
    except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError) as error:
        raise UserError(f"corpus: {path} cannot be decompressed ({error}); it may be cut off") from None
    except OSError as error:
        if not error.errno:  # of bz2
            raise UserError(f"corpus: {path} cannot be decompressed ({error}); it may be cut off") from None
        raise unreadable(path, error) from None
    except MemoryError:
        raise UserError(
            f"corpus: {path} has a document of more than {most:,} characters, more than this machine or a "
            "compressed text of its size can hold; "
            'set corpus.document = "paragraph" or "line", cut it into documents, or write JSON as lines'
        ) from None


def text_in(path: Path, boundary: Boundary, field: str, missing: Missing) -> float:
    """Return roughly how many bytes of documents a byte of a file stands for, by its beginning."""
    size, whole = 0, max(1, path.stat().st_size)
    with path.open("rb") as raw:
        for number, text in enumerate(documents(path, boundary, field, missing, raw), 1):
            size += len(text.encode())
            if size > _BEGINNING:
                rows = rows_in(path)  # of a table of columns, where what is read lies in many places
                return size / (raw.tell() if rows is None else whole * number / rows)
    return size / whole


def _most(path: Path) -> int:
    """Return how many characters a document of a file may have."""
    # A character takes up to four bytes, while it is read twice that, and the shuffling holds documents too.
    most = memory() // 16
    return min(most, max(_UNPACKED, path.stat().st_size * _RATIO)) if path.suffix.lower() in PACKED else most
