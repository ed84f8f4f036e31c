"""`atat export`: a run as a model of the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from atat_zoo.cli.arguments import options, output
from atat_zoo.errors import UserError
from atat_zoo.evaluation.results.format import number


@click.command()
@options("run")
@output("folder")
@options("step")
@click.option(
    "--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), help="Of the weights; as trained if absent."
)
@click.option("--max-shard-size", default="5GB", show_default=True, help="Most of a file of weights.")
@click.option(
    "--adapter", is_flag=True, help="Of a LoRA run: write only its matrices, as peft reads them; else they are merged."
)
@click.option(
    "--base",
    metavar="MODEL",
    help="With --adapter: the folder or OWNER/NAME of the model for which it is; if absent, the imported one.",
)
@click.option("--push", "repository", metavar="OWNER/NAME", help="Upload it as a model of the hub, for you alone.")
@click.option("--public", is_flag=True, help="With --push: for everybody.")
def export(
    run: Path,
    folder: Path,
    step: int | str | None,
    dtype: str | None,
    max_shard_size: str,
    adapter: bool,
    base: str | None,
    repository: str | None,
    public: bool,
) -> None:
    """Write the network of RUN to FOLDER, as `from_pretrained` of transformers reads it, with a model card.

    What reads it needs no atat_zoo: the code of the network and of its sampler lies in FOLDER. The run of a published
    model is written in the form in which that was published. The matrices of a LoRA run are merged into its weights
    unless you ask for an --adapter.
    """
    # Every mistake is reported before torch is imported.
    from atat_zoo.modeling.backbones.lora import without_lora
    from atat_zoo.reports.export.pushing import check_push, push
    from atat_zoo.reports.export.writing import check_export, export_run

    if public and repository is None:
        raise UserError("--public: belongs to --push; add that, or leave it out")
    how: dict[str, Any] = {"max_shard_size": max_shard_size, "adapter": adapter, "base": base}
    check_export(run, folder, **how)
    if repository is not None:
        check_push(repository)
    model = export_run(run, folder, step=step, dtype=dtype, name=repository, **how)
    named = model.module.named_parameters()
    weights = sum(weight.numel() for name, weight in named if not (adapter and without_lora(name)))
    size = f"{'an adapter of ' * adapter}{number(weights, 'parameter')}"
    click.echo(f"{click.format_filename(folder)}: step {model.step:,}, {size}; its card is README.md")
    if repository is not None:
        click.echo(push(folder, repository, public=public))
