"""Text files of your own: plain text, JSON lines, CSV or Parquet."""

import glob
import itertools
import os
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import override

from atat_zoo.corpora.boundaries import Boundary
from atat_zoo.corpora.detokenizers import Detokenizer
from atat_zoo.corpora.documents import dialogues, documents, package, suffix, text_in
from atat_zoo.corpora.held_out import Divided
from atat_zoo.corpora.unfinished import refuse_unfinished
from atat_zoo.data import Split
from atat_zoo.data.digests import Stamps, fingerprint_of, stamps_of
from atat_zoo.errors import UserError, nearest
from atat_zoo.registry import component, param, part
from atat_zoo.registry.spec import unstructure

_SUFFIXES = (".txt", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")  # of the files that a folder is named for


class NamedFiles(Divided):
    """A corpus whose splits are files: `train`, `validation` and `test` name them."""

    train: tuple[str, ...]
    validation: tuple[str, ...]
    test: tuple[str, ...]

    def __attrs_post_init__(self) -> None:
        if not self.train:
            raise ValueError("train names no file")
        self.check_shares()

    @override
    def documents(self, split: Split) -> Iterator[str]:
        if not {"train": (), "validation": self.validation, "test": self.test}[split]:
            self.files()  # refuses every wrong name before anything is read; a benchmark needs no training text
        yield from super().documents(split)

    @override
    def training_stamp(self) -> Stamps:
        return stamps_of(self.expand(self.train, "train"))

    @override
    def fingerprint(self) -> dict[str, Any]:
        return {split: fingerprint_of(stamps_of(paths)) for split, paths in self.files().items() if paths}

    @override
    def stamp(self) -> Any:
        return {split: stamps_of(paths) for split, paths in self.files().items()}

    def files(self) -> dict[str, list[Path]]:
        """Return the files of each split; none if it is held out of the training files."""
        patterns = {"train": self.train, "validation": self.validation, "test": self.test}
        files = {key: self.expand(names, key) for key, names in patterns.items()}
        seen: dict[Path, str] = {}
        for key, paths in files.items():
            for path in paths:
                other = seen.setdefault(path.resolve(), key)
                if other != key:
                    raise UserError(f"corpus.{key}: {path} is in corpus.{other} too; a held-out text must not be both")
        return files

    @abstractmethod
    def expand(self, patterns: tuple[str, ...], key: str) -> list[Path]:
        """Return the files that the patterns of a parameter name, each once."""


def matching(pattern: str, suffixes: tuple[str, ...], key: str, remedy: str) -> list[Path]:
    """Return the files of a path, a pattern or a folder, of which those count that have one of the suffixes."""
    path = Path(os.path.expanduser(pattern))  # of an unknown user, it stays as it is
    matches = [path] if path.is_file() else sorted(Path(p) for p in glob.glob(str(path), recursive=True))
    if path.is_dir():
        matches = sorted(match for match in path.rglob("*") if suffix(match) in suffixes)
    matches = [match for match in matches if match.is_file()]
    if not matches and path.is_dir():
        *most, last = suffixes
        ends = f"ends in {', '.join(most)} or {last}"
        raise UserError(f"corpus.{key}: no file in the folder {pattern} {ends}; name its files, as in {path}/*")
    if not matches:
        there = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        raise UserError(f"corpus.{key}: there is no file {pattern}{nearest(path.name, there)}; {remedy}")
    return matches


@component
class FilesCorpus(NamedFiles):
    """Files named by path or pattern, or folders of them, in UTF-8.

    `.jsonl` and `.ndjson` have one JSON object per line, whose `text_field` is a document, and so has each row of a
    `.parquet`, and of a `.csv` or a `.tsv` whose first line names the columns; other files are plain text. Those ending
    in `.gz` and `.zst` are decompressed. Of a folder, those are read that end in .txt, .jsonl, .ndjson, .csv, .tsv or
    .parquet, compressed or not, in its folders too. If `validation` or `test` names no files, that share of the
    training documents is held out, by their hashes: no document is divided, and equal ones are in the same split. Empty
    documents are skipped, and so is a byte order mark at the start of a file.

    Dialogues (`data.form = "chat"`) are the objects of JSON lines or the rows of Parquet: `messages`, a list with the
    `role` and the `content` of each, or `prompt` and `response` (or `completion`).
    """

    name = "files"
    summary = "files of text, JSON lines, CSV or Parquet, .gz or .zst or plain"
    refs = ("https://jsonlines.org", "https://parquet.apache.org")

    train: tuple[str, ...] = param(help='paths or patterns, like ["texts/*.txt.gz"]; relative to the working directory')
    validation: tuple[str, ...] = param((), help="files to validate on; held out of the training files when absent")
    test: tuple[str, ...] = param((), help="files to test on; held out of the training files when absent")
    document: Boundary = part("boundary", "file", help="where a document ends in plain text")
    detokenizer: Detokenizer = part("detokenizer", "none", help="from the tokens of a benchmark to ordinary text")
    source: str = param("", help="where the files come from, in words, for when one is missing")
    text_field: str = param("text", help="key of the text in JSON lines, CSV and Parquet; a.b for a nested key")
    validation_share: float = param(0.05, help="share of the documents held out if validation is absent", ge=0, lt=1)
    test_share: float = param(0.05, help="share of the documents held out if test is absent", ge=0, lt=1)
    seed: int = param(0, help="a different seed holds out different documents", ge=0)
    holds_dialogues: ClassVar[bool] = True

    @property
    def package(self) -> tuple[str, str] | None:
        """What reading the files needs, as an optimizer's `package`; of several packages, the first."""
        paths = itertools.chain.from_iterable(self.files().values())
        return next(filter(None, map(package, paths)), None)

    @override
    def read(self, split: Split) -> Iterator[str]:
        for path in self.expand(getattr(self, split), split):
            texts = documents(path, self.document, self.text_field)
            yield from (text for text in map(self.detokenizer, texts) if text.strip())

    @override
    def read_dialogues(self, split: Split) -> Iterator[str]:
        for path in self.expand(getattr(self, split), split):
            yield from dialogues(path)

    @override
    def size(self) -> int | None:
        forms: dict[tuple[str, str], list[Path]] = {}
        for path in itertools.chain.from_iterable(self.files().values()):
            forms.setdefault((suffix(path), path.suffix), []).append(path)
        size = 0.0
        for paths in forms.values():
            share = text_in(paths[0], self.document, self.text_field)
            if share is None:  # a format does not tell
                return None
            size += share * sum(path.stat().st_size for path in paths)
        return round(size)

    @override
    def identity(self) -> dict[str, Any]:
        table = unstructure(self)
        del table["source"]
        # Parts without parameters by their names alone: the names of all shards of files hang on this form.
        if table["document"].keys() == {"use"}:
            table["document"] = table["document"]["use"]
        if table["detokenizer"] == {"use": "none"}:
            del table["detokenizer"]
        return table

    @override
    def expand(self, patterns: tuple[str, ...], key: str) -> list[Path]:
        remedy = self.source or "name files that are there: a path is taken from the folder in which atat is started"
        found = dict.fromkeys(path for pattern in patterns for path in matching(pattern, _SUFFIXES, key, remedy))
        refuse_unfinished(found, key)
        return list(found)
