"""`atat check` and `atat resolve`: an experiment, before anything heavy is imported."""

from __future__ import annotations

import click

from atat_zoo.cli.arguments import options
from atat_zoo.cli.console import print_json
from atat_zoo.experiment import load


@click.command()
@click.argument("experiment")
@options("overrides")
def check(experiment: str, overrides: tuple[str, ...]) -> None:
    """Report all mistakes in EXPERIMENT, or that there are none."""
    loaded = load(experiment, overrides)
    parts = ", ".join(f"{kind} {loaded.parts[kind].name}" for kind in loaded.kinds)
    click.echo(f"{loaded.name} is in order: {parts}")


@click.command()
@click.argument("experiment")
@options("overrides", "json")
def resolve(experiment: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """Print EXPERIMENT with every parameter in full; the output is a valid experiment."""
    loaded = load(experiment, overrides)
    if as_json:
        print_json(loaded.to_table())
    else:
        click.echo(loaded.to_toml(), nl=False)
