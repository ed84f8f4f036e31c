"""`python -m atat_zoo_transformers`: runs to models."""

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


@main.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--step", type=int, help="A checkpoint of RUN in place of its final model.")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), help="Of the weights.")
@click.option("--max-shard-size", default="5GB", show_default=True, help="Most of a file.")
def export(run: Path, folder: Path, **options: Any) -> None:
    """Write the network of RUN to FOLDER, as `from_pretrained` of transformers reads it."""
    from atat_zoo_transformers.convert import export_run

    export_run(run, folder, **options)
    click.echo(f"{folder}: written")


if __name__ == "__main__":
    run_command(main, "python -m atat_zoo_transformers")
