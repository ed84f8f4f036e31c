"""Pages for the kinds of components, generated from the components when the site is built."""

from __future__ import annotations

import inspect
import json
import re
import shutil
from importlib import import_module
from typing import TYPE_CHECKING, Any

import attrs
import curves

from atat_zoo.registry import KINDS, TABLES, Zoo
from atat_zoo.registry.spec import Field, fields_of

if TYPE_CHECKING:
    from pathlib import Path

    from atat_zoo.registry.hookspecs import Kind
    from atat_zoo.registry.registry_file import Entry

_SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
_SITES = {"arXiv": "https://arxiv.org/abs/", "doi": "https://doi.org/"}


def write(folder: Path) -> None:
    """Write a page for each kind, and a page that lists the kinds."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, text in {"index": _index(), **{kind: page(kind) for kind in KINDS}}.items():
        (folder / f"{name}.md").write_text(text, encoding="utf-8")


def _index() -> str:
    zoo = Zoo.load()
    rows = [[f"[{_title(kind)}]({kind.name}.md)", kind.summary, str(len(zoo.names(kind.name)))] for kind in _kinds()]
    return joined(
        "# Components",
        "These pages list every built-in component by kind. An experiment selects one component of each kind that it "
        "needs, in a table named after the kind. `atat zoo list` and `atat zoo show KIND NAME` print the same "
        "information.",
        table(["kind", "meaning", "components"], rows),
        "```{toctree}\n:hidden:\n" + "\n".join(kind.name for kind in _kinds()) + "\n```",
    )


def page(kind: str) -> str:
    """Return the page of a kind, in Markdown."""
    zoo, about = Zoo.load(), KINDS[kind]
    entries = [zoo.describe(kind, name) for name in zoo.names(kind)]
    contract = import_module(about.module)
    drawn = {name: f"```{{raw}} html\n{svg}\n```" for name, svg in curves.of(kind, zoo).items()}
    rows = [[f"[`{entry.name}`](#{_label(kind, entry.name)})", cell(entry.summary)] for entry in entries]
    return joined(
        f"# {_title(about)}",
        about.summary + " " + _use(about),
        table(["name", "meaning"], rows),
        drawn.get("", ""),
        *(text for entry in entries for text in _part(entry, drawn.get(entry.name, ""))),
        "## Contract",
        f"Every component of this kind implements the following interface from `{about.module}`. Test your own "
        "components with `atat_zoo.testing`.",
        _docstring(contract),
        "```{eval-rst}\n"
        + "\n".join(f".. autoclass:: {about.module}.{name}\n   :members:\n   :special-members: __call__\n"
                    for name in contracts(about.module))
        + "```",
    )  # fmt: skip


def contracts(module: str) -> list[str]:
    """Return the names of the protocols that a module defines."""
    return [
        name
        for name, value in vars(import_module(module)).items()
        if inspect.isclass(value) and value.__module__ == module and getattr(value, "_is_protocol", False)
    ]


def _use(kind: Kind) -> str:
    """Return a sentence about where an experiment selects a component of this kind."""
    if kind.name in TABLES:
        return f"Select a component in the table `[{kind.name}]`; the default is `use = {_toml(TABLES[kind.name])}`."
    zoo = Zoo.load()
    places = [
        f"`{owner}.{name}`: `{field.name}`"
        for owner in KINDS
        for name in zoo.names(owner)
        for field in fields_of(zoo.component(owner, name))
        if field.kind == kind.name
    ]
    return f"Select a component as a parameter of another component ({', '.join(places)})." if places else ""


def _part(entry: Entry, drawn: str) -> list[str]:
    cls = entry.load()
    return [
        f"({_label(entry.kind, entry.name)})=\n## `{entry.name}`",
        _docstring(cls),
        drawn,
        parameters(cls),
        f"See {', '.join(map(_reference, entry.refs))}." if entry.refs else "",
    ]


def parameters(spec: type) -> str:
    """Return the table of a component's or section's parameters."""
    rows = [[f"`{f.name}`", code(f.type_name), _default(f), cell(f.help) + _bounds(f)] for f in fields_of(spec)]
    return table(["parameter", "type", "default", "meaning"], rows) or "This component has no parameters."


def _reference(ref: str) -> str:
    site, _, number = ref.partition(":")
    if site in _SITES:
        return f"[{ref}]({_SITES[site]}{number})"
    return f"<{ref}>" if site.startswith("http") else f"the {ref} report"


def _docstring(of: Any) -> str:
    """Return the docstring of a class as Markdown, with its list of attributes as bullets."""
    text = inspect.cleandoc(of.__doc__)
    text = re.sub(r"^(Attributes|Args|Returns|Raises):\n", r"**\1**\n\n", text, flags=re.MULTILINE)
    return re.sub(r"^    (\w+): ", r"- `\1`: ", text, flags=re.MULTILINE)


def _default(field: Field) -> str:
    if field.default is attrs.NOTHING:
        return "required"
    return "none" if field.default is None else code(_toml(field.default))


def _bounds(field: Field) -> str:
    bounds = [f"{_SIGNS[key]} {value:g}" for key, value in field.bounds.items()]
    return f" ({', '.join(bounds)})" if bounds else ""


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False)


def _kinds() -> list[Kind]:
    return list(KINDS.values())


def _title(kind: Kind) -> str:
    return kind.name.replace("_", " ").capitalize()


def _label(kind: str, name: str) -> str:
    return f"{kind}-{name}".replace("_", "-")


def code(text: str) -> str:
    """Return a text as code for a table cell."""
    return f"`{cell(text)}`"


def cell(text: str) -> str:
    """Return a text escaped for a table cell."""
    return text.replace("|", r"\|").replace("*", r"\*") if "`" not in text else text.replace("|", r"\|")


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a table, or an empty string if it has no rows."""
    return "" if not rows else "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


def joined(*blocks: str) -> str:
    """Return a page with all blocks that are not empty."""
    return "\n\n".join(filter(None, blocks)) + "\n"
