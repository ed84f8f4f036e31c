"""The built-in parts, collected from the modules of their kinds and offered through the plugins' hooks."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

from atat_zoo.registry.hookspecs import KINDS, hook, hookimpl
from atat_zoo.registry.spec import is_component


def plugin() -> SimpleNamespace:
    """Return an object like a plugin's module: one function per kind, named as its hook."""

    def hook_of(kind: str) -> Any:
        return hookimpl(lambda: parts_of(kind))

    return SimpleNamespace(**{hook(kind): hook_of(kind) for kind in KINDS})


def parts_of(kind: str) -> list[type]:
    """Return the components in the module or package of a kind, in source order."""
    parts: list[type] = []
    package = KINDS[kind].module
    spec = find_spec(package)
    inside = pkgutil.iter_modules(spec.submodule_search_locations or () if spec else ())
    for name in (package, *(f"{package}.{module.name}" for module in inside)):
        if _kind_of(name) == kind:
            parts += [cls for cls in vars(import_module(name)).values() if is_component(cls) and cls.__module__ == name]
    return parts


def _kind_of(module: str) -> str:
    """Return the kind that a module belongs to: `samplers.order` contains orders, not samplers."""
    inside = [kind for kind in KINDS.values() if f"{module}.".startswith(f"{kind.module}.")]
    return max(inside, key=lambda kind: len(kind.module)).name
