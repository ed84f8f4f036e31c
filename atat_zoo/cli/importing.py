"""`atat import`: the run of a published model, without a training."""

from pathlib import Path
from typing import Any

import click

from atat_zoo.cli.arguments import options, output


@click.command("import")
@click.argument("model")
@output("run")
@options("overrides")
@click.option("--revision", help="Commit, tag or branch of the hub.")
@click.option("--overwrite", is_flag=True, help="Replace a run that is there, when the new one is complete.")
def import_(model: str, run: Path, overrides: tuple[str, ...], **given: Any) -> None:
    """Make the folder RUN of MODEL, a name on the Hugging Face hub, a folder or a .ckpt file, without a training.

    The packages in plugins/ read models: atat-zoo-checkpoints, atat-zoo-transformers. KEY=VALUE changes the experiment
    of the run.
    """
    from atat_zoo.generation.importing import import_model

    made = import_model(model, run, overrides, **given)
    weights = sum(weight.numel() for weight in made.module.parameters())
    objective = made.experiment.parts["objective"].name
    click.echo(
        f"{run}: {weights:,} weights, {made.context.length} tokens, objective {objective}; try `atat sample {run}`"
    )
