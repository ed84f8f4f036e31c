"""Figures of studies with matplotlib: bounds over budgets, over the points of a sweep, and differences of arms.

One style: as wide as a column, with letters that are readable there; the same numbers give the same file.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atat_zoo.errors import UserError, nearest
from atat_zoo.paper.arms import nats, over
from atat_zoo.paper.cells import Cell, change, exponential
from atat_zoo.paper.latex import escape
from atat_zoo.paper.manifest import FigureSpec
from atat_zoo.paper.studies import CannotShow, KnownStudy, compared, seeds_enough
from atat_zoo.results.naming import NATS_PER_TOKEN

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 3.3  # inches of a column
STYLE: Any = {
    **{"font.size": 8, "axes.labelsize": 8, "legend.fontsize": 7, "xtick.labelsize": 7, "ytick.labelsize": 7},
    **{"font.family": "sans-serif", "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.6},
    **{"lines.linewidth": 1.2, "lines.markersize": 3.5, "grid.linewidth": 0.3, "legend.frameon": False},
    # Text stays text, and the same input gives the same file.
    **{"pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "atat_zoo", "text.parse_math": False},
}
# Okabe and Ito's, which colour-blind people tell apart, and marks that are told apart in grey.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
MARKS = "os^Dv<>"


def require() -> None:
    """Raise a `UserError` if matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise UserError("a figure needs the package matplotlib; install it with `pip install 'atat-zoo[figures]'`")


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
        cells = [(arm["steps"], exponential(over(arm["runs"], nats, False, spec.intervals))) for arm in there]
        found[arm] = sorted(((steps, cell) for steps, cell in cells if cell.sure), key=lambda each: each[0])
    return found


def _sensitivity(spec: FigureSpec, known: KnownStudy, arms: Sequence[str]) -> dict[str, Any]:
    study = known.study
    if study.sweep is None:
        raise CannotShow("study", f"{study.name!r} has no [sweep]; name a study with one")
    for arm in arms:
        if arm not in study.swept:
            there = f"(there are: {', '.join(study.swept)})"
            raise CannotShow("arms", f"no point of the sweep was tried with {arm!r}{nearest(arm, study.swept)} {there}")
    swept = known.report["sweep"]["arms"] if known.report else {}
    return {arm: swept.get(arm) for arm in arms or study.swept}


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
        ends = each and (each.get("over_seeds") if spec.intervals == "seeds" else each.get("sequences"))
        cell = change(ends) if ends else None
        found[arm] = cell if cell and cell.sure else None
    return found


def draw(spec: FigureSpec, known: KnownStudy, found: dict[str, Any], folder: Path) -> None:
    """Write a figure of such `points` as PDF and SVG; arms without any are left out."""
    import matplotlib as mpl

    with mpl.rc_context(STYLE):
        by_kind: Any = {"curve": _draw_curve, "sensitivity": _draw_sensitivity, "arms": _draw_arms}
        drawn = by_kind[spec.kind](spec, known, {arm: each for arm, each in found.items() if each})
        drawn.savefig(folder / f"{spec.label}.pdf", metadata={"CreationDate": None})
        drawn.savefig(folder / f"{spec.label}.svg", metadata={"Date": None})


def _empty(height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH, height), layout="constrained")


def _errors(cells: Sequence[Cell]) -> tuple[list[float], list[list[float]]]:
    sure = [cell.sure for cell in cells if cell.sure]
    return [one.value for one in sure], [[one.value - one.low for one in sure], [one.high - one.value for one in sure]]


def _quantity(known: KnownStudy, arms: Sequence[str]) -> str:
    """Return the bound of the arms, if they have one in common."""
    bounds = {arm["runs"][0]["bound"] for name in arms if (arm := known.arm(name))}
    return str(bounds.pop()) if len(bounds) == 1 else f"e to the {NATS_PER_TOKEN}"


def _draw_curve(spec: FigureSpec, known: KnownStudy, lines: dict[str, list[tuple[int, Cell]]]) -> Figure:
    figure = _empty(2.4)
    axes: Axes = figure.subplots()
    for number, (arm, found) in enumerate(lines.items()):
        value, error = _errors([cell for _, cell in found])
        how: Any = {"marker": MARKS[number % len(MARKS)], "color": COLORS[number % len(COLORS)], "capsize": 2}
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
    every: Any = figure.subplots(rows, columns, sharey=True, squeeze=False)
    for axes in every.flat[len(panels) :]:
        axes.set_visible(False)
    for axes, (arm, found), color in zip(every.flat, panels.items(), COLORS * len(panels), strict=False):
        values = {name: value for name, value in found["nats_per_token"].items() if value is not None}
        names = list(values)
        axes.plot(range(len(names)), list(values.values()), marker="o", color=color)
        best = names.index(found["chosen"])
        axes.plot(best, values[found["chosen"]], marker="o", ms=7, mfc="none", color="black")
        axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
        axes.set_title(spec.names.get(arm, arm), fontsize=8)
        axes.grid(axis="y")
    figure.supylabel(f"{NATS_PER_TOKEN}, selection half", fontsize=8)
    return figure


def _draw_arms(spec: FigureSpec, known: KnownStudy, found: dict[str, Cell]) -> Figure:
    arms = list(found) if spec.arms else sorted(found, key=lambda arm: found[arm].low or 0)
    figure = _empty(0.5 + 0.2 * len(arms))
    axes: Axes = figure.subplots()
    value, error = _errors([found[arm] for arm in arms])
    axes.errorbar(value, range(len(arms)), xerr=error, fmt="o", capsize=2, color=COLORS[0])
    axes.axvline(0, color="black", lw=0.6)
    axes.set_yticks(range(len(arms)), [spec.names.get(arm, arm) for arm in arms])
    axes.invert_yaxis()
    base = known.study.baseline
    axes.set_xlabel(f"{_quantity(known, arms)} against {spec.names.get(base, base)}, %")
    axes.grid(axis="x")
    return figure
