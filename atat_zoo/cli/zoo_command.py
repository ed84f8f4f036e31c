"""`atat zoo`: list, show and check components, built-in and from plugins."""

from pathlib import Path
from typing import Any

import click

from atat_zoo.cli.arguments import options
from atat_zoo.cli.console import print_json, printable, table
from atat_zoo.experiment.runs import write_text
from atat_zoo.registry import KINDS, Zoo, registry_file
from atat_zoo.system.errors import UserError, nearest


@click.group()
def zoo() -> None:
    """List and check components."""


@zoo.command("list")
@click.argument("kind", required=False)
@options("json")
def list_(kind: str | None, as_json: bool) -> None:
    """List the components of every kind, or of one KIND."""
    if kind in ("experiment", "experiments"):
        from atat_zoo.experiment.experiment_file import overview

        raise UserError(f"{kind} is not a kind of component; experiments that ship with atat_zoo: {overview()}")
    menu = Zoo.load()
    kinds = [kind] if kind else list(KINDS)
    entries = [menu.describe(k, name) for k in kinds for name in menu.names(k)]
    if as_json:
        keys = ("kind", "name", "summary", "distribution")
        print_json([{key: getattr(entry, key) for key in keys} for entry in entries])
        return
    origin = {e.distribution: "" if e.distribution == "atat-zoo" else f" ({e.distribution})" for e in entries}
    table(["kind", "name", "summary"], [[e.kind, e.name, e.summary + origin[e.distribution]] for e in entries])
    for plugin in menu.plugins:
        if plugin.status == "broken":
            problem = f"plugin {plugin.name} from {plugin.distribution} is broken: {plugin.error}"
            click.echo(printable(problem), err=True)


@zoo.command()
@click.argument("kind")
@click.argument("name")
@options("json")
def show(kind: str, name: str, as_json: bool) -> None:
    """Show a component: its parameters with their types, defaults and meanings, and its references."""
    entry = Zoo.load().describe(kind, name)
    if as_json:
        keys = ("kind", "name", "summary", "path", "distribution", "refs", "parameters")
        print_json({key: getattr(entry, key) for key in keys})
        return
    click.echo(printable(f"{entry.kind} {entry.name}: {entry.summary}"))
    click.echo(printable(f"from {entry.distribution}, {entry.path}"))
    click.echo(printable(f"see {', '.join(entry.refs)}\n") if entry.refs else "")
    if entry.parameters:
        rows = [
            [n, p["type"], "(required)" if p.get("required") else str(p.get("default", "-")), p["help"] + _bounds(p)]
            for n, p in entry.parameters.items()
        ]
        table(["parameter", "type", "default", "meaning"], rows)
    else:
        click.echo("This component has no parameters.")


def _bounds(parameter: dict[str, Any]) -> str:
    words = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    bounds = [f"{sign} {parameter[key]:g}" for key, sign in words.items() if key in parameter]
    return f" ({', '.join(bounds)})" if bounds else ""


@zoo.command()
@options("json")
def plugins(as_json: bool) -> None:
    """List the installed plugins, with an error for each broken one."""
    rows = [(plugin, [f"{e.kind}.{e.name}" for e in plugin.entries]) for plugin in Zoo.load().plugins]
    if as_json:
        keys = ("name", "distribution", "version", "status", "error")
        print_json([{key: getattr(plugin, key) for key in keys} | {"parts": parts} for plugin, parts in rows])
    elif rows:
        cells = [[p.name, f"{p.distribution} {p.version}", p.status, p.error or ", ".join(parts)] for p, parts in rows]
        table(["plugin", "distribution", "status", "components or error"], cells)
    else:
        click.echo("No plugin is installed.")


@zoo.command("manifest")
@click.option("--write", is_flag=True, help="Write registry.toml from the code.")
def manifest_(write: bool) -> None:
    """Compare registry.toml with the code of all built-in components, or write the file."""
    path = registry_file.shipped()
    text = registry_file.write(Zoo.from_code())
    if write:
        write_text(path, text)
        click.echo(f"wrote {path}")
    elif path.read_text(encoding="utf-8") != text:
        raise UserError(f"{path} differs from the code; run `atat zoo manifest --write` and review the change")
    else:
        click.echo(f"{path} agrees with the code")


@zoo.command()
@click.argument("distribution", required=False)
def check(distribution: str | None) -> None:
    """Import every component and plugin, and report the broken ones.

    With DISTRIBUTION, a name from `atat zoo plugins`, run the conformance tests on each of its components and print
    the first failure of each. `atat-zoo` tests the built-in components, which takes minutes.
    """
    menu = Zoo.load()
    broken = [
        f"plugin {p.name} from {p.distribution}: {p.error}"
        for p in menu.plugins
        if p.status == "broken" and distribution in (None, p.distribution)
    ]
    if distribution:
        click.echo(_held(menu, distribution, broken))
        return
    components = [(kind, name) for kind in KINDS for name in menu.names(kind)]
    for kind, name in components:
        try:
            listed = menu.describe(kind, name)
            actual = registry_file.entry_of(kind, menu.component(kind, name), listed.distribution)
            if actual.parameters != listed.parameters:
                broken.append(f"{kind} {name}: its entry in registry.toml differs from its code")
        except (UserError, TypeError) as error:
            broken.append(f"{kind} {name}: {error}")
    if broken:
        raise UserError("\n".join(broken))
    number, name = len(components), Path(registry_file.shipped()).name
    click.echo(f"{number} components of {len(KINDS)} kinds agree with {name}")


def _held(menu: Zoo, distribution: str, broken: list[str]) -> str:
    """Run the conformance suite on a distribution; return a sentence on the passed checks, or raise all failures."""
    entries = [menu.describe(kind, name) for kind in KINDS for name in menu.names(kind)]
    mine = {(e.kind, e.name): e for e in entries if e.distribution == distribution}
    if not (mine or broken):
        known = sorted({*(e.distribution for e in entries), *(p.distribution for p in menu.plugins)})
        unknown = f"{distribution} is not installed or has no component{nearest(distribution, known)}"
        raise UserError(f"{unknown}; pass one of {', '.join(known)}")
    try:
        from atat_zoo.testing.conformance import cases, is_held_by_description_alone
    except ModuleNotFoundError as error:
        raise UserError(
            f"the conformance suite needs {error.name}; install it with `pip install {error.name}`"
        ) from None
    for kind, name in mine:
        try:
            menu.component(kind, name)
        except UserError as error:  # listed in the plugin's own registry file, but not imported before
            broken.append(str(error))
    failed: dict[tuple[str, str], str] = {}
    promises = [] if broken else cases(menu, distribution)
    for case in promises:
        # The first failed check of a component says what is wrong; further failures tend to follow from it.
        if (case.kind, case.name) not in failed and (sentence := case.failure()):
            failed[case.kind, case.name] = sentence
    if broken or failed:
        raise UserError("\n".join([*broken, *failed.values()]))
    for (kind, name), entry in mine.items():
        if is_held_by_description_alone(entry):
            without = "has required parameters and no example, so only its description was checked"
            click.echo(f"{kind} {name}: {without}")
    return f"{len(promises)} conformance checks passed: {', '.join(f'{kind} {name}' for kind, name in mine)}"
