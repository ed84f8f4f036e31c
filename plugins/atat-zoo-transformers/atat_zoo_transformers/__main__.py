"""`python -m atat_zoo_transformers`: models to runs; `atat export` is the way back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from atat_zoo.cli import run as run_command
from atat_zoo_transformers.source import TRUST


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--trust-remote-code", is_flag=True, help="Let code of a model's author run, where a run asks for it.")
def main(trust_remote_code: bool) -> None:
    """Models of the Hugging Face hub in the zoo."""
    if trust_remote_code:
        os.environ[TRUST] = "1"


@main.command("import")
@click.argument("model")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--revision", help="Commit, tag or branch of the hub.")
@click.option("--overwrite", is_flag=True, help="Replace a run that is there.")
def import_(model: str, run: Path, overrides: tuple[str, ...], **options: Any) -> None:
    """Make the folder RUN of MODEL, a name on the hub or a folder, without a training."""
    from atat_zoo_transformers.convert import import_model

    made = import_model(model, run, overrides, **options)
    weights = sum(weight.numel() for weight in made.module.parameters())
    click.echo(f"{run}: {weights:,} weights, {made.context.length} tokens; try `atat sample {run}`")


if __name__ == "__main__":
    run_command(main, "python -m atat_zoo_transformers")
