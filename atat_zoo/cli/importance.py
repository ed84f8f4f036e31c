"""`atat importance`: what a run's importance is worth on held-out text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import click

from atat_zoo.cli.console import Bars, json_option, print_json, table


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--split", type=click.Choice(["validation", "test"]), help="Held-out; the experiment's when absent.")
@click.option("--sequences", type=click.IntRange(0), help="Sequences at most; 0 takes all.")
@click.option("--draws", type=click.IntRange(1), help="Masks drawn for every sequence.")
@click.option("--bands", default=5, show_default=True, type=click.IntRange(1, 100), help="Bands of token frequency.")
@click.option("--batch-size", type=click.IntRange(1), help="Sequences at once.")
@click.option("--seed", type=click.IntRange(0), help="Seed of the masks; the experiment's when absent.")
@click.option("--device", type=click.Choice(["cpu", "gpu"]), default="cpu", show_default=True)
@json_option
def importance(
    run: Path,
    split: str | None,
    sequences: int | None,
    draws: int | None,
    bands: int,
    batch_size: int | None,
    seed: int | None,
    device: str,
    as_json: bool,
) -> None:
    """Hold the importance that RUN learned against the loss of held-out tokens; the result goes to its evaluations/."""
    from atat_zoo.evaluation.importance import importance_of_run
    from atat_zoo.model import Model

    model = Model.from_run(run, device)
    given = {"split": split, "sequences": sequences, "draws": draws, "batch_size": batch_size}
    own: Any = model.experiment.evaluation
    with Bars(silent=as_json) as bars:
        found = importance_of_run(
            model,
            run,
            attrs.evolve(own, **{k: v for k, v in given.items() if v is not None}),
            seed=model.experiment.seed if seed is None else seed,
            bands=bands,
            progress=bars.evaluating,
        )
    if as_json:
        print_json({"run": str(run), **found})
        return
    click.echo("\n".join(summary(found)))
    if found["bands"]:
        click.echo("")
        table(*by_band(found))
    click.echo("")
    table(*by_bin(found))


def summary(found: dict[str, Any]) -> list[str]:
    """Return what holds for all tokens, as lines to read."""
    target = f" trained towards {found['target']}" if found["target"] else ""
    said = [
        f"importance of the estimator {found['estimator']}{target}, on {found['sequences']} sequences of "
        f"{found['split']} text, {found['tokens']:,} tokens, {found['draws']} draws each by {found['method']}",
        f"  mean {found['mean']:.3f}, deviation {found['deviation']:.3f}",
        f"  Spearman ρ with the loss of held-out tokens: {_rho(found['importance_spearman'])}"
        f" (frequency alone: {_rho(found['frequency_spearman'])})",
        f"  calibration error against the rank of the loss in its sequence: {found['calibration_error']:.3f}",
    ]
    if found["importance_spearman"] is None:
        said.append("  the importance is the same for every token: it orders nothing")
    return said


def by_band(found: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of the bands of frequency, from rare to frequent."""
    columns = ["training count", "entries", "share of tokens", "mean nats", "ρ of importance", "ρ of frequency alone"]
    rows = []
    for band in found["bands"]:
        count = f"{band['least']:,}" if band["least"] == band["most"] else f"{band['least']:,} to {band['most']:,}"
        share = f"{band['tokens'] / found['tokens']:.1%}"
        rhos = (_rho(band["importance_spearman"]), _rho(band["frequency_spearman"]))
        rows.append([count, f"{band['types']:,}", share, f"{band['loss']:.3f}", *rhos])
    return columns, rows


def by_bin(found: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of the bins of importance."""
    columns = ["importance", "share of tokens", "mean importance", "mean rank of the loss", "mean nats"]
    rows = []
    for one in found["bins"]:
        share = f"{one['tokens'] / found['tokens']:.1%}"
        means = [f"{one[name]:.3f}" for name in ("importance", "rank", "loss")]
        rows.append([f"{one['low']:.1f} to {one['high']:.1f}", share, *means])
    return columns, rows


def _rho(value: float | None) -> str:
    return "—" if value is None else f"{value:.3f}"
