"""`python -m atat_zoo_transformers`: models to runs, runs to models, and GLUE."""

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


@main.command()
@click.argument("task")
@click.argument("data", type=click.Path(path_type=Path))
@click.argument("models", nargs=-1, required=True)
@click.option("--epochs", default=3, show_default=True, type=click.IntRange(1), help="Passes over the training text.")
@click.option("--batch-size", default=32, show_default=True, type=click.IntRange(1), help="Examples in a step.")
@click.option(
    "--learning-rate",
    default=2e-5,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="Largest learning rate.",
)
@click.option(
    "--length",
    default=128,
    show_default=True,
    type=click.IntRange(1),
    help="Most tokens of an example; no more than a model reads.",
)
@click.option("--seed", default=17, show_default=True, help="Of the head, the order of examples and the dropout.")
@click.option(
    "--device",
    default="auto",
    show_default=True,
    help="cpu, gpu, or torch's name of a device; auto: a GPU if there is one.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def glue(task: str, data: Path, models: tuple[str, ...], as_json: bool, **recipe: Any) -> None:
    """Train a head for TASK of GLUE on the files in DATA, with each of MODELS, and print the published metrics.

    MODELS are names on the hub, folders, or runs with the backbone `transformers`: a model before its fine-tuning, and
    the run after it.
    """
    from atat_zoo.cli.console import print_json
    from atat_zoo_transformers.glue import Recipe
    from atat_zoo_transformers.glue import glue as measure

    found = measure(task, data, models, Recipe(**recipe))
    if as_json:
        print_json(found)
        return
    width = max(map(len, found))
    for name, metrics in found.items():
        click.echo("  ".join([name.ljust(width), *(f"{key} {100 * value:.1f}" for key, value in metrics.items())]))


if __name__ == "__main__":
    run_command(main, "python -m atat_zoo_transformers")
