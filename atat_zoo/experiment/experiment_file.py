"""Read an experiment file: resolve `extends`, apply overrides, and run all checks without torch."""

import copy
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import attrs

from atat_zoo.experiment.effects import without_effect
from atat_zoo.experiment.inheritance import Refused, adopt, base_of
from atat_zoo.experiment.runs import RunFolder
from atat_zoo.experiment.schema import ALWAYS, SECTIONS, TOP_LEVEL, Experiment, completed
from atat_zoo.registry import KINDS, TABLES, Zoo
from atat_zoo.registry.registry_file import PACKAGE
from atat_zoo.registry.spec import problems_of, structure
from atat_zoo.system import old_names, parsing
from atat_zoo.system.errors import Problem, UserError, clip, nearest
from atat_zoo.system.machine import install_command

Table = dict[str, Any]
Origins = dict[str, str]  # key path -> the file or override that sets it

CORPORA, TOKENIZERS = "corpora", "tokenizers"  # the folders of files with a [corpus] or a [tokenizer]
# `lm1b/mdlm` means the file lm1b in one folder, then mdlm in the other; `mdlm` means `cpu/mdlm`.
SIZES, VARIANTS, SMALL = "base", "base/variants", "cpu"
_CHAIN = 32  # maximum length of a chain of files that extend each other


def _roots() -> list[Path]:
    return [root for root in (PACKAGE.parent / "experiments", PACKAGE / "experiments") if root.is_dir()]


def shipped(name: str) -> Path | None:
    """Return the shipped file with this name, given with or without its suffix, or None if no file has it."""
    files = (root / f"{name.removesuffix('.toml')}.toml" for root in _roots())
    return next((file for file in files if file.is_file()), None)


def _within(folder: str) -> list[str]:
    """Return the names of the shipped files in a folder, excluding its subfolders."""
    return sorted(path.stem for root in _roots() for path in (root / folder).glob("*.toml"))


def names() -> list[str]:
    """Return the names of shipped files, including `studies/…`, of variants, and of every size with every variant."""
    files = (path.relative_to(root).with_suffix("") for root in _roots() for path in root.rglob("*.toml"))
    variants = _within(VARIANTS)
    return sorted({*map(str, files), *variants, *(f"{size}/{each}" for size in _within(SIZES) for each in variants)})


def recipes(folder: str = CORPORA) -> list[str]:
    """Return the names of the shipped files in a folder, by default those of the corpora."""
    return _within(folder)


def recipe(name: str, zoo: Zoo | None = None) -> Any:
    """Return the shipped corpus with this name, or raise a `KeyError`."""
    file = shipped(f"{CORPORA}/{name}")  # not `find`: the corpus itself may be in a folder of that name
    if file is None:
        raise KeyError(name)
    table, _ = _read(file, (), {})
    return (zoo or Zoo.load()).spec("corpus", table["corpus"])


def find(name: str) -> list[Path]:
    """Return the files that `name` refers to, in the order in which they are merged, or raise a `UserError`.

    `name` is a path, the name of a shipped file, `SIZE/VARIANT`, or `VARIANT` for the size `cpu`.
    """
    path = Path(name)
    try:
        if path.is_file():
            return [path]
        if path.is_dir():
            raise UserError(f"{name} is a folder; pass the experiment file in it")
        if (file := shipped(name)) is not None:
            return [file]
        size, slash, variant = name.removesuffix(".toml").rpartition("/")
        pair = shipped(f"{SIZES}/{size if slash else SMALL}"), shipped(f"{VARIANTS}/{variant}")
        if None not in pair and "/" not in size:
            return [file for file in pair if file]
    except (OSError, ValueError) as error:  # the name is too long, permission is denied, or a NUL byte
        reason = getattr(error, "strerror", error)
        raise UserError(f"{clip(repr(name))} cannot be read: {reason}; pass an experiment file") from None
    known = [n for n in names() if not n.startswith(("studies/", f"{CORPORA}/", f"{TOKENIZERS}/"))]
    problem = f"unknown experiment {clip(repr(name))}: no such file{nearest(name, known)}"
    raise UserError(f"{problem} (shipped: {overview()})")


def overview() -> str:
    """Return a text that lists the shipped experiments, and the sizes and variants that can be combined."""
    folders = {path.parent.name for root in _roots() for path in root.glob("*/*.toml")} - {
        SIZES,
        CORPORA,
        TOKENIZERS,
        "studies",
    }
    alone, sizes, variants, more = map(", ".join, (_within(""), _within(SIZES), _within(VARIANTS), sorted(folders)))
    return (
        f"{alone}; SIZE/VARIANT, or VARIANT for the size {SMALL}, with the sizes {sizes} and the variants {variants}; "
        f"more in {more}"
    )


def load(
    name: str, overrides: Iterable[str] = (), zoo: Zoo | None = None, overrides_from: str = "on the command line"
) -> Experiment:
    """Return a validated experiment from a file, or raise a `UserError` with one line per problem.

    Args:
        name: a path, or the name of an experiment that ships with the zoo.
        overrides: `key.path=value` strings; the value is TOML, or a bare word.
        zoo: the zoo that provides the components; by default, that of this installation.
        overrides_from: where the overrides come from, for error messages.
    """
    files, zoo = find(name), zoo or Zoo.load()
    pair = len(files) > 1
    where = name if pair else str(files[0])
    table, origins = _joined(files, (), {}) if pair else _read(files[0], (), {})
    if "arms" in table:
        raise UserError(f"{where} is a study, not an experiment; use `atat study {where}`")
    in_files = dict(origins)
    _override(table, origins, overrides, overrides_from)
    _drop_unused(table, origins, in_files, where, zoo)
    table.setdefault("name", name.removesuffix(".toml").replace("/", "-") if pair else _name(files[0]))
    try:
        merged, source = base_of(table)
    except Refused as error:
        _refuse([error.problem], origins, where)
    _merge(merged, table, TABLES)
    experiment, problems = from_table(merged, origins, where, zoo), list[Problem]()
    if source is not None:
        experiment, problems = adopt(experiment, source, zoo)
    # Only for files: a run that was trained with settings without effect can still be read.
    _refuse(problems or without_effect(experiment, zoo), origins, where)
    return experiment


def _refuse(problems: Iterable[Problem], origins: Origins, default: str) -> None:
    """If there are problems, raise a `UserError` that lists each of them with the file that sets its key."""
    if lines := [f"{_origin(problem.key, origins, default)}: {problem}" for problem in problems]:
        raise UserError("\n".join(lines))


def _name(path: Path) -> str:
    """Return a name for an unnamed experiment, made of the file name and the folders below experiments/."""
    below = path.resolve().with_suffix("").parts
    if "experiments" in below[:-1]:
        below = below[len(below) - below[::-1].index("experiments") :]
        return "-".join(below)
    return path.stem


def from_overrides(table: Table, overrides: Iterable[str], where: str, *, drop_unused: bool = False) -> Experiment:
    """Apply `key.path=value` overrides to a table from `Experiment.to_table` in place, and return its experiment.

    With `drop_unused`, an override of the objective removes the tables that the new objective does not use.
    """
    origins: Origins = dict.fromkeys(_paths(table), where) if drop_unused else {}
    in_table = dict(origins)
    _override(table, origins, overrides)
    if drop_unused:
        _drop_unused(table, origins, in_table, where, Zoo.load())
    return from_table(table, origins, where)


def from_run(run: Path) -> Experiment:
    """Return the experiment that a run folder records, or raise a `UserError` if it is missing or invalid."""
    folder = RunFolder(run)
    return from_table(folder.table(), where=str(folder.resolved))


def from_table(
    table: Table, origins: Origins | None = None, where: str = "experiment", zoo: Zoo | None = None
) -> Experiment:
    """Return the experiment for a table from `Experiment.to_table`, or raise a `UserError` with a line per problem."""
    zoo = zoo or Zoo.load()
    origins = origins or {}
    table = copy.deepcopy(table)
    problems: list[Problem] = []

    def refuse(key: str, text: str) -> None:
        problems.append(Problem(key, text))

    known = [*TOP_LEVEL, *TABLES, *SECTIONS]
    for key in table:
        if key == "extends":
            refuse(key, "only works in an experiment file; set it there, or write a file that extends this one")
        elif now := old_names.KINDS.get(key):
            refuse(key, f"was renamed to {now}")
        elif key in KINDS and key not in known:
            refuse(key, "is not a table in an experiment; set it as a parameter of the component that uses it")
        elif key not in known:
            close = nearest(key, known)
            refuse(key, f"unknown key in an experiment{close} (available: {', '.join(known)})")
    name: Any = table.get("name")
    seed: Any = table.get("seed", 17)
    word = isinstance(name, str) and name.isprintable() and "/" not in name and name not in ("", ".", "..")
    if not word or len(name.encode()) > 255:
        refuse("name", f"expected a folder name of at most 255 bytes without '/', got {clip(repr(name))}")
    if type(seed) is not int or not 0 <= seed < 2**63:
        refuse("seed", f"expected an int from 0 to 2**63 - 1, got {clip(repr(seed))}")
    init_from: Any = table.get("init_from")
    if init_from is not None and (not isinstance(init_from, str) or not init_from.isprintable() or not init_from):
        refuse("init_from", f"expected the folder of a finished run, got {clip(repr(init_from))}")
    requires: Any = table.get("requires", [])
    if not isinstance(requires, list) or not all(isinstance(package, str) for package in requires):
        refuse("requires", f"expected a list of package names, got {clip(repr(requires))}")
        requires = []
    for package in requires:
        version = None  # None also after an interrupted installation, for which the backport raises the last two errors
        with suppress(metadata.PackageNotFoundError, ValueError, TypeError, FileNotFoundError):
            version = metadata.version(package)
        if not version:
            refuse("requires", f"{package} is not installed; run `{install_command(package)}`")
    parts: dict[str, Any] = {}
    for kind, default in TABLES.items():
        value = table.get(kind, default)
        if isinstance(value, dict) and "use" not in value:
            value = {"use": default, **value}
        parts[kind], wrong = zoo.structure(kind, value, kind)
        problems += wrong
    sections: dict[str, Any] = {}
    for section, cls in SECTIONS.items():
        value = completed(section, table.get(section, {}), parts)
        if not isinstance(value, dict):
            refuse(section, f"expected a table, got {clip(repr(value))}")
            continue
        sections[section], wrong = structure(cls, value, section, zoo)
        problems += wrong
    _refuse(problems, origins, where)
    experiment = Experiment(name=name, seed=seed, init_from=init_from, parts=parts, **sections)
    tables = [(kind, parts[kind]) for kind in experiment.kinds]
    experiment = attrs.evolve(experiment, requires=zoo.origins([*tables, *sections.items()]))
    for kind in TABLES:
        if kind in table and kind not in experiment.kinds:
            others = "".join(f", or extend {other}, whose objective does" for other in _using(kind, zoo)[:1])
            refuse(kind, f"objective {parts['objective'].name!r} does not use the kind {kind}; remove [{kind}]{others}")
    _refuse(problems + conflicts(experiment), origins, where)
    return experiment


def _using(kind: str, zoo: Zoo) -> list[str]:
    """Return the names of the shipped variants whose objective uses a kind, the simplest first."""
    found = []
    for name in sorted(_within(VARIANTS), key=lambda name: (name != "mdlm", name)):
        table, _ = _joined(find(name), (), {})
        objective = table.get("objective", TABLES["objective"])
        use = objective.get("use", TABLES["objective"]) if isinstance(objective, dict) else objective
        used: Any = zoo.component("objective", use)
        found += [name] if kind in used.uses else []
    return found


def conflicts(experiment: Experiment) -> list[Problem]:
    """Return the conflicts between the components of an experiment."""
    problems: list[Problem] = []
    objective, backbone = experiment.parts["objective"], experiment.parts["backbone"]
    if objective.masks_attention and backbone.both_ways_only:
        text = (
            f"{objective.name!r} needs a backbone that takes attention masks, but {backbone.name!r} always reads the "
            f"whole sequence; use a different backbone, or an objective such as mdlm"
        )
        problems.append(Problem("objective", text))
    optimizer = experiment.parts["optimizer"]
    if experiment.train.sharding != "none" and not getattr(optimizer, "shardable", False):
        text = (
            f"optimizer {optimizer.name!r} does not support sharded parameters; "
            'use a different one, such as "adamw", or set train.sharding = "none"'
        )
        problems.append(Problem("train.sharding", text))
    used = (experiment.parts[kind] for kind in experiment.kinds)
    measured = (experiment.evaluation.bound, *experiment.evaluation.metrics, *experiment.evaluation.tasks)
    for spec in (experiment.data, *used, *experiment.data.transforms, *measured, *experiment.train.parts):
        problems += problems_of(spec, experiment)
    return problems


def conflicts_with(experiment: Experiment, parts: Mapping[str, Any]) -> list[Problem]:
    """Return the conflicts that arise when `parts`, a dict from kind to component, replace those of an experiment."""
    other = attrs.evolve(experiment, parts={**experiment.parts, **parts})
    before = conflicts(experiment)
    return [problem for problem in conflicts(other) if problem not in before]


def _read(path: Path, trail: tuple[Path, ...], known: dict[Path, tuple[Table, Origins]]) -> tuple[Table, Origins]:
    """Return the table of a file, merged into the tables that it extends, and the origin of each key.

    `trail` lists the files that extend this one, the outermost first. `known` caches the tables read so far, because
    several files may extend the same base.
    """
    where = clip(path)
    try:
        # A symbolic link extends files relative to the link, not to its target.
        place, resolved = Path(os.path.realpath(path.parent), path.name), Path(os.path.realpath(path))
        if resolved in trail:
            raise UserError(
                f"{where}: extends itself through {', '.join(p.name for p in trail)}; remove one of these `extends`"
            )
        if place in known:
            return known[place]
        if len(trail) == _CHAIN:
            raise UserError(
                f"{where}: more than {_CHAIN} files extend each other in a chain up to this one; merge some of them"
            )
        own = read_toml(path)
    except FileNotFoundError:
        raise UserError(
            f"{trail[-1] if trail else where}: extends {where!r}, which does not exist; "
            "give a path relative to this file, or the name of a shipped experiment without .toml"
        ) from None
    except (OSError, ValueError) as error:  # the path itself is invalid: a circle of links, or a NUL character
        raise _unreadable(path, error) from None
    own.pop("source", None)  # the download source of a corpus, which `atat data get` reads
    bases = own.pop("extends", [])
    bases = [bases] if isinstance(bases, str) else bases
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise UserError(f"{where}: extends: expected a file name or a list of them, got {clip(repr(bases))}")
    # Relative to this file, or the name of a shipped experiment.
    files = [file for base in bases for file in ([path.parent / base] if base.endswith(".toml") else find(base))]
    table, origins = _joined(files, (*trail, resolved), known)
    _merge(table, own, TABLES)
    origins |= dict.fromkeys(_paths(own), str(path))
    known[place] = table, origins
    return table, origins


def _joined(
    files: Iterable[Path], trail: tuple[Path, ...], known: dict[Path, tuple[Table, Origins]]
) -> tuple[Table, Origins]:
    """Return the tables of files, without their names, merged into one in which later files override earlier ones."""
    table: Table = {}
    origins: Origins = {}
    for file in files:
        own, sources = _read(file, trail, known)
        _merge(table, {key: value for key, value in own.items() if key != "name"}, TABLES)
        origins |= sources
    return table, origins


def read_toml(path: Path) -> Table:
    """Return the table of a TOML file; raise `FileNotFoundError` if missing, `UserError` if unreadable or invalid."""
    try:
        if path.exists() and not path.is_file() and not path.is_dir():  # reading a pipe might block forever
            raise UserError(f"{clip(path)}: cannot be read: it is a device or a pipe; pass a TOML file")
        return parsing.from_toml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise
    except UnicodeDecodeError as error:
        raise UserError(f"{clip(path)}: is not UTF-8 text: {error}; save it as UTF-8") from None
    except OSError as error:
        raise _unreadable(path, error) from None
    except ValueError as error:
        raise UserError(f"{clip(path)}: is not valid TOML: {error}") from None


def _unreadable(path: Path, error: OSError | ValueError) -> UserError:
    # Python's own words for a NUL byte depend on its version.
    reason = "embedded null byte" if "\0" in str(path) else getattr(error, "strerror", None) or error
    return UserError(f"{clip(path)}: cannot be read: {reason}; pass a readable TOML file")


def _merge(base: Table, over: Table, defaults: Mapping[str, str], drop: bool = True) -> None:
    """Merge `over` into `base` table by table; with `drop`, a new `use` discards the old component's parameters.

    `defaults` names the component that a table without `use` stands for.
    """
    for key, value in over.items():
        old = base.get(key)
        if key not in SECTIONS:  # a component's name is short for a table with only `use`
            if isinstance(old, str) and isinstance(value, dict):
                old = {"use": old}
            elif isinstance(old, dict) and isinstance(value, str):
                value = {"use": value}
        if not isinstance(value, dict):
            base[key] = value
            continue
        merged: Table = {}
        if isinstance(old, dict):
            used = old.get("use", defaults.get(key))
            if not drop or value.get("use", used) == used:
                merged = dict(old)
        _merge(merged, value, {}, drop)
        base[key] = merged


def overrides_as_table(
    overrides: Iterable[str], origins: Origins | None = None, named: str = "on the command line"
) -> Table:
    """Return `key.path=value` strings as a table, and add their keys to `origins`; an invalid one is a `UserError`."""
    over: Table = {}
    origins = {} if origins is None else origins
    for text in overrides:
        where = f"{clip(repr(text))} {named}"
        key, equals, raw = text.partition("=")
        key, raw = key.strip(), raw.strip()
        if not equals or not key:
            raise UserError(f"{where}: expected key=value, as in train.steps=200")
        try:
            value = parsing.value_of(raw)
        except ValueError:
            value = raw  # a bare word: masking.use=importance
        except parsing.TrailingInput:
            raise UserError(
                f"{where}: the value is followed by a comment or another key; remove what follows the value"
            ) from None
        *outer, last = key.split(".")
        nested: Table = {last: value}
        for name in reversed(outer):
            nested = {name: nested}
        try:
            parsing.check(nested)
        except ValueError as error:
            raise UserError(f"{where}: is not a valid key: {error}") from None
        # Merge the overrides first, so that a `use` among them drops none of them, in any order.
        _merge(over, nested, {}, drop=False)
        origins |= dict.fromkeys(_paths(nested), where)
    return over


def _override(table: Table, origins: Origins, overrides: Iterable[str], named: str = "on the command line") -> None:
    _merge(table, overrides_as_table(overrides, origins, named), TABLES)


def _drop_unused(table: Table, origins: Origins, in_files: Origins, where: str, zoo: Zoo) -> None:
    """Drop the inherited tables of kinds that the objective does not use.

    Such a table is an error if it is set in the file that names the objective, in the experiment's own file or in an
    override.
    """
    named = table.get("objective", TABLES["objective"])
    use = named.get("use", TABLES["objective"]) if isinstance(named, dict) else named
    try:
        objective: Any = zoo.component("objective", use)
    except (UserError, TypeError):  # an invalid objective, which is refused later
        return
    here = origins.get("objective.use", origins.get("objective"))
    # An override that names the objective removes the tables from all files.
    written = {here} if here not in (None, *in_files.values()) else {here, where}
    for kind in [kind for kind in TABLES if kind in table and kind not in objective.uses | ALWAYS]:
        keys = [key for key in origins if key == kind or key.startswith(f"{kind}.")]
        mistakes = [origins[key] for key in keys if origins[key] != in_files.get(key) or origins[key] in written]
        if mistakes:
            origins[kind] = mistakes[0]  # the message names it
        else:
            del table[kind]


def _paths(table: Table, prefix: str = "") -> Iterable[str]:
    for key, value in table.items():
        yield prefix + key
        if isinstance(value, dict):
            yield from _paths(value, f"{prefix}{key}.")


def _origin(key: str, origins: Origins, default: str) -> str:
    """Return the file or override that sets a key or, if none does, the innermost table around the key."""
    key = key.partition("[")[0]
    while key:
        if key in origins:
            return origins[key]
        key = key.rpartition(".")[0]
    return default
