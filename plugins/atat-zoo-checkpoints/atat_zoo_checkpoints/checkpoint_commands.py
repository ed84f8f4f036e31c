"""Commands: `atat import` creates a run from a published model, and `atat export` writes a run for the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from atat_zoo.cli.arguments import options, output
from atat_zoo.evaluation.results.format import number
from atat_zoo.system.errors import UserError


@click.command("import")
@click.argument("model")
@output("run")
@options("overrides")
@click.option("--revision", help="Commit, tag or branch of MODEL on the hub.")
@click.option("--overwrite", is_flag=True, help="Replace an existing run once the new one is complete.")
def import_(model: str, run: Path, overrides: tuple[str, ...], **given: Any) -> None:
    """Import MODEL as the run folder RUN. MODEL is a name on the Hugging Face hub, a folder or a .ckpt file.

    MODEL can be a SEDD, MDLM, BD3-LM, SetDLM, LLaDA or Dream or, with atat-zoo-transformers, a masked or causal
    language model that transformers supports. Pass KEY=VALUE to override a key of the run's experiment.
    """
    from atat_zoo_checkpoints.model_import import import_model

    made = import_model(model, run, overrides, **given)
    weights = sum(weight.numel() for weight in made.module.parameters())
    objective = made.experiment.parts["objective"].name
    click.echo(
        f"{run}: {weights:,} weights, length {made.context.length}, objective {objective}; try `atat sample {run}`"
    )


@click.command()
@options("run")
@output("folder")
@options("step")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    help="Data type of the exported weights (default: that of the run's weights).",
)
@click.option("--max-shard-size", default="5GB", show_default=True, help="Maximum size of each weights file.")
@click.option(
    "--adapter", is_flag=True, help="Write only the LoRA matrices, in peft's format, instead of merged weights."
)
@click.option(
    "--base",
    metavar="MODEL",
    help="With --adapter: base model, as a folder or OWNER/NAME (default: the model that was imported for RUN).",
)
@click.option("--push", "repository", metavar="OWNER/NAME", help="Upload the export; a new model is private.")
@click.option("--public", is_flag=True, help="With --push: make a new model public.")
def export(
    run: Path, folder: Path, step: int | str | None, dtype: str | None, repository: str | None, public: bool, **how: Any
) -> None:
    """Export the network of RUN to FOLDER, with its tokenizer and a model card.

    If the backbone is `dit`, FOLDER includes code, so that `from_pretrained` from transformers loads the network, and
    `generate` samples from it, without atat_zoo. Other backbones keep the format of their published models. LoRA
    matrices are merged into the weights unless you pass --adapter.
    """
    # Report every mistake before importing torch.
    from atat_zoo.modeling.backbones.lora import without_lora
    from atat_zoo_checkpoints.model_export import check_export, check_push, export_run, push

    if public and repository is None:
        raise UserError("--public only works with --push; add --push, or leave --public out")
    check_export(run, folder, **how)
    if repository is not None:
        check_push(repository)
    model = export_run(run, folder, step=step, dtype=dtype, name=repository, **how)
    named = model.module.named_parameters()
    weights = sum(weight.numel() for name, weight in named if not (how["adapter"] and without_lora(name)))
    size = f"{'an adapter of ' * how['adapter']}{number(weights, 'parameter')}"
    click.echo(f"{click.format_filename(folder)}: step {model.step:,}, {size}; the model card is README.md")
    if repository is not None:
        click.echo(push(folder, repository, public=public))
