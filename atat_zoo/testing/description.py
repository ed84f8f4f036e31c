"""Checks of a part's description, and that importing it does not import torch."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import attrs

from atat_zoo.registry import Zoo
from atat_zoo.registry.spec import fields_of, structure, unstructure

if TYPE_CHECKING:
    from collections.abc import Iterable

_PROBE = """
import importlib, sys
for path in sys.argv[1:]:
    module, _, name = path.partition(":")
    getattr(importlib.import_module(module), name)
    for heavy in ("torch", "composer", "hypothesis"):
        if heavy in sys.modules:
            sys.exit(f"importing {module} imports {heavy}; import it inside the method that needs it")
"""


def check_description(kind: str, cls: type, zoo: Zoo | None = None) -> None:
    """Check that a component class has the description that every kind needs; `zoo` provides the parts inside it."""
    zoo = zoo or Zoo.load()
    where = f"{kind} {cls.__module__}.{cls.__qualname__}"
    for word in ("name", "summary"):
        text = cls.__dict__.get(word)
        assert isinstance(text, str), f"{where} has no text {word!r}"
        assert text.strip() == text != "", f"{where}: {word} is empty or has spaces around it"
        assert "\n" not in text, f"{where}: {word} is one line"
    refs = getattr(cls, "refs", None)
    assert isinstance(refs, tuple), f"{where}: refs is a tuple of sources, () if there is none"
    assert (cls.__doc__ or "").strip(), f"{where} has no docstring"
    assert attrs.has(cls), f"{where} is no attrs class; decorate it with @component"
    assert all(field.kw_only for field in attrs.fields(cls)), f"{where}: parameters are keyword-only"
    for field in fields_of(cls):
        assert field.help, f"{where}.{field.name} has no help"
    if any(field.default is attrs.NOTHING for field in fields_of(cls)):
        return  # nothing to build without its parameters
    spec, problems = structure(cls, {}, kind, zoo)
    assert not problems, f"{where} does not accept its own defaults: {problems}"
    check_round_trip(kind, spec, zoo)


def check_round_trip(kind: str, spec: Any, zoo: Zoo | None = None) -> None:
    """Check that a specification, written as a TOML table and read back, is the same, and that it is frozen."""
    table = unstructure(spec)
    assert table["use"] == spec.name, f"{kind} {spec.name}: its table begins with its name"
    again, problems = structure(type(spec), {k: v for k, v in table.items() if k != "use"}, kind, zoo or Zoo.load())
    assert not problems, f"{kind} {spec.name}: its own table is refused: {problems}"
    assert again == spec, f"{kind} {spec.name}: its table reads back as something else"
    try:
        spec.name_of_no_field = 1
    except AttributeError:
        return
    raise AssertionError(f"{kind} {spec.name} can be changed after it is made; decorate it with @component")


def check_imports(paths: Iterable[str]) -> None:
    """Check in a fresh interpreter that `module:Class` paths import without torch, composer and hypothesis."""
    done = subprocess.run([sys.executable, "-P", "-c", _PROBE, *paths], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr.strip().splitlines()[-1]
