"""`atat compare`: runs compared on the same held-out sequences, under the same masks."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from atat_zoo.cli.arguments import (
    HELD_OUT,
    NONE,
    ZERO_SHOT,
    corpus,
    options,
    with_bound,
    with_options,
)
from atat_zoo.cli.console import Bars, markdown, print_json, printable, table
from atat_zoo.errors import UserError, nearest
from atat_zoo.run.changes import changes

if TYPE_CHECKING:
    from atat_zoo.evaluation.compare import Comparison, Difference, Row

# What two runs may differ in without a difference of their models.
_BESIDE = re.compile(
    r"name|requires|data\.(root|workers|sequences_per_member|dtype)|(evaluation|sampler|guidance)\..*|"
    r"train\.(device|compile|peak_flops|log_every|evaluate_every|evaluate_sequences|save_every|loggers|callbacks|checkpoints_kept|"
    r"microbatch_size|precision)|data\.damaged|backbone\.checkpoint_activations"
)
_NEIGHBOURS = "backbone.neighbours"
_NAMED = 6  # differences that are named of two runs


class Shown(NamedTuple):
    """What is printed of a comparison."""

    json: dict[str, Any]
    tables: list[tuple[list[str], list[list[str]]]]  # columns and rows
    notes: list[str]


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN RUN...")
@click.option("--baseline", type=click.Path(path_type=Path), help="The run to compare with; the first when absent.")
@click.option("--reach", type=click.FloatRange(1), help="Value to reach; the worst final one when absent.")
@options("step", "text", *HELD_OUT, "device", "markdown", "json")
def compare(
    runs: tuple[Path, ...],
    baseline: Path | None,
    step: int | None,
    text: str | None,
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

    --corpus compares them on other text, as in `atat eval`; `--corpus zero-shot` on the seven corpora of the field's
    table, beside what was published.
    """
    if len(runs) < 2:
        raise UserError(f"{runs[0]} is only one run; name two or more to compare, or use `atat eval {runs[0]}`")
    number = _number_of(runs, baseline)
    given = with_bound(given)
    if text == ZERO_SHOT:
        from atat_zoo.cli.zero_shot import check, of_runs

        check(given)
        if reach is not None:
            raise UserError(f"--reach: --corpus {ZERO_SHOT} shows no costs of training; leave it out")
    other = (
        dict(zip(("corpus", "corpus_name", "all_of_corpus"), corpus(text), strict=True))
        if text and text != ZERO_SHOT
        else {}
    )
    from atat_zoo.corpora.held_out import split_named
    from atat_zoo.evaluation import compare as comparing
    from atat_zoo.experiment import from_table
    from atat_zoo.run import RunFolder

    base = RunFolder(runs[number])
    experiment = from_table(base.table(), where=str(base.resolved))
    spec = with_options(experiment.evaluation, given)
    if other and not given.get("split"):
        spec = with_options(spec, {"split": split_named(other["corpus"], spec.split)})
    shared: dict[str, Any] = {"baseline": number, "seed": experiment.seed if seed is None else seed}
    with Bars(silent=as_json or as_markdown) as bars:
        measuring = shared | {"device": device, "step": step, "progress": bars.evaluating}
        if text == ZERO_SHOT:
            shown = of_runs(runs, spec, **measuring)
        else:
            measured = comparing.measure_runs(runs, spec, **measuring, **other)
            other.pop("corpus", None)
            comparison = comparing.compare(measured, spec, reach=reach, **shared, **other)
            tables = [quality(comparison), training(comparison)]
            shown = Shown(as_table(comparison), tables, notes(comparison))
    if as_json:
        print_json(shown.json)
        return
    for each in shown.tables:
        (markdown if as_markdown else table)(*each)
        click.echo("")
    for line in shown.notes:
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


def as_table(comparison: Comparison) -> dict[str, Any]:
    """Return the numbers, and of each run what its experiment has that the baseline's has not."""
    found, differing = comparison.to_table(), _differing(comparison)
    for row in found["runs"]:
        row["differs"] = {key: list(values) for key, values in differing.get(row["run"], {}).items()}
    return found


def _differing(comparison: Comparison) -> dict[str, dict[str, tuple[Any, Any]]]:
    """Return for each run but the baseline the keys in which their models' experiments differ, with both values."""
    base = next(row.run for row in comparison.rows if row.run.name == comparison.baseline)
    found: dict[str, dict[str, tuple[Any, Any]]] = {}
    for row in comparison.rows:
        every = {key: (own, his) for key, own, his, _ in changes(row.run.experiment, base.experiment)}
        # Of two parts there is nothing in common but their name.
        others = [key.removesuffix("use") for key in every if key.endswith(".use")]
        found[row.run.name] = {
            key: values
            for key, values in every.items()
            if not _BESIDE.fullmatch(key)
            and (key.endswith(".use") or key == _NEIGHBOURS or not key.startswith(tuple(others)))
        }
    return found


def differing(comparison: Comparison) -> list[str]:
    """Return a line for each run whose experiment differs from the baseline's, which says in what."""
    lines, base = [], comparison.baseline
    for name, found in _differing(comparison).items():
        said = []
        own, his = (value or 0 for value in found.pop(_NEIGHBOURS, (0, 0)))
        if own != his:
            (more, most), (less, least) = sorted([(name, own), (base, his)], key=lambda each: -each[1])
            counts = "whose counts of the training text are part of the network"
            said.append(f"{more} has {_NEIGHBOURS} = {most}, {counts}; {less} has {least or 'none'}")
        if found:
            values = [f"{key} ({_value(a)}, not {_value(b)})" for key, (a, b) in list(found.items())[:_NAMED]]
            rest = f" and {len(found) - _NAMED} more, which `atat diff` lists" if len(found) > _NAMED else ""
            said.append(f"{name} differs from {base} in {', '.join(values)}{rest}")
        lines += [". ".join(said) + "."] if said else []
    return lines


def _value(value: Any) -> str:
    value = value.get("use") if isinstance(value, dict) else value
    text = "none" if value is None else printable(json.dumps(value, ensure_ascii=False))
    return text if len(text) <= 40 else f"{text[:37]}..."


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
                *difference_of(row.differences[comparison.quantity]),
                f"{own.bits_per_byte:.4f}",
                *("{:.4f} ± {:.4f}".format(*row.scores[name]) if name in row.scores else NONE for name in scores),
            ]
        )
    return columns, rows


def difference_of(difference: Difference | None) -> tuple[str, str]:
    """Return a difference in nats per token and as a ratio, each with its interval."""
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


def conditions(comparison: Comparison, text: str) -> list[str]:
    """Return on what and how the runs were compared."""
    from atat_zoo.evaluation.naming import title

    weights = {"EMA" if row.run.ema else "final" for row in comparison.rows}
    draws = "1 draw" if comparison.draws == 1 else f"{comparison.draws} draws"
    return [
        f"{title(comparison.quantity)}: of {text}, the same for every run; {draws} each by {comparison.method}, the "
        f"same masks (seed {comparison.seed}); {' and '.join(sorted(weights))} weights; ± one standard error over "
        "sequences.",
        f"Differences are to {comparison.baseline}; 95 % intervals: paired bootstrap over sequences. "
        "A run is one training: how far another seed's would lie is not in them.",
    ]


def notes(comparison: Comparison) -> list[str]:
    """Return the conditions of the comparison and how to read it, one or two sentences per line."""
    from atat_zoo.evaluation.naming import PERPLEXITY, title
    from atat_zoo.evaluation.perplexity import LIKELIHOOD

    what = title(comparison.quantity)
    where = f"{comparison.corpus}, {comparison.split}" if comparison.corpus else comparison.split
    text = f"{comparison.sequences:,} sequences of {where} text, {comparison.tokens:,} tokens"
    lines = [*conditions(comparison, text), *differing(comparison)]
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
                nats, ratio = difference_of(difference)
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
