"""`atat compare`: runs held against each other on the same held-out sequences, under the same masks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from atat_zoo.cli.choosing import named
from atat_zoo.cli.console import Bars, json_option, markdown, print_json, table
from atat_zoo.errors import UserError, nearest

if TYPE_CHECKING:
    from atat_zoo.evaluation.compare import Comparison, Difference, Row

NONE = "—"


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN RUN...")
@click.option("--baseline", type=click.Path(path_type=Path), help="The run to hold the others against; the first.")
@click.option("--split", type=click.Choice(["validation", "test"]), help="Held-out; the baseline's when absent.")
@click.option("--bound", help="exact_k, continuous_t, or a table like {use = 'discrete_t', steps = 8}.")
@click.option("--sequences", type=click.IntRange(0), help="Sequences at most; 0 takes all.")
@click.option("--draws", type=click.IntRange(1), help="Masks drawn for every sequence.")
@click.option("--batch-size", type=click.IntRange(1), help="Sequences at once.")
@click.option("--seed", type=click.IntRange(0), help="Seed of the masks; the baseline's when absent.")
@click.option("--reach", type=click.FloatRange(1), help="Value whose first step is looked for; the worst run's final.")
@click.option("--device", type=click.Choice(["cpu", "gpu"]), default="cpu", show_default=True)
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown.")
@json_option
def compare(
    runs: tuple[Path, ...],
    baseline: Path | None,
    split: str | None,
    bound: str | None,
    sequences: int | None,
    draws: int | None,
    batch_size: int | None,
    seed: int | None,
    reach: float | None,
    device: str,
    as_markdown: bool,
    as_json: bool,
) -> None:
    """Compare the final models of two runs or more.

    Every run is measured on the same held-out sequences with the same masks, so that a difference between two runs
    is known far better than either number.
    """
    if len(runs) < 2:
        raise UserError(f"{runs[0]} is only one run; name two or more to compare, or use `atat eval {runs[0]}`")
    number = _place(runs, baseline)
    method = named("bound", bound) if bound else None
    from atat_zoo.evaluation import compare as comparing
    from atat_zoo.evaluation.subjects import measure_runs
    from atat_zoo.experiment import from_table
    from atat_zoo.run import RunFolder

    base = RunFolder(runs[number])
    experiment = from_table(base.table(), where=str(base.resolved))
    own: Any = experiment.evaluation
    given = {"split": split, "sequences": sequences, "draws": draws, "batch_size": batch_size, "bound": method}
    spec = attrs.evolve(own, **{k: v for k, v in given.items() if v is not None})
    seed = experiment.seed if seed is None else seed
    with Bars(silent=as_json or as_markdown) as bars:
        subjects = measure_runs(runs, spec, baseline=number, seed=seed, device=device, progress=bars.evaluating)
    found = comparing.compare(subjects, spec, baseline=number, seed=seed, reach=reach)
    if as_json:
        print_json(found.to_table())
        return
    show = markdown if as_markdown else table
    show(*quality(found))
    click.echo("")
    show(*training(found))
    click.echo("")
    for line in notes(found):
        click.echo(line + ("  " if as_markdown else ""))


def _place(runs: tuple[Path, ...], baseline: Path | None) -> int:
    if baseline is None:
        return 0
    for number, run in enumerate(runs):
        if run.resolve() == baseline.resolve():
            return number
    known = [str(run) for run in runs]
    raise UserError(
        f"--baseline {baseline} is none of the runs{nearest(str(baseline), known)} (they are: {', '.join(known)})"
    )


def quality(found: Comparison) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of what the models make of the text."""
    from atat_zoo.evaluation.naming import title

    quantities = list(dict.fromkeys(name for row in found.rows for name in row.bounds))
    columns = ["run", "objective", *(title(name) for name in quantities)]
    columns += ["difference, nats per token", "ratio", "bits per byte"]
    rows = []
    for row in found.rows:
        values = [row.bounds.get(name) for name in quantities]
        own = row.bounds[found.quantity]
        rows.append(
            [
                row.subject.name,
                row.subject.objective,
                *(f"{v.value:.2f} ± {v.stderr:.2f}" if v else NONE for v in values),
                *_difference(row.differences[found.quantity]),
                f"{own.bits_per_byte:.4f}",
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


def training(found: Comparison) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of what the models cost."""
    reach = NONE if found.reach is None else f"{found.reach:.2f}"
    columns = ["run", "steps", "seconds", f"steps to {reach}", f"seconds to {reach}"]
    columns += ["parameters", "without embeddings", "tokens per second", "peak memory"]
    return columns, [_cost(row) for row in found.rows]


def _cost(row: Row) -> list[str]:
    one, past = row.subject, row.subject.history
    step, seconds = row.reached
    return [
        one.name,
        f"{one.step:,}",
        _whole(past.seconds),
        _whole(step),
        _whole(seconds),
        f"{one.parameters:,}",
        f"{one.without_embeddings:,}",
        _whole(past.tokens_per_second),
        NONE if past.peak_memory is None else f"{past.peak_memory / 2**20:,.0f} MiB",
    ]


def _whole(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}"


def notes(found: Comparison) -> list[str]:
    """Return what was compared, and what else there is to know, a sentence or two a line."""
    from atat_zoo.evaluation.naming import PERPLEXITY, title
    from atat_zoo.evaluation.perplexity import LIKELIHOOD

    what = title(found.quantity)
    weights = {"EMA" if row.subject.ema else "final" for row in found.rows}
    draws = "1 draw" if found.draws == 1 else f"{found.draws} draws"
    said = [
        f"{what}: of {found.sequences:,} sequences of {found.split} text, {found.tokens:,} tokens, the same for every "
        f"run; {draws} each by {found.method}, the same masks (seed {found.seed}); "
        f"{' and '.join(sorted(weights))} weights; ± one standard error over sequences.",
        f"Differences are to {found.baseline}; 95 % intervals: paired bootstrap over sequences. "
        "A run is one training: how far another seed's would lie is not in them.",
    ]
    exact = [row.subject.name for row in found.rows if row.subject.method == LIKELIHOOD]
    if exact:
        said.append(f"Exact, with nothing drawn: the likelihood of {', '.join(exact)}.")
    for row in found.rows:
        for name, difference in row.differences.items():
            if name != found.quantity and difference is not None:
                nats, ratio = _difference(difference)
                said.append(
                    f"{title(name)} of {row.subject.name} against the {what} of {found.baseline}: "
                    f"{nats} nats per token, {ratio}."
                )
    said.append(
        "seconds: of optimizer steps, evaluations between them not counted; "
        + (
            f"steps to {found.reach:.2f}: the first whose {PERPLEXITY}, as recorded during the training, is not above."
            if found.reach is not None
            else "no evaluation was recorded during a training."
        )
    )
    computed = [row.subject.history.computed for row in found.rows]
    if any(one != computed[0] for one in computed if one and computed[0]):
        said.append(
            "The runs were trained on different devices, precisions or ranks: their seconds are not comparable."
        )
    return said
