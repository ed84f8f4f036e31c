"""Read the documents or dialogues in a file, which contains plain text or records depending on its suffix.

The standard library and pyarrow read the records. The streaming reader of `datasets` 5.2 is not used: without raising
an error, it changes texts that look like dates, reads a truncated `.zst` as if it were complete, loses or swaps texts
in CSV rows with an extra cell, and finds no rows in a file with `[` in its name. It also rejects JSON in which a column
changes its type after some megabytes.
"""

import csv
import gzip
import io
import json
import lzma
import re
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, Any, Literal, TypeVar, cast

import attrs

from atat_zoo.data.corpora.archives import PACKED, UTF8, suffix, unpacked
from atat_zoo.data.corpora.boundaries import Boundary, lines, up_to
from atat_zoo.data.dialogues import KEYS, messages_of, to_text
from atat_zoo.system.digests import unreadable
from atat_zoo.system.errors import Note, UserError, clip, nearest
from atat_zoo.system.machine import memory

T = TypeVar("T")
Policy = Literal["error", "skip"]
Rows = Iterator[tuple[str, Any]]  # the position of a row, which is a line or number in a file, and its content

JSON = (".jsonl", ".ndjson", ".jsonlines", ".json")  # the last may be an array or lines
CSV = {".csv": ",;\t|", ".tsv": "\t"}  # separators of the cells; the first one that yields the column is used
TABLES = (".parquet", ".arrow", ".feather")
_ROWS = 256  # rows of a table that are read at once
SUFFIXES = (".txt", *JSON, *CSV, *TABLES)  # files to read from a folder, compressed or not
_UNPACKED = 64 << 20  # characters that a document in a compressed file of any size may have
_RATIO = 100  # characters per compressed byte in larger documents, which is more than any real text has
_BEGINNING = 8 << 20  # bytes of text from which the amount of text in a file is estimated
_SPACE = re.compile(r"\s*")


class NoTextError(UserError):
    """A record has no text, or its text is null."""


@attrs.define
class Missing:
    """The policy for records whose text is null or missing: raise an error, or skip and count them."""

    policy: Policy
    rows: int = 0
    left_out: int = 0
    first: str = ""

    def texts(self, rows: Rows, read: Callable[[Any, str], T]) -> Iterator[T]:
        """Yield what `read` returns for each record of a file; a file without any text always raises an error."""
        number = left_out = 0
        refusal: NoTextError | None = None
        for position, value in rows:
            number += 1
            try:
                yield read(value, position)
            except NoTextError as error:
                if self.policy == "error":
                    raise
                left_out, refusal, self.first = left_out + 1, refusal or error, self.first or position
        if refusal and left_out == number:
            raise refusal
        self.rows, self.left_out = self.rows + number, self.left_out + left_out

    def say(self, what: str) -> None:
        """Issue a `Note` with the number of skipped records, if any; `what` is the name of the parameter."""
        if self.left_out:
            said = (
                f"{self.left_out:,} of {self.rows:,} records have no text and were skipped, the first at "
                f"{clip(self.first)}"
            )
            warnings.warn(f"{what}: {said}", Note, stacklevel=2)


def columns_of(field: str, there: list[str]) -> list[str]:
    """Return the columns that contain the text: the one named `field`, or those that begin a nested path a.b."""
    return [field] if field in there else [name for name in there if field.startswith(f"{name}.")]


def rows_of(
    path: Path,
    columns: Callable[[list[str]], list[str]],
    most: int,
    field: str = "",
    stream: IO[bytes] | None = None,
) -> Rows:
    """Yield the position and content of each record in a file: from CSV only `field`, from tables only some columns.

    `columns` returns those of a table's columns that are to be read. A line or row with more than `most` characters in
    a JSON or CSV file raises a `MemoryError`.
    """
    with stream or path.open("rb") as raw:
        if suffix(path) in TABLES:
            yield from _table(path, raw, columns)
            return
        with unpacked(path, raw) as content:
            file = io.TextIOWrapper(content, encoding=UTF8)
            yield from _json(path, file, most) if suffix(path) in JSON else _csv(path, file, field, most)


def _json(path: Path, file: IO[str], most: int) -> Rows:
    """Yield the objects in JSON lines, or in multi-line arrays and objects, one after the other."""
    where = f"{path}, line "
    for number, line in enumerate(lines(file, most), 1):
        try:
            value = [] if line.isspace() else json.loads(line)
        except (ValueError, RecursionError) as error:
            if suffix(path) == ".json" and number == 1:
                yield from _values(path, line + up_to(most, file.read))
                return
            raise UserError(f"corpus: {where}{number} is not valid JSON ({error}); correct it") from None
        for each in value if isinstance(value, list) else (value,):
            yield f"{where}{number}", each


def _values(path: Path, text: str) -> Rows:
    number = at = 0
    while (at := cast(re.Match[str], _SPACE.match(text, at)).end()) < len(text):
        try:
            value, at = json.JSONDecoder().raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            line = text.count("\n", 0, getattr(error, "pos", at)) + 1
            raise UserError(f"corpus: {path}, line {line} is not valid JSON ({error}); correct it") from None
        for each in value if isinstance(value, list) else [value]:
            number += 1
            yield f"{path}, item {number}", each


def _csv(path: Path, file: IO[str], field: str, most: int) -> Rows:
    size = 0

    def limited() -> Iterator[str]:
        nonlocal size
        for line in lines(file, most):
            size += len(line)
            if size > most:  # a quoted cell may be endless
                raise MemoryError
            yield line

    # Python's own limit applies to all readers in the process.
    csv.field_size_limit(max(csv.field_size_limit(), most))
    head, marks = up_to(most, file.readline), CSV[suffix(path)]
    mark = next((mark for mark in marks if field in next(csv.reader([head], delimiter=mark), [])), marks[0])
    rows = csv.reader(chain([head], limited()), delimiter=mark, strict=True)
    try:
        names = next(rows, [])
        if field not in names:
            raise UserError(
                f"corpus.text_field: {path} has no column {field!r}{nearest(field, names)} in its first line; set "
                "corpus.text_field to the column with the text, or add a first line with column names"
            )
        column = names.index(field)
        for row in rows:
            size, position = 0, f"{path}, line {rows.line_num}"
            if row and len(row) <= column:
                raise UserError(f"corpus: {position} has no {field!r}, because it ends before that column; complete it")
            if any(row[len(names) :]):
                said = f"{position} has {len(row)} cells for {len(names)} columns"
                raise UserError(f"corpus: {said}; quote cells that contain the separator")
            if row:
                yield position, {field: row[column]}
    except csv.Error as error:
        raise UserError(f"corpus: {path}, line {rows.line_num} is not valid CSV ({error}); correct it") from None


def _table(path: Path, raw: IO[bytes], columns: Callable[[list[str]], list[str]]) -> Rows:
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise UserError(f"corpus: {path} needs pyarrow; run `pip install 'atat-zoo[parquet]'`") from None
    if path.suffix.lower() in PACKED:
        raise UserError(
            f"corpus: {path} is compressed, but {suffix(path)} files compress their own columns; decompress it"
        )
    number = 0
    try:
        if suffix(path) == ".parquet":
            file = parquet.ParquetFile(raw)
            batches = file.iter_batches(_ROWS, columns=columns(file.schema_arrow.names) or None)
        else:
            batches = _batches(arrow, raw, columns)
        for batch in batches:
            for first in range(0, len(batch), _ROWS):
                for row in batch.slice(first, _ROWS).to_pylist():
                    number += 1
                    yield f"{path}, row {number}", row
    except (arrow.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        reason = str(error).partition("\n")[0]
        raise UserError(
            f"corpus: {path} cannot be read as {suffix(path)[1:]} ({reason}); it may be truncated"
        ) from None


def rows_in(path: Path) -> int | None:
    """Return the number of rows that a Parquet file declares, or None for a file of any other format."""
    if suffix(path) != ".parquet":
        return None
    from pyarrow.parquet import read_metadata

    return int(read_metadata(path).num_rows)


def _batches(arrow: Any, raw: IO[bytes], columns: Callable[[list[str]], list[str]]) -> Iterator[Any]:
    """Yield the batches of an Arrow file or stream; `save_to_disk` in the `datasets` library writes streams."""
    try:
        file = arrow.ipc.open_file(raw)
        batches = map(file.get_batch, range(file.num_record_batches))
    except arrow.ArrowInvalid:
        raw.seek(0)
        batches = file = arrow.ipc.open_stream(raw)
    wanted = columns(file.schema.names) or file.schema.names
    for batch in batches:
        yield batch.select(wanted)


def text_of(value: Any, field: str, position: str) -> str:
    """Return the text of the record at `position`; raise `NoTextError` if it has none, or `UserError` if not text."""
    found = _found(value, field)
    if found is None:
        skip = 'corpus.missing = "skip" to skip and count such records'
        names = list(value) if isinstance(value, dict) else []
        names += [f"{name}.{inner}" for name in names if isinstance(value[name], dict) for inner in value[name]]
        if field in names:
            raise NoTextError(f"corpus.text_field: {position}: {field!r} is null; set {skip}")
        said = f"{position} has no {field!r}{nearest(field, names)}"
        raise NoTextError(f"corpus.text_field: {said}; set corpus.text_field to the key of the text, or {skip}")
    if isinstance(found, bytes):
        try:
            return found.decode(UTF8)
        except UnicodeDecodeError as error:
            why = f"{field!r} is not UTF-8 text ({error.reason}); convert it"
            raise UserError(f"corpus.text_field: {position}: {why}") from None
    if not isinstance(found, str):
        raise UserError(f"corpus.text_field: {position}: {field!r} is not text: {found!r:.60}; name another key")
    try:
        found.encode()
    except UnicodeEncodeError:  # JSON can contain half a surrogate pair, but UTF-8 cannot
        return found.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return found


def _found(value: Any, field: str) -> Any:
    """Return the value of an object at the key `field` or, failing that, at a path of keys a.b; None if absent."""
    if not isinstance(value, dict):
        return None
    if field in value:
        return value[field]
    ends = (i for i, character in enumerate(field) if character == "." and field[:i] in value)
    return next((found for i in ends if (found := _found(value[field[:i]], field[i + 1 :])) is not None), None)


def package(path: Path) -> tuple[str, str] | None:
    """Return the optional package that a file's format needs, and what pip installs for it, or None."""
    if suffix(path) in TABLES:
        return "pyarrow", "atat-zoo[parquet]"
    return ("zstandard", "atat-zoo[zstd]") if path.suffix.lower() == ".zst" else None


def documents(
    path: Path, boundary: Boundary, field: str, missing: Missing, stream: IO[bytes] | None = None
) -> Iterator[str]:
    """Yield the documents in a file in order, including empty ones.

    `field` is the key or column with the text of records: its exact name, or a.b for a nested key. `stream` is the open
    file, if its position is used to measure progress. A file that cannot be read raises a `UserError`.
    """

    def columns(there: list[str]) -> list[str]:
        if not (found := columns_of(field, there)):
            raise UserError(
                f"corpus.text_field: {path} has no column {field!r}{nearest(field, there)}; "
                "set corpus.text_field to the column with the text"
            )
        return found

    def read(value: Any, position: str) -> str:
        return text_of(value, field, position)

    if suffix(path) in (".tar", ".tgz"):
        raise UserError(
            f'corpus: {path} is an archive; unpack it, or set corpus.use = "webdataset" if it contains samples'
        )
    with _readable(path) as most:
        if suffix(path) not in (*JSON, *CSV, *TABLES):
            with stream or path.open("rb") as raw, unpacked(path, raw) as content:
                file = io.TextIOWrapper(content, encoding=UTF8)  # closed with `content`
                yield from boundary.documents(file, most)
            return
        for text in missing.texts(rows_of(path, columns, most, field, stream), read):
            if len(text) > most:
                raise MemoryError
            yield text


def dialogues(path: Path) -> Iterator[str]:
    """Yield the dialogues in a JSON, Parquet or Arrow file, encoded by `to_text`; raise a `UserError` if invalid."""
    if suffix(path) not in (*JSON, *TABLES):
        raise UserError(f"corpus: {path} cannot contain dialogues; convert it to .jsonl, .json, .parquet or .arrow")
    with _readable(path) as most:
        for position, row in rows_of(path, lambda there: [key for key in KEYS if key in there], most):
            text = dialogue_of(row, position)
            if len(text) > most:
                raise MemoryError
            yield text


def dialogue_of(value: Any, position: str) -> str:
    """Return the dialogue in a record, encoded by `to_text`; raise a `UserError` that names `position` if invalid."""
    try:
        return to_text(messages_of(value), position)
    except ValueError as error:
        raise UserError(f"corpus: {position} {error}") from None


@contextmanager
def _readable(path: Path) -> Iterator[int]:
    """Yield the maximum number of characters in a document; turn read errors into a `UserError`."""
    most = 0
    try:
        most = _most(path)
        yield most
    except UnicodeDecodeError as error:
        raise UserError(f"corpus: {path} is not UTF-8 text ({error.reason}); convert it") from None
    except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError) as error:
        raise UserError(f"corpus: {path} cannot be decompressed ({error}); it may be truncated") from None
    except OSError as error:
        if not error.errno:  # of bz2
            raise UserError(f"corpus: {path} cannot be decompressed ({error}); it may be truncated") from None
        raise unreadable(path, error) from None
    except MemoryError:
        raise UserError(
            f"corpus: {path} has a document of more than {most:,} characters, the limit for this machine or for a "
            "compressed file of this size; "
            'set corpus.document = "paragraph" or "line", split the file into documents, or use JSON lines'
        ) from None


def text_in(path: Path, boundary: Boundary, field: str, missing: Missing) -> float:
    """Return how many bytes of text a file has per byte of its own size, estimated from its beginning."""
    size, whole = 0, max(1, path.stat().st_size)
    with path.open("rb") as raw:
        for number, text in enumerate(documents(path, boundary, field, missing, raw), 1):
            size += len(text.encode())
            if size > _BEGINNING:
                rows = rows_in(path)  # for a columnar table, the position does not show the progress
                return size / (raw.tell() if rows is None else whole * number / rows)
    return size / whole


def _most(path: Path) -> int:
    """Return the maximum number of characters in a document from a file."""
    # A character takes up to four bytes, and twice as much while it is read; shuffling also holds documents.
    most = memory() // 16
    return min(most, max(_UNPACKED, path.stat().st_size * _RATIO)) if path.suffix.lower() in PACKED else most
