"""The figures of `atat importance-figures`, for a column of a paper: PDF and SVG of the rows of `importance_tables`.

On a white ground, so that they are legible on a dark page too. The same rows give the same files. What a run has
written is drawn as it stands, and never read as mathematics.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from matplotlib.ticker import MaxNLocator, NullFormatter, StrMethodFormatter

from atat_zoo.evaluation.results.format import csv_of
from atat_zoo.reports import PALETTE
from atat_zoo.system.atomic import write_all
from atat_zoo_paper.style import STYLE, WIDTH

Row = dict[str, Any]

FORMATS = ("pdf", "svg")
COLUMNS, LINES = 22, 2  # tokens of the heat map that a line has, and lines: more cannot be read
FEW = 20  # tokens of about a frequency, below which their quantiles are chance
_BLUE, _ORANGE = PALETTE[:2]


def rates(rows: Sequence[Row]) -> Figure:
    """Draw the importance of the first tokens of a text at each mask rate, in lines."""
    rows = [row for row in rows if row["position"] < COLUMNS * LINES]
    by_rate = {rate: list(of) for rate, of in groupby(rows, key=lambda row: row["rate"])}
    there = [row["importance"] for row in rows if row["importance"] is not None] or [0.0, 1.0]
    tokens = [_printable(row["token"]) for row in next(iter(by_rate.values()))]
    lines = [range(first, min(first + COLUMNS, len(tokens))) for first in range(0, len(tokens), COLUMNS)]
    height = 0.25 + 0.055 * max(map(len, tokens)) + 0.075 * len(by_rate)  # of a line
    figure, panels = _figure(0.4 + len(lines) * height, len(lines))
    colours, norm = mpl.colormaps["Blues"].with_extremes(bad="#dddddd"), Normalize(min(there), max(there))
    for axes, line in zip(panels, lines, strict=True):
        grid = [[_or_nan(of[at]["importance"]) for at in line] for of in by_rate.values()]
        drawn = axes.pcolormesh(grid, cmap=colours, norm=norm, edgecolors="white", linewidth=0.2)
        axes.set_xlim(0, COLUMNS)
        axes.set_xticks([at + 0.5 - line[0] for at in line], [tokens[at] for at in line], rotation=90, fontsize=6)
        axes.set_yticks([at + 0.5 for at in range(len(by_rate))][::2], [f"{rate:g}" for rate in by_rate][::2])
        axes.tick_params(length=0, pad=1.5)
        for spine in axes.spines.values():
            spine.set_visible(False)
    figure.supylabel("mask rate")
    label = "importance" if rows[0]["depends_on_rate"] else "importance, the same at every mask rate"
    figure.colorbar(drawn, ax=panels, location="top", aspect=40, pad=0.02, label=label).outline.set_visible(False)
    return figure


def classes(rows: Sequence[Row]) -> Figure:
    """Draw the importance by the class of the word: median, middle half, and middle nine tenths."""
    figure, (axes,) = _figure(0.5 + 0.22 * len(rows))
    for at, row in enumerate(rows):
        axes.plot([row["p05"], row["p95"]], [at, at], color=_BLUE, linewidth=0.8)
        axes.plot([row["p25"], row["p75"]], [at, at], color=_BLUE, linewidth=5, solid_capstyle="butt")
        axes.plot(row["median"], at, "o", color="white", markeredgecolor=_BLUE, markersize=4)
    axes.set_yticks(range(len(rows)), [f"{row['class']} ({row['share']:.0%})" for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.grid(axis="x")
    figure.supxlabel("importance: median, 50 % and 90 % of the tokens")
    return figure


def frequency(rows: Sequence[Row]) -> Figure:
    """Draw the importance by how often a token occurs in the training text, unless only a few tokens occur so often."""
    figure, (axes,) = _figure(1.9)
    rows = [row for row in rows if row["tokens"] >= FEW] or rows
    at = [max(1.0, (row["least"] * row["most"]) ** 0.5) for row in rows]
    _middle(axes, at, rows)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("times a token occurs in the training text")
    axes.set_ylabel("importance")
    return figure


def checkpoints(rows: Sequence[Row]) -> Figure:
    """Draw the importance over the steps of a training, and how it orders the tokens."""
    figure, (above, below) = _figure(2.7, 2, sharex=True)
    steps = [row["step"] for row in rows]
    _middle(above, steps, rows)
    above.set_ylabel("importance")
    for ending, label, colour in (("", "with the loss", _BLUE), ("_last", "with the last importance", _ORANGE)):
        rho, low, high = ([_or_nan(row[f"{key}{ending}"]) for row in rows] for key in ("rho", "low", "high"))
        below.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0)
        below.plot(steps, rho, "o-", color=colour, markersize=3, label=label)
    below.set_ylabel("Spearman ρ")
    below.set_xlabel("optimizer steps")
    below.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    _keyed(below)
    return figure


def agreement(rows: Sequence[Row]) -> Figure:
    """Draw how far the importance of each two runs orders the same tokens alike, and beyond their frequency."""
    figure, (axes,) = _figure(0.75 + 0.3 * len(rows))
    seeds = {row[seed] for row in rows for seed in ("seed", "other_seed")}
    named = {row[name] for row in rows for name in ("run", "other")}
    of_seeds = len(seeds) == len(named)
    for place, (beginning, label, colour) in enumerate(
        (("", "as it is", _BLUE), ("partial_", "given the frequency of the token", _ORANGE))
    ):
        rho, low, high = ([_or_nan(row[f"{beginning}{key}"]) for row in rows] for key in ("rho", "low", "high"))
        at = [each - 0.12 + 0.24 * place for each in range(len(rows))]
        axes.hlines(at, low, high, color=colour, linewidth=1.2)
        axes.plot(rho, at, "oD"[place], color=colour, markersize=4, label=label)
    pairs = [[row["seed"], row["other_seed"]] if of_seeds else [row["run"], row["other"]] for row in rows]
    axes.set_yticks(range(len(rows)), [" – ".join(_printable(str(each), 14) for each in pair) for pair in pairs])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_ylabel("seeds" if of_seeds else "runs")
    figure.supxlabel("Spearman ρ of their importance, with 95 % intervals")
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.grid(axis="x")
    figure.legend(loc="outside upper center", ncols=2)
    return figure


def evaluations(rows: Sequence[Row]) -> Figure:
    """Draw how many texts take how many network evaluations."""
    figure, (axes,) = _figure(1.7)
    axes.bar([row["evaluations"] for row in rows], [row["texts"] for row in rows], color=_BLUE, width=0.8)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    if len(rows) == 1:
        axes.set_xlim(rows[0]["evaluations"] - 4, rows[0]["evaluations"] + 4)
    axes.set_title(f"sampler {_printable(rows[0]['sampler'], 20)}", loc="left")
    axes.set_xlabel("network evaluations of a text")
    axes.set_ylabel("texts")
    axes.grid(axis="y")
    return figure


def context_probe(rows: Sequence[Row]) -> Figure:
    """Draw the scores of the task, each on a scale of its own, with a standard error to either side."""
    names = list(dict.fromkeys((row["score"], row["quantity"]) for row in rows))
    figure, panels = _figure(0.25 + 0.5 * len(names), len(names))
    for axes, (name, quantity) in zip(panels, names, strict=True):
        of = [row for row in rows if row["score"] == name]
        error = [row["stderr"] or 0 for row in of]
        axes.errorbar([row["value"] for row in of], range(len(of)), xerr=error, fmt="o", markersize=4, color=_BLUE)
        axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.set_yticks([])
        axes.set_ylim(-1, len(of))
        axes.set_ylabel(name, rotation=0, ha="right", va="center")
        axes.set_xlabel(quantity)
        axes.grid(axis="x")
        axes.spines["left"].set_visible(False)
    return figure


DRAWN: dict[str, Callable[[Sequence[Row]], Figure]] = {
    **{"rates": rates, "classes": classes, "frequency": frequency, "checkpoints": checkpoints},
    **{"agreement": agreement, "evaluations": evaluations, "context_probe": context_probe},
}


def write(tables: Mapping[str, Sequence[Row]], folder: Path, step: int, *, clear: bool) -> list[Path]:
    """Write the figure of each table as PDF and SVG and its rows as CSV; return the files.

    The figures say of which optimizer step they are, which a report reads. With `clear`, those that an earlier analysis
    has left in the folder, and this one has no rows for, are deleted.
    """
    files: dict[Path, bytes] = {}
    for name, draw in DRAWN.items():
        if name not in tables:
            for ending in (*FORMATS, "csv") if clear else ():
                (folder / f"{name}.{ending}").unlink(missing_ok=True)
            continue
        with mpl.rc_context(STYLE):
            figure = draw(tables[name])
            for form in FORMATS:
                dated, about = ("Date", "Description") if form == "svg" else ("CreationDate", "Subject")
                file, said = io.BytesIO(), {dated: None, about: f"step {step}"}
                figure.savefig(file, format=form, metadata=said, facecolor="white")
                files[folder / f"{name}.{form}"] = file.getvalue()
        files[folder / f"{name}.csv"] = csv_of(tables[name])
    write_all(files)
    return list(files)


def _figure(height: float, rows: int = 1, **how: Any) -> tuple[Figure, Sequence[Axes]]:
    figure = Figure(figsize=(WIDTH, height))
    return figure, figure.subplots(rows, squeeze=False, **how)[:, 0]


def _middle(axes: Axes, at: Sequence[float], rows: Sequence[Row]) -> None:
    """Draw the median of the importance and its middle half."""
    low, high = ([row[key] for row in rows] for key in ("p25", "p75"))
    axes.fill_between(at, low, high, color=_BLUE, alpha=0.2, linewidth=0, label="50 % of the tokens")
    axes.plot(at, [row["median"] for row in rows], "o-", color=_BLUE, markersize=3, label="median")
    _keyed(axes)


def _keyed(axes: Axes) -> None:
    """Draw a grid, and the key above it."""
    axes.grid()
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, borderaxespad=0.1)


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value


def _printable(text: str, longest: int = 10) -> str:
    """Return the beginning of a text with visible spaces and line breaks, and a box for what the font does not have."""
    shown = text.replace(" ", "·").replace("\n", "↵")
    shown = shown if len(shown) <= longest else f"{shown[: longest - 1]}…"
    font = get_font(findfont("DejaVu Sans"))
    return "".join(each if each.isprintable() and font.get_char_index(ord(each)) else "□" for each in shown)
