"""Commands that packages provide: discovered through entry points, and imported only when they are used.

A package names a click command in its pyproject.toml, and describes it in the `registry.toml` of its import package:

    [project.entry-points."atat_zoo.commands"]
    serve = "atat_zoo_serve.serve_command:serve"

    [command.serve]
    summary = "Serve a run: OpenAI-compatible API and a web page."
"""

import sys
import tomllib
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from importlib.metadata import EntryPoint

import click

from atat_zoo.registry.plugins import entry_points, metadata_of, of_plugin, registry_path
from atat_zoo.system import old_names
from atat_zoo.system.errors import UserError, nearest
from atat_zoo.system.machine import install_command

GROUP = "atat_zoo.commands"
# The commands of the packages in plugins/, by name.
PACKAGES = {
    "export": "atat-zoo-checkpoints",
    "import": "atat-zoo-checkpoints",
    "importance-figures": "atat-zoo-paper",
    "paper": "atat-zoo-paper",
    "rate": "atat-zoo-human-eval",
    "serve": "atat-zoo-serve",
}


def offers() -> dict[str, list[tuple[str, EntryPoint]]]:
    """Return a dict from command name to a (package, entry point) pair for each package that offers the command."""
    found: dict[str, list[tuple[str, EntryPoint]]] = {}
    for distribution, point in entry_points(GROUP):
        if not isinstance(point, Exception):
            found.setdefault(point.name, []).append((metadata_of(distribution, "Name", "unknown"), point))
    return found


def sections(core: Sequence[str]) -> dict[str, list[tuple[str, str]]]:
    """Return a dict from package to (command, help) pairs; the help says if another package or `core` has it."""
    found: dict[str, list[tuple[str, str]]] = {}
    for name, offered in sorted(offers().items()):
        for owner, point in offered:
            others = ["atat"] if name in core else sorted(other for other, _ in offered if other != owner)
            text = f"(not available: {' and '.join(others)} also has this command)" if others else _summary(point)
            found.setdefault(owner, []).append((name, text))
    return dict(sorted(found.items()))


def command(name: str, core: Sequence[str]) -> click.Command:
    """Import and return a package's command; raise a `UsageError` if unknown, or a `UserError` if missing or broken."""
    found = offers()
    if name not in found and name in PACKAGES:
        raise UserError(f"atat {name} comes with {PACKAGES[name]}: {install_command(PACKAGES[name])}")
    if name not in found and name in old_names.COMMANDS:
        raise click.UsageError(f"unknown command {name!r}; use: {old_names.COMMANDS[name]}")
    if name not in found:
        known = [*core, *sorted({*found, *PACKAGES} - {*core})]
        raise click.UsageError(f"unknown command {name!r}{nearest(name, known)} (commands: {', '.join(known)})")
    owners = sorted(owner for owner, _ in found[name])
    if len(owners) > 1:
        raise UserError(f"atat {name} is offered by {' and '.join(owners)}; uninstall all but one")
    (_, point), *_ = found[name]
    try:
        with redirect_stdout(sys.stderr), of_plugin():  # standard output may be JSON
            loaded = point.load()
        if not isinstance(loaded, click.Command):
            raise TypeError(f"{point.value} is not a click command")
        return loaded
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a package may fail in any way, and breaks only its own command
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"atat {name} from {owners[0]} cannot be imported: {why}; reinstall {owners[0]}") from error


def _summary(point: EntryPoint) -> str:
    """Return the help text of a command, or an empty string if its package's registry file has none."""
    with suppress(Exception):
        if path := registry_path(point):
            return str(tomllib.loads(path.read_text(encoding="utf-8"))["command"][point.name]["summary"])
    return ""
