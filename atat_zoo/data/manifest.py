"""`manifest.json`: what a folder of shards holds, and whether it still does."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from atat_zoo.data import SPLITS, Split
from atat_zoo.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FORMAT = 1
FILE = "manifest.json"
COUNTS = "counts.npy"
_NAME = re.compile(rf"(?:{'|'.join(SPLITS)})-\d{{6}}\.tar|tokenizer\.json|counts\.npy")


@attrs.frozen(kw_only=True)
class Shard:
    """One tar file."""

    name: str
    sequences: int
    bytes: int
    sha256: str


@attrs.define(kw_only=True)
class Totals:
    """Counts of a split.

    Attributes:
        documents: documents, all of them; so are characters, UTF-8 bytes and words (between white space).
        characters: of all documents.
        bytes: of all documents in UTF-8.
        words: of all documents.
        tokens: tokens stored, with special ones, without padding.
        special_tokens: BOS and EOS among them.
        dropped: tokens left over at the end and not stored.
        padded: positions filled with padding.
        sequences: sequences stored; sequences · L = tokens + padded.
    """

    documents: int = 0
    characters: int = 0
    bytes: int = 0
    words: int = 0
    tokens: int = 0
    special_tokens: int = 0
    dropped: int = 0
    padded: int = 0
    sequences: int = 0


@attrs.define(kw_only=True)
class SplitRecord(Totals):
    """One split of the text: its counts, how its documents follow each other, in words, and its tar files."""

    order: str
    shards: tuple[Shard, ...]


@attrs.frozen(kw_only=True)
class Manifest:
    """A folder of shards.

    Attributes:
        format: version of this format.
        settings: hash of everything that determines the bytes.
        made_by: versions of the packages that wrote it.
        length: L.
        special: `none`, `document` or `sequence`.
        remainder: `drop` or `pad`.
        dtype: type of a stored token.
        block: sequences in a member of a shard, at most.
        lanes: the C that the shards were cut for.
        vocabulary_size: V.
        bos: id, or None.
        eos: id, or None.
        tokenizer: the tokenizer's table.
        corpus: the corpus' table.
        fingerprint: what identifies the corpus' text.
        sha256: hashes of `tokenizer.json` and `counts.npy`.
        splits: by name.
    """

    format: int
    settings: str
    made_by: dict[str, str]
    length: int
    special: str
    remainder: str
    dtype: str
    block: int
    lanes: int
    vocabulary_size: int
    bos: int | None
    eos: int | None
    tokenizer: dict[str, Any]
    corpus: dict[str, Any]
    fingerprint: dict[str, Any]
    sha256: dict[str, str]
    splits: dict[str, SplitRecord]

    def to_json(self) -> str:
        """Return the manifest as text."""
        return json.dumps(attrs.asdict(self), indent=1, ensure_ascii=False) + "\n"

    def split(self, name: Split) -> SplitRecord:
        """Return one split."""
        return self.splits[name]

    @property
    def digest(self) -> str:
        """Identify the training shards, in 16 hexadecimal digits: equal digests give equal streams."""
        text = " ".join(shard.sha256 for shard in self.splits["train"].shards)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def load(folder: Path) -> Manifest:
    """Read a folder's manifest.

    Raises:
        UserError: when there is none, or it is not one.
    """
    path = Path(folder) / FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{folder} holds no {FILE}; build the shards with `atat data build`") from None
    except ValueError as error:
        raise UserError(f"{path} is not readable JSON ({error}); {_again(folder)}") from None
    if isinstance(content, dict) and content.get("format") not in (None, FORMAT):
        raise UserError(f"{path} is of format {content['format']!r}, this version reads {FORMAT}; {_again(folder)}")
    try:
        return _manifest(content)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise UserError(f"{path} is not a manifest of shards ({error}); {_again(folder)}") from None


def verify(folder: Path, *, full: bool = False) -> Manifest:
    """Read the manifest and compare it with the files: sizes, and with `full` every hash too.

    Raises:
        UserError: naming the first file that is missing or different.
    """
    folder = Path(folder)
    manifest = load(folder)
    for record in manifest.splits.values():
        for shard in record.shards:
            path = folder / shard.name
            if not path.is_file():
                raise UserError(f"shard {path} is missing; {_again(folder)}")
            size = path.stat().st_size
            if size != shard.bytes:
                raise UserError(broken(path, f"it has {size} bytes, the manifest says {shard.bytes}"))
            if full and sha256_of(path) != shard.sha256:
                raise UserError(broken(path, "its SHA-256 is not the manifest's"))
    for name, expected in manifest.sha256.items():
        path = folder / name
        if not path.is_file():
            raise UserError(f"{path} is missing; {_again(folder)}")
        if sha256_of(path) != expected:  # small files: always
            raise UserError(f"{path} is not the file that the manifest describes; {_again(folder)}")
    return manifest


def broken(path: Path, why: str) -> str:
    """Return the sentence about a shard that cannot be used."""
    return f"shard {path} is damaged ({why}); delete the folder {path.parent} and run `atat data build` again"


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load_counts(folder: Path) -> NDArray[np.int64]:
    """Return how often each token occurs in the training shards, int64 [V]."""
    import numpy as np

    path = Path(folder) / COUNTS
    try:
        counts: NDArray[np.int64] = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{path} cannot be read ({error}); {_again(folder)}") from None
    return counts


def _again(folder: Path) -> str:
    return f"delete the folder {folder} and run `atat data build` again"


def _manifest(content: Any) -> Manifest:
    splits = {name: _split(record) for name, record in content["splits"].items()}
    if list(splits) != list(SPLITS):
        raise ValueError(f"its splits are {list(splits)}")
    rest = {key: value for key, value in content.items() if key != "splits"}
    _check(rest, Manifest)
    for name in rest["sha256"]:
        _check_name(name)
    return Manifest(**rest, splits=splits)


def _split(content: Any) -> SplitRecord:
    shards = []
    for table in content["shards"]:
        _check(table, Shard)
        _check_name(table["name"])
        shards.append(Shard(**table))
    rest = {key: value for key, value in content.items() if key != "shards"}
    _check(rest, SplitRecord)
    record = SplitRecord(**rest, shards=tuple(shards))
    if sum(shard.sequences for shard in shards) != record.sequences:
        raise ValueError("its shards do not add up to its sequences")
    return record


def _check(table: dict[str, Any], cls: type) -> None:
    """Compare the types of the plain fields with the class, so that a broken file is refused here."""
    plain = {"int": int, "str": str}
    for field in attrs.fields(cls):
        if field.type in plain and type(table[field.name]) is not plain[field.type]:
            raise TypeError(f"{field.name} is {table[field.name]!r}")
        if str(field.type).startswith("dict") and field.name != "splits" and not isinstance(table[field.name], dict):
            raise TypeError(f"{field.name} is {table[field.name]!r}")


def _check_name(name: str) -> None:
    # A manifest may come from elsewhere; it must not name files outside of its folder.
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no file of a folder of shards")
