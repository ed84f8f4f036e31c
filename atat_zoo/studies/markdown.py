"""Convert the results in a study's study.json to tables and to a Markdown page. Imports no torch."""

import json
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from atat_zoo.evaluation.results.evaluation import LIKELIHOOD
from atat_zoo.evaluation.results.format import NONE, cell, change, number, settings, told_apart
from atat_zoo.evaluation.results.intervals import Interval
from atat_zoo.evaluation.results.quantity_names import (
    FACTORISATIONS,
    PERPLEXITY,
    POLICY_BOUND,
    exponential,
    factorisation,
    words,
)
from atat_zoo.evaluation.results.table import Table
from atat_zoo.evaluation.results.task_results import in_words
from atat_zoo.studies.differences import FROM_MARGINS, LEGEND, mark, shown
from atat_zoo.studies.grids import in_word

Report = dict[str, Any]

N_GRAM = (
    f"{PERPLEXITY} of an n-gram model, which counts adjacent tokens in the training text, under the arm's masks; in "
    "brackets, the arm's difference from this value."
)
DIFFERENCE = "difference, 95 % CI"


def page(report: Report) -> str:
    """Return the Markdown page of a study's report."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    yield f"# Study {report['study']}\n"
    yield f"Written by `atat study {report['file']}`. The JSON file of the same name contains every number.\n"
    yield f"- {report['halves']}; these tables use the **{report['half']}** half."
    yield f"- {_method(report)}"
    yield from (f"- *{PERPLEXITY} ({each})*: {FACTORISATIONS[each]}." for each in factorisations(report))
    yield f"- *n-gram model*: {N_GRAM}"
    yield f"- *difference*: the mean difference over seeds, paired by sequence and mask. {LEGEND}"
    yield f"- *not worse*: {not_worse(report)}"
    if not report.get("nats"):
        yield f"- {FROM_MARGINS}"
    yield from (f"- {sentence}" for sentence in _machines(report))
    for table in tables(report):
        yield from ("", *table.to_markdown())
    sweep = [_sweep(report["sweep"])] if report["sweep"] else []
    for table in (*further_tables(report), *sweep):
        yield from ("", f"## {table.title}", "", *table.to_markdown())
    if test := report["test"]:
        once = "Evaluated once, after all settings were fixed."
        yield from ("", "## Test split", "", once if test["times"] == 1 else f"**Evaluated {test['times']} times.**")
        yield from ("", f"- {_method(test)}")
        for table in tables(test):
            yield from ("", *table.to_markdown())
    if report["failed"]:
        yield from ("", "## Failed", "", *(f"- `{run}`: {why}" for run, why in report["failed"].items()))
    if report["left_out"]:
        why = "the settings of this arm depend on a run that is not finished"
        yield from ("", "## Left out", "", *(f"- `{arm}`: {why}" for arm in report["left_out"]))


def not_worse(report: Report) -> str:
    """Return sentences that explain the column *not worse* and the costs."""
    costs = (
        "Costs are medians over seeds. Seconds include only optimizer steps, and are left out for training runs that "
        "shared the machine."
    )
    most = f"+{report['not_worse_percent']:g} %"
    return f"`yes` if the upper end of the CI is at most {most}, and otherwise `not shown`. {costs}"


def _method(part: Report) -> str:
    methods = " and ".join(dict.fromkeys(arm["method"] for arm in part["arms"].values()))
    fewest = part.get("fewest_sequences", part["sequences"])
    lengths = f" or fewer longer ones (at least {fewest:,})" if fewest < part["sequences"] else ""
    return (
        f"{part['sequences']:,} held-out sequences{lengths}, {part['tokens']:,} tokens, "
        f"{number(part['draws'], 'mask')} per sequence, evaluated with {methods or NONE}, mask seed {part['seed']}."
    )


def _machines(report: Report) -> Iterator[str]:
    """Yield the machines on which the runs were trained, and a warning if they differ."""
    seen = []
    for run in (run for arm in report["arms"].values() for run in arm["runs"]):
        machine, computed, how = run["machine"], run["computed"], run["trained_with"]
        each = "{} at a time, {} each".format
        trainings = ", ".join(each(number(h["jobs"], "training run"), number(h["threads"], "thread")) for h in how)
        device = f", on {computed['device']}" if computed.get("device", "cpu") != "cpu" else ""
        hardware = f"{machine.get('cores')} cores of {machine.get('processor')}, {computed.get('precision')}{device}"
        seen.append(f"{hardware}; {trainings or 'with `atat train`'}")
    if different := list(dict.fromkeys(seen)):
        yield f"Trained on {' and on '.join(different)}; torch {report['packages'].get('torch')}."
    if len(different) > 1:
        yield "**The runs were trained on different set-ups, so their seconds and memory are not comparable.**"


def factorisation_of(arm: Report) -> str:
    """Return the factorisation of the perplexity with which an arm is compared."""
    return factorisation(arm["runs"][0]["bound"], exact=arm["method"] == LIKELIHOOD)


def factorisations(report: Report) -> Iterator[str]:
    """Yield the factorisations of a page's perplexities, in the order of their explanations."""
    parts = [part for part in (report, report["test"]) if part]
    arms = [arm for part in parts for arm in part["arms"].values()]
    gaps = [row for part in report.get("gaps") or () for row in part["rows"]]
    samplers = [row for arm in report["samplers"] or () for row in arm["samplers"]]
    found = {factorisation_of(arm) for arm in arms}
    found |= {factorisation(row["quantity"]) for row in (*gaps, *samplers)}
    yield from (each for each in FACTORISATIONS if each in found)


# The tables of a part of the held-out text


def tables(part: Report) -> Iterator[Table]:
    """Yield the non-empty tables of a report or its test split: arms, differences, metrics and step multipliers."""
    columns = ["arm", "factorisation", f"{PERPLEXITY}, geometric mean", f"{PERPLEXITY} by seed", "n-gram model"]
    columns += ["training steps", "tokens", "seconds", "seconds per step", "peak memory", "parameters"]
    yield Table(title="Arms", columns=columns, rows=[[name, *_arm(arm)] for name, arm in part["arms"].items()])
    rows = []
    for each in part["comparisons"]:
        if "problem" in each:  # the reason why the two cannot be compared replaces the first cell
            cells = [each["problem"], *[NONE] * 5]
        else:
            costs = (each["ratios"][key] for key in ("tokens", "seconds", "peak_memory", "parameters"))
            cells = [*_differences(each), *(cell(cost, ".3f") for cost in costs)]
        rows.append([each["arm"], each["against"], *cells])
    if rows:
        columns = ["arm", "relative to", DIFFERENCE, "not worse", "tokens ×", "seconds ×", "peak memory ×"]
        yield Table(title="Differences", columns=[*columns, "parameters ×"], rows=rows)
    metrics = {name: _metrics_of(arm) for name, arm in part["arms"].items()}
    if titles := list(dict.fromkeys(title for each in metrics.values() for title in each)):
        rows = [[name, *(each.get(title, NONE) for title in titles)] for name, each in metrics.items()]
        said = ["Metrics of predictions at masked tokens and of generated texts, by seed:"]
        yield Table(title="Metrics", said=said, columns=["arm", *map(words, titles)], rows=rows)
    if multipliers := part.get("multipliers"):
        yield _multipliers(multipliers)


def with_experiments(table: Table, report: Report) -> Table:
    """Return the table of the arms, with their experiments in the second column."""
    rows = []
    for (name, *cells), arm in zip(table.texts, report["arms"].values(), strict=True):
        overrides = [each for each in arm["overrides"] if not each.startswith("evaluation.")]
        rows.append([name, " ".join([arm["experiment"], *overrides]), *cells])
    first, *others = table.headings
    return attrs.evolve(table, columns=[first, "experiment", *others], rows=rows)


def _metrics_of(arm: Report) -> dict[str, str]:
    """Return a dict from metric title to the cell of an arm, which has the value of each seed."""
    runs = arm["runs"]
    titles = dict.fromkeys(title for run in runs for title in run.get("metrics", {}))
    return {title: ", ".join(cell(run["metrics"][title]["value"], ".4f") for run in runs) for title in titles}


def _multipliers(multipliers: Sequence[Report]) -> Table:
    """Return the table of step multipliers."""
    ends, rows = {"inside": "", "beyond": "> ", "before": "< ", "unknown": ""}, []
    for arm in multipliers:
        values = [f"{one['seed']}: {ends[one['where']]}{cell(one['multiplier'], '.2f')}" for one in arm["each"]]
        over = arm["both"]
        interval = f"{over['value']:.2f} [{over['low']:.2f}, {over['high']:.2f}]" if over else NONE
        rows.append([arm["arm"], ", ".join(values), interval])
    curve = ", ".join(multipliers[0]["curve"])
    said = [f"The baseline's training steps for an equal bound, divided by the arm's (interpolated between {curve}):"]
    return Table(title="Step multipliers", said=said, columns=["arm", "ratio by seed", "mean, 95 % CI"], rows=rows)


def _arm(arm: Report) -> list[str]:
    """Return the cells of an arm: its perplexities, the n-gram model's, and its costs."""
    runs, mean = arm["runs"], None
    bounds = [run["bounds"][runs[0]["bound"]] for run in runs]
    if all(bound["value"] is not None for bound in bounds):
        mean = exponential(statistics.fmean(bound["nats_per_token"] for bound in bounds))
    values = [f"{run['seed']}: {cell(bound['value'], '.2f')}" for run, bound in zip(runs, bounds, strict=True)]
    digits = {"steps": ",.0f", "tokens": ",.0f", "seconds": ",.1f", "seconds_per_step": ".4g"}
    costs = [cell(arm[key], of_key) for key, of_key in digits.items()]
    memory = cell(arm["peak_memory"] and arm["peak_memory"] / 2**20, ",.0f", " MiB")
    about = [factorisation_of(arm), cell(mean, ".2f"), ", ".join(values), _n_gram(runs)]
    return [*about, *costs, memory, f"{arm['parameters']:,}"]


def _differences(each: Report) -> list[str]:
    return [difference(each), {True: "yes", False: "not shown", None: NONE}[each["not_worse"]]]


def difference(table: Report) -> str:
    """Return a difference and its interval as text."""
    return change(shown(table)) + mark(table)


def _n_gram(runs: Sequence[Report]) -> str:
    """Return the n-gram model's perplexity and the runs' mean difference from this perplexity."""
    counts = [run["ngram_prior"] for run in runs]
    if None in counts:
        return NONE
    if None in (differences := [table["difference"] for table in counts]):
        return f"{cell(counts[0]['value'], '.2f')} (not finite)"
    return f"{counts[0]['value']:.2f} ({100 * (exponential(statistics.fmean(differences)) - 1):+.1f} %)"


# The other tables


def further_tables(report: Report) -> Iterator[Table]:
    """Yield the study's tables of grids, samplers, gaps and tasks."""
    yield from map(grid_table, report.get("grids", ()))
    yield from map(_samplers, report["samplers"] or ())
    if report.get("gaps"):
        yield _gaps(report)
    yield from task_tables(report)


def grid_table(grid: Report) -> Table:
    """Return the table of a grid: the bound of each point, and its difference from the grid's arm."""
    rows = []
    for point in grid["points"]:
        ends = ", ".join(cell(point[key], ".2f") for key in ("low", "high"))
        value = [f"{cell(point['value'], '.2f')} [{ends}]", str(point["seeds"])]
        rows.append([*labels(point["values"]), factorisation(point["bound"]), *value, point_difference(point)])
    return Table(
        title=f"Sensitivity of {grid['arm']} to {' × '.join(grid['keys'])}",
        said=[f"Geometric mean of the {PERPLEXITY} over seeds, and its difference, paired by sequence and mask."],
        columns=[*grid["keys"], "factorisation", f"{PERPLEXITY}, 95 % CI", "seeds", f"difference from {grid['arm']}"],
        rows=rows,
    )


def labels(values: Sequence[Any]) -> list[str]:
    """Return each value of a grid point as text, or `NONE` for a key that is not set."""
    return [NONE if value is None else in_word(value) for value in values]


def point_difference(point: Report) -> str:
    """Return the difference of a grid point as text, or why the point cannot be compared."""
    if (found := point["difference"]) is None:
        return NONE
    return found["problem"] if "problem" in found else change(found)


def _samplers(arm: Report) -> Table:
    seeds = ", ".join(map(str, arm["seeds"]))
    machine = "{cores} cores of {processor}, {of_threads}, {device}".format_map
    on = " and ".join(machine({**each, "of_threads": number(each["threads"], "thread")}) for each in arm["on"])
    said = f"Seeds {seeds}; {arm['sequences']:,} sequences of this half; differences from the first row; timed on {on}."
    rows = []
    for row, of in zip(arm["samplers"], told_apart([row["sampler"] for row in arm["samplers"]]), strict=True):
        compared = [*_differences(row), cell(row["seconds_ratio"], ".3f")] if "sequences" in row else [NONE] * 3
        cost = [cell(row["nfe"], ".1f"), cell(row["seconds"], ".2f")]
        rows.append([row["sampler"]["use"], of, factorisation(row["quantity"]), _values(row, ".2f"), *cost, *compared])
    columns = ["sampler", "settings", "factorisation", f"{PERPLEXITY} by seed", "NFE", "seconds"]
    columns += [DIFFERENCE, "not worse", "seconds ×"]
    return Table(title=f"Samplers of {arm['arm']}", said=[said], columns=columns, rows=rows)


def _gaps(report: Report) -> Table:
    # The rows of the baseline, with which the others are compared, in the order of the column marks.
    theirs = [row for row in report["gaps"][0]["rows"] if row["arm"] == report["baseline"]]
    marks = [f"({chr(ord('a') + number)})" for number in range(len(theirs))]
    names = [": ".join(filter(None, (factorisation(row["quantity"]), _by(row)))) for row in theirs]
    rows = []
    for part in report["gaps"]:
        for row in part["rows"]:
            of = {json.dumps(each["by"]): difference(each) for each in row["against"]}
            compared = [of.get(json.dumps(other["by"]), NONE) for other in theirs]
            about = [
                part["what"],
                row["arm"],
                factorisation(row["quantity"]),
                _by(row) or NONE,
                f"{row['sequences']:,}",
            ]
            rows.append([*about, _values(row, ".1f"), *compared])
    columns = ["predicted part", "arm", "factorisation", "sampler", "sequences", f"{PERPLEXITY} by seed"]
    said = [
        f"{PERPLEXITY.capitalize()} of a part of a text given the rest, and its difference from {report['baseline']}: "
        f"{'; '.join(map(' '.join, zip(marks, names, strict=True)))}.",
        f"Arms are compared on the sequences that they share. {LEGEND}",
    ]
    headings = [*columns, *(f"difference from {mark}" for mark in marks)]
    return Table(title="Infilling and continuation", said=said, columns=headings, rows=rows)


def _by(row: Report) -> str:
    """Return a sampler as `strided, stride = 16`, or an empty string for a bound."""
    return "" if row["by"] is None else ", ".join(filter(None, (row["by"]["use"], settings(row["by"]))))


def _values(row: Report, digits: str) -> str:
    """Return the value of each seed; for random orders, also the lower limit and the effective number of orders."""
    values = [cell(value, digits) for value in row["values"]]
    if row["quantity"] == POLICY_BOUND and "brackets" not in row:
        return f"{', '.join(values)} (no lower limit recorded)"
    for i, bracket in enumerate(row.get("brackets", ())):
        above = "no lower limit" if bracket["above"] is None else f"lower limit {bracket['above']:{digits}}"
        values[i] += f" ({above}; {cell(bracket['effective_orders'], '.1f')} effective orders)"
    return ", ".join(values)


def task_tables(report: Report) -> Iterator[Table]:
    """Yield the table of each task."""
    columns = ["score", "quantity", "arm", "items", "value by seed", "relative to", DIFFERENCE]
    for task in report.get("tasks") or ():
        rows = [row for score in task["scores"] for row in _task_rows(score)]
        notes = [f"Evaluated with seed {task['seed']}.", *task["notes"]]
        yield Table(title=f"Task {task['task']}", columns=columns, rows=rows, notes=notes)


def _task_rows(score: Report) -> Iterator[list[str]]:
    """Yield a row for each arm and its comparisons, and for each published value."""
    digits = ".2f" if score["exponential"] else ".4f"
    for row in score["rows"]:
        values = ", ".join(cell(value, digits) for value in row["values"])
        items = ", ".join(dict.fromkeys(f"{items:,}" for items in row["items"]))
        for against in row["against"] or (None,):
            compared = [NONE] * 2
            if against:
                compared = [against["arm"], _task_difference(against, score["exponential"])]
            yield [score["score"], score["quantity"], row["arm"], items, values, *compared]
    for name, value in score["published"].items():
        yield [score["score"], score["quantity"], f"{name}, published", NONE, cell(value, digits), *[NONE] * 2]


def _task_difference(against: Report, exponential: bool) -> str:
    if (table := against["both"] or against["over_items"]) is None:
        return NONE
    found = Interval(**table)
    if not found.width:  # all items and seeds have equal scores, which says nothing about further ones
        return f"{NONE} (all equal)"
    return in_words(found, exponential=exponential) + mark(against)


def _sweep(sweep: Report) -> Table:
    said = [f"Seed {sweep['seed']}, {sweep['half']} half, NLL in nats per token; the chosen point is bold."]
    points = list(dict.fromkeys(point for arm in sweep["arms"].values() for point in arm["nats_per_token"]))
    rows = []
    for name, arm in sweep["arms"].items():
        nats = {point: cell(arm["nats_per_token"].get(point), ".4f") for point in points}
        nats[arm["chosen"]] = f"**{nats[arm['chosen']]}**"
        rows.append([name, *nats.values(), "yes" if arm["at_an_end"] else "no"])
    return Table(title="Sweep", said=said, columns=["arm", *points, "chosen point at an end"], rows=rows)
