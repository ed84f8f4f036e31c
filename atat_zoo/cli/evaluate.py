"""`atat eval`: the bound of a finished run on held-out text."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import click

from atat_zoo.cli.bars import Bars
from atat_zoo.cli.console import json_option, print_json
from atat_zoo.experiment import EvaluationSpec
from atat_zoo.registry.spec import unstructure

if TYPE_CHECKING:
    from atat_zoo.evaluation import Evaluation


@click.command("eval")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--split", type=click.Choice(["validation", "test"]), help="Held-out; the experiment's when absent.")
@click.option("--sequences", type=click.IntRange(0), help="Sequences at most; 0 takes all.")
@click.option("--draws", type=click.IntRange(1), help="Masks drawn for every sequence.")
@click.option("--batch-size", type=click.IntRange(1), help="Sequences at once.")
@click.option("--seed", type=click.IntRange(0), help="Seed of the masks; the experiment's when absent.")
@click.option("--device", type=click.Choice(["cpu", "gpu"]), default="cpu", show_default=True)
@json_option
def evaluate(
    run: Path,
    split: str | None,
    sequences: int | None,
    draws: int | None,
    batch_size: int | None,
    seed: int | None,
    device: str,
    as_json: bool,
) -> None:
    """Evaluate the final model of RUN; the result goes to its evaluations/ too."""
    from atat_zoo.evaluation import evaluate_run
    from atat_zoo.model import Model

    model = Model.from_run(run, device)
    given = {"split": split, "sequences": sequences, "draws": draws, "batch_size": batch_size}
    own = unstructure(model.experiment.evaluation)
    spec = EvaluationSpec(**own | {key: value for key, value in given.items() if value is not None})
    with Bars(silent=as_json) as bars:
        found = evaluate_run(
            model,
            run,
            spec,
            seed=model.experiment.seed if seed is None else seed,
            progress=bars.evaluating,
        )
    if as_json:
        print_json({"run": str(run), **found.to_table()})
    else:
        click.echo("\n".join(lines(found)))


def lines(found: Evaluation) -> list[str]:
    """Return an evaluation as lines to read."""
    special = (
        ""
        if math.isclose(found.perplexity_without_special, found.perplexity)
        else (f" ({found.perplexity_without_special:.1f} without BOS and EOS)")
    )
    said = [
        f"{found.split} text: {found.sequences} sequences, {found.tokens:,} tokens, {found.draws} masks each",
        f"  perplexity          {found.perplexity:.1f} ± {found.perplexity_stderr:.1f}{special}",
        f"  bits per byte       {found.bits_per_byte:.3f} ± {found.bits_per_byte_stderr:.3f}",
    ]
    if found.unigram_perplexity:
        lower = 1 - found.perplexity / found.unigram_perplexity
        said.append(
            f"  unigram perplexity  {found.unigram_perplexity:.1f} on the same tokens; the model's is {lower:.0%} lower"
        )
    if found.importance_spearman is not None:
        said.append(
            f"  importance against per-token loss, Spearman ρ: {found.importance_spearman:.3f}"
            + ("" if found.frequency_spearman is None else f" (frequency alone: {found.frequency_spearman:.3f})")
        )
    return said
