"""`Zoo`, which finds the components of an installation, and functions that declare components as parameters."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import attrs

from atat_zoo.registry import plugins, registry_file, spec
from atat_zoo.registry.context import Context
from atat_zoo.registry.hookspecs import KINDS
from atat_zoo.registry.plugins import Plugin, of_plugin
from atat_zoo.registry.registry_file import Entry
from atat_zoo.system import old_names
from atat_zoo.system.errors import Problem, UserError, nearest
from atat_zoo.system.machine import install_command

# The packages in plugins/ with components that used to be built in, by kind and name.
PACKAGES = {("task", "glue"): "atat-zoo-glue"}


class Zoo:
    """The components of an installation.

    >>> Zoo.load().names("noise")
    ['cosine', 'geometric', 'linear', 'log_linear', 'polynomial']

    Looking up an unknown name raises a `UserError` that lists the known names.
    """

    def __init__(self, menu: registry_file.RegistryFile, installed: list[Plugin]) -> None:
        """Merge a registry file with the installed plugins; call `Zoo.load` instead."""
        owners: dict[tuple[str, str], list[str]] = {}
        for entry in [*menu.entries, *(e for plugin in installed for e in plugin.entries)]:
            owners.setdefault((entry.kind, entry.name), []).append(entry.distribution)
        # Two plugins with the same name are both left out, so that the choice does not depend on their order.
        self.plugins = [plugins.unless_taken(plugin, owners) for plugin in installed]
        self._entries: dict[str, dict[str, Entry]] = {kind: {} for kind in KINDS}
        self._aliases: dict[str, dict[str, str]] = {kind: {} for kind in KINDS}
        for entry in [*menu.entries, *(e for plugin in self.plugins for e in plugin.entries)]:
            self._entries[entry.kind][entry.name] = entry
        for aliases in [menu.aliases, *(plugin.aliases for plugin in self.plugins)]:
            for kind, names in aliases.items():
                self._aliases[kind] |= names

    @staticmethod
    def load(registry: Path | None = None) -> Zoo:
        """Return the zoo of this installation, including plugins; `registry` replaces the built-in registry file."""
        return _load(registry, os.environ.get(plugins.ALLOWED), os.environ.get(plugins.STRICT))

    @staticmethod
    def from_code() -> registry_file.RegistryFile:
        """Return a registry file generated from the code; imports every built-in component."""
        entries = [
            registry_file.entry_of(kind, cls, "atat-zoo") for kind in KINDS for cls in registry_file.components_of(kind)
        ]
        return attrs.evolve(registry_file.read(registry_file.shipped()), entries=tuple(entries))

    def names(self, kind: str) -> list[str]:
        """Return the sorted names of the components of a kind."""
        return sorted(self._entries[self._kind(kind)])

    def describe(self, kind: str, name: str) -> Entry:
        """Return the registry entry for a component without importing the component."""
        known = self._entries[self._kind(kind)]
        # A component's own name comes first, so that a plugin's alias cannot replace it.
        entry = known.get(name) or known.get(self._aliases[kind].get(name, name))
        if entry is None:
            package = PACKAGES.get((kind, name))
            if package and package not in {plugin.distribution for plugin in self.plugins}:
                raise UserError(f"{kind} {name} comes with the plugin {package}; run `{install_command(package)}`")
            if now := old_names.COMPONENTS.get((kind, name)):
                raise UserError(f"unknown {kind} {name!r}: it is now called {now!r}")
            close = nearest(name, [*known, *self._aliases[kind]])
            unloaded = ", ".join(f"plugin {p.name} ({p.status})" for p in self.plugins if p.status != "ok")
            advice = f"; not loaded: {unloaded}" if unloaded else "; if a plugin provides it, install that plugin"
            raise UserError(
                f"unknown {kind} {name!r}{close} (available: {', '.join(sorted(known)) or 'none'})"
                f"{advice if unloaded or not close else ''}"
            )
        return entry

    def component(self, kind: str, name: str) -> type:
        """Import and return the class of a component, or raise a `UserError` if it is unknown or its import fails."""
        entry = self.describe(kind, name)
        try:
            with redirect_stdout(sys.stderr), of_plugin():  # standard output may be JSON
                return entry.load()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a plugin's module may fail in any way
            raise UserError(
                f"{kind} {name!r} of {entry.distribution} cannot be imported from {entry.path}: "
                f"{type(error).__name__}: {error}; reinstall {entry.distribution}"
            ) from error

    def structure(self, kind: str, value: Any, path: str) -> tuple[Any, list[Problem]]:
        """Return the component for a name or a table `{use = …}`, or None if it has problems, and the problems."""
        if isinstance(value, str):
            value = {"use": value}
        if attrs.has(type(value)):
            return value, []  # already a component
        wanted = f"expected the name of a component of kind {kind}"
        if not isinstance(value, dict):
            return None, [Problem(path, f"{wanted} or a table {{use = …}}, got {value!r}")]
        names = ", ".join(self.names(kind))
        if "use" not in value:
            return None, [Problem(f"{path}.use", f"is missing; set it to one of {names}")]
        name = value["use"]
        if not isinstance(name, str):
            return None, [Problem(f"{path}.use", f"{wanted}, one of {names}, got {name!r}")]
        try:
            cls = self.component(kind, name)
        except UserError as error:
            return None, [Problem(f"{path}.use", str(error))]
        return spec.structure(cls, {k: v for k, v in value.items() if k != "use"}, path, self)

    def spec(self, kind: str, value: str | Mapping[str, Any]) -> Any:
        """Return a component, as in `zoo.spec("masking", {"use": "importance"})`, or raise a `UserError`."""
        made, problems = self.structure(kind, value, kind)
        if problems:
            raise UserError("\n".join(map(str, problems)))
        return made

    def build(self, kind: str, value: str | Mapping[str, Any], context: Context | None = None) -> Any:
        """Return the result of a component's `build(context)`, which may be the component itself."""
        return self.spec(kind, value).build(context)

    def origins(self, tables: Iterable[tuple[str, Any]]) -> tuple[str, ...]:
        """Return the sorted distributions of the plugins with these (kind, component) pairs or components in them."""
        foreign = {(e.kind, e.name): e.distribution for plugin in self.plugins for e in plugin.entries}
        used = {
            (kind, getattr(part, "name", "")) for top in tables for kind, part in (top, *spec.components_in(top[1]))
        }
        return tuple(sorted({foreign[part] for part in used & foreign.keys()}))

    def _kind(self, kind: str) -> str:
        if kind not in KINDS:
            if now := old_names.KINDS.get(kind):
                raise UserError(f"unknown kind of component {kind!r}: it is now called {now!r}")
            close = nearest(kind, list(KINDS))
            raise UserError(f"unknown kind of component {kind!r}{close} (available: {', '.join(KINDS)})")
        return kind


@functools.cache
def _load(registry: Path | None, allowed: str | None, strict: str | None) -> Zoo:
    # The environment is part of the cache's key, so a change of it within a process takes effect.
    del allowed, strict
    menu = registry_file.read(registry or registry_file.shipped())
    return Zoo(menu, list(plugins.installed(menu.disabled)))


def component_param(kind: str, default: Any, *, help: str) -> Any:
    """Declare a parameter whose value is a component.

    In TOML, the parameter takes a name or a table `{use = "name", …}`; in Python, it also takes an instance. `default`
    is a name, a table, None for an optional component, or `attrs.NOTHING` for a required component.
    """
    # The default is a factory, so that importing a component does not import its nested components.
    return attrs.field(
        default=default if default is attrs.NOTHING else attrs.Factory(lambda: default),
        converter=lambda value: _specification(kind, value),
        metadata={"help": help, "part": kind, "part_default": default},
    )


def components_param(kind: str, default: Any = (), *, help: str) -> Any:
    """Declare a parameter whose value is a list of components, each given as in `component_param`."""
    return attrs.field(
        default=default,
        converter=lambda values: tuple(_specification(kind, value) for value in values),
        metadata={"help": help, "part": kind, "part_default": default, "many": True},
    )


def _specification(kind: str, value: Any) -> Any:
    return Zoo.load().spec(kind, value) if isinstance(value, str | dict) else value
