"""The command `python -m atat_zoo_genomics`, which compares models with k-mer models and evaluates them on GUE."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import click

from atat_zoo.cli import run as run_command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Train and evaluate masked diffusion models for DNA."""


@main.command()
@click.argument("data", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default="runs/promoters",
    show_default=True,
    help="Folder to write the runs to.",
)
@click.option("--arm", "arms", multiple=True, help="Arm to train (default: all); can be repeated.")
@click.option("--write", type=click.Path(path_type=Path), help="Markdown file to write the results to.")
def study(data: Path, out: Path, arms: tuple[str, ...], write: Path | None) -> None:
    """Train models on GUE's core promoters in DATA, and compare their NLL with that of k-mer models."""
    from atat_zoo.cli.console import Bars
    from atat_zoo.experiment.runs import write_text
    from atat_zoo.system.errors import UserError, nearest
    from atat_zoo_genomics.kmer_study import ARMS, page, table
    from atat_zoo_genomics.kmer_study import study as measure

    for arm in arms:
        if arm not in ARMS:
            raise UserError(f"--arm: unknown arm {arm!r}{nearest(arm, list(ARMS))} (arms: {', '.join(ARMS)})")
    with Bars(silent=False) as reporter:
        found = measure(data, out, arms or list(ARMS), reporter=reporter)
    click.echo(table(found))
    if write is not None:
        write_text(write, page(found))


@main.command()
@click.option("--task", required=True, help="GUE task, such as prom_core_all.")
@click.option("--data", required=True, type=click.Path(path_type=Path), help="Folder with GUE or the task's files.")
@click.option("--run", required=True, type=click.Path(path_type=Path), help="Folder of a run with the tokenizer dna.")
@click.option(
    "--seed",
    "seeds",
    multiple=True,
    type=int,
    default=(17, 18, 19),
    show_default=True,
    help="Seed for the classification head and the order of examples; can be repeated.",
)
@click.option(
    "--epochs", default=2, show_default=True, type=click.IntRange(1), help="Number of passes over the training split."
)
@click.option("--batch-size", default=128, show_default=True, type=click.IntRange(1), help="Sequences per step.")
@click.option(
    "--learning-rate",
    default=2e-3,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="Peak learning rate.",
)
@click.option(
    "--split",
    default="test",
    show_default=True,
    type=click.Choice(["test", "dev"]),
    help="Split to evaluate; use dev to choose hyperparameters.",
)
@click.option("--scratch", is_flag=True, help="Also train the network from scratch, for comparison.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def gue(
    task: str, data: Path, run: Path, seeds: tuple[int, ...], split: str, scratch: bool, as_json: bool, **recipe: Any
) -> None:
    """Fine-tune a run's network for a GUE task, and compare it with a logistic regression on 6-mers."""
    from atat_zoo.cli.console import print_json
    from atat_zoo_genomics.gue import TASKS, Recipe
    from atat_zoo_genomics.gue import gue as measure

    found = measure(task, data, run, seeds=seeds, recipe=Recipe(**recipe), split=split, scratch=scratch)
    if as_json:
        print_json({"task": task, "split": split, "metric": TASKS[task].metric, "scores": found})
        return
    width = max(map(len, found))
    for title, each in found.items():
        spread = f" ± {statistics.stdev(each):.3f}" if len(each) > 1 else ""
        values = ", ".join(f"{value:.3f}" for value in each)
        click.echo(f"{title.ljust(width)}  {TASKS[task].metric} {statistics.mean(each):.3f}{spread}  ({values})")


if __name__ == "__main__":
    run_command(main, "python -m atat_zoo_genomics")
