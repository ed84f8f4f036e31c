"""What plugins may rely on, name by name: a change of it is seen here first.

A name that is gone, or a method of a contract that takes something else, breaks plugins: raise `CONTRACT` and announce
it, as plugins/README.md says. Then, and for new names, `python tests/registry/test_public.py` writes the record.
"""

from __future__ import annotations

import ast
import inspect
import pkgutil
from importlib import import_module
from pathlib import Path

import attrs

import atat_zoo
import atat_zoo.diffusion
from atat_zoo.cli.new_command import templates
from atat_zoo.modeling.objectives import Batch
from atat_zoo.registry import CONTRACT, KINDS, Context

RECORD = Path(__file__).with_name("public.txt")
# Rooms that say what is theirs, and rooms of which everything is public.
LISTED = ("atat_zoo", "atat_zoo.registry", "atat_zoo.testing")
OPEN = (
    "atat_zoo.system.errors",
    *(f"atat_zoo.diffusion.{m.name}" for m in pkgutil.iter_modules(atat_zoo.diffusion.__path__)),
)


def own(module):
    """Return the public functions and classes that a module defines, by name."""
    named = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    return {name: value for name, value in named.items() if getattr(value, "__module__", "") == module.__name__}


def members(contract):
    """Yield what a protocol asks for: attributes, properties, and methods with the names of their arguments."""
    yield from (name for name in inspect.get_annotations(contract) if not name.startswith("_"))
    for name, value in vars(contract).items():
        if isinstance(value, property):
            yield name
        elif inspect.isfunction(value) and (name == "__call__" or not name.startswith("_")):
            yield f"{name}({', '.join(name for name in inspect.signature(value).parameters if name != 'self')})"


def public():
    """Return a line for everything that is public."""
    lines = [f"contract {CONTRACT}"]
    lines += [f"{room}.{name}" for room in LISTED for name in sorted(import_module(room).__all__)]
    lines += [f"{room}.{name}" for room in OPEN for name in sorted(own(import_module(room)))]
    places = dict.fromkeys([*(kind.module for kind in KINDS.values()), "atat_zoo.diffusion.contracts"])
    for place in places:
        for name, value in own(import_module(place)).items():
            if getattr(value, "_is_protocol", False):
                lines.append(f"{place}.{name}: {'; '.join(members(value))}")
    classes = (value for room in OPEN for value in own(import_module(room)).values())
    records = [Context, Batch, *filter(attrs.has, classes)]
    for record in records:
        fields = [field.name for field in attrs.fields(record) if field.init]
        lines.append(f"{record.__module__}.{record.__name__}: {', '.join(fields)}")
    return lines + sorted(imported() - set(lines))


def imported():
    """Return what the packages that `atat new` writes import of ours."""
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in templates().rglob("*.py"))
    nodes = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    return {f"{n.module}.{a.name}" for n in nodes for a in n.names if (n.module or "").startswith("atat_zoo")}


def test_the_public_names_are_those_of_the_record():
    assert public() == RECORD.read_text(encoding="utf-8").splitlines()


def test_every_kind_has_a_contract_in_its_place():
    record = "\n".join(public())
    for kind in KINDS.values():
        contract = "".join(word.capitalize() for word in kind.name.split("_"))
        assert f"\n{kind.module}.{contract}: " in record, kind.name


if __name__ == "__main__":
    RECORD.write_text("\n".join(public()) + "\n", encoding="utf-8")
