"""Figures of studies with matplotlib: bounds over budgets, over points of a grid or sweep, and differences of arms."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from atat_zoo.errors import nearest
from atat_zoo.evaluation.results.intervals import Interval
from atat_zoo.evaluation.results.naming import NATS_PER_TOKEN
from atat_zoo.evaluation.results.table import Cell, escape
from atat_zoo.reports import PALETTE
from atat_zoo.studies.markdown import labels
from atat_zoo_paper.cells import change, exponential
from atat_zoo_paper.manifest import FigureSpec
from atat_zoo_paper.studies import CannotShow, KnownStudy, compared, seeds_enough
from atat_zoo_paper.study_tables import along, axis_of, nats, over_runs
from atat_zoo_paper.style import STYLE, WIDTH

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKS = "os^Dv<>"  # told apart in grey


def points(spec: FigureSpec, known: KnownStudy) -> dict[str, Any]:
    """Return what a figure shows by its arms; what it names and is not there raises `CannotShow`."""
    for key, arms in (("arms", spec.arms), ("names", spec.names)):
        for arm in arms:
            known.arm(arm, key)  # the study must have it
    for name in spec.names.values():
        escape(name)  # what LaTeX cannot set, the font of a figure lacks
    by_kind: Any = {"curve": _curve, "sensitivity": _sensitivity, "arms": _arms}
    found: dict[str, Any] = by_kind[spec.kind](spec, known, spec.arms)
    return found


def _curve(spec: FigureSpec, known: KnownStudy, arms: Sequence[str]) -> dict[str, list[tuple[int, Cell]]]:
    study = known.study
    lines = {arm: study.at_budgets(arm) for arm in arms or study.arms if len(study.at_budgets(arm)) > 1}
    if short := [arm for arm in arms if arm not in lines]:
        raise CannotShow(
            "arms", f"{short[0]!r} of the study {study.name!r} has no budgets; name arms with other numbers of steps"
        )
    if not lines:
        raise CannotShow("study", f"{study.name!r} has no budgets; name a study with budgets")
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
        raise CannotShow("study", f"{study.name!r} has no [grid] and no [sweep]; name a study with one")
    varied = list(dict.fromkeys(grid.arm for grid in study.grids)) or list(study.swept)
    for arm in arms:
        if arm not in varied:
            there = f"(there are: {', '.join(varied)})"
            raise CannotShow("arms", f"nothing is varied with {arm!r}{nearest(arm, varied)} {there}")
    if study.grids:
        return _grids(spec, known, arms or varied)
    swept = known.report["sweep"]["arms"] if known.report else {}
    return {arm: swept.get(arm) for arm in arms or study.swept}


def _grids(spec: FigureSpec, known: KnownStudy, arms: Sequence[str]) -> dict[str, Any]:
    """Return the points of each grid: label, bound, and whether it is the arm; None for an arm without results."""
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
    """Yield a figure of such `points` as PDF and SVG, each with its file's name; arms without any are left out."""
    import matplotlib as mpl

    with mpl.rc_context(STYLE):
        by_kind: Any = {"curve": _draw_curve, "sensitivity": _draw_sensitivity, "arms": _draw_arms}
        drawn = by_kind[spec.kind](spec, known, {arm: each for arm, each in found.items() if each})
        for form, dated in (("pdf", "CreationDate"), ("svg", "Date")):
            drawn.savefig(content := io.BytesIO(), format=form, metadata={dated: None})
            yield f"{spec.label}.{form}", content.getvalue()


def _empty(height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH, height))


def _errors(cells: Sequence[Cell]) -> tuple[list[float], list[list[float]]]:
    """Return values, and the lengths of their bars below and above: none of a value without an interval."""
    values = [float(cell.value or 0) for cell in cells]
    ends = [
        cell.sure or Interval(value=value, low=value, high=value) for cell, value in zip(cells, values, strict=True)
    ]
    return values, [[one.value - one.low for one in ends], [one.high - one.value for one in ends]]


def _quantity(known: KnownStudy, arms: Sequence[str]) -> str:
    """Return the bound of the arms, if they have one in common."""
    return _common({arm["runs"][0]["bound"] for name in arms if (arm := known.arm(name))})


def _common(quantities: set[str]) -> str:
    """Return the only one of some quantities, or what they all are."""
    return next(iter(quantities)) if len(quantities) == 1 else f"e to the {NATS_PER_TOKEN}"


def _draw_curve(spec: FigureSpec, known: KnownStudy, lines: dict[str, list[tuple[int, Cell]]]) -> Figure:
    figure = _empty(2.4)
    axes: Axes = figure.subplots()
    for number, (arm, found) in enumerate(lines.items()):
        value, error = _errors([cell for _, cell in found])
        how: Any = {"marker": MARKS[number % len(MARKS)], "color": PALETTE[number % len(PALETTE)], "capsize": 2}
        axes.errorbar([steps for steps, _ in found], value, yerr=error, label=spec.names.get(arm, arm), **how)
    ticks = sorted({steps for found in lines.values() for steps, _ in found})
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{steps:,}" for steps in ticks])
    axes.minorticks_off()
    axes.set_xlabel("optimizer steps")
    axes.set_ylabel(_quantity(known, list(lines)))
    axes.grid(axis="y")
    axes.legend()
    return figure


def _draw_sensitivity(spec: FigureSpec, known: KnownStudy, panels: dict[str, Any]) -> Figure:
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = _empty(0.4 + 1.5 * rows)
    every: Any = figure.subplots(rows, columns, squeeze=False)
    for axes in every.flat[len(panels) :]:
        axes.set_visible(False)
    axis = axis_of(known.study) if known.study.grids else None
    for number, (title, found) in enumerate(panels.items()):
        axes, color = every.flat[number], PALETTE[number % len(PALETTE)]
        if axis and title.endswith(axis[0]):  # along samplers another quantity is paid
            report: Any = known.report  # without which there is no panel
            axes.set_ylabel(_common({row["quantity"] for arm in report["samplers"] for row in arm["samplers"]}))
        elif number:
            axes.sharey(every.flat[0])
            axes.tick_params(labelleft=number % columns == 0)
        if known.study.grids:
            names, cells, own = (list(each) for each in zip(*found, strict=True))
            value, error = _errors(cells)
            ringed = own.index(True) if True in own else None
        else:
            values = {name: value for name, value in found["nats_per_token"].items() if value is not None}
            names, value, error = list(values), list(values.values()), None
            ringed = names.index(found["chosen"])
        axes.errorbar(range(len(names)), value, yerr=error, marker="o", capsize=2, color=color)
        if ringed is not None:
            axes.plot(ringed, value[ringed], marker="o", ms=7, mfc="none", color="black")
        axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
        axes.set_title(spec.names.get(title, title).replace(".", ".\n", 1))  # a key is wider than a panel
        axes.grid(axis="y")
    varied = [name for grid in known.study.grids for _, name in grid.points]
    figure.supylabel(_quantity(known, varied) if varied else f"{NATS_PER_TOKEN}, selection half")
    return figure


def _draw_arms(spec: FigureSpec, known: KnownStudy, found: dict[str, Cell]) -> Figure:
    arms = list(found) if spec.arms else sorted(found, key=lambda arm: found[arm].low or 0)
    figure = _empty(0.5 + 0.2 * len(arms))
    axes: Axes = figure.subplots()
    value, error = _errors([found[arm] for arm in arms])
    axes.errorbar(value, range(len(arms)), xerr=error, fmt="o", capsize=2, color=PALETTE[0])
    axes.axvline(0, color="black", lw=0.6)
    axes.set_yticks(range(len(arms)), [spec.names.get(arm, arm) for arm in arms])
    axes.invert_yaxis()
    base = known.study.baseline
    axes.set_xlabel(f"{_quantity(known, arms)} against {spec.names.get(base, base)}, %")
    axes.grid(axis="x")
    return figure
