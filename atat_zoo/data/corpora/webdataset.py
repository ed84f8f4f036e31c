"""Existing WebDatasets: samples of text, JSON or token ids in tar files, stored locally or at URLs."""

import io
import json
import re
import warnings
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from typing_extensions import override

from atat_zoo.data import SPLITS, Split
from atat_zoo.data.corpora import held_out_share
from atat_zoo.data.corpora.archives import DAMAGED, PACKED, members, unpacked
from atat_zoo.data.corpora.documents import Missing, NoTextError, Policy, Rows, package, text_of
from atat_zoo.data.corpora.text_files import NamedFiles, Search
from atat_zoo.data.downloads import expanded, fetched, is_address
from atat_zoo.data.shard_manifest import array_of
from atat_zoo.data.tokenizers import Tokenizer, TokenizerModel
from atat_zoo.registry import component, component_param, param
from atat_zoo.registry.spec import unstructure
from atat_zoo.system.digests import Stamp, unreadable
from atat_zoo.system.errors import Note, UserError, clip
from atat_zoo.system.machine import memory

_SUFFIXES = (".tar", ".tgz")  # files to read from a folder, including .tar.gz and .tar.zst
_KNOWN = ("txt", "json", "npy")
_BEGINNING = 8 << 20  # bytes of text from which the amount of text in a file is estimated
_META = re.compile(r"__[^/]*__($|/)")  # names of webdataset's metadata files


@component
class WebDatasetCorpus(NamedFiles):
    """WebDatasets: tar files whose samples are consecutive files with the same name but different extensions.

    Each sample is a document: the text in its `.txt` file, the text in a field of its `.json` file, or the token ids in
    its `.npy` file, which are decoded by `tokenizer`. A vector of ids is split at BOS and EOS, and each row of a matrix
    is such a vector. Samples and tar files may be compressed (`.txt.gz`, `.tar.gz`, `.tar.zst`), and tar files may be
    concatenated (`cat a.tar b.tar`); a damaged file raises an error. Braces are expanded, as in
    `https://host/part-{000..127}.tar`. Each URL is downloaded once, into `cache`. As for any corpus, shards are then
    built from the documents.
    """

    name = "webdataset"
    summary = "a WebDataset of .txt, .json or .npy samples, stored locally or at URLs"
    refs = ("https://github.com/webdataset/webdataset", "arXiv:2001.01858")

    train: tuple[str, ...] = param(help='paths, glob patterns or URLs such as ["https://host/part-{000..127}.tar"]')
    validation: tuple[str, ...] = param(
        (), help="validation tar files; default: documents held out from the training files"
    )
    test: tuple[str, ...] = param((), help="test tar files; default: documents held out from the training files")
    extension: str | None = param(
        None, help="extension of the document's file in a sample, such as txt or page.json; default: the only one"
    )
    key_ends: Literal["first", "last"] = param(
        "first", help="whether a sample's key ends at the first or last dot of a file name"
    )
    text_field: str = param("text", help="JSON key with the text: its exact name, or a.b for a nested key")
    missing: Policy = param("error", help="samples without text: raise an error, or skip and count them")
    tokenizer: Tokenizer | None = component_param(
        "tokenizer", None, help="tokenizer that decodes the ids in .npy files; must not need training"
    )
    cache: str = param("data/cache/webdataset", help="folder for downloads")
    largest: float = param(20.0, help="maximum size of a downloaded file in GB", gt=0)
    retries: int = param(5, help="number of times that a download is retried, after 0.5 s, 1 s, … up to 30 s", ge=0)
    timeout: float = param(
        60.0, help="seconds after which a download fails if it has no HTTP response or is slower than 1 kB/s", gt=0
    )
    validation_share: float = held_out_share("validation", "validation")
    test_share: float = held_out_share("testing", "test")
    seed: int = param(0, help="seed for choosing the held-out documents", ge=0)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.extension is not None and _form(self.extension) not in _KNOWN:
            raise ValueError(f"extension = {self.extension!r} is unknown; use one that ends in {', '.join(_KNOWN)}")

    @property
    def package(self) -> tuple[str, str] | None:
        """The first optional package that the files need, and what pip installs for it, or None."""
        return next(filter(None, (package(Path(name)) for name in (*self.train, *self.validation, *self.test))), None)

    @override
    def expand(self, patterns: tuple[str, ...], key: str) -> list[Path]:
        cache, found = Path(self.cache), dict[Path, None]()
        for place in self._places(patterns, key):
            if isinstance(place, str):
                place = fetched(place, cache, self.retries, self.timeout, f"corpus.{key}", self.largest)
            found[place] = None
        return list(found)

    @override
    def stamp(self) -> Any:
        # Files at URLs are not downloaded for this, and do not change once they are.
        places = {split: self._places(getattr(self, split), split) for split in SPLITS}
        return {
            split: [place if isinstance(place, str) else Stamp.of(place) for place in of_split]
            for split, of_split in places.items()
        }

    @override
    def fingerprint(self) -> dict[str, Any]:
        ids = {"tokenizer_file": self.tokenizer.fingerprint()} if self.tokenizer else {}
        return {**super().fingerprint(), **ids}

    @override
    def identity(self) -> dict[str, Any]:
        local = ("cache", "largest", "retries", "timeout")
        # The names of all shard folders depend on this form, so parameters added later are left out at their defaults.
        later = {"missing": "error", "key_ends": "first"}
        table = {key: value for key, value in unstructure(self).items() if key not in local and later.get(key) != value}
        return table | ({"tokenizer": self.tokenizer.identity()} if self.tokenizer else {})

    @override
    def read(self, split: Split) -> Iterator[str]:
        missing = Missing(self.missing)
        for path in self.expand(getattr(self, split), split):
            with _opened(path) as raw:
                yield from self._documents(path, raw, missing)
        missing.say(f"corpus.{split}")

    @override
    def size(self) -> int | None:
        paths = list(chain.from_iterable(self.files().values()))
        size = 0
        with _opened(paths[0]) as raw:
            for text in self._documents(paths[0], raw, Missing(self.missing)):
                size += len(text.encode())
                if size > _BEGINNING:
                    break
            share = size / max(1, raw.tell())
        return round(share * sum(path.stat().st_size for path in paths))

    def _places(self, patterns: tuple[str, ...], key: str) -> Iterator[str | Path]:
        """Yield the URLs and paths that match the patterns of a parameter."""
        remedy = "paths are relative to the folder in which atat is started"
        search = Search(key, _SUFFIXES, remedy)
        for pattern in patterns:
            as_it_is = "{" not in pattern if is_address(pattern) else Path(pattern).exists()
            for place in [pattern] if as_it_is else expanded(pattern, f"corpus.{key}"):
                if is_address(place):
                    yield place
                else:
                    yield from search.add(place)
        search.say()

    def _documents(self, path: Path, raw: IO[bytes], missing: Missing) -> Iterator[str]:
        model: TokenizerModel | None = None

        def read(sample: dict[str, Any], position: str) -> list[str]:
            nonlocal model
            name = self._extension(sample, position)
            form, most = _form(name), memory() // 16
            try:
                with unpacked(Path(name), io.BytesIO(sample[name])) as file:
                    content = file.read(most + 1)
                if len(content) > most:
                    raise ValueError("it is larger than 1/16 of the memory")
                if form == "npy":
                    model = model or self._model(position)
                    return list(_decoded(content, model, position))
                if form == "json":
                    return [text_of(json.loads(content), self.text_field, position)]
                return [content.decode("utf-8-sig")]
            except UserError:
                raise
            except Exception as error:  # numpy may raise nearly any exception
                reason = error.reason if isinstance(error, UnicodeDecodeError) else error
                raise UserError(
                    f"corpus: {position}: its {name} cannot be read ({clip(reason)}); repair or remove it"
                ) from None

        for texts in missing.texts(_samples(path, raw, self.key_ends, missing.policy), read):
            yield from (text for text in texts if text.strip())

    def _model(self, position: str) -> TokenizerModel:
        """Return the tokenizer that decodes the ids; it must not need training."""
        remedy = "set it to the `pretrained` or `run` tokenizer that produced the ids"
        if self.tokenizer is None:
            raise UserError(f"corpus.tokenizer: {position} contains token ids; {remedy}")
        name = self.tokenizer.name

        def no_text() -> Iterator[str]:
            raise UserError(f"corpus.tokenizer: {name!r} is trained on the text and cannot decode these ids; {remedy}")

        return self.tokenizer.train(no_text)

    def _extension(self, sample: dict[str, Any], position: str) -> str:
        """Return the extension of the file that contains a sample's document."""
        there = [name for name in sample if not name.startswith("__")]
        wanted = (self.extension,) if self.extension else _KNOWN
        known = [name for name in there if name in wanted or _unpacked(name) in wanted]
        if len(known) == 1:
            return known[0]
        has = f"it has {clip(', '.join(there))}"
        if known:
            raise UserError(
                f"corpus.extension: {position} has several of {', '.join(wanted)} ({has}); set corpus.extension to the "
                "one with the text or token ids"
            )
        forms = [_form(name) for name in there]
        if self.key_ends == "first" and any(forms.count(form) > 1 for form in _KNOWN):
            raise UserError(
                f"corpus.key_ends: {position} contains several samples ({has}), because a sample's key ends at the "
                'first dot of a file name; set corpus.key_ends = "last"'
            )
        lacks = f"no {self.extension!r}" if self.extension else f"none of {', '.join(_KNOWN)}"
        remedy = (
            "set it to one of these" if self.extension else "set corpus.extension to the one with the text or token ids"
        )
        raise NoTextError(
            f"corpus.extension: {position} has {lacks} ({has}); {remedy}, or skip such samples with "
            'corpus.missing = "skip"'
        )


def _unpacked(extension: str) -> str:
    """Return an extension without its compression suffix."""
    name, dot, last = extension.rpartition(".")
    return name if dot and f".{last}" in PACKED else extension


def _form(extension: str) -> str:
    return _unpacked(extension).rpartition(".")[2]


def _last_dot(name: str) -> tuple[str | None, str | None]:
    """Return the key and extension of a file name, split at the last dot before any compression suffix."""
    folder, slash, file = name.rpartition("/")
    first = _unpacked(file).rpartition(".")[0]
    return (f"{folder}{slash}{first}", file[len(first) + 1 :]) if first else (None, None)


def _opened(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except OSError as error:
        raise unreadable(path, error) from None


def _samples(path: Path, raw: IO[bytes], key_ends: str, policy: Policy) -> Rows:
    """Yield the samples in a tar file, grouped as in webdataset; if it has none, raise a `UserError` unless skipped."""
    from webdataset.tariterators import base_plus_ext, group_by_keys

    number, most, nameless = 0, memory() // 16, list[str]()
    divided = base_plus_ext if key_ends == "first" else _last_dot

    def files() -> Iterator[dict[str, Any]]:
        with unpacked(path, raw) as stream:
            for name, opened in members(stream):
                if _META.match(name):
                    continue
                if divided(name)[0] is None or name.rpartition("/")[2].startswith("."):
                    nameless.append(name)
                    continue
                data = opened().read(most + 1)
                if len(data) > most:
                    raise MemoryError
                yield {"fname": name, "data": data, "__url__": str(path)}

    try:
        for sample in group_by_keys(files(), divided):
            yield f"{path}, sample {clip(repr(sample['__key__']))}", sample
            number += 1
        why = ""
    except MemoryError:
        raise UserError(f"corpus: {path} contains a file larger than 1/16 of the memory; split the file") from None
    except (*DAMAGED, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno:
            raise unreadable(path, error) from None
        why = str(error.args[0]) if error.args else type(error).__name__  # without the library's additions
    if why:
        raise UserError(f"corpus: {path} cannot be read as a tar file ({clip(why)}); download or create it again")
    if not number and policy == "error":
        said = f"{path} contains no samples, which are files with a name and an extension"
        raise UserError(f'corpus: {said}; remove it, or set corpus.missing = "skip"')
    if nameless:
        warnings.warn(
            f"corpus: {path} contains {len(nameless):,} files without a name or an extension, such as "
            f"{clip(nameless[0])}, which are skipped",
            Note,
            stacklevel=2,
        )


def _decoded(content: bytes, model: TokenizerModel, position: str) -> Iterator[str]:
    """Yield the texts encoded in an array of token ids, split at BOS and EOS."""
    ids = array_of(content)
    if ids.ndim not in (1, 2) or ids.dtype.kind not in "iu":
        raise ValueError(f"it holds {ids.dtype} {list(ids.shape)}, not an integer vector or matrix of token ids")
    size = model.vocabulary_size
    if ids.size and (ids.min() < 0 or ids.max() >= size):
        raise UserError(
            f"corpus.tokenizer: {position} has ids from {ids.min()} to {ids.max()}, but the tokenizer has 0 to "
            f"{size - 1}; name the tokenizer that produced the ids"
        )
    for row in np.atleast_2d(ids):
        ends = np.flatnonzero(np.isin(row, [each for each in (model.bos, model.eos) if each is not None]))
        for document in np.split(row, ends):  # all but the first begin with the previous end
            yield model.decode(document.tolist())
