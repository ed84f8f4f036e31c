"""`atat bench infilling`: what the text on both sides of a gap is worth to a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from atat_zoo.cli.console import Bars, json_option, print_json, table
from atat_zoo.cli.evaluating import evaluation_options

if TYPE_CHECKING:
    from atat_zoo.evaluation.infilling import GapQuality


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--gap", default=5, show_default=True, type=click.IntRange(1), help="Tokens in a gap.")
@click.option("--number", default=256, show_default=True, type=click.IntRange(0), help="Texts at most; 0 takes all.")
@click.option("--batch-size", default=64, show_default=True, type=click.IntRange(1), help="Texts at once.")
@evaluation_options("split", "seed")
@json_option
def infilling(
    run: Path,
    gap: int,
    number: int,
    split: Literal["validation", "test"] | None,
    batch_size: int,
    seed: int | None,
    device: str,
    as_json: bool,
) -> None:
    """Cut gaps out of held-out texts, and say how likely RUN finds the true words, given both sides and the left only.

    The result goes to RUN's evaluations/ too.
    """
    from atat_zoo.run import RunFolder

    RunFolder(run).final()  # a mistake is reported before torch is imported
    from atat_zoo.evaluation.infilling import infilling_of_run
    from atat_zoo.model import Model

    model = Model.from_run(run, device)
    with Bars(silent=as_json) as bars:
        quality = infilling_of_run(
            model,
            run,
            split=split or model.experiment.evaluation.split,
            number=number,
            gap=gap,
            seed=model.experiment.seed if seed is None else seed,
            batch_size=batch_size,
            progress=bars.evaluating,
        )
    if as_json:
        print_json({"run": str(run), **quality.to_table()})
    else:
        show(quality)


def show(quality: GapQuality) -> None:
    """Print a table, and a sentence on it."""
    click.echo(
        f"{quality.number} {quality.split} texts of {quality.length} tokens with a gap of {quality.gap}, "
        f"seed {quality.seed}; step {quality.step}, {'EMA' if quality.ema else 'final'} weights"
    )
    rows = [
        ["both sides", _number(quality.both, quality.both_stderr)],
        ["left side only", _number(quality.left, quality.left_stderr)],
        ["difference", _number(quality.difference, quality.difference_stderr)],
    ]
    table(["given", "log-likelihood of the true words, nats a token"], rows)
    if quality.difference == 0:
        click.echo("It is the same: the model does not look at the right side.")
    else:
        click.echo(f"In {quality.better:.0%} of the texts the true words are likelier given both sides.")


def _number(value: float, error: float) -> str:
    return f"{value:.3f} ± {error:.3f}"
