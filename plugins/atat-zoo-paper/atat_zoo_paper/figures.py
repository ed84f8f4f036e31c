"""Figures of studies: bounds by training steps or at grid and sweep points, and differences from the baseline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import altair as alt

from atat_zoo.evaluation.results.quantity_names import NATS_PER_TOKEN
from atat_zoo.evaluation.results.table import Cell, escape
from atat_zoo.reports import PALETTE
from atat_zoo.studies.markdown import labels
from atat_zoo.system.errors import nearest
from atat_zoo_paper.cells import change, exponential
from atat_zoo_paper.paper_file import FigureSpec
from atat_zoo_paper.paper_studies import CannotShow, KnownStudy, compared, seeds_enough
from atat_zoo_paper.study_tables import along, axis_of, nats, over_runs
from atat_zoo_paper.style import Chart, chart, files

MARKS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross")  # distinguishable in grey


def points(spec: FigureSpec, known: KnownStudy) -> dict[str, Any]:
    """Return a dict from arm or panel to its points; raise `CannotShow` for an unsuitable study or arm."""
    for key, arms in (("arms", spec.arms), ("names", spec.names)):
        for arm in arms:
            known.arm(arm, key)  # raises `CannotShow` for an unknown arm
    for name in spec.names.values():
        escape(name)  # raises for a character that LaTeX cannot print, which the figure's font lacks, too
    by_kind: Any = {"curve": _curve, "sensitivity": _sensitivity, "arms": _arms}
    return by_kind[spec.kind](spec, known, spec.arms)


def _curve(spec: FigureSpec, known: KnownStudy, arms: Sequence[str]) -> dict[str, list[tuple[int, Cell]]]:
    study = known.study
    lines = {arm: study.at_budgets(arm) for arm in arms or study.arms if len(study.at_budgets(arm)) > 1}
    if short := [arm for arm in arms if arm not in lines]:
        raise CannotShow(
            "arms", f"arm {short[0]!r} of the study {study.name!r} has no budgets; choose arms with several budgets"
        )
    if not lines:
        raise CannotShow("study", f"the study {study.name!r} has no budgets; choose a study with budgets")
    found: dict[str, list[tuple[int, Cell]]] = {}
    for arm, budgets in lines.items():
        for name in budgets:
            seeds_enough(spec, name, known, ("value",))
        there = [each for each in map(known.arm, budgets) if each]
        cells = [(arm["steps"], exponential(over_runs(arm["runs"], nats, False, spec.intervals))) for arm in there]
        found[arm] = sorted(((steps, cell) for steps, cell in cells if cell.sure), key=lambda each: each[0])
    return found


def _sensitivity(spec: FigureSpec, known: KnownStudy, arms: Sequence[str]) -> dict[str, Any]:
    study = known.study
    if study.sweep is None and not study.grids:
        raise CannotShow("study", f"the study {study.name!r} has no [grid] or [sweep]; choose a study with one")
    varied = list(dict.fromkeys(grid.arm for grid in study.grids)) or list(study.swept)
    for arm in arms:
        if arm not in varied:
            there = f"(arms with variants: {', '.join(varied)})"
            raise CannotShow("arms", f"arm {arm!r} has no variants{nearest(arm, varied)} {there}")
    if study.grids:
        return _grids(spec, known, arms or varied)
    swept = known.report["sweep"]["arms"] if known.report else {}
    return {arm: swept.get(arm) for arm in arms or study.swept}


def _grids(spec: FigureSpec, known: KnownStudy, arms: Sequence[str]) -> dict[str, Any]:
    """Return the points of each grid as (label, bound, whether it is the grid's own arm); None without results."""
    found: dict[str, Any] = {}
    for grid in (grid for grid in known.study.grids if grid.arm in arms):
        panel: list[tuple[str, Cell, bool]] = []
        for values, name in grid.points:
            seeds_enough(spec, name, known, ("value",))
            if (arm := known.arm(name)) is None:
                found[name] = None
                continue
            cell = exponential(over_runs(arm["runs"], nats, False, spec.intervals))
            if cell.sure:
                panel.append((", ".join(labels(values)), cell, name == grid.arm))
        keys = " × ".join(grid.keys)
        found[keys if len(arms) == 1 else f"{spec.names.get(grid.arm, grid.arm)}: {keys}"] = panel
    if known.study.samplers and (axis := axis_of(known.study)):
        for name in (name for name in known.study.samplers.arms if name in arms):
            title = axis[0] if len(arms) == 1 else f"{spec.names.get(name, name)}: {axis[0]}"
            found[title] = along(spec, known, name)
    return found


def _arms(spec: FigureSpec, known: KnownStudy, arms: Sequence[str]) -> dict[str, Cell | None]:
    base = known.study.baseline
    against = [arm for arm in known.study.arms if base in known.study.against(arm)]
    if other := [arm for arm in arms if arm not in against]:
        raise CannotShow(
            "arms", f"the study {known.study.name!r} does not compare {other[0]!r} with its baseline {base!r}"
        )
    found: dict[str, Cell | None] = {}
    for arm in arms or against:
        seeds_enough(spec, arm, known, ("difference",))
        each = compared(known.report, arm, base) if known.report else None
        ends = each and (each.get(spec.intervals))
        cell = change(ends) if ends else None
        found[arm] = cell if cell and cell.sure else None
    return found


def draw(spec: FigureSpec, known: KnownStudy, found: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Yield the file name and content of a figure as PDF and SVG, drawn from the result of `points`."""
    by_kind: Any = {"curve": _draw_curve, "sensitivity": _draw_sensitivity, "arms": _draw_arms}
    drawn = by_kind[spec.kind](spec, known, {arm: each for arm, each in found.items() if each})
    yield from ((f"{spec.label}.{ending}", content) for ending, content in files(drawn).items())


def _ends(cell: Cell) -> dict[str, float]:
    """Return a value and the ends of its error bar, which equal the value if it has no interval."""
    value = float(cell.value or 0)
    return {
        "value": value,
        "low": cell.sure.low if cell.sure else value,
        "high": cell.sure.high if cell.sure else value,
    }


def _quantity(known: KnownStudy, arms: Sequence[str]) -> str:
    """Return the name of the arms' bounds, or exp(nats per token) if it differs between arms."""
    return _common({arm["runs"][0]["bound"] for name in arms if (arm := known.arm(name))})


def _common(quantities: set[str]) -> str:
    """Return the quantity if there is only one, or else exp(nats per token)."""
    return next(iter(quantities)) if len(quantities) == 1 else f"exp({NATS_PER_TOKEN})"


def _draw_curve(spec: FigureSpec, known: KnownStudy, lines: dict[str, list[tuple[int, Cell]]]) -> Chart:
    names = [spec.names.get(arm, arm) for arm in lines]
    rows: list[dict[str, Any]] = [
        {"arm": name, "steps": steps, **_ends(cell)}
        for name, found in zip(names, lines.values(), strict=True)
        for steps, cell in found
    ]
    axis = alt.Axis(values=sorted({row["steps"] for row in rows}), format=",d", grid=False)
    x = alt.X("steps:Q", title="optimizer steps", axis=axis, scale=alt.Scale(type="log", nice=False, padding=8))
    y = alt.Y("low:Q", title=_quantity(known, list(lines)), scale=alt.Scale(zero=False))
    colours = [PALETTE[number % len(PALETTE)] for number in range(len(names))]
    color = alt.Color("arm:N", scale=alt.Scale(domain=names, range=colours))
    shape = alt.Shape("arm:N", scale=alt.Scale(domain=names, range=[MARKS[i % len(MARKS)] for i in range(len(names))]))
    of = chart(rows, 130).encode(x=x, color=color)
    bars, line = of.mark_rule().encode(y=y, y2="high:Q"), of.mark_line().encode(y="value:Q")
    return bars + line + of.mark_point(size=20).encode(y="value:Q", shape=shape)


def _draw_sensitivity(spec: FigureSpec, known: KnownStudy, panels: dict[str, Any]) -> Chart:
    axis = axis_of(known.study) if known.study.grids else None
    varied = [name for grid in known.study.grids for _, name in grid.points]
    quantity = _quantity(known, varied) if varied else f"{NATS_PER_TOKEN}, selection half"
    of_panels: dict[str, list[dict[str, Any]]] = {}
    for title, found in panels.items():
        if known.study.grids:
            of_panels[title] = [{"point": name, "own": own, **_ends(cell)} for name, cell, own in found]
        else:
            values = {name: value for name, value in found["nats_per_token"].items() if value is not None}
            of_panels[title] = [
                {"point": name, "own": name == found["chosen"], **dict.fromkeys(("value", "low", "high"), value)}
                for name, value in values.items()
            ]
    along_samplers = [title for title in of_panels if axis and title.endswith(axis[0])]
    shared = [row for title, rows in of_panels.items() if title not in along_samplers for row in rows]
    drawn = []
    for number, (title, rows) in enumerate(of_panels.items()):
        of_all, what = shared, quantity
        if title in along_samplers:  # whose quantity differs from that of the other panels
            report: Any = known.report  # not None, or there would be no panel
            what = _common({row["quantity"] for arm in report["samplers"] for row in arm["samplers"]})
            of_all = rows
        domain = [min(row["low"] for row in of_all), max(row["high"] for row in of_all)]
        beside = number % 2 and title not in along_samplers
        y = alt.Y(
            "low:Q",
            title=None if beside else what,
            scale=alt.Scale(domain=domain, nice=True, zero=False),
            axis=alt.Axis(labels=not beside, tickCount=5),
        )
        x = alt.X("point:N", sort=None, title=None, axis=alt.Axis(labelAngle=-30, grid=False))
        of, color = chart(rows, 62).encode(x=x), PALETTE[number % len(PALETTE)]
        panel = of.mark_rule(color=color).encode(y=y, y2="high:Q")
        panel += of.mark_line(color=color, point={"color": color}).encode(y="value:Q")
        panel += (
            of.transform_filter("datum.own")
            .mark_point(filled=False, color="black", strokeWidth=0.8, size=40)
            .encode(y="value:Q")
        )
        said = spec.names.get(title, title).replace(".", ".\n", 1).split("\n")  # a key is wider than a panel
        drawn.append(panel.properties(width=82, title=said))
    return alt.concat(*drawn, columns=2)


def _draw_arms(spec: FigureSpec, known: KnownStudy, found: dict[str, Cell]) -> Chart:
    arms = list(found) if spec.arms else sorted(found, key=lambda arm: found[arm].low or 0)
    rows = [{"arm": spec.names.get(arm, arm), **_ends(found[arm])} for arm in arms]
    base = known.study.baseline
    title = f"{_quantity(known, arms)} against {spec.names.get(base, base)}, %"
    of = chart(rows, alt.Step(14)).encode(y=alt.Y("arm:N", sort=None, title=None, axis=alt.Axis(grid=False)))
    bars = of.mark_rule(color=PALETTE[0], strokeWidth=1.2).encode(x=alt.X("low:Q", title=title), x2="high:Q")
    zero = chart([{"zero": 0}], alt.Step(14)).mark_rule(strokeWidth=0.6).encode(x="zero:Q")
    return zero + bars + of.mark_point(color=PALETTE[0]).encode(x="value:Q")
