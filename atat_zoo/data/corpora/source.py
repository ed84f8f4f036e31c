"""Where the text of a corpus is had: the table `[source]` of its recipe, which `atat data get` follows.

A recipe is a TOML file with a `[corpus]`, ours in experiments/corpora or anybody's. A source is files at addresses,
kept as they are or unpacked, or a data set of the Hugging Face hub, whose splits are written to files.
"""

import itertools
import os
import re
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import attrs

from atat_zoo.errors import Problem, UserError, clip, nearest
from atat_zoo.experiment import read_toml, recipes, shipped
from atat_zoo.registry import Zoo, component_base, param
from atat_zoo.registry.spec import structure


@component_base
class SourceFile:
    """A file at an address, kept as it is, or an archive of which some members are."""

    url: str = param(help="its address; braces are expanded, as in part-{000..127}.txt")
    to: str | None = param(None, help="where it is kept, with the braces of url; or else it is an archive")
    members: dict[str, str] = param(
        attrs.Factory(dict), help="name or pattern in a zip or tar, and the file for it, or the folder, which ends in /"
    )
    bytes: int | None = param(None, help="its size, where it is known", ge=0)
    sha256: str | None = param(None, help="its SHA-256 in hexadecimal, where it is known")

    def __attrs_post_init__(self) -> None:
        if "" in (self.to, *self.members.values()):
            raise ValueError("`to` and the files of `members` are paths, and one is empty; name a file")
        if (self.to is None) == (not self.members):
            raise ValueError("has to have either `to` or, for an archive, `members`")
        if self.sha256 is not None:
            if not re.fullmatch("[0-9a-fA-F]{64}", self.sha256):
                raise ValueError(f"sha256 has to be 64 hexadecimal digits, not {self.sha256!r}")
            object.__setattr__(self, "sha256", self.sha256.lower())  # as they are computed


@component_base
class TextSource:
    """The table `[source]` of a recipe."""

    licence: str = param(help="under which its text may be used")
    cite: str = param(help="how it is cited")
    size: str = param(help="roughly what is fetched, in words")
    files: tuple[dict[str, Any], ...] = param((), help="files at addresses")
    hub: str | None = param(None, help="a data set of the Hugging Face hub, or a folder that its library reads")
    configuration: str | None = param(None, help="which configuration of the data set, if it has several")
    splits: dict[str, str] = param(
        attrs.Factory(dict), help="split of the data set, or a part of one, and the file for it"
    )
    column: str | None = param(
        None, help="text in a row, or in JSON lines that are fetched; a.b for a nested one; texts of a list are joined"
    )

    def __attrs_post_init__(self) -> None:
        if (self.hub is None) == (not self.files) or (self.hub is None) != (not self.splits):
            raise ValueError("has to have either `files`, or `hub` and `splits`")
        if "" in self.splits.values():
            raise ValueError("splits: one of them is for no file; name one")
        if len({*self.splits.values()}) < len(self.splits):
            raise ValueError("splits: two of them are for one file; name another")


class CorpusRecipe(NamedTuple):
    """A corpus that can be fetched."""

    name: str
    command: str  # which fetches it
    field: str  # key of the text in JSON lines
    source: TextSource
    files: tuple[SourceFile, ...]

    @property
    def folder(self) -> Path:
        """The innermost folder with all of its files, in the working directory."""
        return Path(os.path.commonpath([os.path.dirname(path) or "." for path in self.paths]))

    @property
    def paths(self) -> list[str]:
        """Every path that is written, with its braces; a folder for members of an archive ends in /."""
        named = [path for file in self.files for path in (file.to, *file.members.values()) if path is not None]
        return [*self.source.splits.values(), *named]


def read(name: str) -> CorpusRecipe:
    """Return a recipe that ships with the zoo, by its name, or one in a file; a `UserError` where it has no source."""
    file = shipped(f"corpora/{name}") or Path(name)
    try:
        table = read_toml(file)
    except FileNotFoundError:
        known = recipes()
        raise UserError(
            f"there is no recipe {clip(repr(name))}: no such file{nearest(name, known)} (shipped: {', '.join(known)})"
        ) from None
    if not isinstance(own := table.get("source"), dict):
        raise UserError(
            f"{file}: source: is missing: a table that says where the text is had; `atat data get` needs it"
        )
    zoo = Zoo.load()
    source, problems = structure(TextSource, own, "source", zoo)
    found = [
        structure(SourceFile, each, f"source.files[{i}]", zoo) for i, each in enumerate(source.files if source else ())
    ]
    problems += itertools.chain.from_iterable(wrong for _, wrong in found)
    corpus = table.get("corpus")
    field = corpus.get("text_field", "text") if isinstance(corpus, dict) else "text"
    recipe = CorpusRecipe(file.stem, f"atat data get {clip(name)}", field, source, tuple(made for made, _ in found))
    problems += [
        Problem("source", f"{path!r} is not in the working directory; name a path below it, without ..")
        for path in (() if problems else recipe.paths)
        if path.startswith(("/", "~")) or ".." in PurePosixPath(path).parts
    ]
    if problems:
        raise UserError("\n".join(f"{file}: {problem}" for problem in problems))
    return recipe


def every() -> list[CorpusRecipe]:
    """Return the recipes that ship with the zoo."""
    return [read(name) for name in recipes()]
