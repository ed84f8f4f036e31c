"""The first words of the page: what was compared, on what text, who is lower, by how much, and how sure that is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atat_zoo.evaluation.naming import TABLE, title
from atat_zoo.report.recorded import conditions
from atat_zoo.report.wording import NONE, interval, joined, number, uncertain

if TYPE_CHECKING:
    from collections.abc import Iterator

Table = dict[str, Any]


def verdict(runs: list[Table], comparison: Table | None) -> list[str]:
    """Return the verdict on one or more runs, a sentence each."""
    return list(_sentences(runs, comparison))


def _sentences(runs: list[Table], comparison: Table | None) -> Iterator[str]:
    measured = [run for run in runs if run["evaluated"]]
    if len(runs) == 1:
        yield from _one(runs[0])
        return
    if not measured:
        yield f"{number(len(runs), 'run')}; none has an evaluation on held-out text yet."
    same = len({conditions(run["evaluated"][-1]) for run in measured}) == 1
    by_bound: dict[str, list[tuple[float, str, str]]] = {}
    for run in measured:
        name, value, said = _first(run)
        on = "" if same else f" ({_on(run['evaluated'][-1])})"
        by_bound.setdefault(name, []).append((value, run["name"], said + on))
    for name, each in by_bound.items():
        ranked = [f"{run} {said}" for _, run, said in sorted(each)]
        yield f"{name[0].upper()}{name[1:]}, lowest first: {joined(ranked)}."
    yield from _differences(runs, comparison, same, len(by_bound) > 1)
    if same and measured:
        yield f"Measured {_on(measured[0]['evaluated'][-1])}; the same for every run."
    for run in runs:
        yield from _unfinished(run)


def _one(run: Table) -> Iterator[str]:
    size = f", {number(run['trained'], 'token')}" if run["trained"] else ""
    if not run["evaluated"]:
        yield f"{run['name']}, trained by {run['objective']} for {number(run['step'], 'step')}{size}."
        yield "It has no evaluation on held-out text yet; `atat eval` makes one."
    else:
        last = run["evaluated"][-1]
        name, _, said = _first(run)
        yield f"{run['name']}, trained by {run['objective']} for {number(last['step'], 'step')}{size}: {name} {said}."
        yield f"Measured {_on(last)}."
        beside = last.get("count_table") or {}
        if beside.get("percent") is not None:
            low = "lower" if beside["percent"] < 0 else "higher"
            yield (
                f"That is {uncertain(abs(beside['percent']), beside['percent_stderr'])} % {low} than a "
                f"{TABLE} model of {beside['reads']}, {uncertain(beside['value'], beside['stderr'])} on the same."
            )
    yield from _unfinished(run)


def _unfinished(run: Table) -> Iterator[str]:
    if isinstance(run["steps"], int) and run["step"] < run["steps"]:
        yield f"{run['name']} is at step {run['step']:,} of {run['steps']:,}."


def _on(table: Table) -> str:
    """Return what an evaluation was made on."""
    masks = f"{number(table['draws'], 'mask')} each by {table['method']}" if table["draws"] else "no masks"
    return (
        f"on {number(table['sequences'], 'sequence')} of {table['split']} text, {masks}, seed {table['seed']}; "
        "± is one standard error over sequences"
    )


def _first(run: Table) -> tuple[str, float, str]:
    """Return the name, the value, and the value in words of a run's own bound, as last recorded."""
    name, bound = next(iter(run["evaluated"][-1]["bounds"].items()))
    return title(name), bound["value"], uncertain(bound["value"], bound["stderr"])


def _differences(runs: list[Table], comparison: Table | None, same: bool, mixed: bool) -> Iterator[str]:
    """Say by how much the runs differ, with paired intervals where a comparison of these models is recorded."""
    if comparison is None:
        if mixed:
            yield "Bounds of different names are of different processes: the lower one need not be the better model."
        why = "their text and masks are the same, so a difference is surer than either number" if same else "each alone"
        yield f"Differences with paired intervals are not recorded ({why}): `atat report … --compute` measures them."
        return
    words = []
    for run, row in zip(runs, comparison["runs"], strict=True):
        if difference := row["difference"]:
            change = interval(*(difference[key] for key in ("percent", "percent_low", "percent_high")))
            words.append(f"{run['name']} {change}")
    yield f"Against {runs[0]['name']}: {joined(words)}; 95 % intervals, paired by sequence and mask."
    yield "A run is one training: how far another seed's would lie is not in them."


def table_of_bounds(runs: list[Table]) -> Table:
    """Return a row for each run: what it is, and its bounds as last recorded."""
    rows = []
    for run in runs:
        last = run["evaluated"][-1] if run["evaluated"] else None
        name, _, said = _first(run) if last else (NONE, 0.0, NONE)
        step = f"{run['step']:,}" + (f" of {run['steps']:,}" if run["steps"] not in (None, run["step"]) else "")
        seconds = NONE if run["seconds"] is None else f"{run['seconds']:,.0f}"
        tokens = NONE if run["tokens"] is None else f"{run['tokens']:,}"
        rows.append([run["name"], run["objective"], name, said, step, tokens, seconds])
    return {"columns": ["run", "objective", "bound", "value", "steps", "tokens", "seconds"], "rows": rows}
