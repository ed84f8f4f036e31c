"""`atat data get`: download a corpus or tokenizer as described in the table `[source]` of its file.

The TOML file has a `[corpus]` table, as in experiments/corpora, or a `[tokenizer]` table, as in experiments/tokenizers.
A source is either a list of URLs, whose files are kept or unpacked, or a dataset on the Hugging Face hub, whose splits
are written to files.

    <folder>/.NAME.lock         locked during the download
    <folder>/.NAME.source.part  marks an incomplete download, with the command that resumes it
    <folder>/NAME.source.json   records the downloaded files and their `[source]`; written last

Files are complete or absent. Existing files are not downloaded again, and a text is never silently replaced.
"""

import errno
import fnmatch
import hashlib
import itertools
import json
import os
import re
import shutil
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

import attrs

from atat_zoo.data.corpora.archives import DAMAGED, members, unpacked
from atat_zoo.data.downloads import download, expanded, file_name
from atat_zoo.experiment import read_toml, recipes, shipped
from atat_zoo.experiment.experiment_file import CORPORA, TOKENIZERS
from atat_zoo.registry import Zoo, component_base, param
from atat_zoo.registry.spec import structure
from atat_zoo.system.atomic_files import FULL, clean, replacing, write_json
from atat_zoo.system.errors import Problem, UserError, clip, nearest
from atat_zoo.system.locks import locked
from atat_zoo.system.parsing import from_json


@component_base
class SourceFile:
    """A file at a URL that is kept unchanged, or an archive from which members are extracted."""

    url: str = param(help="URL of the file; braces are expanded, as in part-{000..127}.txt")
    to: str | None = param(None, help="target file, with the same braces as in url; not set for an archive")
    members: dict[str, str] = param(
        attrs.Factory(dict),
        help="names or patterns of members in a zip or tar, each with a target file, or a target folder ending in /",
    )
    bytes: int | None = param(None, help="size of the file in bytes, if known", ge=0)
    sha256: str | None = param(None, help="SHA-256 of the file in hexadecimal, if known")

    def __attrs_post_init__(self) -> None:
        if "" in (self.to, *self.members.values()):
            raise ValueError("a path in `to` or `members` is empty; name a file")
        if (self.to is None) == (not self.members):
            raise ValueError("set either `to`, or `members` for an archive, not both")
        if self.sha256 is not None:
            if not re.fullmatch("[0-9a-fA-F]{64}", self.sha256):
                raise ValueError(f"sha256 must be 64 hexadecimal digits, not {self.sha256!r}")
            object.__setattr__(self, "sha256", self.sha256.lower())  # like computed ones


@component_base
class TextSource:
    """The table `[source]` in a corpus or tokenizer file."""

    licence: str = param(help="licence of the text")
    cite: str = param(help="citation of the text")
    size: str = param(help='approximate download size, as a string such as "31 MB"')
    files: tuple[dict[str, Any], ...] = param((), help="files to download")
    hub: str | None = param(None, help="Hugging Face dataset, from the hub or a local folder")
    configuration: str | None = param(None, help="dataset configuration, if there are several")
    splits: dict[str, str] = param(attrs.Factory(dict), help="dataset splits or slices, each with its target file")
    column: str | None = param(
        None,
        help="key of the text in downloaded records (a.b if nested); lists of texts are joined by newlines",
    )
    vocabulary_size: int | None = param(None, help="vocabulary size of a tokenizer", ge=1)

    def __attrs_post_init__(self) -> None:
        if (self.hub is None) == (not self.files) or (self.hub is None) != (not self.splits):
            raise ValueError("set either `files`, or `hub` and `splits`, not both")
        if "" in self.splits.values():
            raise ValueError("splits: a file name is empty; name a file")
        if len({*self.splits.values()}) < len(self.splits):
            raise ValueError("splits: two splits have the same file; name a different file for one of them")


class CorpusRecipe(NamedTuple):
    """A corpus or tokenizer that can be downloaded."""

    name: str
    command: str  # the command that downloads it
    field: str  # key of the text in JSON lines
    source: TextSource
    files: tuple[SourceFile, ...]

    @property
    def folder(self) -> Path:
        """The innermost folder that contains all files, relative to the working directory."""
        return Path(os.path.commonpath([os.path.dirname(path) or "." for path in self.paths]))

    @property
    def paths(self) -> list[str]:
        """All paths that are written, with their braces; a folder for archive members ends in /."""
        named = [path for file in self.files for path in (file.to, *file.members.values()) if path is not None]
        return [*self.source.splits.values(), *named]


def read(name: str) -> CorpusRecipe:
    """Return the recipe in the shipped source or the file `name`; raise a `UserError` if it is unknown or invalid."""
    file = shipped(f"{CORPORA}/{name}") or shipped(f"{TOKENIZERS}/{name}") or Path(name)
    try:
        table = read_toml(file)
    except FileNotFoundError:
        known = [*recipes(), *recipes(TOKENIZERS)]
        raise UserError(
            f"unknown corpus or tokenizer {clip(repr(name))}: no such file{nearest(name, known)}; pass "
            f"a TOML file with [source], or one of the shipped names: {', '.join(known)}"
        ) from None
    if not isinstance(own := table.get("source"), dict):
        raise UserError(f"{file}: source: the table [source] is missing; add it with the URLs of the text")
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
    """Return the recipes that ship with atat-zoo, the corpora before the tokenizers."""
    return [read(name) for name in (*recipes(), *recipes(TOKENIZERS))]


def published_size(path: str) -> int | None:
    """Return the vocabulary size of the tokenizer that a shipped source saves to `path`, or None for other paths."""
    tokenizers = (read(name) for name in recipes(TOKENIZERS))
    return next((each.source.vocabulary_size for each in tokenizers if str(Path(path)) in each.paths), None)


Say = Callable[[str], object]
Record = dict[str, Any]  # as written to the file
Files = dict[str, Record]  # the size and SHA-256 for each path; a large file is hashed once
Begin = Callable[[list[Record]], None]  # marks the corpus as unfinished, with the origins of its files
Opener = Callable[[], IO[bytes]]
_LINES = ".jsonl"
_MANY, _TAIL = 0xFFFF, (1 << 16) + 22  # member count stored elsewhere in a zip; maximum length of its end record
_RETRIES, _TIMEOUT = 3, 60.0  # see the `shards` corpus
# Exceptions for an archive that is damaged, encrypted, or packed in a way that the libraries do not know.
_DAMAGED = (*DAMAGED, zipfile.BadZipFile, RuntimeError, NotImplementedError)


def get(recipe: CorpusRecipe, say: Say) -> Record:
    """Download the missing files of a recipe, after any other download of it, and return the record of the download.

    A `UserError` names a file that cannot be downloaded, unpacked or written, or a text that has changed.
    """
    path, mark = recipe.folder / f"{recipe.name}.source.json", marker(recipe.folder, recipe.name)
    try:
        recipe.folder.mkdir(parents=True, exist_ok=True)
        with locked(
            recipe.folder / f".{recipe.name}.lock", lambda who: say(f"{recipe.name} is being downloaded by {who}")
        ):
            before, origins = _record(path), _origins(recipe)
            begun = before or _record(mark)
            if begun:
                _refuse_changed(recipe, origins, begun, path if before else mark)
            here = {name: _described(Path(name)) for name in (before or {}).get("files", ()) if Path(name).is_file()}
            _refuse_other(before, here, path)
            every = itertools.chain.from_iterable(_expanded(to, recipe) for to in recipe.paths if to[-1] != "/")
            # The recipe may now have more files than the record.
            if before and here.keys() == before["files"].keys() | {str(Path(to)) for to in every}:
                mark.unlink(missing_ok=True)
                return before
            head = {"name": recipe.name, "date": f"{datetime.now(UTC):%Y-%m-%d}", "source": origins}

            def begin(fetched: list[Record]) -> None:
                place = {"command": recipe.command, "folder": str(recipe.folder)}
                write_json(mark, head | place | {"from": fetched, "files": {}})

            files, fetched = (_from_hub if recipe.source.hub else _from_addresses)(
                recipe, begun, here, path, begin, say
            )
            _refuse_other(before, files, path)
            record = head | {"from": fetched, "files": files}
            write_json(path, record)
            mark.unlink(missing_ok=True)
            return record
    except OSError as error:
        what, why = clip(error.filename or recipe.folder), error.strerror or error
        mend = "free some space" if error.errno in FULL else "run the command in a writable folder"
        raise UserError(f"{what} cannot be written: {why}; {mend}") from None


def _record(path: Path) -> Record | None:
    """Return the record of a complete or incomplete download, or None."""
    try:
        record: Record = from_json(path.read_bytes())
        for each in record["files"].values():
            each["bytes"], each["sha256"]
        record["date"], [each["url"] for each in record["from"]]
        [dict(each) for each in record.setdefault("source", {}).values()]  # missing from older records
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UserError(f"{path} is damaged; delete it and run the command again") from None
    return record


def _described(path: Path) -> Record:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _origins(recipe: CorpusRecipe) -> dict[str, Record]:
    """Return a dict from the path of each file or member folder to the part of `[source]` that describes it."""
    source = recipe.source
    read = {"column": source.column, "text_field": recipe.field}
    if source.hub:
        hub = {"hub": source.hub, "configuration": source.configuration}
        return {str(Path(to)): hub | {"split": split} | read for split, to in source.splits.items()}
    origins: dict[str, Record] = {}
    for file in recipe.files:
        if file.members:
            for member, to in file.members.items():
                several = origins.setdefault(str(Path(to)), {} if source.column is None else dict(read))
                for key, value in {"url": file.url, "member": member}.items():
                    several[key] = f"{several[key]}, {value}" if key in several else value
        else:
            origins |= {str(at): {"url": url} for url, at in _addresses(file, recipe)}
    return origins


def _refuse_changed(recipe: CorpusRecipe, origins: dict[str, Record], begun: Record, path: Path) -> None:
    """Raise a `UserError` if `[source]` has changed since the download."""
    changes = [
        (name, key, was.get(key), now.get(key))
        for name, now in origins.items()
        for was in [begun["source"].get(name, now)]
        for key in now | was
    ]
    for file in recipe.files:
        for url in _expanded(file.url, recipe):
            was = _earlier(begun, url).get("sha256")
            names = ", ".join(filter(None, (file.to, *file.members.values())))
            changes.append((names, "sha256", was, (was and file.sha256) or was))
    for name, key, was, now in changes:
        if was != now:
            raise UserError(
                f"source: {key} of {name} was {clip(repr(was))} on {begun['date']}, but is now {clip(repr(now))}; "
                f"delete {name} and {path}, and run `{recipe.command}` again"
            )


def _earlier(begun: Record | None, url: str) -> Record:
    """Return the record of an earlier download from a URL, or an empty dict."""
    return next((each for each in (begun or {}).get("from", ()) if each["url"] == url), {})


def _refuse_other(before: Record | None, now: Files, path: Path) -> None:
    """Raise a `UserError` if a file has changed since its download."""
    for name, found in now.items():
        if before and found != (then := before["files"].get(name, found)):
            raise UserError(
                f"{name} has changed since its download on {before['date']}: its SHA-256 is {found['sha256']}, but was "
                f"{then['sha256']}; delete it to download it again, or delete {path} to keep the changed file"
            )


def _from_addresses(
    recipe: CorpusRecipe, begun: Record | None, here: Files, path: Path, begin: Begin, say: Say
) -> tuple[Files, list[Record]]:
    """Download and unpack the files of a source; return the written files and the downloads."""
    begin([])
    written: Files = {}
    fetched: list[Record] = []
    archives: list[Path] = []
    for file in recipe.files:
        for url, at in _addresses(file, recipe):
            if str(at) in written:
                raise UserError(f"source.files: {url} has the target {at} of an earlier entry; set another target")
            clean(at.parent)
            if at.is_file():
                found = here.get(str(at)) or _described(at)
            else:
                say(f"downloading {url} to {at}")
                found = _download(file, url, at, recipe, begun, path)
            if file.sha256 not in (None, found["sha256"]):
                raise UserError(
                    f"{at} is not the file at {url}: its SHA-256 is {found['sha256']}, but should be {file.sha256}; "
                    f"delete it, and run `{recipe.command}` again"
                )
            fetched.append({"url": url, **found})
            if file.members:
                archives.append(at)
                say(f"unpacking {at}")
            written |= _unpack(at, file, recipe, written) if file.members else {str(at): found}
    for archive in archives:  # now that all members are written
        archive.unlink(missing_ok=True)  # two entries may use the same archive
    return written, fetched


def _download(file: SourceFile, url: str, at: Path, recipe: CorpusRecipe, begun: Record | None, path: Path) -> Record:
    """Download a file, and compare its hash with that in `[source]` or else with that of an earlier download."""
    there = f"save the file at this path yourself and run `{recipe.command}` again"
    other = f"if the file at the URL has changed, correct its bytes and sha256 in source.files, or {there}"
    sha256 = file.sha256
    if begun and sha256 is None and (sha256 := _earlier(begun, url).get("sha256")):
        other = f"if the file at the URL has changed since {begun['date']}, delete {path} to accept it, or {there}"
    mend = f"check the network, or {there}"
    found = download(url, at, _RETRIES, _TIMEOUT, "source.files", mend, other=other, size=file.bytes, sha256=sha256)
    return {"bytes": at.stat().st_size, "sha256": found}


def _addresses(file: SourceFile, recipe: CorpusRecipe) -> Iterator[tuple[str, Path]]:
    """Yield each URL of a file with the path to save it to, which is temporary for an archive."""
    urls = _expanded(file.url, recipe)
    if file.to is None:
        yield from ((url, recipe.folder / file_name(url)) for url in urls)
        return
    paths = _expanded(file.to, recipe)
    if len(paths) != len(urls):
        raise UserError(
            f"{recipe.name}: source.files: {file.url} expands to {len(urls)} URLs, but {file.to} expands to "
            f"{len(paths)}; the numbers must be equal"
        )
    yield from ((url, Path(path)) for url, path in zip(urls, paths, strict=True))


def _expanded(text: str, recipe: CorpusRecipe) -> list[str]:
    return expanded(text, f"{recipe.name}: source.files") if "{" in text else [text]  # its library takes a second


def _unpack(archive: Path, file: SourceFile, recipe: CorpusRecipe, written: Files) -> Files:
    """Write the requested members of an archive, each completely or not at all, without overwriting other files."""
    patterns: dict[Path, str] = {}
    try:
        with _damage(archive):
            for name, opened in _members(archive):
                if name.startswith("/") or ".." in PurePosixPath(name).parts:
                    said = f"{archive} contains a member outside its folder, {clip(name)}"
                    raise UserError(f"{said}; do not use this archive")
                pattern = next((each for each in file.members if fnmatch.fnmatchcase(name, each)), None)
                if pattern is None:
                    continue
                to = file.members[pattern]
                path = Path(to, PurePosixPath(name).name) if to.endswith("/") else Path(to)
                if path in patterns or str(path) in written:
                    raise UserError(
                        f"source.files: {clip(name)} and another member of {archive} have the target {path}; name "
                        "a different target for one of them in members"
                    )
                clean(path.parent)
                # Damage to the archive must not be reported as an error of the target file.
                with replacing(path) as beside, _damage(archive), opened() as member, beside.open("wb") as out:
                    _convert(member, out, recipe, f"{archive}, {name}")
                patterns[path] = pattern
    except UserError:
        for path in patterns:  # these may also be damaged
            path.unlink(missing_ok=True)
        raise
    for pattern in file.members:
        if pattern not in patterns.values():
            raise UserError(
                f"{archive} has no member {pattern}; correct source.files, or delete the archive and download it again"
            )
    return {str(path): _described(path) for path in patterns}


def _members(archive: Path) -> Iterator[tuple[str, Opener]]:
    """Yield the name of each file in a zip or tar, and a function that opens the file until the next one is read."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed:
            if _listed(archive) not in (_MANY, len(packed.infolist()) & _MANY):
                raise zipfile.BadZipFile("its list of members is damaged")
            for info in packed.infolist():
                with packed.open(info):  # compares the list of names with the headers
                    pass
                if not info.is_dir():
                    yield info.filename, partial(packed.open, info)
    else:
        with archive.open("rb") as raw, unpacked(archive, raw) as stream:
            yield from members(stream)


def _listed(archive: Path) -> int:
    """Return the number of members that a zip declares (or `_MANY`), which `zipfile` does not check."""
    with archive.open("rb") as file:
        file.seek(max(0, archive.stat().st_size - _TAIL))
        _, _, end = file.read().rpartition(b"PK\5\6")
    return int.from_bytes(end[6:8], "little")


@contextmanager
def _damage(archive: Path) -> Iterator[None]:
    try:
        yield
    except (*_DAMAGED, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):  # not an invalid offset
            raise
        raise UserError(f"{archive} cannot be unpacked ({error}); delete it and download it again") from None


def _convert(member: IO[bytes], out: IO[bytes], recipe: CorpusRecipe, place: str) -> None:
    """Copy a file, or, if `source.column` is set, only the text from its JSON lines, as the corpus reads it."""
    if recipe.source.column is None:
        shutil.copyfileobj(member, out, 1 << 20)
        return
    for number, line in enumerate(member, 1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UserError(f"{place}, line {number} is not JSON ({error}); correct or remove source.column") from None
        text = _text(row, recipe.source.column, f"{place}, line {number}")
        out.write(json.dumps({recipe.field: text}).encode() + b"\n")


def _text(row: Any, column: str, place: str) -> str:
    """Return the text in a column (a.b for a nested one), joining a list of texts with newlines."""
    values = [row]
    for key in column.split("."):
        values = [value[key] if isinstance(value, dict) and key in value else None for value in values]
        values = [item for value in values for item in (value if isinstance(value, list) else [value])]
    for value in values:
        if not isinstance(value, str):
            raise UserError(f"source.column: {place} has no text in {column!r}; name a different column")
    return "\n".join(values)


def _from_hub(
    recipe: CorpusRecipe, begun: Record | None, here: Files, _: Path, begin: Begin, say: Say
) -> tuple[Files, list[Record]]:
    """Write the splits of a dataset; return the written files and a record of the dataset with its commit."""
    from atat_zoo.data.corpora.huggingface import HuggingFaceCorpus

    source, hub = recipe.source, recipe.source.hub or ""
    local = Path(hub).expanduser().is_dir()
    url = hub if local else f"https://huggingface.co/datasets/{hub}"
    paths = [Path(to) for to in source.splits.values()]
    form = f"as JSON lines with the key {recipe.field}" if paths[0].suffix == _LINES else "one row per line"
    mend = (
        f"check the network, or save {', '.join(source.splits)} of {url} in "
        f"{', '.join(map(str, paths))} yourself, {form}"
    )
    complete = all(at.is_file() for at in paths)
    # Use the commit of the existing splits.
    commit = _earlier(begun, url).get("commit") or (None if local or complete else _commit(hub, mend))
    fetched = [{"url": url, "commit": commit}]
    if not complete:
        begin(fetched)
    corpus = HuggingFaceCorpus(path=hub, config_name=source.configuration, revision=commit)
    for split, at in zip(source.splits, paths, strict=True):
        clean(at.parent)
        if at.is_file():  # downloaded earlier, or the user's own
            continue
        say(f"downloading {split} of {url} to {at}")
        with replacing(at) as beside, beside.open("wb") as out:
            for number, row in enumerate(_rows(corpus, split, mend), 1):
                text = _text(row, source.column or recipe.field, f"{hub}, {split}, row {number}")
                # Some rows of WikiText end with a newline, and some are empty.
                line = json.dumps({recipe.field: text}) if at.suffix == _LINES else text.rstrip("\n")
                out.write(line.encode() + b"\n")
    files = {str(at): here.get(str(at)) or _described(at) for at in paths}
    return files, fetched


def _commit(hub: str, mend: str) -> str:
    """Return the newest commit of a dataset on the hub."""
    try:
        import huggingface_hub

        return str(huggingface_hub.HfApi().dataset_info(hub, timeout=_TIMEOUT).sha)
    except Exception as error:  # the library raises nearly anything
        reason = " ".join(str(error).split())
        raise UserError(f"the dataset {hub} on the hub cannot be reached ({reason:.200}); {mend}") from None


def _rows(corpus: Any, split: str, mend: str) -> Iterator[dict[str, Any]]:
    try:
        yield from corpus.rows(split)
    except UserError as error:
        raise UserError(f"{error}; {mend}") from None


def marker(folder: Path, name: str) -> Path:
    """Return the path of the JSON file that marks an incomplete download, with `command`, `folder` and `source`."""
    return folder / f".{name}.source.part"  # hidden from patterns like text/*


def refuse_unfinished(paths: Iterable[Path], key: str) -> None:
    """Raise a `UserError` if one of the files named by `corpus.<key>` belongs to an incomplete download."""
    paths = list(paths)
    for folder in {folder for path in paths for folder in path.parents}:
        for mark in folder.glob(marker(Path(), "*").name):
            try:
                table = from_json(mark.read_bytes())
                command, within, named = table["command"], Path(table["folder"]), {*map(Path, table["source"])}
            except FileNotFoundError:  # the download was just completed
                continue
            except (ValueError, TypeError, KeyError):
                raise UserError(f"{mark} is damaged; delete it, and run `atat data get` for its corpus again") from None
            for path in (path for path in paths if path.is_relative_to(folder)):
                here = within / path.relative_to(folder)
                if named & {here, *here.parents}:  # the file, or the folder with members of an archive
                    raise UserError(
                        f"corpus.{key}: {path} belongs to a corpus whose download is incomplete; run `{command}`, or "
                        f"delete {mark} to use the incomplete corpus"
                    )
