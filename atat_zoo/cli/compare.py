"""`atat compare`: runs compared on the same held-out sequences, under the same masks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from atat_zoo.cli.arguments import HELD_OUT, NONE, options, with_bound, with_options
from atat_zoo.cli.console import Bars, markdown, print_json, table
from atat_zoo.errors import UserError, nearest

if TYPE_CHECKING:
    from atat_zoo.evaluation.compare import Comparison, Difference, Row


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN RUN...")
@click.option("--baseline", type=click.Path(path_type=Path), help="The run to compare with; the first when absent.")
@click.option("--reach", type=click.FloatRange(1), help="Value to reach; the worst final one when absent.")
@options("step", *HELD_OUT, "device", "markdown", "json")
def compare(
    runs: tuple[Path, ...],
    baseline: Path | None,
    step: int | None,
    seed: int | None,
    reach: float | None,
    device: str,
    as_markdown: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Compare the final models of two or more runs.

    Every run is measured on the same held-out sequences with the same masks, so a difference between two runs
    is far more precise than either number. The defaults of options come from the experiment of the baseline.
    """
    if len(runs) < 2:
        raise UserError(f"{runs[0]} is only one run; name two or more to compare, or use `atat eval {runs[0]}`")
    number = _number_of(runs, baseline)
    given = with_bound(given)
    from atat_zoo.evaluation import compare as comparing
    from atat_zoo.experiment import from_table
    from atat_zoo.run import RunFolder

    base = RunFolder(runs[number])
    experiment = from_table(base.table(), where=str(base.resolved))
    spec = with_options(experiment.evaluation, given)
    seed = experiment.seed if seed is None else seed
    with Bars(silent=as_json or as_markdown) as bars:
        progress = bars.evaluating
        measured = comparing.measure_runs(
            runs, spec, baseline=number, seed=seed, device=device, step=step, progress=progress
        )
    comparison = comparing.compare(measured, spec, baseline=number, seed=seed, reach=reach)
    if as_json:
        print_json(comparison.to_table())
        return
    show = markdown if as_markdown else table
    show(*quality(comparison))
    click.echo("")
    show(*training(comparison))
    click.echo("")
    for line in notes(comparison):
        click.echo(line + ("  " if as_markdown else ""))


def _number_of(runs: tuple[Path, ...], baseline: Path | None) -> int:
    if baseline is None:
        return 0
    for number, run in enumerate(runs):
        if os.path.realpath(run) == os.path.realpath(baseline):
            return number
    known = [str(run) for run in runs]
    raise UserError(
        f"--baseline {baseline} is none of the runs{nearest(str(baseline), known)} (they are: {', '.join(known)})"
    )


def quality(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of the bounds and scores of the models."""
    from atat_zoo.evaluation.naming import title

    quantities = list(dict.fromkeys(name for row in comparison.rows for name in row.bounds))
    scores = list(dict.fromkeys(name for row in comparison.rows for name in row.scores))
    columns = ["run", "objective", *(title(name) for name in quantities)]
    columns += ["difference, nats per token", "ratio", "bits per byte", *(name.replace("_", " ") for name in scores)]
    rows = []
    for row in comparison.rows:
        values = [row.bounds.get(name) for name in quantities]
        own = row.bounds[comparison.quantity]
        rows.append(
            [
                row.run.name,
                row.run.objective,
                *(f"{v.value:.2f} ± {v.stderr:.2f}" if v else NONE for v in values),
                *_difference(row.differences[comparison.quantity]),
                f"{own.bits_per_byte:.4f}",
                *("{:.4f} ± {:.4f}".format(*row.scores[name]) if name in row.scores else NONE for name in scores),
            ]
        )
    return columns, rows


def _difference(difference: Difference | None) -> tuple[str, str]:
    if difference is None:
        return NONE, NONE
    one = difference.to_table()
    return (
        f"{one['nats_per_token']:+.4f} [{one['low']:+.4f}, {one['high']:+.4f}]",
        f"{one['percent']:+.2f} % [{one['percent_low']:+.2f}, {one['percent_high']:+.2f}]",
    )


def training(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of the training costs."""
    reach = NONE if comparison.reach is None else f"{comparison.reach:.2f}"
    columns = ["run", "steps", "seconds", f"steps to {reach}", f"seconds to {reach}"]
    columns += ["parameters", "without embeddings", "tokens per second", "peak memory"]
    return columns, [_cost(row) for row in comparison.rows]


def _cost(row: Row) -> list[str]:
    one, past = row.run, row.run.history
    step, seconds = row.reached
    return [
        one.name,
        f"{one.step:,}",
        _count(past.seconds),
        _count(step),
        _count(seconds),
        f"{one.parameters:,}",
        f"{one.without_embeddings:,}",
        _count(past.tokens_per_second),
        NONE if past.peak_memory is None else f"{past.peak_memory / 2**20:,.0f} MiB",
    ]


def _count(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}"


def _recorded(comparison: Comparison) -> str:
    """Return on how many sequences and draws the runs were evaluated during their trainings."""
    on = dict.fromkeys(row.run.history.evaluated_on for row in comparison.rows)
    return f" ({'; '.join(filter(None, on))})" if any(on) else ""


def _tables(comparison: Comparison) -> list[str]:
    """Return a sentence for each count table, with what the runs are beside it."""
    from atat_zoo.evaluation.naming import TABLE, title

    beside: dict[str, list[str]] = {}
    for row in comparison.rows:
        if one := row.table:
            what = f"{TABLE} {title(next(iter(row.bounds)))}, from {one.reads} counted in {one.counted:,} sequences"
            table = f"{what}, on the same tokens and masks: {one.value:.2f} ± {one.stderr:.2f}"
            beside.setdefault(table, []).append(f"{row.run.name} is {one.verdict}")
    return [f"{table}; {'; '.join(runs)}." for table, runs in beside.items()]


def notes(comparison: Comparison) -> list[str]:
    """Return the conditions of the comparison and how to read it, one or two sentences per line."""
    from atat_zoo.evaluation.naming import PERPLEXITY, title
    from atat_zoo.evaluation.perplexity import LIKELIHOOD

    what = title(comparison.quantity)
    weights = {"EMA" if row.run.ema else "final" for row in comparison.rows}
    draws = "1 draw" if comparison.draws == 1 else f"{comparison.draws} draws"
    lines = [
        f"{what}: of {comparison.sequences:,} sequences of {comparison.split} text, {comparison.tokens:,} tokens, "
        f"the same for every run; {draws} each by {comparison.method}, the same masks (seed {comparison.seed}); "
        f"{' and '.join(sorted(weights))} weights; ± one standard error over sequences.",
        f"Differences are to {comparison.baseline}; 95 % intervals: paired bootstrap over sequences. "
        "A run is one training: how far another seed's would lie is not in them.",
    ]
    if any(row.scores for row in comparison.rows):
        lines.append(
            "Scores of the predictions at masked tokens, averaged over the same masks with the bound's weights; "
            "brier score: 0 is perfect, 2 the worst."
        )
    lines += _tables(comparison)
    exact = [row.run.name for row in comparison.rows if row.run.method == LIKELIHOOD]
    if exact:
        lines.append(f"Exact, with nothing drawn: the likelihood of {', '.join(exact)}.")
    for row in comparison.rows:
        for name, difference in row.differences.items():
            if name != comparison.quantity and difference is not None:
                nats, ratio = _difference(difference)
                lines.append(
                    f"{title(name)} of {row.run.name} against the {what} of {comparison.baseline}: "
                    f"{nats} nats per token, {ratio}."
                )
    lines.append(
        "seconds: of optimizer steps, evaluations between them not counted; "
        + (
            f"steps to {comparison.reach:.2f}: the first whose {PERPLEXITY}, as recorded during the training"
            f"{_recorded(comparison)}, is not above."
            if comparison.reach is not None
            else "no evaluation was recorded during a training."
        )
    )
    computed = [row.run.history.computed for row in comparison.rows]
    if any(one != computed[0] for one in computed if one and computed[0]):
        lines.append(
            "The runs were trained on different devices, precisions or ranks: their seconds are not comparable."
        )
    return lines
