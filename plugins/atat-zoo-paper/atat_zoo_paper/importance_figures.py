"""Figures for `atat importance-figures`, one column wide: the rows from `importance_tables` as PDF and SVG.

Text from a run appears only in rows and scale domains, because Vega evaluates titles as code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt

from atat_zoo.evaluation.results.format import csv_of
from atat_zoo.reports import PALETTE
from atat_zoo.system.atomic_files import write_all
from atat_zoo_paper.style import Chart, chart, files

Row = dict[str, Any]

COLUMNS, LINES = 22, 2  # tokens per line of the heat map, and lines: more would be illegible
FEW = 20  # number of tokens in a range of frequencies below which quantiles are unreliable
_BLUE, _ORANGE = PALETTE[:2]
_PALE = ("#cce3f0", "#f7dfcc")  # opaque, because the order of transparencies in a PDF varies
_NO_ZERO = alt.Scale(zero=False, nice=False, padding=4)
# Labels for an axis with a single tick, which Vega would round to a whole number.
_EXACT = "+datum.label === datum.value ? datum.label : format(datum.value, '~g')"


def rates(rows: Sequence[Row]) -> Chart:
    """Return a heat map of importance by token and mask rate, for the first tokens of a text."""
    rows = [row | {"token": _printable(row["token"])} for row in rows if row["position"] < COLUMNS * LINES]
    there = [row["importance"] for row in rows if row["importance"] is not None] or [0.0, 1.0]
    every = list(dict.fromkeys(row["rate"] for row in rows))
    height = 7 * len(every)
    label = "importance" if rows[0]["depends_on_rate"] else "importance (same at every mask rate)"
    legend = alt.Legend(title=label, titleOrient="left", gradientLength=70, gradientThickness=5)
    scale, panels = alt.Scale(scheme="blues", domain=[min(there), max(there)]), []
    x = alt.X("at:O", scale=alt.Scale(domain=list(range(COLUMNS))), axis=None)
    y = alt.Y("rate:O", title="mask rate", sort="descending", axis=alt.Axis(values=every[::2], ticks=False))
    for first in range(0, 1 + max(row["position"] for row in rows), COLUMNS):
        line = [row | {"at": row["position"] - first} for row in rows if 0 <= row["position"] - first < COLUMNS]
        of = chart(line, height).encode(x=x)
        empty = of.mark_rect(color="#dddddd", stroke="white", strokeWidth=0.3).encode(y=y)
        filled = of.transform_filter("datum.importance !== null").mark_rect(stroke="white", strokeWidth=0.3)
        names = chart([row for row in line if row["rate"] == every[0]], height).mark_text(
            angle=270, align="right", baseline="middle", fontSize=6
        )
        panel = empty + filled.encode(y=y, color=alt.Color("importance:Q", scale=scale, legend=legend))
        panel += names.encode(x=x, y=alt.value(height + 3), text="token:N")
        panels.append(panel.properties(width=196))
    return alt.vconcat(*panels, spacing=6)


def classes(rows: Sequence[Row]) -> Chart:
    """Return a chart of importance by word class, with the median, the middle 50 % and the middle 90 % of tokens."""
    named = [row | {"name": f"{row['class']} ({row['share']:.0%})"} for row in rows]
    axis = alt.Axis(tickCount=5)
    of = chart(named, alt.Step(16)).encode(y=alt.Y("name:N", sort=None, title=None))
    title = "importance: median, middle 50 % and 90 % of tokens"
    wide = of.mark_rule(color=_BLUE, strokeWidth=0.8).encode(x=alt.X("p05:Q", title=title, axis=axis), x2="p95:Q")
    half = of.mark_rule(color=_BLUE, strokeWidth=5).encode(x="p25:Q", x2="p75:Q")
    return wide + half + of.mark_point(fill="white", stroke=_BLUE, strokeWidth=0.8, size=16).encode(x="median:Q")


def frequency(rows: Sequence[Row]) -> Chart:
    """Return a chart of importance by the token's training frequency, leaving out ranges that have few tokens."""
    rows = [row for row in rows if row["tokens"] >= FEW] or rows
    rows = [row | {"at": max(1.0, (row["least"] * row["most"]) ** 0.5)} for row in rows]
    axis = alt.Axis(format=",", tickCount=5)
    title = "occurrences of the token in training text"
    return _middle(rows, alt.X("at:Q", title=title, scale=alt.Scale(type="log", nice=False), axis=axis), 90)


def checkpoints(rows: Sequence[Row]) -> Chart:
    """Return a chart of importance by step, and of its rank correlations with the loss and the final importance."""
    axis = alt.Axis(format=",d", tickCount=5)
    x = alt.X("step:Q", title="optimizer steps", scale=_NO_ZERO, axis=axis)
    kinds = {"": "with the loss", "_last": "with the final importance"}
    pairs = [
        {"step": row["step"], "kind": kind, **{key: row[f"{key}{ending}"] for key in ("rho", "low", "high")}}
        for ending, kind in kinds.items()
        for row in rows
    ]
    names = list(kinds.values())
    of, pale = chart(pairs, 70).encode(x=x), alt.Scale(domain=names, range=_PALE)
    fill, y = alt.Fill("kind:N", scale=pale, legend=None), alt.Y("low:Q", title="Spearman ρ")
    band = of.mark_area().encode(y=y, y2="high:Q", fill=fill)
    line = of.encode(y="rho:Q", color=_coloured(names))
    below = (band + line.mark_line() + line.mark_point()).properties(width=200)
    above = _middle(rows, alt.X("step:Q", title=None, scale=_NO_ZERO, axis=axis), 60).properties(width=200)
    return alt.vconcat(above, below).resolve_scale(color="independent")


def agreement(rows: Sequence[Row]) -> Chart:
    """Return a chart of the rank correlations of importance between runs, with and without token frequency fixed."""
    seeds = {row[seed] for row in rows for seed in ("seed", "other_seed")}
    of_seeds = len(seeds) == len({row[name] for row in rows for name in ("run", "other")})
    keys, kinds = ("seed", "other_seed") if of_seeds else ("run", "other"), ("as it is", "given the token's frequency")
    pairs = [
        {"pair": " – ".join(_printable(str(row[key]), 14) for key in keys), "kind": kind}
        | {key: row[f"{before}{key}"] for key in ("rho", "low", "high")}
        for row in rows
        for before, kind in zip(("", "partial_"), kinds, strict=True)
    ]
    y = alt.Y("pair:N", sort=None, title="seeds" if of_seeds else "runs")
    of = chart(pairs, alt.Step(9)).encode(y=y, yOffset=alt.YOffset("kind:N", sort=kinds), color=_coloured(kinds))
    x = alt.X("low:Q", title="Spearman ρ of importance, 95 % CI", scale=_NO_ZERO)
    shape = alt.Shape("kind:N", scale=alt.Scale(domain=kinds, range=["circle", "diamond"]))
    return of.mark_rule(strokeWidth=1.2).encode(x=x, x2="high:Q") + of.mark_point().encode(x="rho:Q", shape=shape)


def evaluations(rows: Sequence[Row]) -> Chart:
    """Return a histogram of the NFE per text."""
    counts = [row["evaluations"] for row in rows]
    about = [{"said": f"sampler {_printable(rows[0]['sampler'], 20)}"}]
    domain = [min(counts) - 4, max(counts) + 4] if len(rows) == 1 else [min(counts) - 1, max(counts) + 1]
    x = alt.X("evaluations:Q", title="NFE per text", scale=alt.Scale(domain=domain, nice=False))
    y = alt.Y("texts:Q", title="texts", axis=alt.Axis(tickCount=5, format="d"))
    bars = chart(rows, 80).mark_bar(color=_BLUE, size=max(1, min(12, 150 / (domain[1] - domain[0])))).encode(x=x, y=y)
    name = chart(about, 80).mark_text(align="left", baseline="bottom", fontSize=7)
    return bars + name.encode(x=alt.value(0), y=alt.value(-3), text="said:N")


def context_probe(rows: Sequence[Row]) -> Chart:
    """Return a chart of the scores in the task context_probe with ±1 standard error, each on its own scale."""
    x, panels = alt.X("low:Q", title=None, scale=_NO_ZERO, axis=alt.Axis(labelExpr=_EXACT, tickCount=5)), []
    for name in dict.fromkeys(row["score"] for row in rows):
        of_score = [row | {"n": number, "error": row["stderr"] or 0} for number, row in enumerate(rows)]
        of_score = [row | {"said": row["score"]} for row in of_score if row["score"] == name]
        ends = [row | {"low": row["value"] - row["error"], "high": row["value"] + row["error"]} for row in of_score]
        of = chart(ends, 14).encode(y=alt.Y("said:N", title=None), yOffset="n:N")
        points = of.mark_rule(color=_BLUE).encode(x=x, x2="high:Q")
        points += of.mark_point(color=_BLUE).encode(x="value:Q")
        unit = chart(ends[:1], 14).mark_text(align="right", baseline="top", fontSize=7)
        points += unit.encode(x=alt.value(180), y=alt.value(27), text="quantity:N")
        panels.append(points.properties(width=180))
    return alt.vconcat(*panels)


DRAWN: dict[str, Callable[[Sequence[Row]], Chart]] = {
    **{"rates": rates, "classes": classes, "frequency": frequency, "checkpoints": checkpoints},
    **{"agreement": agreement, "evaluations": evaluations, "context_probe": context_probe},
}


def write(tables: Mapping[str, Sequence[Row]], folder: Path, step: int, *, clear: bool) -> list[Path]:
    """Write each table's figure as PDF and SVG and its rows as CSV, and return the files.

    The description of each SVG is the training step, which the HTML report reads. If `clear` is set, files of figures
    that this analysis lacks are deleted.
    """
    written: dict[Path, bytes] = {}
    for name, draw in DRAWN.items():
        if name in tables:
            made = {**files(draw(tables[name]), f"step {step}"), "csv": csv_of(tables[name])}
            written |= {folder / f"{name}.{ending}": content for ending, content in made.items()}
        elif clear:
            for ending in ("pdf", "svg", "csv"):
                (folder / f"{name}.{ending}").unlink(missing_ok=True)
    write_all(written)
    return list(written)


def _middle(rows: Sequence[Row], x: alt.X, height: float) -> alt.LayerChart:
    """Return a line for the median importance and a band for the middle 50 %."""
    of = chart(rows, height).encode(x=x)
    y = alt.Y("p25:Q", title=["importance:", "median, middle 50 %"], scale=_NO_ZERO)
    band = of.mark_area(color=_PALE[0]).encode(y=y, y2="p75:Q")
    return band + of.mark_line(color=_BLUE, point={"color": _BLUE}).encode(y="median:Q")


def _coloured(kinds: Sequence[str]) -> alt.Color:
    return alt.Color("kind:N", scale=alt.Scale(domain=list(kinds), range=[_BLUE, _ORANGE]))


def _printable(text: str, longest: int = 10) -> str:
    """Return the beginning of a text, with visible spaces and line breaks and a box for each unprintable character."""
    shown = text.replace(" ", "·").replace("\n", "↵")
    shown = shown if len(shown) <= longest else f"{shown[: longest - 1]}…"
    return "".join(each if each.isprintable() else "□" for each in shown)
