"""text8: the first 10⁸ characters of a cleaned Wikipedia, or a prefix of them."""

from __future__ import annotations

import functools
import gzip
import hashlib
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atat_zoo.errors import UserError
from atat_zoo.registry import component, param

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atat_zoo.corpora import Split

FULL = 100_000_000


@component
class Text8Corpus:
    """text8 (Mahoney, 2006): 27 symbols, split by characters in the ratio 90/5/5, as the literature does.

    Every split is one document. A prefix of the file is split in the same ratio;
    its figures are not text8 figures, and the fingerprint says so.
    """

    name = "text8"
    summary = "text8 or a prefix of it; 90/5/5 by characters"
    refs = ("http://mattmahoney.net/dc/textdata.html", "arXiv:2107.03006")

    path: str = param("data/text8.zip", help="the file text8, or its .zip or .gz")

    def documents(self, split: Split) -> Iterator[str]:
        """Yield the split's characters as one document."""
        text = _read(*_identity(self.path))
        train, validation = len(text) * 90 // 100, len(text) * 95 // 100
        start, end = {"train": (0, train), "validation": (train, validation), "test": (validation, len(text))}[split]
        yield text[start:end].decode("ascii")

    def fingerprint(self) -> dict[str, Any]:
        """Return the number of characters, whether they are all of text8's, and their hash."""
        text = _read(*_identity(self.path))
        return {"characters": len(text), "prefix": len(text) < FULL, "sha256": hashlib.sha256(text).hexdigest()}


def _identity(path: str) -> tuple[str, int, int]:
    """Return what changes when the file does: a key for the cache."""
    try:
        found = Path(path).stat()
    except OSError:
        raise UserError(
            f"corpus.path: there is no file {path}; download http://mattmahoney.net/dc/text8.zip "
            "and set corpus.path to where it is"
        ) from None
    return path, found.st_size, found.st_mtime_ns


@functools.lru_cache(maxsize=1)
def _read(path: str, size: int, changed: int) -> bytes:
    """Return the characters; a line end at the end of the file is none of them."""
    del size, changed
    try:
        if path.endswith(".zip"):
            with zipfile.ZipFile(path) as archive:
                text = archive.read(archive.namelist()[0])
        elif path.endswith(".gz"):
            with gzip.open(path) as file:
                text = file.read()
        else:
            text = Path(path).read_bytes()
    except (OSError, EOFError, IndexError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"corpus.path: {path} cannot be read ({error}); download it again") from None
    text = text.rstrip(b"\n")
    strange = text.translate(None, b" abcdefghijklmnopqrstuvwxyz")
    if strange or not text:
        what = f"the byte {strange[:1]!r}" if strange else "nothing"
        raise UserError(
            f"corpus.path: {path} holds {what}, and text8 only the space and a to z; "
            'for other text take the corpus "files"'
        )
    return text
