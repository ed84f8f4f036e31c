"""Read and check `manifest.json`, which describes a folder of shards."""

import hashlib
import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar, get_origin

import attrs
import numpy as np
from numpy.typing import NDArray

from atat_zoo.data import SPLITS
from atat_zoo.data.sequence_packing import DIALOGUE_DTYPE, IDS, Totals
from atat_zoo.experiment.runs import sha256_of
from atat_zoo.system.errors import UserError

FORMAT = 1
FILE = "manifest.json"
COUNTS = "counts.npy"
ORIGIN = "origin.json"  # in a cache, the source of the shards
TOKENIZER = "tokenizer.json"
# A manifest may come from elsewhere; it must not name files outside its folder.
_of_a_shard_folder = attrs.validators.matches_re(rf"(?:{'|'.join(SPLITS)})-\d{{6}}\.tar|tokenizer\.json|counts\.npy")
_LARGEST = {"uint16": 2**16 - 1, "uint32": 2**32 - 1}  # reserved for padding
_HEADER = 4096  # maximum size in bytes of an .npy header
_T = TypeVar("_T")


@attrs.frozen(kw_only=True)
class Shard:
    """The manifest's record of one shard, which is a tar file."""

    name: str = attrs.field(validator=_of_a_shard_folder)
    sequences: int = attrs.field(validator=attrs.validators.ge(1))
    bytes: int
    sha256: str
    crc32: tuple[int, ...] = attrs.field(converter=tuple[int, ...])  # of each member


@attrs.define(kw_only=True)
class SplitRecord(Totals):
    """One split of the text: its statistics, the order of its documents, and its shards."""

    order: str
    shards: tuple[Shard, ...]


@attrs.frozen(kw_only=True)
class ShardManifest:
    """The contents of `manifest.json`, which describes a folder of shards."""

    format: int  # the version of this format
    settings: str  # hash of everything that determines the bytes
    made_by: dict[str, str]  # versions of the packages that wrote it
    length: int = attrs.field(validator=attrs.validators.ge(1))  # tokens in a sequence, L
    special: str  # as in `[data]`
    rows: str = attrs.field(validator=attrs.validators.in_(("packed", "document")))  # likewise
    form: str = attrs.field(validator=attrs.validators.in_(("text", "chat")))  # likewise; text if missing
    remainder: str  # `drop` or `pad`
    dtype: str = attrs.field(validator=attrs.validators.in_(_LARGEST))  # of a stored token
    block: int = attrs.field(validator=attrs.validators.ge(1))  # sequences in every member of a shard except the last
    lanes: int  # C, the number of lanes that the shards were built for
    vocabulary_size: int = attrs.field(validator=attrs.validators.ge(1))  # vocabulary size, V
    bos: int | None
    eos: int | None
    tokenizer: dict[str, Any]  # its table in the experiment
    corpus: dict[str, Any]  # its table in the experiment
    fingerprint: dict[str, Any]  # of the corpus's text
    sha256: dict[str, str] = attrs.field(validator=attrs.validators.deep_mapping(_of_a_shard_folder))
    splits: dict[str, SplitRecord]

    def to_json(self) -> str:
        """Return the manifest as the text of `manifest.json`."""
        return json.dumps(attrs.asdict(self), indent=1, ensure_ascii=False) + "\n"

    def left_out(self) -> list[str]:
        """Return a sentence for each split from which dialogues were dropped."""
        found = {name: split.left_out(self.length) for name, split in self.splits.items()}
        return [f"{name}: {said}; they are dropped" for name, said in found.items() if said]

    @property
    def digest(self) -> str:
        """16 hexadecimal digits that identify the contents and the order of the training shards."""
        text = " ".join(shard.sha256 for shard in self.splits["train"].shards)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def load(folder: Path) -> ShardManifest:
    """Return a folder's manifest; raise a `UserError` if it is missing or invalid."""
    path = Path(folder) / FILE
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{folder} contains no {FILE}; build the shards with `atat data build`") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}; {_again(folder)}") from None
    return parse(data, str(path), _again(folder))


def parse(data: bytes, path: str, remedy: str) -> ShardManifest:
    """Return the manifest in the bytes of a file; if invalid, raise a `UserError` with `path` and `remedy`."""
    try:
        content = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not readable JSON ({error}); {remedy}") from None
    if isinstance(content, dict) and content.get("format") not in (None, FORMAT):
        raise UserError(f"{path} has format {content['format']!r}, but this version reads format {FORMAT}; {remedy}")
    try:
        return _manifest(content)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise UserError(f"{path} is not a shard manifest ({error}); {remedy}") from None


def verify(folder: Path, *, full: bool = False, splits: Iterable[str] = SPLITS) -> ShardManifest:
    """Return the manifest; raise a `UserError` if the shards' sizes or, if `full`, their hashes differ from it.

    Of the shards, only those of `splits` are compared; the tokenizer and the counts always are. A cache checks each
    shard when opening it, so its shards are compared only if `full` and present.
    """
    folder = Path(folder)
    manifest = load(folder)
    cache = (folder / ORIGIN).is_file()
    for split in splits:
        for shard in manifest.splits[split].shards:
            path = folder / shard.name
            if cache and not (full and path.is_file()):
                continue
            if not path.is_file():
                raise UserError(f"shard {path} is missing; {_again(folder)}")
            if (size := path.stat().st_size) != shard.bytes:
                raise UserError(broken(path, f"it has {size} bytes, but {shard.bytes} according to the manifest"))
            if full and sha256_of(path) != shard.sha256:
                raise UserError(broken(path, "its SHA-256 differs from the manifest"))
    for name, expected in manifest.sha256.items():
        path = folder / name
        if not path.is_file():
            raise UserError(f"{path} is missing; {_again(folder)}")
        if sha256_of(path) != expected:  # these files are small enough to check every time
            raise UserError(f"{path} differs from the manifest; {_again(folder)}")
    size = (folder / COUNTS).stat().st_size
    if not 0 <= size - 8 * manifest.vocabulary_size <= _HEADER:
        raise UserError(
            f"{folder / COUNTS} has {size} bytes, which does not match the {manifest.vocabulary_size} tokens in the "
            f"manifest; {_again(folder)}"
        )
    return manifest


def broken(path: Path, why: str) -> str:
    """Return the error message for a shard that cannot be used."""
    return f"shard {path} is damaged ({why}); {_again(path.parent)}"


def array_of(data: bytes) -> NDArray[Any]:
    """Return the array in an `.npy` file as a view of the file's bytes, so that a forged shape takes no memory.

    If the header is damaged, numpy may raise any exception.
    """
    file = io.BytesIO(data)
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("it contains an array in an unknown format")
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    if min(shape, default=0) < 0:  # `reshape` would compute a negative size
        raise ValueError(f"it contains an array of shape {list(shape)}")
    return np.frombuffer(data, dtype, offset=file.tell()).reshape(shape, order="F" if fortran else "C")


def load_counts(folder: Path) -> NDArray[np.int64]:
    """Return how often each token occurs in the training shards, int64 [vocabulary_size]; call `verify` before."""
    path = Path(folder) / COUNTS
    try:
        counts = array_of(path.read_bytes()).copy()  # writable, as torch wants it
    except Exception as error:
        raise UserError(f"{path} cannot be read ({error}); {_again(folder)}") from None
    if counts.shape != (load(folder).vocabulary_size,) or counts.dtype != "int64":
        held = f"it holds {counts.dtype} {list(counts.shape)}"
        raise UserError(f"{path} cannot be read ({held}, not one count per token); {_again(folder)}")
    return counts


def _again(folder: Path) -> str:
    # Shards given with `use = "shards"` may be the only copy.
    return f"if the shards were built here, delete {folder} and run `atat data build` again; otherwise copy them again"


def _manifest(content: Any) -> ShardManifest:
    splits = {name: _split(record) for name, record in content["splits"].items()}
    if list(splits) != list(SPLITS):
        raise ValueError(f"its splits are {list(splits)}, not {list(SPLITS)}")
    contents = _record(ShardManifest, {"form": "text"} | content | {"splits": splits})
    largest = _LARGEST[contents.dtype]
    if contents.form == "chat" and contents.dtype != DIALOGUE_DTYPE:
        raise ValueError(f"dialogues are stored as {DIALOGUE_DTYPE}, not as {contents.dtype}")
    if contents.vocabulary_size > (IDS if contents.form == "chat" else largest):
        raise ValueError(f"{contents.vocabulary_size} tokens do not fit in {contents.dtype}")
    if contents.sha256.keys() != {TOKENIZER, COUNTS}:
        raise ValueError(f"it needs hashes of tokenizer.json and counts.npy, not of {', '.join(contents.sha256)}")
    for table in (contents.corpus, contents.tokenizer):
        if not isinstance(table.get("use"), str):
            raise ValueError("it does not name its corpus or its tokenizer")
    for shard in (shard for split in splits.values() for shard in split.shards):
        # Without this check, a number in the manifest would determine how much memory is allocated.
        if shard.sequences * contents.length * largest.bit_length() // 8 > shard.bytes:
            held = f"{shard.sequences} sequences of {contents.length} tokens"
            raise ValueError(f"{shard.name} cannot hold {held} in {shard.bytes} bytes")
    return contents


def _split(content: Any) -> SplitRecord:
    shards = tuple(_record(Shard, table) for table in content["shards"])
    earlier = dict.fromkeys(("unanswered", "beyond", "needed"), 0)  # missing from earlier manifests
    split = _record(SplitRecord, earlier | content | {"shards": shards})
    if sum(shard.sequences for shard in shards) != split.sequences:
        raise ValueError("the sequences of its shards do not add up to the total")
    return split


def _record(cls: type[_T], table: dict[str, Any]) -> _T:
    """Return an instance of a class after checking the types of its plain fields, so that a damaged file fails here."""
    for field in attrs.fields(cls):  # type: ignore[arg-type]
        plain = get_origin(field.type) or field.type
        if plain in (int, str, dict) and type(table[field.name]) is not plain:
            raise TypeError(f"{field.name} is {table[field.name]!r}")
    return cls(**table)
