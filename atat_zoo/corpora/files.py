"""Text files of your own: plain text or JSON lines, compressed or not."""

from __future__ import annotations

import functools
import glob
import gzip
import hashlib
import io
import json
import os
import zlib
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from atat_zoo.corpora import HeldOut
from atat_zoo.data.digests import Stamp, sha256_of_each, unreadable
from atat_zoo.errors import UserError, nearest
from atat_zoo.machine import memory
from atat_zoo.registry import component, param

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from atat_zoo.data import Split

_JSON = (".jsonl", ".ndjson")
_PACKED = (".gz", ".zst")
_UTF8 = "utf-8-sig"  # without a byte order mark at the start
_HASHED_AT_ONCE = 64 << 20  # bytes of all files; beyond this, the hash of each file is kept until it changes
_UNPACKED = 64 << 20  # characters that a document may have in a compressed file of any size
_RATIO = 100  # characters in a byte beyond that: more than any text has


@component
class FilesCorpus:
    """Files named by path or pattern, in UTF-8.

    `.jsonl` and `.ndjson` have one JSON object per line, whose `text_field` is a document; other files are plain text.
    Files ending in `.gz` and `.zst` are decompressed. If `validation` or `test` names no files, that share of the
    training documents is held out, by their hashes: no document is divided, and equal ones are in the same split. Empty
    documents are skipped, and so is a byte order mark at the start of a file.
    """

    name = "files"
    summary = "text or JSON-lines files, .gz or .zst or plain"
    refs = ("https://jsonlines.org",)

    train: tuple[str, ...] = param(help='paths or patterns, like ["texts/*.txt.gz"]; relative to the working directory')
    validation: tuple[str, ...] = param((), help="files to validate on; held out of the training files when absent")
    test: tuple[str, ...] = param((), help="files to test on; held out of the training files when absent")
    document: Literal["file", "line", "paragraph"] = param(
        "file", help="unit of a document in plain text: the file (read at once), a line, or lines up to a blank one"
    )
    text_field: str = param("text", help="key of the text in JSON lines; a.b for a nested key")
    validation_share: float = param(0.05, help="share of the documents held out if validation is absent", ge=0, lt=1)
    test_share: float = param(0.05, help="share of the documents held out if test is absent", ge=0, lt=1)
    seed: int = param(0, help="a different seed holds out different documents", ge=0)

    def __attrs_post_init__(self) -> None:
        if not self.train:
            raise ValueError("train names no file")
        if self.validation_share + self.test_share >= 1:
            raise ValueError("validation_share and test_share together must be less than 1")

    def documents(self, split: Split) -> Iterator[str]:
        """Yield the documents of a split, file by file in the order of the patterns, sorted within each.

        Raises:
            UserError: when a file is missing, or its content does not match its suffix.
        """
        self._files()  # refuses every wrong pattern before anything is read
        own: tuple[str, ...] = {"train": (), "validation": self.validation, "test": self.test}[split]
        if own:
            yield from self._read(own)
            return
        shares = (0.0 if self.validation else self.validation_share, 0.0 if self.test else self.test_share)
        if not any(shares):
            yield from self._read(self.train) if split == "train" else ()
            return
        held_out = _held_out(self, *shares, _stamps(self._expand(self.train, "train")))
        if held_out.documents < 1 + sum(share > 0 for share in shares):
            raise UserError(
                f"corpus.train: {held_out.documents} document is not enough to hold some out; name corpus.validation "
                'and corpus.test, or set corpus.document = "paragraph" or "line"'
            )
        yield from held_out.select(self._read(self.train), split)

    def fingerprint(self) -> dict[str, Any]:
        """Return the number, size and hash of the files."""
        return {split: _fingerprint(_stamps(paths)) for split, paths in self._files().items() if paths}

    def stamp(self) -> Any:
        """See `Corpus`."""
        return {split: _stamps(paths) for split, paths in self._files().items()}

    def _files(self) -> dict[str, list[Path]]:
        """Return the files of each split; none if it is held out of the training files."""
        patterns = {"train": self.train, "validation": self.validation, "test": self.test}
        files = {key: self._expand(names, key) for key, names in patterns.items()}
        seen: dict[Path, str] = {}
        for key, paths in files.items():
            for path in paths:
                other = seen.setdefault(path.resolve(), key)
                if other != key:
                    raise UserError(f"corpus.{key}: {path} is in corpus.{other} too; a held-out text must not be both")
        return files

    def _expand(self, patterns: tuple[str, ...], key: str) -> list[Path]:
        paths: list[Path] = []
        for pattern in patterns:
            path = Path(os.path.expanduser(pattern))  # of an unknown user, it stays as it is
            matches = [path] if path.is_file() else sorted(Path(p) for p in glob.glob(str(path), recursive=True))
            matches = [match for match in matches if match.is_file()]
            if not matches:
                there = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
                raise UserError(
                    f"corpus.{key}: there is no file {pattern}{nearest(path.name, there)}; "
                    "name files that are there: a path is taken from the folder in which atat is started"
                )
            paths += [match for match in matches if match not in paths]
        return paths

    def _read(self, patterns: tuple[str, ...]) -> Iterator[str]:
        for path in self._expand(patterns, "train"):
            try:
                most = _most(path)
                with _open(path) as file:
                    texts = self._json(path, file, most) if _suffix(path) in _JSON else self._plain(file, most)
                    yield from (text for text in texts if text.strip())
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

    def _plain(self, file: IO[str], most: int) -> Iterator[str]:
        if self.document == "file":
            yield _up_to(most, file.read)
        elif self.document == "line":
            for line in _lines(file, most):
                yield line.rstrip("\n")
        else:
            lines: list[str] = []
            size = 0
            for line in _lines(file, most):
                if line.strip():
                    lines.append(line)
                    size += len(line)
                    if size > most:
                        raise MemoryError
                elif lines:
                    yield "".join(lines).rstrip("\n")
                    lines, size = [], 0
            yield "".join(lines).rstrip("\n")

    def _json(self, path: Path, file: IO[str], most: int) -> Iterator[str]:
        for number, line in enumerate(_lines(file, most), 1):
            if not line.strip():
                continue
            try:
                value: Any = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise UserError(f"corpus: {path}, line {number} is not JSON ({error})") from None
            for key in self.text_field.split("."):
                if not isinstance(value, dict) or key not in value:
                    known = nearest(key, list(value)) if isinstance(value, dict) else ""
                    raise UserError(
                        f"corpus.text_field: {path}, line {number} has no {self.text_field!r}{known}; "
                        "set corpus.text_field to the key of the text"
                    )
                value = value[key]
            if not isinstance(value, str):
                raise UserError(
                    f"corpus.text_field: {path}, line {number}: {self.text_field!r} is no text: {value!r:.60}"
                )
            # JSON can contain half of a surrogate pair, but UTF-8 cannot.
            yield value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _suffix(path: Path) -> str:
    name = path.with_suffix("") if path.suffix in _PACKED else path
    return name.suffix.lower()


def _most(path: Path) -> int:
    """Return how many characters a document of a file may have."""
    # A character takes up to four bytes, while it is read twice that, and the shuffling holds documents too.
    most = memory() // 16
    return min(most, max(_UNPACKED, path.stat().st_size * _RATIO)) if path.suffix in _PACKED else most


def _up_to(most: int, read: Callable[[int], str]) -> str:
    """Return what `read` returns of a file; raise a `MemoryError` if there is more."""
    text = read(most + 1)
    if len(text) > most:
        raise MemoryError
    return text


def _lines(file: IO[str], most: int) -> Iterator[str]:
    """Yield lines of at most so many characters; raise a `MemoryError` for a longer one."""
    return iter(partial(_up_to, most, file.readline), "")


@contextmanager
def _open(path: Path) -> Iterator[IO[str]]:
    """Open a file as text, decompressed by its suffix, without a byte order mark."""
    if path.suffix == ".gz":
        with gzip.open(path, "rt", encoding=_UTF8) as file:
            yield file
    elif path.suffix == ".zst":
        try:
            import zstandard
        except ImportError:
            raise UserError(f"corpus: {path} needs zstandard; run `pip install atat-zoo[zstd]`") from None
        try:
            reader = zstandard.ZstdDecompressor().stream_reader
            with path.open("rb") as raw, reader(raw, read_across_frames=True) as data:
                yield io.TextIOWrapper(data, encoding=_UTF8)
        except zstandard.ZstdError as error:
            raise EOFError(error) from None
    else:
        with path.open(encoding=_UTF8) as file:
            yield file


Stamps = tuple[Stamp, ...]


def _stamps(paths: list[Path]) -> Stamps:
    return tuple(map(Stamp.of, paths))


@functools.lru_cache(maxsize=8)
def _held_out(spec: FilesCorpus, validation: float, test: float, files: Stamps) -> HeldOut:
    del files
    return HeldOut.choose(spec._read(spec.train), validation=validation, test=test, seed=spec.seed)


def _fingerprint(files: Stamps) -> dict[str, Any]:
    sizes = [file.size for file in files]
    found: dict[str, Any] = {"files": len(files), "bytes": sum(sizes)}
    digest = hashlib.sha256()
    if sum(sizes) > _HASHED_AT_ONCE:
        digest.update("\n".join(sha256_of_each(files)).encode())
        return found | {"sha256 of the files' SHA-256": digest.hexdigest()}
    # As in version 0.1, so that its shards are found; not kept, so that no change is missed.
    for file in files:
        try:
            digest.update(f"{file.size}\0".encode() + Path(file.path).read_bytes())
        except OSError as error:
            raise unreadable(file.path, error) from None
    return found | {"sha256": digest.hexdigest()}
