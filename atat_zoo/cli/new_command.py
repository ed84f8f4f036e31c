"""`atat new`: create a plugin package with a component, or an experiment file."""

import re
import tempfile
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from atat_zoo.cli.arguments import named, options
from atat_zoo.experiment import Experiment, from_table, load
from atat_zoo.experiment.runs import write_text
from atat_zoo.experiment.schema import ALWAYS, SECTIONS
from atat_zoo.registry import KINDS, TABLES, Zoo
from atat_zoo.registry.registry_file import PACKAGE, inline
from atat_zoo.registry.spec import fields_of
from atat_zoo.system.errors import UserError

_LONGEST = 30  # characters of a component's name, so that no line with the name becomes too long
# Experiments that read importance get the first of these estimators that fits: on clean text, and on masked text.
_ESTIMATORS = ("estimator.use=transformer", 'estimator={use="transformer", reads="z"}')
_CHOSEN = ("objective", "corpus", "tokenizer", "backbone", "masking", "sampler")


class _Kinds(click.Group):
    """A command for each kind, and `experiment`."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            Zoo.load().names(args[0])  # raises an error that lists the kinds
        return super().resolve_command(ctx, args)


@click.group(cls=_Kinds)
def new() -> None:
    """Create a plugin package with a component of one of these kinds, or an experiment file.

    The package works as created: it contains a small example component for you to replace, its tests, an entry point
    and an experiment that uses it.
    """


_IN_HELP = "Folder to write to (default: the working directory)."
_IN = click.option("--in", "where", type=click.Path(path_type=Path), default=".", help=_IN_HELP)


def _command_of(kind: str) -> None:
    @new.command(
        kind, short_help=KINDS[kind].summary, help=f"Create a plugin package with a component. {KINDS[kind].summary}"
    )
    @click.argument("name")
    @_IN
    def command(name: str, where: Path) -> None:
        package = write_package(kind, name, where)
        click.echo(f'wrote {package}. Next: cd {package}, pip install -e ".[test]", atat zoo check {package.name}')


for _kind in KINDS:
    _command_of(_kind)


def templates() -> Path:
    """Return the folder with the templates of plugins: in the package if installed, or plugins/new in a checkout."""
    inside = PACKAGE / "new"
    return inside if inside.is_dir() else PACKAGE.parent / "plugins" / "new"


def write_package(kind: str, name: str, folder: Path) -> Path:
    """Write a package into `folder`, and return its path; raise a `UserError` for an invalid or taken name."""
    part = name.replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", part) or len(part) > _LONGEST:
        raise UserError(
            f"{name!r} is not a component name; use lowercase words joined by - or _, in at most {_LONGEST} characters"
        )
    zoo = Zoo.load()
    if part in zoo.names(kind):
        raise UserError(
            f"{zoo.describe(kind, part).distribution} already has a {kind} named {part!r}; choose another name"
        )
    words = part.split("_")
    made = folder / f"atat-zoo-{'-'.join(words)}"
    if not folder.is_dir():
        raise UserError(f"--in {folder}: this folder does not exist; create it, or pass a different one")
    if any(plugin.distribution == made.name for plugin in zoo.plugins):
        raise UserError(f"the package {made.name} is already installed; choose another name")
    if made.exists():
        raise UserError(f"{made} exists; choose another name, or another folder with --in")
    capitals = "".join(word.capitalize() for word in words)
    replaced = {"atat-zoo-placeholder": made.name, "Placeholder": capitals, "placeholder": part}
    # The capitals keep tools from treating the template itself as a project.
    replaced |= {"KIND_OF_PART": kind, "MODULE_OF_CONTRACT": KINDS[kind].module, "PYPROJECT": "pyproject"}

    def filled(text: str) -> str:  # in one pass, because the name may contain a placeholder
        return re.sub("|".join(replaced), lambda found: replaced[found[0]], text)

    root, module = templates(), f"atat_zoo_{part}"
    files = {filled(str(file.relative_to(root / "package"))): file for file in _files(root / "package")}
    files |= {f"{module}/{file.name}": file for file in _files(root / kind)}
    texts = {place: filled(file.read_text(encoding="utf-8")) for place, file in files.items()}
    uses = tomllib.loads(filled((root / "uses.toml").read_text(encoding="utf-8")))
    texts["experiment.toml"] = _using(texts["experiment.toml"], uses.get(kind, {kind: {"use": part}}))
    # Write all files or none.
    with tempfile.TemporaryDirectory(prefix=".new-", dir=folder) as name_of_temporary:
        whole = Path(name_of_temporary) / made.name
        for place, text in {**texts, f"{module}/py.typed": ""}.items():
            (whole / place).parent.mkdir(parents=True, exist_ok=True)
            (whole / place).write_text(text, encoding="utf-8")
        whole.rename(made)
    return made


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts]


def _using(experiment: str, tables: dict[str, Any]) -> str:
    """Return an experiment as TOML, in which `tables` extend the sections and replace the components."""
    import tomli_w

    table = tomllib.loads(experiment)
    table |= {key: {**(table[key] if key in SECTIONS else {}), **its} for key, its in tables.items()}
    return f"{experiment.partition(chr(10))[0]}\n{tomli_w.dumps(table)}"


@new.command(short_help="An experiment file that explains every parameter.")
@click.argument("name", required=False)
@options("overrides")
@_IN
@click.option("--like", default="base/sotu", show_default=True, help="Experiment to start from.")
def experiment(name: str | None, overrides: tuple[str, ...], where: Path, like: str, **chosen: str | None) -> None:
    """Write NAME.toml with every parameter and its meaning. Without NAME, prompt for it and the main components.

    KEY=VALUE sets a parameter, as in train.steps=200.
    """
    values = {kind: value for kind, value in chosen.items() if value is not None}
    zoo, own = Zoo.load(), load(like).parts
    if name is None:
        name = click.prompt("name")
        for kind in [kind for kind in _CHOSEN if kind not in values]:
            if kind in ALWAYS or kind in zoo.spec("objective", values.get("objective", own["objective"].name)).uses:
                about = f"{KINDS[kind].summary} One of: {', '.join(zoo.names(kind))}\n{kind}"
                answer = click.prompt(about, default=own[kind].name)
                if answer != own[kind].name:  # an unchanged component keeps its parameters
                    values[kind] = answer
    for kind, value in values.items():
        named(kind, value)
    words = [*(f"{kind}={value}" for kind, value in values.items()), *overrides]
    made, added = _with_an_estimator(like, words)
    made = from_table({**made.to_table(), "name": name})
    path = where / f"{name}.toml"
    if path.exists() or not where.is_dir():
        problem = "exists" if path.exists() else "is in a folder that does not exist"
        raise UserError(f"{path} {problem}; choose another name, or another folder with --in")
    write_text(path, commented(made))
    with_it = f" with {added}, because this experiment needs an importance estimator" if added else ""
    click.echo(f"wrote {path}{with_it}. Next: atat check {path}, atat train {path}")


def _with_an_estimator(like: str, words: list[str]) -> tuple[Experiment, str]:
    """Return the experiment, and the override that adds an importance estimator if the experiment needs one."""
    try:
        return load(like, words), ""
    except UserError as error:
        if not any(word.startswith("estimator") for word in words):
            for added in _ESTIMATORS:
                with suppress(UserError):
                    return load(like, [*words, added]), added
        raise error from None


for _kind in reversed(_CHOSEN):
    _help = f"{KINDS[_kind].summary} A name, or a table {{use = 'NAME', …}}."
    experiment = click.option(f"--{_kind}", help=_help)(experiment)


def commented(made: Experiment) -> str:
    """Return an experiment as TOML that lists every parameter, with its meaning in a comment."""
    zoo, table = Zoo.load(), made.to_table()
    lines = ["# `atat zoo list` prints the components for `use`, and `atat zoo show KIND NAME` their parameters."]
    lines += [f"{key} = {inline(value)}" for key, value in table.items() if not isinstance(value, dict)]
    for key in [*made.kinds, *SECTIONS]:
        spec = made.parts[key] if key in TABLES else getattr(made, key)
        about = f"{KINDS[key].summary} One of: {', '.join(zoo.names(key))}" if key in TABLES else type(spec).__doc__
        lines += ["", f"# {about}", f"[{key}]"]
        if key in TABLES:
            lines.append(f"use = {inline(spec.name)}  # {spec.summary}")
        for field in fields_of(type(spec)):
            value = table[key].get(field.name)
            written = f"# {field.name} =" if value is None else f"{field.name} = {inline(value)}"
            lines.append(f"{written}  # {field.help}")
    return "\n".join(lines) + "\n"
