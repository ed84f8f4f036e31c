"""Tables filled from studies: arms, infilled gaps, samplers, and scores in a task.

For a study without results, every cell is missing and names the command that runs it. Unknown names raise `CannotShow`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs

from atat_zoo.evaluation.results.format import leaves
from atat_zoo.evaluation.results.intervals import Interval
from atat_zoo.evaluation.results.quantity_names import NATS_PER_TOKEN
from atat_zoo.evaluation.results.quantity_names import words as metric_words
from atat_zoo.evaluation.results.table import HIGHER, LOWER, Cell, Column, Table
from atat_zoo.registry.spec import unstructure
from atat_zoo.studies.differences import over_both, over_sequences
from atat_zoo.studies.study_schema import Study
from atat_zoo.system.errors import nearest
from atat_zoo_paper.cells import (
    change,
    count,
    directed,
    exponential,
    filled,
    missing,
    normal,
    nothing,
    of_seeds,
    require,
    trained_alike,
    within,
    words,
)
from atat_zoo_paper.paper_file import (
    ArmRow,
    ArmsTable,
    FigureSpec,
    GapRow,
    GapsTable,
    PromiseRow,
    SamplersTable,
    ScoresTable,
    WantedTable,
)
from atat_zoo_paper.paper_studies import (
    CannotShow,
    KnownStudy,
    Report,
    Studies,
    compared,
    legend,
    same_text,
    seeds_enough,
)

Rows = list[tuple[ArmRow, KnownStudy]]


def over_runs(
    runs: Sequence[Report], value: Callable[[Report], float | None], relative: bool, intervals: str
) -> Interval | None:
    """Return the mean of a value over runs, with its interval over sequences or, with "both", over seeds and sequences.

    Returns None if a number is missing. The error of a value in nats per token is the standard error of the
    perplexity divided by the perplexity; with `relative`, the value has another unit and the same relative error.
    """
    values, bounds = [value(run) for run in runs], [run["bounds"][run["bound"]] for run in runs]
    if None in values or any(bound["value"] is None or bound["stderr"] is None for bound in bounds):
        return None
    numbers = [float(each) for each in values if each is not None]
    unit = statistics.fmean(numbers) if relative else 1
    errors = [unit * b["stderr"] / b["value"] / (b["nats_per_token"] if relative else 1) for b in bounds]
    return (over_both if intervals == "both" else over_sequences)(numbers, errors)


def nats(run: Report) -> float | None:
    """Return the bound by which runs are compared, in nats per token, or None if it is not finite."""
    value: float | None = run["bounds"][run["bound"]]["nats_per_token"]
    return value if run["bounds"][run["bound"]]["value"] is not None else None


def _bits(run: Report) -> float | None:
    return run["bounds"][run["bound"]]["bits_per_byte"]


def _cost(key: str, digits: str, times: float = 1) -> Callable[[Report, str], Cell]:
    return lambda arm, _: count(arm[key] and arm[key] * times, digits)


EXPONENTIAL = f"exp({NATS_PER_TOKEN})"
# key -> heading, direction, and the cell of an arm. Differences and step multipliers come from the study's report.
_OF_ARM: dict[str, tuple[str, int, Callable[[Report, str], Cell]]] = {
    "value": (
        "exp(nats per token)",
        LOWER,
        lambda arm, over: exponential(over_runs(arm["runs"], nats, False, over)),
    ),
    "nats_per_token": (NATS_PER_TOKEN, LOWER, lambda arm, over: within(over_runs(arm["runs"], nats, False, over))),
    "bits_per_byte": ("bits per byte", LOWER, lambda arm, over: within(over_runs(arm["runs"], _bits, True, over))),
    "bound": ("bound", 0, lambda arm, _: words(arm["runs"][0]["bound"])),
    "seeds": ("seeds", 0, lambda arm, _: count(len(arm["runs"]), "d")),
    "steps": ("steps", 0, _cost("steps", ",.0f")),
    "tokens": ("tokens", 0, _cost("tokens", ",.0f")),
    "seconds": ("seconds", 0, _cost("seconds", ",.0f")),
    "seconds_per_step": ("seconds per step", 0, _cost("seconds_per_step", "#.3g")),
    "peak_memory": ("peak memory, MiB", 0, _cost("peak_memory", ",.0f", 2**-20)),
    "parameters": ("parameters", 0, _cost("parameters", ",.0f")),
}
_OF_STUDY = ("difference", "multiplier")
_ALIKE = ("bound", "steps", "tokens", "parameters")  # equal for all seeds
_SURE = ("value", "nats_per_token", "bits_per_byte", "difference", "multiplier")  # with an interval


def arms_table(wanted: WantedTable, studies: Studies) -> Table:
    """Return a table of arms; raise `CannotShow` for an unknown name, or for studies evaluated on different text."""
    spec: ArmsTable = wanted.spec
    rows: Rows = []
    for i, row in enumerate(wanted.rows):
        name = row.study or spec.study
        if name is None:
            raise CannotShow(f"rows[{i}].study", "neither the row nor the table has a study; add study to one of them")
        rows.append((row, studies.named(name)))
    same_text([known for _, known in rows])
    metrics = list(dict.fromkeys(metric.title for _, known in rows for metric in known.study.held_out.metrics))
    keys = [*_OF_ARM, *_OF_STUDY, *metrics]
    if wrong := [key for key in spec.columns if key not in keys]:
        hint, there = nearest(wrong[0], keys), ", ".join(keys)
        raise CannotShow("columns", f"a table of arms has no column {wrong[0]!r}{hint} (columns: {there})")
    rows_of = []
    for row, known in rows:
        arm = known.arm(row.arm)
        seeds_enough(spec, row.arm, known, [key for key in spec.columns if key in _SURE or key in metrics])
        cells = [_arm_cell(key, spec, row, arm, known) for key in spec.columns]
        rows_of.append((row.name or row.arm, cells))
    columns = [_arm_column(key, rows) for key in spec.columns]
    notes = [legend(spec.intervals), *_compared_with(columns, rows), *trained_alike(spec.columns, _how(rows))]
    return filled(spec, "arm", columns, rows_of, notes)


def _compared_with(columns: Sequence[Column], rows: Rows) -> Iterator[str]:
    """Yield notes that name the reference arms of the rows, if the column's heading does not name one."""
    if any(column.key == "difference" and not column.better for column in columns):
        groups: dict[str, list[str]] = {}
        for row, known in rows:
            if (other := known.against(row)) != row.arm:
                groups.setdefault(_called(known, other, rows), []).append(row.name or row.arm)
        yield from (
            f"The reference arm for the difference is {other} for {'; '.join(names)}."
            for other, names in groups.items()
        )


def _how(rows: Rows) -> list[list[Any]]:
    """Return the machine and load of each training run."""
    runs = [run for row, known in rows for run in (known.arm(row.arm) or {"runs": ()})["runs"]]
    return [[run[key] for key in ("machine", "computed", "trained_with")] for run in runs]


def _called(known: KnownStudy, arm: str, rows: Rows) -> str:
    """Return the label of a study's arm in a table."""
    named = ((row.name, of) for row, of in rows if row.arm == arm)
    return next((name for name, of in named if name and of.study.name == known.study.name), arm)


def _arm_column(key: str, rows: Rows) -> Column:
    if key == "difference":
        others = {(known.study.name, known.against(row)) for row, known in rows}
        if len(others) > 1:  # a note below says which
            return Column(key=key, heading="difference")
        (row, known), *_ = rows
        return Column(key=key, heading=f"against {_called(known, known.against(row), rows)}", better=LOWER, than=0)
    if key == "multiplier":
        return Column(key=key, heading="baseline's steps ×", better=HIGHER, than=1)
    if key == "value":
        bounds = {arm["runs"][0]["bound"] for row, known in rows if (arm := known.arm(row.arm))}
        return Column(key=key, heading=bounds.pop() if len(bounds) == 1 else _OF_ARM[key][0], better=LOWER)
    heading, better, _ = _OF_ARM.get(key, (metric_words(key), 0, None))
    return Column(key=key, heading=heading, better=better)


def _arm_cell(key: str, spec: ArmsTable, row: ArmRow, arm: Report | None, known: KnownStudy) -> Cell:
    if arm is None or known.report is None:
        return missing(known.command)
    if key == "difference":
        return difference(known, row, spec.intervals)
    if key == "multiplier":
        return _multiplier(known, row.arm)
    cell = _of_arm(key, spec, arm, known)
    return cell if key in _ALIKE else of_seeds(cell, len(arm["runs"]), len(known.study.seeds[row.arm]), known.command)


def _of_arm(key: str, spec: ArmsTable, arm: Report, known: KnownStudy) -> Cell:
    if key in _OF_ARM:
        return _OF_ARM[key][2](arm, spec.intervals)
    found = [run.get("metrics", {}).get(key) for run in arm["runs"]]
    if None in found:
        return missing(known.command)
    values, errors = ([each[key] for each in found] for key in ("value", "stderr"))
    if spec.intervals == "both" and None not in [*values, *errors]:
        return within(over_both(values, errors))
    return count(statistics.fmean(values), ".4f")


def difference(known: KnownStudy, row: ArmRow | PromiseRow, intervals: str) -> Cell:
    """Return a cell with the difference of a row's arm from its reference, or raise `CannotShow` if it is unknown."""
    assert known.report is not None
    other = known.against(row)
    found = compared(known.report, row.arm, other)
    if row.arm == other:
        return nothing()
    if found is None:
        others = known.study.against(row.arm)
        hint, there = nearest(other, others), ", ".join(others) or "none"
        which = f"the study {known.study.name!r} does not compare {row.arm!r} with {other!r}"
        raise CannotShow("rows", f"{which}{hint} (compared with: {there})")
    if "problem" in found:
        return nothing("not comparable")
    table = found[intervals]
    wanted = [seed for seed in known.study.seeds[row.arm] if seed in known.study.seeds[other]]
    cell = change(table) if table else missing(known.command)
    return of_seeds(cell, len(found["seeds"]), len(wanted), known.command)


def _multiplier(known: KnownStudy, arm: str) -> Cell:
    every = (known.report or {}).get("multipliers") or ()
    found = next((each for each in every if each["arm"] == arm), None)
    if found is None:
        return nothing()
    budgets = known.study.at_budgets(known.study.baseline)
    wanted = set(known.study.seeds[arm]).intersection(*(known.study.seeds[budget] for budget in budgets))
    return of_seeds(_multiplied(found), len(found["each"]), len(wanted), known.command)


def _multiplied(found: Report) -> Cell:
    if both := found["both"]:
        return within(Interval(**both))
    each = found["each"]
    if len(each) > 1 or each[0]["multiplier"] is None:  # outside the baseline's curve for one of the seeds
        return nothing()
    beyond = {"beyond": "> ", "before": "< "}.get(each[0]["where"], "")
    return attrs.evolve(count(each[0]["multiplier"], ".2f"), text=f"{beyond}{each[0]['multiplier']:.2f}")


# Gaps

BOUND = "bound"


def gaps_table(wanted: WantedTable, studies: Studies) -> Table:
    """Return a table with the perplexity of gaps for each arm; raise `CannotShow` for an unknown name."""
    spec: GapsTable = wanted.spec
    known = studies.named(spec.study)
    if known.study.gaps is None:
        raise CannotShow("study", f"the study {known.study.name!r} has no [gaps]; choose a study with gaps")
    parts = {part["what"]: part["rows"] for part in (known.report or {}).get("gaps") or ()}
    for what in spec.columns if parts else ():
        if what not in parts:
            there = f"(gaps: {', '.join(parts)})"
            raise CannotShow(
                "columns", f"the study {known.study.name!r} has no gap {what!r}{nearest(what, list(parts))} {there}"
            )
    rows = []
    for row in wanted.rows:
        arm = known.arm(row.arm)
        seeds_enough(spec, row.arm, known, spec.columns)
        priced = [parts[what] if parts and arm else None for what in spec.columns]
        cells = [missing(known.command) if part is None else _gap(row, spec, known, part) for part in priced]
        if arm:
            cells = [of_seeds(cell, len(arm["runs"]), len(known.study.seeds[row.arm]), known.command) for cell in cells]
        rows.append((row.name or row.arm, cells))
    columns = [Column(key=what, heading=what) for what in spec.columns]
    notes = [f"exp(nats per token) of the gap, given the rest of the text. {legend(spec.intervals)}"]
    return filled(spec, "arm", columns, rows, notes)


def _gap(row: GapRow, spec: GapsTable, known: KnownStudy, part: list[Report]) -> Cell:
    """Return a cell with an arm's perplexity, or with its difference from the baseline."""
    found = next((each for each in part if each["arm"] == row.arm and by(each) == row.by), None)
    if found is None:
        known_by = [by(each) for each in part if each["arm"] == row.arm]
        hint = nearest(row.by, known_by)
        raise CannotShow(
            "rows", f"{row.arm!r} has no value for {row.by!r}{hint} (values for: {', '.join(known_by) or 'none'})"
        )
    if row.against is None:
        if None in found["values"]:
            return nothing("not finite")
        logs = [math.log(value) for value in found["values"]]
        one = math.exp(statistics.fmean(logs))
        return count(one, ".1f")
    against = gap_difference(found, row.against)
    if against is None:
        known_by = [by(each) for each in found["against"]]
        hint, there = nearest(row.against, known_by), ", ".join(known_by) or "none"
        raise CannotShow(
            "rows", f"{row.arm!r} is not compared with {row.against!r} of the baseline{hint} (compared with: {there})"
        )
    table = against[spec.intervals]
    return change(table) if table else missing(known.command)


def gap_difference(row: Report, against: str) -> Report | None:
    """Return a row's difference from the baseline under `against`, a sampler or `bound`, or None if not compared."""
    return next((each for each in row["against"] if by(each) == against), None)


def by(row: Report) -> str:
    """Return the name of the sampler under which a value was computed, or `bound`."""
    return row["by"]["use"] if row["by"] else BOUND


# Samplers

COLUMNS = {
    "value": Column(key="value", heading="e^(nats/token)", better=LOWER),
    "difference": Column(key="difference", heading="against the first", better=LOWER, than=0.0),
    "quantity": Column(key="quantity", heading="quantity"),
    "evaluations": Column(key="evaluations", heading="evaluations"),
    "seconds": Column(key="seconds", heading="seconds"),
    "times_as_long": Column(key="times_as_long", heading="times as long"),
}


def samplers_table(wanted: WantedTable, studies: Studies) -> Table:
    """Return a table of samplers; raise `CannotShow` for an unknown name."""
    spec: SamplersTable = wanted.spec
    if unknown := next((key for key in spec.columns if key not in COLUMNS), None):
        hint = nearest(unknown, list(COLUMNS))
        raise CannotShow("columns", f"samplers have no column {unknown!r}{hint} (columns: {', '.join(COLUMNS)})")
    known = studies.named(spec.study)
    rows = []
    for row in wanted.rows:
        found, sampler = sampler_results(known, row.arm, row.sampler)
        seeds_enough(spec, row.arm, known, spec.columns)
        cells = [sampler_cell(key, spec.intervals, known, found, row.sampler) for key in spec.columns]
        if found:
            seeds = len(found["seeds"]), len(known.study.seeds[row.arm])
            cells = [of_seeds(cell, *seeds, known.command) for cell in cells]
        rows.append((row.name or f"{row.arm}, {sampler.name}", cells))
    notes = [f"exp(nats per token) of held-out text in the sampler's own decoding steps. {legend(spec.intervals)}"]
    columns = [COLUMNS[key] for key in spec.columns]
    return filled(spec, "sampler", columns, rows, notes)


def sampler_results(known: KnownStudy, arm: str, number: int) -> tuple[Report | None, Any]:
    """Return the results of an arm's samplers, or None, and one of the samplers; raise `CannotShow` if unknown."""
    wants = known.study.samplers
    if wants is None:
        raise CannotShow("study", f"the study {known.study.name!r} has no [samplers]; choose a study with samplers")
    if arm not in wants.arms:
        there = f"{nearest(arm, wants.arms)} (arms: {', '.join(wants.arms)})"
        raise CannotShow("rows", f"the study {known.study.name!r} compares no samplers of the arm {arm!r}{there}")
    if number > len(wants.each):
        raise CannotShow(
            "rows", f"the study {known.study.name!r} has {len(wants.each)} samplers, so it has no sampler = {number}"
        )
    of_arms = {each["arm"]: each for each in (known.report or {}).get("samplers") or ()}
    return of_arms.get(arm), wants.each[number - 1]


def axis_of(study: Study) -> tuple[str, list[float]] | None:
    """Return the parameter in which a study's samplers differ and its values, or None if several parameters differ.

    A value that several keys share, such as the threshold of tokens per step and of a stopping rule, is treated as one
    parameter.
    """
    tables = [dict(leaves(unstructure(each))) for each in (study.samplers.each if study.samplers else ())]
    keys = [key for key in tables[0] if len({repr(table.get(key)) for table in tables}) > 1] if tables else []
    values = [{repr(table.get(key)): table.get(key) for key in keys} for table in tables]
    numbers: list[Any] = [next(iter(each.values())) for each in values if len(each) == 1]
    names = {key.rpartition(".")[2] for key in keys}
    alike = all(table.keys() == tables[0].keys() for table in tables)
    if (
        not alike
        or len(names) != 1
        or len(numbers) < len(tables)
        or not all(isinstance(n, int | float) for n in numbers)
    ):
        return None
    return f"samplers.{names.pop()}", numbers


def along(spec: FigureSpec, known: KnownStudy, arm: str) -> list[tuple[str, Cell, bool]] | None:
    """Return an arm's value under each sampler as (parameter, cell, whether it is the study's first sampler).

    Without results, or if samplers differ in several parameters, return None. The cells have no intervals.
    """
    axis = axis_of(known.study)
    found = next((each for each in (known.report or {}).get("samplers") or () if each["arm"] == arm), None)
    if axis is None or found is None:
        return None
    cells = [sampler_cell("value", spec.intervals, known, found, number + 1) for number in range(len(axis[1]))]
    points = [
        (f"{value:g}", cell, number == 0) for number, (value, cell) in enumerate(zip(axis[1], cells, strict=True))
    ]
    return [point for _, point in sorted(zip(axis[1], points, strict=True)) if point[1].value is not None]


def sampler_cell(key: str, intervals: str, known: KnownStudy, arm: Report | None, number: int) -> Cell:
    """Return a cell with a value of an arm's sampler with this number, from 1, or a missing one without results."""
    if arm is None:
        return missing(known.command)
    row: Report = arm["samplers"][number - 1]
    match key:
        case "difference":
            # The other samplers are compared with the first, which has no difference itself.
            table = row.get(intervals)
            return change(table) if table else nothing() if number == 1 else missing(known.command)
        case "quantity":
            return words(row["quantity"])
        case "evaluations":
            return count(row["nfe"], ".1f")
        case "seconds":
            return count(row["seconds"], ".2f")
        case "times_as_long":
            return count(row.get("seconds_ratio"), ".2f")
    if None in row["values"]:
        return nothing("not finite")
    logs = [math.log(value) for value in row["values"]]
    return count(math.exp(sum(logs) / len(logs)), ".1f")


# Scores


def scores_table(wanted: WantedTable, studies: Studies) -> Table:
    """Return a table of scores; raise `CannotShow` for an unknown name."""
    spec: ScoresTable = wanted.spec
    known = studies.named(spec.study)
    tasks = [task.name for task in known.study.held_out.tasks]
    if spec.task not in tasks:
        there = f"{nearest(spec.task, tasks)} (tasks: {', '.join(tasks) or 'none'})"
        raise CannotShow("task", f"the study {known.study.name!r} has no task {spec.task!r}{there}")
    columns = list(directed(spec))
    measured = (known.report or {}).get("tasks") or ()
    of_task = next((each for each in measured if each["settings"]["use"] == spec.task), None)
    by_name = {score["score"]: score for score in of_task["scores"]} if of_task else {}
    require(spec.columns, spec.task, list(by_name) if of_task else None)
    rows = []
    for row in wanted.rows:
        seeds_enough(spec, row.arm, known, spec.columns)
        seeds, cells = len(known.study.seeds[row.arm]), []
        for key in spec.columns:
            score = by_name.get(key)
            found = next((each for each in score["rows"] if each["arm"] == row.arm), None) if score else None
            if score is None or found is None:
                cells.append(missing(known.command))
            else:
                cells.append(of_seeds(_score(spec, score, found), len(found["seeds"]), seeds, known.command))
        rows.append((row.name or row.arm, cells))
    notes = [legend(spec.intervals, "items"), *(of_task["notes"] if of_task else ())]
    return filled(spec, "arm", columns, rows, notes)


def _score(spec: ScoresTable, score: Report, row: Report) -> Cell:
    """Return a cell with the mean score over seeds, and an interval if the score has standard errors over items."""
    values = row["values"]
    if None in values:
        return nothing("not finite")
    errors = row["stderrs"]
    if spec.intervals == "both" and None not in errors:
        if score["exponential"]:
            shares = [error / value for error, value in zip(errors, values, strict=True)]
            return exponential(over_both([math.log(value) for value in values], shares))
        return within(over_both(values, errors))
    return normal(statistics.fmean(values), None if None in errors else statistics.fmean(errors))
