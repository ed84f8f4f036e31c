"""Packages of others: found by entry point, loaded one at a time, never trusted to work.

A plugin that fails to import is reported as broken, with its error, and
everything else works. Nothing here imports a plugin that ships its own
`registry.toml`: that one is listed from its manifest.
"""

from __future__ import annotations

import os
from importlib.metadata import Distribution, EntryPoint, distributions
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pluggy

from atat_zoo.errors import UserError
from atat_zoo.registry import hookspecs, manifest

if TYPE_CHECKING:
    from collections.abc import Iterator

ALLOWED = "ATAT_ZOO_PLUGINS"  # unset: all; empty: none; otherwise the names, comma separated
STRICT = "ATAT_ZOO_STRICT"  # "1": a broken plugin is an error
BUILTIN = "atat_zoo.builtin"


@attrs.frozen(kw_only=True)
class Plugin:
    """An installed plugin: where it comes from, what it offers, and why it does not work."""

    name: str
    distribution: str
    version: str
    entries: tuple[manifest.Entry, ...] = ()
    aliases: dict[str, dict[str, str]] = attrs.field(factory=dict)
    status: str = "ok"  # ok | disabled | broken
    error: str = ""


def hook_entries(module: object, distribution: str) -> tuple[manifest.Entry, ...]:
    """Ask one module for its classes through the hooks, and describe them."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(module)
    manager.check_pending()
    found = []
    for kind in hookspecs.KINDS:
        for classes in getattr(manager.hook, f"{hookspecs.PROJECT}_{kind}")():
            found += [manifest.entry_of(kind, cls, distribution) for cls in classes]
    return tuple(found)


def installed(disabled: tuple[str, ...]) -> Iterator[Plugin]:
    """Yield every plugin that is installed, each loaded by itself.

    Raises:
        UserError: with `ATAT_ZOO_STRICT=1`, for the first broken plugin.
    """
    allowed = os.environ.get(ALLOWED)
    chosen = None if allowed is None else {name.strip() for name in allowed.split(",")}
    seen = set()
    for distribution in distributions():
        for point in distribution.entry_points:
            # A path that stands twice on sys.path offers its distributions twice.
            if point.group != hookspecs.PROJECT or (point.name, point.value) in seen:
                continue
            seen.add((point.name, point.value))
            owner, version = distribution.metadata["Name"], distribution.version
            if point.name in disabled or (chosen is not None and point.name not in chosen):
                yield Plugin(name=point.name, distribution=owner, version=version, status="disabled")
                continue
            plugin = _load(point, distribution, owner, version)
            if plugin.status == "broken" and os.environ.get(STRICT) == "1":
                raise UserError(
                    f"plugin {point.name!r} of {owner} is broken: {plugin.error} "
                    f"(mend or uninstall {owner}, or unset {STRICT})"
                )
            yield plugin


def _load(point: EntryPoint, distribution: Distribution, owner: str, version: str) -> Plugin:
    try:
        own = _own_manifest(point, distribution)
        if own:
            read = manifest.read(own, owner)
            return Plugin(name=point.name, distribution=owner, version=version, entries=read.entries, aliases=read.aliases)
        entries = hook_entries(point.load(), owner)
        return Plugin(name=point.name, distribution=owner, version=version, entries=entries)
    except Exception as error:  # a plugin may fail in any way it likes, and breaks only itself
        return Plugin(
            name=point.name,
            distribution=owner,
            version=version,
            status="broken",
            error=f"{type(error).__name__}: {error}",
        )


def _own_manifest(point: EntryPoint, distribution: Distribution) -> Path | None:
    """Return the `registry.toml` in the plugin's top package, without importing the package."""
    top = find_spec(point.module.partition(".")[0])
    for place in (top.submodule_search_locations or ()) if top else ():
        path = Path(place) / "registry.toml"
        if path.is_file():
            return path
    return None
