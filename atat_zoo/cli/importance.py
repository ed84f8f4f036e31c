"""`atat importance`: how well a run's importance predicts the loss of held-out text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from atat_zoo.cli.arguments import options, with_options
from atat_zoo.cli.console import Bars, print_json, table
from atat_zoo.results.format import cell

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@options("run", "step", "split", "sequences", "draws", "sequences_at_once", "mask_seed")
@click.option("--bands", default=5, show_default=True, type=click.IntRange(1, 100), help="Bands of token frequency.")
@options("device", "json")
def importance(
    run: Path, step: int | None, bands: int, seed: int | None, device: str, as_json: bool, **given: Any
) -> None:
    """Compare RUN's importance with the loss of held-out tokens; the result is also saved in its evaluations/."""
    from atat_zoo.measure.importance import importance_of_run
    from atat_zoo.model import Model

    model = Model.from_run(run, device, step)
    with Bars(silent=as_json) as bars:
        result = importance_of_run(
            model,
            run,
            with_options(model.experiment.evaluation, given),
            seed=model.experiment.seed if seed is None else seed,
            bands=bands,
            progress=bars.evaluating,
        ).to_table()
    if as_json:
        print_json({"run": str(run), **result})
        return
    click.echo("\n".join(summary(result)))
    if result["bands"]:
        click.echo("")
        table(*by_band(result))
    click.echo("")
    table(*by_bin(result))


def summary(result: dict[str, Any]) -> list[str]:
    """Return the results over all tokens, as readable lines."""
    target = f" trained towards {result['target']}" if result["target"] else ""
    text = [
        f"importance of the estimator {result['estimator']}{target}, on {result['sequences']} sequences of "
        f"{result['split']} text, {result['tokens']:,} tokens, {result['draws']} draws each by {result['method']}",
        f"  mean {result['mean']:.3f}, deviation {result['deviation']:.3f}",
        f"  Spearman ρ with the loss of held-out tokens: {cell(result['importance_spearman'], '.3f')}"
        f" (frequency alone: {cell(result['frequency_spearman'], '.3f')})",
        f"  calibration error against the rank of the loss in its sequence: {result['calibration_error']:.3f}",
    ]
    if result["importance_spearman"] is None:
        text.append("  the importance is the same for every token: it orders nothing")
    return text


def by_band(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of the bands of frequency, from rare to frequent."""
    columns = ["training count", "entries", "share of tokens", "mean nats", "ρ of importance", "ρ of frequency alone"]
    rows = []
    for band in result["bands"]:
        counts = f"{band['least']:,}" if band["least"] == band["most"] else f"{band['least']:,} to {band['most']:,}"
        share = f"{band['tokens'] / result['tokens']:.1%}"
        rhos = [cell(band[f"{name}_spearman"], ".3f") for name in ("importance", "frequency")]
        rows.append([counts, f"{band['types']:,}", share, f"{band['loss']:.3f}", *rhos])
    return columns, rows


def by_bin(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of the bins of importance."""
    columns = ["importance", "share of tokens", "mean importance", "mean rank of the loss", "mean nats"]
    rows = []
    for within in result["bins"]:
        share = f"{within['tokens'] / result['tokens']:.1%}"
        means = [f"{within[name]:.3f}" for name in ("importance", "rank", "loss")]
        rows.append([f"{within['low']:.1f} to {within['high']:.1f}", share, *means])
    return columns, rows
