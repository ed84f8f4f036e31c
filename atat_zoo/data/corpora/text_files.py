"""Your own text files: plain text, JSON, CSV, Parquet or Arrow."""

import glob
import itertools
import os
import warnings
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import attrs
from typing_extensions import override

from atat_zoo.data import SPLITS, Split
from atat_zoo.data.corpora import Divided, held_out_share
from atat_zoo.data.corpora.archives import suffix
from atat_zoo.data.corpora.boundaries import Boundary
from atat_zoo.data.corpora.detokenizers import Detokenizer
from atat_zoo.data.corpora.documents import SUFFIXES, Missing, Policy, dialogues, documents, package, text_in
from atat_zoo.data.corpora.text_source import refuse_unfinished
from atat_zoo.registry import component, component_param, param
from atat_zoo.registry.spec import unstructure
from atat_zoo.system.digests import Stamp, fingerprint_of, unreadable
from atat_zoo.system.errors import Note, UserError, clip, nearest

_ABOUT = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")  # metadata files of `datasets`


class NamedFiles(Divided):
    """The base class of corpora whose parameters `train`, `validation` and `test` name files."""

    train: tuple[str, ...]
    validation: tuple[str, ...]
    test: tuple[str, ...]

    def __attrs_post_init__(self) -> None:
        if not self.train or "" in self.train:
            raise ValueError("train is empty; name at least one file")
        self.check_shares()

    @override
    def documents(self, split: Split) -> Iterator[str]:
        if not {"train": (), "validation": self.validation, "test": self.test}[split]:
            self.files()  # rejects all wrong names before anything is read; a benchmark needs no training text
        yield from super().documents(split)

    @override
    def fingerprint(self) -> dict[str, Any]:
        return {split: fingerprint_of(map(Stamp.of, paths)) for split, paths in self.files().items() if paths}

    @override
    def stamp(self) -> Any:
        return {split: tuple(map(Stamp.of, paths)) for split, paths in self.files().items()}

    def files(self) -> dict[str, list[Path]]:
        """Return each split's files, or [] if held out from `train`; a file in two splits raises a `UserError`."""
        files: dict[str, list[Path]] = {split: self.expand(getattr(self, split), split) for split in SPLITS}
        seen: dict[Path, str] = {}
        for key, paths in files.items():
            for path in paths:
                other = seen.setdefault(path.resolve(), key)
                if other != key:
                    raise UserError(f"corpus.{key}: {path} is also in corpus.{other}; list each file in only one split")
        return files

    @abstractmethod
    def expand(self, patterns: tuple[str, ...], key: str) -> list[Path]:
        """Return the files that match the patterns of the parameter `key`, each once."""


@attrs.define
class Search:
    """The files that match the patterns of a parameter, each once, and the files that are skipped."""

    key: str
    suffixes: tuple[str, ...]  # of files to read from a folder
    remedy: str
    found: dict[Path, Path] = attrs.field(factory=dict)  # by their real path, without links
    left_out: dict[str, list[Path]] = attrs.field(factory=dict)

    def add(self, pattern: str) -> Iterator[Path]:
        """Yield the files at a path, in a folder or matching a pattern; raise a `UserError` if there are none."""
        path = Path(os.path.expanduser(pattern))  # unchanged if the user is unknown
        matches = [path] if path.exists() else sorted(map(Path, glob_paths(path)))
        files = [match for match in matches if match.is_file()]
        self._leave_out("folder", *(match for match in matches if match.is_dir() and match != path))
        if path.is_dir() and not (files := sorted(self._inside(path))):
            *most, last = self.suffixes
            ends = f"ends in {', '.join(most)} or {last}"
            raise UserError(
                f"corpus.{self.key}: no file in the folder {pattern} {ends}; name the files, as in {path}/*"
            )
        if not files:
            there = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
            signs = "; [ begins a pattern, so write [[] for the character" if "[" in pattern else ""
            said = f"file not found: {pattern}{nearest(path.name, there)}{signs}"
            raise UserError(f"corpus.{self.key}: {said}; {self.remedy}")
        for file in files:
            if self.found.setdefault(file.resolve(), file) != file:
                self._leave_out("already read under a different name", file)
            yield self.found[file.resolve()]

    def say(self) -> None:
        """Issue a `Note` with the number of skipped files and the reasons, if any were skipped."""
        if self.left_out:
            told = (f"{len(paths):,} ({why}: {clip(paths[0], 100)})" for why, paths in self.left_out.items())
            warnings.warn(f"corpus.{self.key}: skipped: {', '.join(told)}", Note, stacklevel=2)

    def _leave_out(self, why: str, *paths: Path) -> None:
        if paths:
            self.left_out.setdefault(why, []).extend(paths)

    def _inside(self, folder: Path) -> Iterator[Path]:
        """Yield the files with one of the suffixes in a folder, its subfolders and its links."""

        def refuse(error: OSError) -> None:
            raise unreadable(error.filename, error)

        seen = set[str]()
        for name, folders, files in os.walk(folder, onerror=refuse, followlinks=True):
            here, real = Path(name), os.path.realpath(name)
            folders[:] = [] if real in seen else sorted(each for each in folders if not each.startswith("."))
            if real in seen:
                self._leave_out("already read under a different name", here)
                continue
            seen.add(real)
            for path in sorted(map(here.joinpath, files)):
                if not path.is_file():
                    self._leave_out("device or pipe" if path.exists() else "broken link", path)
                elif suffix(path) not in self.suffixes or path.name in _ABOUT or path.name.endswith(".source.json"):
                    self._leave_out("different format", path)
                elif path.name.startswith("."):
                    self._leave_out("hidden", path)
                else:
                    yield path


def glob_paths(path: Path) -> list[str]:
    """Return the paths that match a pattern; an existing path is taken literally, even if it contains [."""
    there = next(each for each in path.parents if each.exists())
    rest, folder = str(path.relative_to(there)), glob.escape(str(there))
    literal = os.path.join(folder, rest.replace("[", "[[]"))
    return glob.glob(literal, recursive=True) or glob.glob(os.path.join(folder, rest), recursive=True)


@component
class FilesCorpus(NamedFiles):
    """UTF-8 text files, given by paths, patterns or folders.

    `.jsonl`, `.ndjson`, `.jsonlines` and `.json` files contain one JSON object per line; a `.json` file may also
    contain an array. The `text_field` of each object is a document. The same applies to each row of a `.parquet`,
    `.arrow` or `.feather` file, or of a `.csv` or `.tsv` file whose first line names the columns. All other files are
    plain text. Files that end in `.gz`, `.zst`, `.bz2` or `.xz` are decompressed. In a folder, files with these endings
    or `.txt` are read recursively, each once; hidden files are skipped, and the number of skipped files is printed. A
    `[` begins a pattern unless a file of that name exists. If `validation` or `test` is not set, a share of the
    training documents is held out by hash: no document is divided, and identical documents are in the same split. Empty
    documents and byte order marks are skipped.

    Dialogues (`data.format = "chat"`) are JSON objects, or Parquet or Arrow rows, with either the key `messages`, a
    list with the `role` and `content` of each message, or the keys `prompt` and `response` (or `completion`).
    """

    name = "files"
    summary = "text, JSON, CSV, Parquet or Arrow files, optionally compressed"
    refs = ("https://jsonlines.org", "https://parquet.apache.org")

    train: tuple[str, ...] = param(
        help='paths or glob patterns such as ["texts/*.txt.gz"], relative to the working directory'
    )
    validation: tuple[str, ...] = param(
        (), help="validation files; default: documents held out from the training files"
    )
    test: tuple[str, ...] = param((), help="test files; default: documents held out from the training files")
    document: Boundary = component_param("boundary", "file", help="how plain text is divided into documents")
    detokenizer: Detokenizer = component_param(
        "detokenizer", "none", help="detokenizer that restores ordinary text from a benchmark's tokens"
    )
    source: str = param("", help="where to get the files; printed when one is missing")
    text_field: str = param("text", help="key or column with the text: its exact name, or a.b for a nested key")
    missing: Policy = param("error", help="records with null or missing text: raise an error, or skip and count them")
    validation_share: float = held_out_share("validation", "validation")
    test_share: float = held_out_share("testing", "test")
    seed: int = param(0, help="seed for choosing the held-out documents", ge=0)
    holds_dialogues: ClassVar[bool] = True

    @property
    def package(self) -> tuple[str, str] | None:
        """The first optional package that the files need, and what pip installs for it, or None."""
        try:
            paths = [*itertools.chain.from_iterable(self.files().values())]
        except UserError:  # files are missing, but not the endings of their names
            paths = [Path(name) for split in SPLITS for name in getattr(self, split)]
        return next(filter(None, map(package, paths)), None)

    @override
    def read(self, split: Split) -> Iterator[str]:
        missing = Missing(self.missing)
        for path in self.expand(getattr(self, split), split):
            texts = documents(path, self.document, self.text_field, missing)
            yield from (text for text in map(self.detokenizer, texts) if text.strip())
        missing.say(f"corpus.{split}")

    @override
    def read_dialogues(self, split: Split) -> Iterator[str]:
        for path in self.expand(getattr(self, split), split):
            yield from dialogues(path)

    @override
    def size(self) -> int:
        forms: dict[tuple[str, str], list[Path]] = {}
        for path in itertools.chain.from_iterable(self.files().values()):
            forms.setdefault((suffix(path), path.suffix), []).append(path)
        size = 0.0
        for paths in forms.values():
            share = text_in(paths[0], self.document, self.text_field, Missing(self.missing))
            size += share * sum(path.stat().st_size for path in paths)
        return round(size)

    @override
    def identity(self) -> dict[str, Any]:
        table = unstructure(self)
        del table["source"]
        if table["missing"] == "error":
            del table["missing"]
        # Components without parameters are given only by name, because the names of all shard folders depend on this
        # form.
        if table["document"].keys() == {"use"}:
            table["document"] = table["document"]["use"]
        if table["detokenizer"] == {"use": "none"}:
            del table["detokenizer"]
        return table

    @override
    def expand(self, patterns: tuple[str, ...], key: str) -> list[Path]:
        remedy = self.source or "paths are relative to the folder in which atat is started"
        search = Search(key, SUFFIXES, remedy)
        found = dict.fromkeys(path for pattern in patterns for path in search.add(pattern))
        refuse_unfinished(found, key)
        search.say()
        return list(found)
