"""Plugins, which are third-party packages found through their entry points and loaded separately.

A broken plugin does not affect the others. A plugin with its own `registry.toml` is listed from that file without being
imported.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from importlib.metadata import Distribution, EntryPoint, distributions
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

import attrs
import pluggy

from atat_zoo.registry import hookspecs, registry_file
from atat_zoo.system import old_names
from atat_zoo.system.errors import UserError

ALLOWED = "ATAT_ZOO_PLUGINS"  # unset: all plugins; empty: none; otherwise comma-separated names
STRICT = "ATAT_ZOO_STRICT"  # "1": a broken plugin is an error


@attrs.frozen(kw_only=True)
class Plugin:
    """An installed plugin: its distribution, its components, and its error if it is broken."""

    name: str
    distribution: str
    version: str
    entries: tuple[registry_file.Entry, ...] = ()
    aliases: dict[str, dict[str, str]] = attrs.field(factory=dict)
    status: str = "ok"  # ok | disabled | broken
    error: str = ""


def hook_entries(module: object, distribution: str) -> tuple[registry_file.Entry, ...]:
    """Return the registry entries for the classes that the hooks of a module return; raise for an unknown hook."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs.Hooks)
    manager.register(module)
    for old, now in old_names.KINDS.items():
        if hasattr(module, hookspecs.hook(old)):
            raise UserError(f"the hook {hookspecs.hook(old)} is now called {hookspecs.hook(now)}; rename it")
    manager.check_pending()
    entries: list[registry_file.Entry] = []
    for kind in hookspecs.KINDS:
        hook = hookspecs.hook(kind)
        for classes in getattr(manager.hook, hook)():
            if not isinstance(classes, list | tuple) or not all(isinstance(cls, type) for cls in classes):
                raise TypeError(f"{hook} must return a list of classes, not {classes!r}")
            entries += [registry_file.entry_of(kind, cls, distribution) for cls in classes]
    return tuple(entries)


def entry_points(group: str) -> Iterator[tuple[Distribution, EntryPoint | Exception]]:
    """Yield each entry point in a group once, with its distribution, or an error if its metadata cannot be read."""
    seen = set()
    for distribution in distributions():
        try:
            # Most packages have no such group, and parsing takes most of the time.
            if f"[{group}]" not in (distribution.read_text("entry_points.txt") or ""):
                continue
            points = [point for point in distribution.entry_points if point.group == group]
        except UnicodeDecodeError:
            continue
        except Exception as error:
            yield distribution, error
            continue
        for point in points:
            # A folder that is on sys.path twice yields its distributions twice.
            if (point.name, point.value) not in seen:
                seen.add((point.name, point.value))
                yield distribution, point


def installed(disabled: tuple[str, ...]) -> Iterator[Plugin]:
    """Yield every installed plugin, loaded unless disabled; a broken one raises a `UserError` if ATAT_ZOO_STRICT=1."""
    allowed = os.environ.get(ALLOWED)
    chosen = None if allowed is None else {name.strip() for name in allowed.split(",")}
    for distribution, point in entry_points(hookspecs.PROJECT):
        version = metadata_of(distribution, "Version", "unknown")
        if isinstance(point, Exception):
            owner = metadata_of(distribution, "Name", "unknown")
            yield broken(Plugin(name=owner, distribution=owner, version=version), point)
            continue
        owner = metadata_of(distribution, "Name", point.name)
        plugin = Plugin(name=point.name, distribution=owner, version=version)
        if point.name in disabled or (chosen is not None and point.name not in chosen):
            yield attrs.evolve(plugin, status="disabled")
        else:
            yield _load(plugin, point)


@contextmanager
def of_plugin() -> Iterator[None]:
    """Run code from a plugin, and turn a KeyboardInterrupt that the plugin itself raises into a RuntimeError.

    The user's own interrupt reaches only the main thread, and no thread if SIGINT is ignored, as under `nohup`.
    """
    pressed = False
    before: Any = signal.getsignal(signal.SIGINT)
    watches = callable(before) and threading.current_thread() is threading.main_thread()

    def press(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        before(number, frame)

    if watches:
        signal.signal(signal.SIGINT, press)
    try:
        yield
    except KeyboardInterrupt as error:
        if pressed:
            raise
        raise RuntimeError("it raises KeyboardInterrupt") from error
    finally:
        if watches:
            signal.signal(signal.SIGINT, before)


def _load(plugin: Plugin, point: EntryPoint) -> Plugin:
    try:
        own = registry_path(point)
        read = registry_file.read(own, plugin.distribution) if own else registry_file.RegistryFile()
        if read.entries or read.aliases:  # otherwise the file only describes commands
            _refuse_newer(read.contract)
            return attrs.evolve(plugin, entries=read.entries, aliases=read.aliases)
        with redirect_stdout(sys.stderr), of_plugin():  # standard output may be JSON
            module = point.load()
            _refuse_newer(getattr(module, "CONTRACT", 1))
            entries = hook_entries(module, plugin.distribution)
        if not entries:
            raise ImportError(f"{point.module} provides no components; add hooks marked with @hookimpl")
        return attrs.evolve(plugin, entries=entries)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a plugin may fail in any way without affecting others
        return broken(plugin, error)


def _refuse_newer(contract: object) -> None:
    if not isinstance(contract, int) or contract > hookspecs.CONTRACT:
        latest = hookspecs.CONTRACT
        raise UserError(f"its CONTRACT is {contract!r}, but this atat-zoo supports at most {latest}; upgrade atat-zoo")


def unless_taken(plugin: Plugin, owners: Mapping[tuple[str, str], list[str]]) -> Plugin:
    """Return the plugin, marked as broken if another distribution provides one of its components.

    `owners` maps (kind, name) to the distributions that provide the component.
    """
    for entry in plugin.entries:
        if len(both := owners[entry.kind, entry.name]) > 1:
            taken = f"{entry.kind} {entry.name!r} is provided by both {' and '.join(both)}"
            return broken(plugin, UserError(f"{taken}; uninstall one of them, or leave its plugin out of {ALLOWED}"))
    return plugin


def broken(plugin: Plugin, error: BaseException) -> Plugin:
    """Return the plugin without components, with the error on one line; raise a `UserError` if ATAT_ZOO_STRICT=1."""
    text = " ".join(f"{'' if isinstance(error, UserError) else f'{type(error).__name__}: '}{error}".split())
    if os.environ.get(STRICT) == "1":
        raise UserError(
            f"plugin {plugin.name!r} from {plugin.distribution} is broken: {text} (fix or uninstall "
            f"{plugin.distribution}, or unset {STRICT})"
        ) from error
    return attrs.evolve(plugin, entries=(), aliases={}, status="broken", error=text)


def metadata_of(distribution: Distribution, key: str, otherwise: str) -> str:
    """Return a field of a distribution's metadata, or `otherwise` if an interrupted installation left it out."""
    # Once the backport importlib_metadata is imported, distributions may come from it: then metadata that is absent is
    # None, or, from its version 10, a FileNotFoundError.
    metadata: Any = None
    with suppress(FileNotFoundError):
        metadata = distribution.metadata
    return str(metadata[key]) if metadata is not None and key in metadata else otherwise


def registry_path(point: EntryPoint) -> Path | None:
    """Return the path of `registry.toml` in an entry point's top-level package, which is not imported, or None."""
    top = find_spec(point.module.partition(".")[0])
    for place in (top.submodule_search_locations or ()) if top else ():
        path = Path(place) / "registry.toml"
        if path.is_file():
            return path
    return None
