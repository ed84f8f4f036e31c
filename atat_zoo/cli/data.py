"""`atat data`: shards of tokens. Imports no torch."""

from __future__ import annotations

from pathlib import Path

import attrs
import click

from atat_zoo.cli.arguments import options
from atat_zoo.cli.console import Bars, print_json, table
from atat_zoo.experiment import load


@click.group()
def data() -> None:
    """Build shards of tokens, or show their contents."""


@data.command()
@click.argument("experiment")
@options("overrides", "json")
def build(experiment: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """Build the shards of EXPERIMENT unless they exist; an interrupted build continues where it stopped."""
    from atat_zoo.data.build import build as build_shards

    with Bars(silent=as_json) as bars:
        folder = build_shards(load(experiment, overrides), progress=bars.building)
    if as_json:
        print_json({"folder": str(folder)})
    else:
        click.echo(f"the shards are in {folder}")


@data.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--full", is_flag=True, help="Check the hash of every shard.")
@options("json")
def info(folder: Path, full: bool, as_json: bool) -> None:
    """Print the contents of a FOLDER of shards, after checking that it is complete."""
    from atat_zoo.data.manifest import verify

    shards = verify(folder, full=full)
    if as_json:
        print_json(attrs.asdict(shards))
        return
    click.echo(f"{folder}: {shards.corpus['use']} by {shards.tokenizer['use']}, V = {shards.vocabulary_size:,}")
    click.echo(f"sequences of {shards.length} tokens as {shards.dtype}; special tokens: {shards.special};")
    click.echo(f"what is left over at the end of a split: {shards.remainder}; cut for {shards.lanes} lanes")
    counted = ("documents", "sequences", "tokens", "dropped", "padded", "characters", "bytes", "words")
    rows = [
        [name, *(f"{getattr(split, key):,}" for key in counted), str(len(split.shards))]
        for name, split in shards.splits.items()
    ]
    table(["split", *counted, "shards"], rows)
    if full:
        click.echo("every shard has the hash of the manifest")
