"""Text files of your own: plain text, JSON, CSV, Parquet or Arrow."""

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

from atat_zoo.data import Split
from atat_zoo.data.corpora import Divided
from atat_zoo.data.corpora.archives import suffix
from atat_zoo.data.corpora.boundaries import Boundary
from atat_zoo.data.corpora.detokenizers import Detokenizer
from atat_zoo.data.corpora.documents import SUFFIXES, Missing, Policy, dialogues, documents, package, text_in
from atat_zoo.data.corpora.text_source import refuse_unfinished
from atat_zoo.data.digests import fingerprint_of, stamps_of, unreadable
from atat_zoo.registry import component, component_param, param
from atat_zoo.registry.spec import unstructure
from atat_zoo.system.errors import Note, UserError, clip, nearest

_ABOUT = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")  # of files of `datasets`


class NamedFiles(Divided):
    """A corpus whose parameters `train`, `validation` and `test` name files."""

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
            self.files()  # refuses every wrong name before anything is read; a benchmark needs no training text
        yield from super().documents(split)

    @override
    def fingerprint(self) -> dict[str, Any]:
        return {split: fingerprint_of(stamps_of(paths)) for split, paths in self.files().items() if paths}

    @override
    def stamp(self) -> Any:
        return {split: stamps_of(paths) for split, paths in self.files().items()}

    def files(self) -> dict[str, list[Path]]:
        """Return the files of each split; an empty tuple if the split is held out of the training files."""
        patterns = {"train": self.train, "validation": self.validation, "test": self.test}
        files = {key: self.expand(names, key) for key, names in patterns.items()}
        seen: dict[Path, str] = {}
        for key, paths in files.items():
            for path in paths:
                other = seen.setdefault(path.resolve(), key)
                if other != key:
                    raise UserError(
                        f"corpus.{key}: {path} is also in corpus.{other}; a file must belong to one split only"
                    )
        return files

    @abstractmethod
    def expand(self, patterns: tuple[str, ...], key: str) -> list[Path]:
        """Return the files that the patterns of a parameter match, each once."""


@attrs.define
class Search:
    """The files that the patterns of a parameter match, each once, and the files that are skipped."""

    key: str
    suffixes: tuple[str, ...]  # of the files that are read of a folder
    remedy: str
    found: dict[Path, Path] = attrs.field(factory=dict)  # by where it is, without links
    left_out: dict[str, list[Path]] = attrs.field(factory=dict)

    def add(self, pattern: str) -> Iterator[Path]:
        """Yield the new files of a path, a pattern or a folder."""
        path = Path(os.path.expanduser(pattern))  # of an unknown user, it stays as it is
        matches = [path] if path.exists() else sorted(map(Path, glob_paths(path)))
        files = [match for match in matches if match.is_file()]
        self._leave_out("a folder", *(match for match in matches if match.is_dir() and match != path))
        if path.is_dir() and not (files := sorted(self._inside(path))):
            *most, last = self.suffixes
            ends = f"ends in {', '.join(most)} or {last}"
            raise UserError(
                f"corpus.{self.key}: no file in the folder {pattern} {ends}; name its files, as in {path}/*"
            )
        if not files:
            there = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
            signs = "; [ begins a pattern; write [[] for the character" if "[" in pattern else ""
            said = f"file not found: {pattern}{nearest(path.name, there)}{signs}"
            raise UserError(f"corpus.{self.key}: {said}; {self.remedy}")
        for file in files:
            if self.found.setdefault(file.resolve(), file) != file:
                self._leave_out("already read under another name", file)
            yield self.found[file.resolve()]

    def say(self) -> None:
        """Print how many files are skipped, and why."""
        if self.left_out:
            told = (f"{len(paths):,} {why} ({clip(paths[0], 100)})" for why, paths in self.left_out.items())
            warnings.warn(f"corpus.{self.key}: skipped: {', '.join(told)}", Note, stacklevel=2)

    def _leave_out(self, why: str, *paths: Path) -> None:
        if paths:
            self.left_out.setdefault(why, []).extend(paths)

    def _inside(self, folder: Path) -> Iterator[Path]:
        """Yield the files in a folder, its subfolders and links that have one of the suffixes."""

        def refuse(error: OSError) -> None:
            raise unreadable(error.filename, error)

        seen = set[str]()
        for name, folders, files in os.walk(folder, onerror=refuse, followlinks=True):
            here, real = Path(name), os.path.realpath(name)
            folders[:] = [] if real in seen else sorted(each for each in folders if not each.startswith("."))
            if real in seen:
                self._leave_out("already read under another name", here)
                continue
            seen.add(real)
            for path in sorted(map(here.joinpath, files)):
                if not path.is_file():
                    self._leave_out("a device or a pipe" if path.exists() else "a broken link", path)
                elif suffix(path) not in self.suffixes or path.name in _ABOUT or path.name.endswith(".source.json"):
                    self._leave_out("of another format", path)
                elif path.name.startswith("."):
                    self._leave_out("hidden", path)
                else:
                    yield path


def glob_paths(path: Path) -> list[str]:
    """Return the paths that a pattern matches; an existing path is taken literally, even with [ in it."""
    there = next(each for each in path.parents if each.exists())
    rest, folder = str(path.relative_to(there)), glob.escape(str(there))
    literal = os.path.join(folder, rest.replace("[", "[[]"))
    return glob.glob(literal, recursive=True) or glob.glob(os.path.join(folder, rest), recursive=True)


@component
class FilesCorpus(NamedFiles):
    """UTF-8 files, given by paths, patterns or folders.

    `.jsonl`, `.ndjson`, `.jsonlines` and `.json` have JSON objects, one per line; `.json` may also have an array. The
    `text_field` of each object is a document, as is that of each row of `.parquet`, `.arrow` and `.feather`, and of
    `.csv` and `.tsv` whose first line names the columns. Other files are plain text. Files ending in `.gz`, `.zst`,
    `.bz2` and `.xz` are decompressed. In a folder, files with these endings or `.txt` are read recursively, each once;
    hidden files are skipped, and the number of skipped files is printed. A `[` begins a pattern unless a file of that
    name exists. If `validation` or `test` is not set, a share of the training documents is held out by hash: no
    document is divided, and equal documents are in the same split. Empty documents and byte order marks are skipped.

    Dialogues (`data.format = "chat"`) are objects of JSON or rows of Parquet and Arrow with the keys `messages`, a
    list with the `role` and the `content` of each, or `prompt` and `response` (or `completion`).
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
    validation_share: float = param(
        0.05, help="fraction of the documents held out for validation if `validation` is not set", ge=0, lt=1
    )
    test_share: float = param(
        0.05, help="fraction of the documents held out for testing if `test` is not set", ge=0, lt=1
    )
    seed: int = param(0, help="seed of the held-out split", ge=0)
    holds_dialogues: ClassVar[bool] = True

    @property
    def package(self) -> tuple[str, str] | None:
        """The optional package needed to read the files (the first one), in the form of an optimizer's `package`."""
        paths = itertools.chain.from_iterable(self.files().values())
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
        # Parts without parameters by their names alone: the names of all shards of files hang on this form.
        if table["document"].keys() == {"use"}:
            table["document"] = table["document"]["use"]
        if table["detokenizer"] == {"use": "none"}:
            del table["detokenizer"]
        return table

    @override
    def expand(self, patterns: tuple[str, ...], key: str) -> list[Path]:
        remedy = self.source or "paths are relative to the folder where atat is started"
        search = Search(key, SUFFIXES, remedy)
        found = dict.fromkeys(path for pattern in patterns for path in search.add(pattern))
        refuse_unfinished(found, key)
        search.say()
        return list(found)
