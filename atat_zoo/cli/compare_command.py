"""`atat compare`: compare runs on the same held-out sequences with the same masks."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from atat_zoo.cli.arguments import HELD_OUT, named, options, other_text, with_options, with_parts
from atat_zoo.cli.audit_command import evaluate_tasks
from atat_zoo.cli.console import Bars, paragraphs, print_json, printable, show
from atat_zoo.evaluation.results.evaluation import LIKELIHOOD
from atat_zoo.evaluation.results.format import NONE, cell, change, errors_over, number, with_error
from atat_zoo.evaluation.results.quantity_names import PERPLEXITY, TABLE, words
from atat_zoo.evaluation.results.table import Table
from atat_zoo.experiment import from_run
from atat_zoo.experiment.runs.changes import between_models
from atat_zoo.system.errors import UserError, nearest

if TYPE_CHECKING:
    from atat_zoo.evaluation.run_comparison import Comparison, Difference

_NEIGHBOURS = "backbone.ngram_prior"
_NAMED = 6  # maximum number of differences to name per run


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN RUN...")
@click.option(
    "--baseline", type=click.Path(path_type=Path), help="Run to compare with the others (default: the first)."
)
@click.option(
    "--reach",
    type=click.FloatRange(1),
    help="Print the time until training reaches this perplexity (default: the runs' highest final perplexity).",
)
@options("step", "text", "tasks", *HELD_OUT, "device", "markdown", "json")
def compare(
    runs: tuple[Path, ...],
    baseline: Path | None,
    step: int | str | None,
    text: str | None,
    tasks: tuple[str, ...],
    seed: int | None,
    reach: float | None,
    device: str,
    as_markdown: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Compare the final models of two or more runs.

    All runs are evaluated on the same held-out sequences with the same masks, so the differences between them are much
    more precise than the individual values. Options default to the settings of the baseline.

    Pass --corpus to compare on different text, or --task to compare on tasks, as in `atat eval`.
    """
    if len(runs) < 2:
        raise UserError(f"{runs[0]} is the only run; pass two or more to compare, or use `atat eval {runs[0]}`")
    base_number = _number_of(runs, baseline)
    if tasks:
        how: Any = {"baseline": base_number, "step": step, "seed": seed, "device": device}
        how |= {"as_markdown": as_markdown, "as_json": as_json}
        evaluate_tasks(runs, tasks, **how, text=text, reach=reach, **given)
        return
    given = with_parts(given)
    other = other_text(text)
    from atat_zoo.evaluation import run_comparison as comparing

    experiment = from_run(runs[base_number])
    spec = with_options(experiment.evaluation, given, other.get("corpus"))
    if not spec.metrics:
        spec = with_options(spec, {"metrics": tuple(named("metric", name) for name in comparing.METRICS)})
    shared: dict[str, Any] = {"baseline": base_number, "seed": experiment.seed if seed is None else seed}
    with Bars(silent=as_json or as_markdown) as bars:
        measuring = shared | {"device": device, "step": step, "progress": bars.evaluating}
        measured = comparing.measure_runs(runs, spec, **measuring, **other)
        other.pop("corpus", None)
        comparison = comparing.compare(measured, spec, reach=reach, **shared, **other)
    if as_json:
        print_json(as_table(comparison))
        return
    for table in (quality(comparison), training(comparison)):
        show(table, as_markdown)
        click.echo("")
    paragraphs(notes(comparison), as_markdown)


def _number_of(runs: tuple[Path, ...], baseline: Path | None) -> int:
    if baseline is None:
        return 0
    paths = [os.path.realpath(run) for run in runs]
    if (wanted := os.path.realpath(baseline)) in paths:
        return paths.index(wanted)
    names = [str(run) for run in runs]
    raise UserError(
        f"--baseline {baseline} is not one of the runs{nearest(str(baseline), names)}; pass one of {', '.join(names)}"
    )


def as_table(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as a JSON object; `differs` maps each key that differs from the baseline to both values."""
    numbers, differing = comparison.to_table(), _differing(comparison)
    for run in numbers["runs"]:
        run["differs"] = {key: list(values) for key, values in differing[run["run"]].items()}
    return numbers


def _differing(comparison: Comparison) -> dict[str, dict[str, tuple[Any, Any]]]:
    """Return, for each run, the keys whose values differ from those in the baseline's experiment, with both values."""
    runs = {run.name: run.experiment for run in comparison.runs}
    return {name: between_models(own, runs[comparison.baseline]) for name, own in runs.items()}


def _sentences_on_differences(comparison: Comparison) -> list[str]:
    """Return a line for each run whose experiment differs from the baseline's; the line names the keys that differ."""
    lines, base = [], comparison.baseline
    for name, keys in _differing(comparison).items():
        sentences = []
        own, his = (value or 0 for value in keys.pop(_NEIGHBOURS, (0, 0)))
        if own != his:
            (more, most), (less, least) = sorted([(name, own), (base, his)], key=lambda each: -each[1])
            counts = "n-gram counts of the training text inside the network"
            sentences.append(f"{more} has {_NEIGHBOURS} = {most}, {counts}; {less} has {least or 'none'}")
        if keys:
            values = [f"{key} ({_value(a)}, not {_value(b)})" for key, (a, b) in list(keys.items())[:_NAMED]]
            rest = f" and {len(keys) - _NAMED} more, which `atat diff` lists" if len(keys) > _NAMED else ""
            sentences.append(f"{name} differs from {base} in {', '.join(values)}{rest}")
        lines += [". ".join(sentences) + "."] if sentences else []
    return lines


def _value(value: Any) -> str:
    value = value.get("use") if isinstance(value, dict) else value
    text = "none" if value is None else printable(json.dumps(value, ensure_ascii=False))
    return text if len(text) <= 40 else f"{text[:37]}..."


def quality(comparison: Comparison) -> Table:
    """Return a table of each run's bounds, difference from the baseline, bits per byte and metrics."""
    every = [run.bounds() for run in comparison.runs]
    quantities = list(dict.fromkeys(name for bounds in every for name in bounds))
    metrics = list(dict.fromkeys(name for run in comparison.runs for name in run.metrics))
    mixed = len({run.factorisations.get(comparison.quantity, "") for run in comparison.runs}) > 1
    rows = []
    for run, bounds, differences in zip(comparison.runs, every, comparison.differences, strict=True):
        own, found = bounds[comparison.quantity], [bounds.get(name) for name in quantities]
        cells = [with_error(bound.value, bound.stderr, ".2f") if bound else NONE for bound in found]
        cells += [*difference_of(differences[comparison.quantity]), f"{own.bits_per_byte:.4f}"]
        cells += [run.metrics[name].said if name in run.metrics else NONE for name in metrics]
        rows.append([run.name, run.objective, *([own.factorisation or NONE] if mixed else []), *cells])
    columns = ["run", "objective", *(["factorisation"] if mixed else []), *map(comparison.title, quantities)]
    columns += ["difference, nats per token", "ratio", "bits per byte"]
    return Table(columns=[*columns, *map(words, metrics)], rows=rows)


def difference_of(difference: Difference | None) -> tuple[str, str]:
    """Return a difference in nats per token and as a ratio, each as text with its CI, or `NONE` without a CI."""
    if difference is None or not math.isfinite(difference.paired.width):  # only one sequence
        return NONE, NONE
    numbers = difference.to_table()
    return f"{numbers['nats_per_token']:+.4f} [{numbers['low']:+.4f}, {numbers['high']:+.4f}]", change(numbers)


def training(comparison: Comparison) -> Table:
    """Return a table of each run's training time, time to reach a perplexity, parameters, speed and peak memory."""
    rows = []
    for run in comparison.runs:
        past = run.history
        counts = (
            past.seconds,
            *comparison.reached(run),
            run.parameters,
            run.without_embeddings,
            past.tokens_per_second,
        )
        memory = cell(past.peak_memory and past.peak_memory / 2**20, ",.0f", " MiB")
        rows.append([run.name, f"{run.step:,}", *(cell(count, ",.0f") for count in counts), memory])
    reach = cell(comparison.reach, ".2f")
    columns = ["run", "steps", "seconds", f"steps to {reach}", f"seconds to {reach}", "parameters"]
    return Table(columns=[*columns, "without embeddings", "tokens per second", "peak memory"], rows=rows)


def _ngram_priors(comparison: Comparison) -> list[str]:
    """Return a sentence for each n-gram model that states how far each run is from the model."""
    beside: dict[str, list[str]] = {}
    for run in comparison.runs:
        if counts := run.beside():
            reads = f"from {counts.reads} counted in {counts.counted:,} sequences, on the same tokens and masks"
            what = f"{TABLE}, {comparison.title(run.quantity)}, {reads}"
            verdicts = beside.setdefault(f"{what}: {with_error(counts.value, counts.stderr, '.2f')}", [])
            verdicts.append(f"{run.name} is {counts.verdict}")
    return [f"{table}; {'; '.join(verdicts)}." for table, verdicts in beside.items()]


def notes(comparison: Comparison) -> list[str]:
    """Return lines of one or two sentences that state the conditions of the comparison and how to read it."""
    runs, what = comparison.runs, comparison.title(comparison.quantity)
    where = f"{comparison.corpus}, {comparison.split}" if comparison.corpus else comparison.split
    text = f"{number(comparison.sequences, 'sequence')} of {where} text, {comparison.tokens:,} tokens"
    errors = [bound.stderr for run in runs for bound in run.bounds().values()]
    weights = sorted({"EMA" if run.ema else "final" for run in runs})
    lines = [
        f"{what}: on {text}, the same for every run; {number(comparison.draws, 'mask')} per sequence by "
        f"{comparison.method}, the same for every run (seed {comparison.seed}); {' and '.join(weights)} weights; "
        f"{errors_over(errors, 'sequence', comparison.sequences)}.",
        f"Differences are from {comparison.baseline}; 95 % CI: paired bootstrap over sequences, which does not include "
        "the variation between training seeds.",
        *_sentences_on_differences(comparison),
    ]
    if any(run.metrics for run in runs):
        averaged = "Prediction metrics are averaged over the same masked tokens with the bound's weights"
        lines.append(f"{averaged}. Brier score: 0 is best, 2 is worst. Text metrics score generated text.")
    lines += _ngram_priors(comparison)
    if exact := [run.name for run in runs if run.method == LIKELIHOOD]:
        lines.append(f"The likelihood of {', '.join(exact)} is exact, without sampled masks.")
    for run, differences in zip(runs, comparison.differences, strict=True):
        for name, difference in differences.items():
            if name != comparison.quantity and difference is not None:
                nats, ratio = difference_of(difference)
                pair = f"{comparison.title(name)} of {run.name} against the {what} of {comparison.baseline}"
                lines.append(f"{pair}: {nats} nats per token, {ratio}.")
    reached = f"steps to {NONE}: no run recorded an evaluation during training."
    if comparison.reach is not None:
        sizes = dict.fromkeys(run.history.evaluated_on for run in runs)
        on = f" ({'; '.join(filter(None, sizes))})" if any(sizes) else ""
        first = f"training steps until the recorded {PERPLEXITY}{on} is at most this value"
        reached = f"steps to {comparison.reach:.2f}: {first}."
    lines.append(f"seconds: time spent in optimizer steps, without evaluations; {reached}")
    computed = [run.history.computed for run in runs]
    if any(own != computed[0] for own in computed if own and computed[0]):
        differ = "The runs were trained on different devices, in different precisions or on different numbers of ranks"
        lines.append(f"{differ}: their seconds are not comparable.")
    return lines
