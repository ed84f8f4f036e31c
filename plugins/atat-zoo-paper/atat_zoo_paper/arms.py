"""Tables of studies' arms. A study without results is missing, with its command."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs

from atat_zoo.errors import nearest
from atat_zoo.evaluation.results.intervals import Interval
from atat_zoo.evaluation.results.naming import words as metric_words
from atat_zoo.studies.differences import over_both, over_sequences
from atat_zoo_paper.cells import (
    HIGHER,
    LOWER,
    Cell,
    Column,
    FilledTable,
    change,
    count,
    exponential,
    missing,
    nothing,
    of_seeds,
    trained_alike,
    within,
    words,
)
from atat_zoo_paper.manifest import ArmRow, ArmsTable, WantedTable
from atat_zoo_paper.studies import CannotShow, KnownStudy, Studies, Table, compared, legend, same_text, seeds_enough

Rows = list[tuple[ArmRow, KnownStudy]]


def over_runs(
    runs: Sequence[Table], value: Callable[[Table], float | None], relative: bool, intervals: str
) -> Interval | None:
    """Return the mean over runs of a value, with its interval from the standard errors of the bounds.

    The error of a bound by its value is that of the nats per token, in nats; `relative` if the value is in another
    unit, with an error of the same share.
    """
    values, bounds = [value(run) for run in runs], [run["bounds"][run["bound"]] for run in runs]
    if None in values or any(bound["value"] is None or bound["stderr"] is None for bound in bounds):
        return None
    numbers = [float(each) for each in values if each is not None]
    unit = statistics.fmean(numbers) if relative else 1
    errors = [unit * b["stderr"] / b["value"] / (b["nats_per_token"] if relative else 1) for b in bounds]
    return (over_both if intervals == "both" else over_sequences)(numbers, errors)


def nats(run: Table) -> float | None:
    """Return the nats per token of the bound by which a run is compared."""
    value: float | None = run["bounds"][run["bound"]]["nats_per_token"]
    return value if run["bounds"][run["bound"]]["value"] is not None else None


def _value(arm: Table, intervals: str) -> Cell:
    return exponential(over_runs(arm["runs"], nats, False, intervals))


def _nats(arm: Table, intervals: str) -> Cell:
    return within(over_runs(arm["runs"], nats, False, intervals))


def _bits(arm: Table, intervals: str) -> Cell:
    return within(over_runs(arm["runs"], lambda run: run["bounds"][run["bound"]]["bits_per_byte"], True, intervals))


def _cost(key: str, digits: str, times: float = 1) -> Callable[[Table, str], Cell]:
    return lambda arm, _: count(arm[key] and arm[key] * times, digits)


# key -> heading, direction, and the cell of an arm. The differences and step multipliers are of the whole study.
_OF_ARM: dict[str, tuple[str, int, Callable[[Table, str], Cell]]] = {
    "value": ("e to the nats per token", LOWER, _value),
    "nats_per_token": ("nats per token", LOWER, _nats),
    "bits_per_byte": ("bits per byte", LOWER, _bits),
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
_ALIKE = ("bound", "steps", "tokens", "parameters")  # whatever the seed
_SURE = ("value", "nats_per_token", "bits_per_byte", "difference", "multiplier")  # that have an interval


def arms_table(wanted: WantedTable, studies: Studies) -> FilledTable:
    """Return a table of arms; what it names and is not there raises `CannotShow`."""
    spec: ArmsTable = wanted.spec
    rows: Rows = []
    for i, row in enumerate(wanted.rows):
        name = row.study or spec.study
        if name is None:
            raise CannotShow(f"rows[{i}].study", "is missing, and so is the table's; name a study")
        rows.append((row, studies.named(name)))
    same_text([known for _, known in rows])
    metrics = list(dict.fromkeys(metric.title for _, known in rows for metric in known.study.held_out.metrics))
    keys = [*_OF_ARM, *_OF_STUDY, *metrics]
    if wrong := [key for key in spec.columns if key not in keys]:
        hint, there = nearest(wrong[0], keys), ", ".join(keys)
        raise CannotShow("columns", f"a study has no {wrong[0]!r}{hint} (there are: {there})")
    filled = []
    for row, known in rows:
        arm = known.arm(row.arm)
        seeds_enough(spec, row.arm, known, [key for key in spec.columns if key in _SURE or key in metrics])
        cells = [_arm_cell(key, spec, row, arm, known) for key in spec.columns]
        filled.append((row.name or row.arm, cells))
    columns = [_arm_column(key, rows) for key in spec.columns]
    notes = [legend(spec.intervals), *_compared_with(columns, rows), *trained_alike(spec.columns, _how(rows))]
    return FilledTable(label=spec.label, caption=spec.caption, columns=columns, rows=filled, notes=notes, corner="arm")


def _compared_with(columns: Sequence[Column], rows: Rows) -> Iterator[str]:
    """Say what each row is compared with, where the heading cannot say it of all."""
    if any(column.key == "difference" and not column.better for column in columns):
        groups: dict[str, list[str]] = {}
        for row, known in rows:
            if (other := known.against(row)) != row.arm:
                groups.setdefault(_called(known, other, rows), []).append(row.name or row.arm)
        yield from (f"The difference is from {other} of: {'; '.join(names)}." for other, names in groups.items())


def _how(rows: Rows) -> list[list[Any]]:
    """Return how each run was trained."""
    runs = [run for row, known in rows for run in (known.arm(row.arm) or {"runs": ()})["runs"]]
    return [[run[key] for key in ("machine", "computed", "trained_with")] for run in runs]


def _called(known: KnownStudy, arm: str, rows: Rows) -> str:
    """Return what an arm of a study is called in a table."""
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


def _arm_cell(key: str, spec: ArmsTable, row: ArmRow, arm: Table | None, known: KnownStudy) -> Cell:
    if arm is None or known.report is None:
        return missing(known.command)
    if key == "difference":
        return difference(known, row, spec.intervals)
    if key == "multiplier":
        return _multiplier(known, row.arm)
    cell = _of_arm(key, spec, arm, known)
    return cell if key in _ALIKE else of_seeds(cell, len(arm["runs"]), len(known.study.seeds[row.arm]), known.command)


def _of_arm(key: str, spec: ArmsTable, arm: Table, known: KnownStudy) -> Cell:
    if key in _OF_ARM:
        return _OF_ARM[key][2](arm, spec.intervals)
    found = [run.get("metrics", {}).get(key) for run in arm["runs"]]
    if None in found:
        return missing(known.command)
    values, errors = ([each[key] for each in found] for key in ("value", "stderr"))
    if spec.intervals == "both" and None not in [*values, *errors]:
        return within(over_both(values, errors))
    return count(statistics.fmean(values), ".4f")


def difference(known: KnownStudy, row: ArmRow, intervals: str) -> Cell:
    """Return the difference of a row's arm from another."""
    assert known.report is not None
    other = known.against(row)
    found = compared(known.report, row.arm, other)
    if row.arm == other:
        return nothing()
    if found is None:
        others = known.study.against(row.arm)
        hint, there = nearest(other, others), ", ".join(others) or "none"
        which = f"the study {known.study.name!r} does not compare {row.arm!r} with {other!r}"
        raise CannotShow("rows", f"{which}{hint} (it is compared with: {there})")
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


def _multiplied(found: Table) -> Cell:
    if both := found["both"]:
        return within(Interval(**both))
    each = found["each"]
    if len(each) > 1 or each[0]["multiplier"] is None:  # outside of the curve with one of the seeds
        return nothing()
    beyond = {"beyond": "> ", "before": "< "}.get(each[0]["where"], "")
    return attrs.evolve(count(each[0]["multiplier"], ".2f"), text=f"{beyond}{each[0]['multiplier']:.2f}")
