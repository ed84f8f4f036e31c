"""`manifest.json`: the contents of a folder of shards, and the check that they are unchanged."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from atat_zoo.data import SPLITS
from atat_zoo.errors import UserError
from atat_zoo.run import sha256_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FORMAT = 1
FILE = "manifest.json"
COUNTS = "counts.npy"
# A manifest may come from elsewhere; it must not name files outside its folder.
_of_a_shard_folder = attrs.validators.matches_re(rf"(?:{'|'.join(SPLITS)})-\d{{6}}\.tar|tokenizer\.json|counts\.npy")
_T = TypeVar("_T")


@attrs.frozen(kw_only=True)
class Shard:
    """One tar file."""

    name: str = attrs.field(validator=_of_a_shard_folder)
    sequences: int
    bytes: int
    sha256: str


@attrs.define(kw_only=True)
class Totals:
    """Counts of a split."""

    documents: int = 0
    characters: int = 0
    bytes: int = 0  # in UTF-8
    words: int = 0  # between white space
    tokens: int = 0  # stored tokens, with special ones, without padding
    special_tokens: int = 0  # BOS and EOS among them
    dropped: int = 0  # tokens left over at the end and not stored
    padded: int = 0  # positions filled with padding
    sequences: int = 0  # stored; sequences · L = tokens + padded


@attrs.define(kw_only=True)
class SplitRecord(Totals):
    """One split of the text: its counts, a description of the order of its documents, and its tar files."""

    order: str
    shards: tuple[Shard, ...]


@attrs.frozen(kw_only=True)
class ShardManifest:
    """A folder of shards."""

    format: int  # the version of this format
    settings: str  # hash of everything that determines the bytes
    made_by: dict[str, str]  # versions of the packages that wrote it
    length: int  # L
    special: str  # `none`, `document` or `sequence`
    remainder: str  # `drop` or `pad`
    dtype: str  # of a stored token
    block: int  # sequences in a member of a shard, at most
    lanes: int  # C, the number of lanes that the shards were built for
    vocabulary_size: int  # V
    bos: int | None
    eos: int | None
    tokenizer: dict[str, Any]  # its table
    corpus: dict[str, Any]  # its table
    fingerprint: dict[str, Any]  # of the corpus' text
    sha256: dict[str, str] = attrs.field(validator=attrs.validators.deep_mapping(_of_a_shard_folder))
    splits: dict[str, SplitRecord]

    def to_json(self) -> str:
        """Return the manifest as text."""
        return json.dumps(attrs.asdict(self), indent=1, ensure_ascii=False) + "\n"

    @property
    def digest(self) -> str:
        """Identify the training shards, in 16 hexadecimal digits: equal digests give equal streams."""
        text = " ".join(shard.sha256 for shard in self.splits["train"].shards)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def load(folder: Path) -> ShardManifest:
    """Read a folder's manifest.

    Raises:
        UserError: when it is missing or invalid.
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


def verify(folder: Path, *, full: bool = False) -> ShardManifest:
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


def _manifest(content: Any) -> ShardManifest:
    splits = {name: _split(record) for name, record in content["splits"].items()}
    if list(splits) != list(SPLITS):
        raise ValueError(f"its splits are {list(splits)}")
    return _record(ShardManifest, content | {"splits": splits})


def _split(content: Any) -> SplitRecord:
    shards = tuple(_record(Shard, table) for table in content["shards"])
    split = _record(SplitRecord, content | {"shards": shards})
    if sum(shard.sequences for shard in shards) != split.sequences:
        raise ValueError("its shards do not add up to its sequences")
    return split


def _record(cls: type[_T], table: dict[str, Any]) -> _T:
    """Return an instance of a class after checking the types of plain values, to refuse a broken file here."""
    for field in attrs.fields(cls):  # type: ignore[arg-type]
        plain = {"int": int, "str": str, "dict": dict}.get(str(field.type).partition("[")[0])
        if plain and type(table[field.name]) is not plain:
            raise TypeError(f"{field.name} is {table[field.name]!r}")
    return cls(**table)
