"""The results of a study as Markdown, from the same numbers as study.json."""

import json
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from atat_zoo.evaluation.results.format import NONE, cell, change, markdown, number, settings, told_apart
from atat_zoo.evaluation.results.intervals import Interval
from atat_zoo.evaluation.results.naming import POLICY_BOUND, exponential, words
from atat_zoo.evaluation.results.tasks import in_words
from atat_zoo.studies.differences import FROM_MARGINS, LEGEND, mark, shown
from atat_zoo.studies.sensitivity import LEGEND as SENSITIVITY
from atat_zoo.studies.sensitivity import sensitivity_table

Table = dict[str, Any]


METRICS = "Metrics of the predictions, and of texts that the runs write, by seed"
_LEGEND = """\
- *count table*: the counts of adjacent tokens in the training text as a model, under the same masks, and how far the \
arm is from it.
- *difference*: the mean over seeds, paired by sequence and mask. {intervals}
- *not worse*: the upper end of the interval is at most +{not_worse_percent:g} %. Costs are medians over seeds; \
seconds are those of the optimizer steps, of trainings that ran beside nothing else."""


def page(report: Table) -> str:
    """Return the page."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Table) -> Iterator[str]:
    yield f"# Study {report['study']}\n"
    yield f"Written by `atat study {report['file']}`; every number is in the JSON file beside this page.\n"
    yield f"- {report['halves']}; these tables are of the **{report['half']}** half."
    yield from _method(report)
    yield _LEGEND.format_map({**report, "intervals": LEGEND})
    if not report.get("nats"):
        yield f"- {FROM_MARGINS}"
    yield from _machines(report)
    yield from _tables(report)
    for grid in report.get("grids", ()):
        yield from ("", f"## Sensitivity of {grid['arm']} to {' × '.join(grid['keys'])}", "", SENSITIVITY, "")
        yield from markdown(*sensitivity_table(grid))
    for arm in report["samplers"] or ():
        yield from _samplers(arm)
    if report.get("gaps"):
        yield from ("", "## Gaps", "", *gap_legend(report), "")
        yield from markdown(*gap_table(report))
    for title, table, notes in task_tables(report):
        yield from ("", f"## Task {title}", "", *markdown(*table), "", *notes)
    if report["sweep"]:
        yield from _sweep(report["sweep"])
    if test := report["test"]:
        once = "Evaluated once, after all settings were fixed."
        yield from ("", "## Test split", "", once if test["times"] == 1 else f"**Evaluated {test['times']} times.**")
        yield from _method(test)
        yield from _tables(test)
    if report["failed"]:
        yield from ("", "## Failed", "", *(f"- `{run}`: {why}" for run, why in report["failed"].items()))
    if report["left_out"]:
        why = "what its settings follow from is not finished"
        yield from ("", "## Left out", "", *(f"- `{arm}`: {why}" for arm in report["left_out"]))


def _method(part: Table) -> Iterator[str]:
    methods = " and ".join(dict.fromkeys(arm["method"] for arm in part["arms"].values()))
    yield (
        f"- {part['sequences']:,} sequences, {part['tokens']:,} tokens, "
        f"{part['draws']} draws each by {methods or NONE}, mask seed {part['seed']}."
    )


def _machines(report: Table) -> Iterator[str]:
    """Say what the runs were trained on; times of different settings are not compared without a word."""
    seen = []
    for run in (run for arm in report["arms"].values() for run in arm["runs"]):
        machine, computed, how = run["machine"], run["computed"], run["trained_with"]
        each = "{} at a time, {} each".format
        trainings = ", ".join(each(number(h["jobs"], "training"), number(h["threads"], "thread")) for h in how)
        device = f", on {computed['device']}" if computed.get("device", "cpu") != "cpu" else ""
        hardware = f"{machine.get('cores')} cores of {machine.get('processor')}, {computed.get('precision')}{device}"
        seen.append(f"{hardware}; {trainings or 'by atat train'}")
    if different := list(dict.fromkeys(seen)):
        yield f"- Trained with {' and with '.join(different)}; torch {report['packages'].get('torch')}."
    if len(different) > 1:
        yield "- **Not all runs were trained alike: their seconds and memory are not comparable.**"


def _tables(part: Table) -> Iterator[str]:
    yield ""
    columns = ["arm", "bound", "geometric mean", "seed: value", "count table", "steps", "tokens", "seconds"]
    columns += ["seconds per step", "peak memory", "parameters"]
    yield from markdown(columns, [[name, *_arm(arm)] for name, arm in part["arms"].items()])
    yield ""
    rows = []
    for each in part["comparisons"]:
        if "problem" in each:  # what keeps the two apart takes the place of the first cell
            cells = [each["problem"], *[NONE] * 5]
        else:
            costs = (each["ratios"][key] for key in ("tokens", "seconds", "peak_memory", "parameters"))
            cells = [*_differences(each), *(cell(cost, ".3f") for cost in costs)]
        rows.append([each["arm"], each["against"], *cells])
    if rows:
        columns = ["arm", "against", "difference", "not worse"]
        yield from markdown([*columns, "tokens ×", "seconds ×", "peak memory ×", "parameters ×"], rows)
    columns, rows = metric_table(part)
    if len(columns) > 1:
        yield f"\n{METRICS}:\n"
        yield from markdown(columns, rows)
    yield from _multipliers(part.get("multipliers"))


def metric_table(part: Table) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of the metrics of the arms; without any there is one column."""
    titles = list(dict.fromkeys(name for arm in part["arms"].values() for name in _metrics_of(arm)))
    rows = [[name, *(_metrics_of(arm).get(title, NONE) for title in titles)] for name, arm in part["arms"].items()]
    return ["arm", *map(words, titles)], rows


def _metrics_of(arm: Table) -> dict[str, str]:
    """Return the cells of an arm's metrics by their titles, with the value of each seed."""
    runs = arm["runs"]
    titles = dict.fromkeys(title for run in runs for title in run.get("metrics", {}))
    return {title: ", ".join(cell(run["metrics"][title]["value"], ".4f") for run in runs) for title in titles}


def _multipliers(multipliers: Sequence[Table] | None) -> Iterator[str]:
    """Yield the table of step multipliers; nothing of a study without budgets."""
    if not multipliers:
        return
    ends, rows = {"inside": "", "beyond": "> ", "before": "< ", "unknown": ""}, []
    for arm in multipliers:
        values = [f"{one['seed']}: {ends[one['where']]}{cell(one['multiplier'], '.2f')}" for one in arm["each"]]
        over = arm["both"]
        interval = f"{over['value']:.2f} [{over['low']:.2f}, {over['high']:.2f}]" if over else NONE
        rows.append([arm["arm"], ", ".join(values), interval])
    curve = ", ".join(multipliers[0]["curve"])
    yield f"\nBy how many times as many steps the baseline is as good, between {curve}:\n"
    yield from markdown(["arm", "seed: steps ×", "mean"], rows)


def _arm(arm: Table) -> list[str]:
    """Return the cells of an arm: its bounds, what they are beside the count table's, and its costs."""
    runs, mean = arm["runs"], None
    bounds = [run["bounds"][runs[0]["bound"]] for run in runs]
    if all(bound["value"] is not None for bound in bounds):
        mean = exponential(statistics.fmean(bound["nats_per_token"] for bound in bounds))
    values = [f"{run['seed']}: {cell(bound['value'], '.2f')}" for run, bound in zip(runs, bounds, strict=True)]
    digits = {"steps": ",.0f", "tokens": ",.0f", "seconds": ",.1f", "seconds_per_step": ".4g"}
    costs = [cell(arm[key], of_key) for key, of_key in digits.items()]
    memory = cell(arm["peak_memory"] and arm["peak_memory"] / 2**20, ",.0f", " MiB")
    about = [runs[0]["bound"], cell(mean, ".2f"), ", ".join(values), _beside(runs)]
    return [*about, *costs, memory, f"{arm['parameters']:,}"]


def _differences(each: Table) -> list[str]:
    return [difference(each), {True: "yes", False: "no", None: NONE}[each["not_worse"]]]


def difference(table: Table) -> str:
    """Return a difference in words."""
    return change(shown(table)) + mark(table)


def _beside(runs: Sequence[Table]) -> str:
    """Return the count table's value, and how far the runs are above or below it: the mean of their differences."""
    tables = [run["count_table"] for run in runs]
    if None in tables:
        return NONE
    if None in (differences := [table["difference"] for table in tables]):
        return f"{cell(tables[0]['value'], '.2f')} (not finite)"
    return f"{tables[0]['value']:.2f} ({100 * (exponential(statistics.fmean(differences)) - 1):+.1f} %)"


def _samplers(arm: Table) -> Iterator[str]:
    seeds = ", ".join(map(str, arm["seeds"]))
    yield from ("", f"## Samplers of {arm['arm']}", "")
    machine = "{cores} cores of {processor}, {of_threads}, {device}".format_map
    on = " and ".join(machine({**each, "of_threads": number(each["threads"], "thread")}) for each in arm["on"])
    yield f"Seeds {seeds}; {arm['sequences']:,} sequences of the half; the others against the first; timed on {on}.\n"
    rows = []
    for row, of in zip(arm["samplers"], told_apart([row["sampler"] for row in arm["samplers"]]), strict=True):
        values = _values(row, ".2f")
        compared = [*_differences(row), cell(row["seconds_ratio"], ".3f")] if "sequences" in row else [NONE] * 3
        cost = [cell(row["nfe"], ".1f"), cell(row["seconds"], ".2f")]
        rows.append([row["sampler"]["use"], of, row["quantity"], values, *cost, *compared])
    columns = ["sampler", "settings", "quantity", "value by seed", "NFE", "seconds"]
    yield from markdown([*columns, "difference", "not worse", "seconds ×"], rows)


def gap_legend(report: Table) -> list[str]:
    """Return the sentences above the table of gaps."""
    prices = {mark: (row["quantity"], _sampler(row["by"])) for mark, row in _prices(report).items()}
    by = [f"({mark}) {' of '.join(filter(None, price))}" for mark, price in prices.items()]
    return [
        "What each arm pays for the tokens that are to be written, given the rest, as e to the nats per token, and how "
        f"far it is from what {report['baseline']} pays: {'; '.join(by)}.",
        f"Two are compared on the sequences that both have. {LEGEND}",
    ]


def gap_table(report: Table) -> tuple[list[str], list[list[str]]]:
    """Return the columns and rows of the table of gaps."""
    theirs = _prices(report)
    columns = ["to be written", "arm", "quantity", "by", "sequences", "value by seed"]
    columns += [f"against ({mark})" for mark in theirs]
    rows = []
    for part in report["gaps"]:
        for row in part["rows"]:
            values = _values(row, ".1f")
            of = {json.dumps(each["by"]): difference(each) for each in row["against"]}
            compared = [of.get(json.dumps(other["by"]), NONE) for other in theirs.values()]
            by, sequences = _sampler(row["by"]) or NONE, f"{row['sequences']:,}"
            rows.append([part["what"], row["arm"], row["quantity"], by, sequences, values, *compared])
    return columns, rows


def _values(row: Table, digits: str) -> str:
    """Return the value of each seed; of random orders with what the truth is above, and the effective orders."""
    values = [cell(value, digits) for value in row["values"]]
    if row["quantity"] == POLICY_BOUND and "brackets" not in row:
        return f"{', '.join(values)} (no bracket recorded)"
    for i, bracket in enumerate(row.get("brackets", ())):
        above = "no bracket" if bracket["above"] is None else f"the truth is above {bracket['above']:{digits}}"
        values[i] += f" ({above}; {cell(bracket['effective_orders'], '.1f')} effective orders)"
    return ", ".join(values)


def _prices(report: Table) -> dict[str, Table]:
    """Return the rows of the baseline, which the others are compared with, by the marks of the columns."""
    theirs = [row for row in report["gaps"][0]["rows"] if row["arm"] == report["baseline"]]
    return {chr(ord("a") + number): row for number, row in enumerate(theirs)}


def _sampler(by: Table | None) -> str:
    """Return `strided, stride = 16`; nothing for a bound."""
    return "" if by is None else ", ".join(filter(None, (by["use"], settings(by))))


def task_tables(report: Table) -> Iterator[tuple[str, tuple[list[str], list[list[str]]], list[str]]]:
    """Yield the title of each task, its columns and rows, and what is to be said beside them."""
    for task in report.get("tasks") or ():
        rows = [row for score in task["scores"] for row in _task_rows(score)]
        columns = ["score", "quantity", "arm", "items", "value by seed", "against", "difference"]
        notes = [f"- {note}" for note in [f"Measured with seed {task['seed']}.", *task["notes"]]]
        yield task["task"], (columns, rows), notes


def _task_rows(score: Table) -> Iterator[list[str]]:
    """Yield a row for each arm and each arm that it is compared with, and for each published figure."""
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


def _task_difference(against: Table, exponential: bool) -> str:
    if (table := against["both"] or against["over_items"]) is None:
        return NONE
    found = Interval(**table)
    if not found.width:  # no score of any item and seed differs: nothing is known of the next one
        return f"{NONE} (all the same)"
    return in_words(found, exponential=exponential) + mark(against)


def _sweep(sweep: Table) -> Iterator[str]:
    yield from ("", "## Sweep", "")
    yield f"Seed {sweep['seed']}, {sweep['half']} half, nats per token; the chosen point is bold.\n"
    points = list(dict.fromkeys(point for arm in sweep["arms"].values() for point in arm["nats_per_token"]))
    rows = []
    for name, arm in sweep["arms"].items():
        nats = {point: cell(arm["nats_per_token"].get(point), ".4f") for point in points}
        nats[arm["chosen"]] = f"**{nats[arm['chosen']]}**"
        rows.append([name, *nats.values(), "yes" if arm["at_an_end"] else "no"])
    yield from markdown(["arm", *points, "best at an end"], rows)
