"""The charts: functions that turn the data of `report_data.collect` into Altair charts, which a notebook can show.

The page contains the same charts with separate data (`specifications`); `figures` writes the charts as files. Text from
a run appears only in rows and scale domains, never in titles, because Vega-Lite compiles titles as expressions.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import altair as alt

from atat_zoo.evaluation.results.format import csv_of
from atat_zoo.evaluation.results.quantity_names import PERPLEXITY, POLICY_BOUND
from atat_zoo.reports import PALETTE
from atat_zoo.system.atomic_files import write_all

Table = dict[str, Any]
CLOCKS = {
    "step": "training steps",
    "tokens": "training tokens",
    "seconds": "training time including evaluations, seconds",
}
_FIT = alt.AutoSizeParams(type="fit-x", contains="padding")
_STAGES = ["#a8cbe3", "#4a90c0", "#1c6ea4"]
BINS = 20  # bins of the mask-rate histogram in a line of metrics.jsonl
_HEIGHT, _WIDTH = 240, 640
_SAID = alt.Tooltip("said:N", title="value")
CONFIG: Table = {
    "background": "transparent",
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal",
        "labelColor": "#555", "titleColor": "#555",
        "domain": False, "ticks": False, "labelPadding": 6, "gridColor": "#e6e6e6", "tickCount": 6, "labelFlush": True,
        "labelSeparation": 8,  # otherwise, the last label touches the one before it
    },
    # The title is above the axis, where it is horizontal and not cut off.
    "axisY": {"titleAngle": 0, "titleAlign": "left", "titleBaseline": "bottom", "titleX": 0, "titleY": -10},
    "legend": {"orient": "bottom", "title": None, "labelFontSize": 12, "labelLimit": 240, "columns": 2},
}  # fmt: skip


def loss(data: Table, by: str = "step") -> alt.LayerChart:
    """Return a chart of the training loss, averaged over each logging interval, against steps, tokens or seconds."""
    y = _y("loss:Q", "training loss, nats per token")
    return _curves(data, "curves", y, by, ("loss:Q", ".3f"), clip=True).properties(description="Training loss.")


def bound(data: Table, by: str = "step") -> alt.LayerChart:
    """Return a chart of the held-out bounds during training, ± one standard error."""
    layers = _evaluated(data, "bounds", "bound", f"held-out {PERPLEXITY}, exp(nats per token)", by)
    return layers.properties(description=f"Held-out {PERPLEXITY} of each run.")


def metrics(data: Table) -> alt.LayerChart:
    """Return a chart of the metrics evaluated during training; a page shows one metric at a time."""
    layers = _evaluated(data, "metrics", "metric", "value of the metric, in its own unit", "step")
    return layers.properties(description="Metrics of each run.")


def reliability(data: Table) -> alt.LayerChart:
    """Return a reliability diagram: accuracy of predictions against confidence, and a diagonal where both agree."""
    chart = _chart(data, "reliability").encode(color=_runs(data, "reliability"))
    scale = alt.Scale(domain=[0, 1])
    x = alt.X("confidence:Q", title="confidence: largest probability of a prediction (0 to 1)", scale=scale)
    y = alt.Y("accuracy:Q", title="accuracy (0 to 1)", scale=scale)
    tips = _tips("run:N", *((f"{name}:Q", ".3f") for name in ("confidence", "accuracy", "share")))
    # A bar shows the bin's contribution to the error, without the bin's share, which is the area of its point.
    bars = chart.mark_rule(strokeWidth=2, opacity=0.5).encode(x=x, y=y, y2=alt.Y2("confidence:Q"))
    size = alt.Size("share:Q", scale=alt.Scale(range=[20, 400]), legend=None)
    points = chart.mark_point(filled=True, opacity=0.6).encode(x=x, y=y, size=size, tooltip=tips)
    return (_diagonal() + bars + points).properties(description="Calibration of the predictions.")


def bands(data: Table) -> alt.Chart:
    """Return a chart of the loss's rank correlations with importance, frequency and entropy, by token frequency."""
    axis, title = alt.Axis(labelAngle=0, labelOverlap=True), "times that a token occurs in the training text"
    legend = alt.Legend(symbolFillColor="#888") if _several(data, "bands", "orders by") else None
    chart = _chart(data, "bands").encode(
        x=alt.X("band:N", sort=alt.EncodingSortField("order"), title=title, axis=axis),
        y=alt.Y("rho:Q", title="rank correlation with the loss, Spearman ρ (no unit)"),
        color=_runs(data, "bands"),
        shape=alt.Shape("orders by:N", scale=alt.Scale(range=["circle", "diamond", "cross"]), legend=legend),
        xOffset=alt.XOffset("run:N", sort="ascending"),  # otherwise, Vega-Lite puts the names into an expression
        tooltip=_tips("run:N", "orders by:N", "band:N", ("rho:Q", ".2f"), ("tokens:Q", ",")),
    )
    points = chart.mark_point(size=90, filled=True, opacity=0.9)
    return points.properties(description="Rank correlations with the loss, by token frequency.")


def calibration(data: Table) -> alt.LayerChart:
    """Return a chart of the mean rank of the loss against importance, with a diagonal where both are equal."""
    scale = alt.Scale(domain=[0, 1])
    chart = _chart(data, "bins").encode(
        x=alt.X("importance:Q", title="mean importance of the tokens (0 to 1)", scale=scale),
        y=alt.Y("rank:Q", title="mean rank of the loss within its sequence (0 to 1)", scale=scale),
        color=_runs(data, "bins"),
        tooltip=_tips("run:N", ("importance:Q", ".2f"), ("rank:Q", ".2f"), "tokens:Q"),
    )
    points = chart.mark_point(filled=True, opacity=1).encode(size=_sizes(data))
    return (_diagonal() + chart.mark_line().encode(strokeWidth=_widths(data)) + points).properties(
        description="Calibration of the importance."
    )


def rates(data: Table) -> alt.LayerChart:
    """Return a chart of the fraction of masked tokens at each recorded step (dots), and of its target (line)."""
    chart = _chart(data, "rates").encode(x=_clock("step"), color=_runs(data, "rates"))
    title = "mask rate (0 to 1)"
    aim = chart.encode(y=_y("mask_rate_target:Q", title))
    target = aim.mark_line(strokeWidth=1.5, opacity=0.6) + _lone(aim, shape="stroke")
    tips = _tips("run:N", "step:Q", ("mask_rate:Q", ".3f"), ("mask_rate_target:Q", ".3f"))
    observed = chart.mark_point(filled=True, size=18, opacity=0.9).encode(y=_y("mask_rate:Q", title), tooltip=tips)
    return (target + observed).properties(description="Mask rate and its target.")


def spread(data: Table) -> alt.Chart:
    """Return a histogram of the mask rates sampled in each run."""
    scale = alt.Scale(domain=[i / BINS for i in range(BINS)], paddingInner=0.1, paddingOuter=0)
    axis = alt.Axis(values=[0, 0.2, 0.4, 0.6, 0.8], labelAngle=0, labelAlign="left", bandPosition=0)
    chart = _chart(data, "spread").encode(
        x=alt.X("low:O", title="sampled mask rate of a sequence or block (0 to 1)", scale=scale, axis=axis),
        y=alt.Y("share:Q", title="fraction of the samples (0 to 1)", stack=None),
        color=_runs(data, "spread"),
        xOffset=alt.XOffset("run:N", sort="ascending"),  # as in `bands`
        tooltip=_tips("run:N", ("low:Q", ".2f"), ("high:Q", ".2f"), "drawn:Q"),
    )
    return chart.mark_bar().properties(description="Sampled mask rates.", height=160)


def stages(data: Table) -> alt.Chart:
    """Return a chart of the stages of the curriculum over training steps."""
    order = ["easy", "medium", "hard"]  # other stages follow
    chart = _chart(data, "stages").encode(
        x=alt.X("from:Q", title=CLOCKS["step"]),
        x2=alt.X2("to:Q"),
        y=alt.Y("run:N", title=None, axis=alt.Axis(labelLimit=140)),
        color=alt.Color("stage:N", sort=order, scale=alt.Scale(range=_STAGES), legend=alt.Legend(columns=3)),
        tooltip=_tips("run:N", "stage:N", "from:Q", "to:Q"),
    )
    height = 28 * len(data["runs"])
    return chart.mark_bar(height=16).properties(description="Curriculum stages.", height=height)


def strength(data: Table) -> alt.LayerChart:
    """Return a chart of the curriculum's strength; a token's weight is proportional to exp(strength · importance)."""
    y = alt.Y("curriculum_strength:Q", title="curriculum strength (no unit)")
    layers = _curves(data, "strengths", y, "step", ("curriculum_strength:Q", ".3~f"))
    return layers.properties(description="Curriculum strength.", height=160)


def uncertainty(data: Table) -> alt.LayerChart:
    """Return a chart of the entropy of predictions at masks before each decoding step: median and quartiles."""
    chart = _chart(data, "uncertainty").encode(
        x=alt.X(
            "evaluation:Q",
            title="decoding steps (network evaluations)",
            scale=alt.Scale(zero=False),
            axis=alt.Axis(tickMinStep=1),
        ),
        color=_runs(data, "uncertainty"),
        detail=alt.Detail("sampler:N"),
    )
    title = "entropy at masked tokens, nats"  # the uncertainty in replay.json
    tips = _tips("run:N", "sampler:N", "evaluation:Q", *((f"{q}:Q", ".2f") for q in ("low", "median", "high")))
    low, median = (alt.Y(field, title=title) for field in ("low:Q", "median:Q"))
    half = chart.mark_area(opacity=0.15 if len(data["runs"]) < 3 else 0.05).encode(y=low, y2=alt.Y2("high:Q"))
    middle = chart.mark_line(strokeWidth=1.5).encode(y=median, strokeDash=_dash(data, "uncertainty", "sampler"))
    points = chart.mark_point(size=60, opacity=0).encode(y="median:Q", tooltip=tips)
    return (half + middle + points).properties(description="Entropy during generation.")


def frontier(data: Table) -> alt.LayerChart:
    """Return a chart of each sampler's policy bound on held-out text against its NFE."""
    scale = alt.Scale(type="log", nice=False, padding=20)
    chart = _chart(data, "frontier").encode(
        x=alt.X("evaluations:Q", title="network evaluations per sequence (NFE)", scale=scale),
        y=_y("value:Q", f"{POLICY_BOUND}, exp(nats per token)"),
        color=_runs(data, "frontier"),
    )
    names = ("run:N", "sampler:N", "settings:N", "quantity:N")
    tips = _tips(*names, _SAID, ("evaluations:Q", ".1f"), "sequences:Q")
    points = chart.mark_point(filled=True, opacity=1).encode(tooltip=tips, size=_sizes(data))
    lines = chart.mark_line(strokeWidth=1, opacity=0.4).encode(detail=alt.Detail("sampler:N"))
    # Only these have labels, because labels for all points would overlap.
    order: dict[str, Any] = {"groupby": ["run"], "sort": [alt.SortField("evaluations"), alt.SortField("value")]}
    best = (
        chart.transform_window(least="min(value)", **order)
        .transform_window(before="lag(least)", **order)
        .transform_filter("datum.before === null || datum.value < datum.before")
    )
    labels = best.mark_text(align="left", dx=8, dy=-6, fontSize=11, clip=False).encode(text=alt.Text("sampler:N"))
    return (lines + points + labels).properties(description="Policy bound against network evaluations.")


def arms(data: Table) -> alt.LayerChart:
    """Return a chart of the arms' differences from their baselines: each seed, and the mean with its 95 % CI."""
    sort = alt.EncodingSortField("order")
    y = alt.Y("arm:N", sort=sort, title=None, axis=alt.Axis(labelLimit=200, labelFlush=False))
    title = "difference from the baseline, % of its exp(nats per token) (lower is better)"
    chart = _chart(data, "arms").encode(y=y)
    zero = alt.Chart(alt.InlineData(values=[{"zero": 0}])).mark_rule(color="#999", strokeDash=[4, 4]).encode(x="zero:Q")
    tips = _tips("arm:N", "against:N", alt.Tooltip("said:N", title="difference"), "seeds:N")
    x = alt.X("value:Q", title=title, axis=alt.Axis(grid=True))
    whole = chart.transform_filter("datum.kind == 'mean'").encode(tooltip=tips)
    lines = whole.mark_rule(color=PALETTE[0], strokeWidth=2).encode(x=alt.X("low:Q", title=title), x2=alt.X2("high:Q"))
    dots = whole.mark_point(filled=True, size=90, color=PALETTE[0], opacity=1).encode(x=x)
    seeds = chart.transform_filter("datum.kind == 'seed'").mark_tick(color="#777", size=10, thickness=1.5).encode(x=x)
    height = 34 * len({row["arm"] for row in data["tables"]["arms"]})
    return (zero + seeds + lines + dots).properties(description="Arms of the study.", height=height)


def sensitivity(data: Table) -> alt.LayerChart:
    """Return a chart of an arm's bound at each value of some keys, with 95 % CIs; its own value is highlighted."""
    axis = alt.Axis(labelAngle=0, labelLimit=160, labelFlush=False)
    x = alt.X(
        "point:N", sort=alt.EncodingSortField("order"), title="value of the key (orange: the arm's own)", axis=axis
    )
    chart = _chart(data, "sensitivity")
    tips = _tips("axis:N", "point:N", "bound:N", ("value:Q", ".2f"), ("low:Q", ".2f"), ("high:Q", ".2f"), "seeds:Q")
    tips.append(alt.Tooltip("said:N", title="difference from the arm"))
    y, zero = f"{PERPLEXITY} or bound, exp(nats per token)", alt.Scale(zero=False)
    own = alt.condition("datum.own", alt.value(PALETTE[1]), alt.value(PALETTE[0]))
    whole = chart.encode(x=x, color=own, tooltip=tips)
    line = chart.transform_filter("datum.own").mark_rule(color="#999", strokeDash=[4, 4]).encode(y=_y("value:Q", y))
    bars = whole.mark_rule(strokeWidth=2).encode(y=alt.Y("low:Q", title=y, scale=zero), y2=alt.Y2("high:Q"))
    dots = whole.mark_point(filled=True, size=90, opacity=1).encode(y=_y("value:Q", y))
    return (line + bars + dots).properties(description="Sensitivity to the value of a key.", height=180)


# The table of each chart and the function that draws the chart.
CHARTS: dict[str, tuple[str, Callable[..., alt.Chart | alt.LayerChart]]] = {
    **{"loss": ("curves", loss), "bound": ("bounds", bound)},
    **{"metrics": ("metrics", metrics), "reliability": ("reliability", reliability)},
    **{"bands": ("bands", bands), "calibration": ("bins", calibration)},
    **{"stages": ("stages", stages), "strength": ("strengths", strength)},
    **{"rates": ("rates", rates), "spread": ("spread", spread)},
    **{"uncertainty": ("uncertainty", uncertainty), "frontier": ("frontier", frontier), "arms": ("arms", arms)},
    **{"sensitivity": ("sensitivity", sensitivity)},
}


def specifications(data: Table) -> dict[str, Table]:
    """Return the Vega-Lite charts of a page without data: for each, its table's name and a specification per x-axis."""
    # The height of the chart of arms grows with their number.
    arms = [{"arm": row["arm"]} for row in data["tables"]["arms"]]
    bare = {**data, "tables": {key: [] for key in data["tables"]} | {"arms": arms}, "legend": False}
    page_charts = {}
    for name, (table, make) in CHARTS.items():
        charts = {by: make(bare, by) for by in CLOCKS} if name in ("loss", "bound") else {"": make(bare)}
        whole = {by: chart.properties(width="container", autosize=_FIT) for by, chart in charts.items()}
        specs = {by: _bare(chart.to_dict(validate=False)) for by, chart in whole.items()}
        page_charts[name] = {"table": table, "specs": specs}
    return page_charts


def figures(data: Table, folder: Path) -> list[Path]:
    """Write each non-empty chart as SVG and PNG, and its data as CSV; return the paths of the files."""
    import vl_convert

    files: dict[Path, bytes] = {}
    for name, (table, make) in CHARTS.items():
        whole = data["tables"][table]
        for panel in dict.fromkeys(row.get("panel") for row in whole):
            rows = [row for row in whole if row.get("panel") == panel]
            of_panel = {**data, "tables": {**data["tables"], table: rows}}
            chart = make(of_panel).properties(width=_WIDTH).configure(**{**CONFIG, "background": "white"})
            path = folder / (name if panel is None else f"{name}-{panel + 1}")
            spec = chart.to_dict(validate=False)
            files[path.with_suffix(".svg")] = vl_convert.vegalite_to_svg(spec).encode()
            files[path.with_suffix(".png")] = vl_convert.vegalite_to_png(spec, scale=2)
            files[path.with_suffix(".csv")] = csv_of(rows)
    write_all(files)
    return list(files)


def _bare(spec: Any) -> Any:
    """Return a specification without the rows of its named data sets."""
    if isinstance(spec, dict):
        return {key: _bare(value) for key, value in spec.items() if not (key == "values" and "name" in spec)}
    return [_bare(each) for each in spec] if isinstance(spec, list) else spec


def _chart(data: Table, table: str) -> alt.Chart:
    return alt.Chart(alt.InlineData(values=data["tables"][table], name=table)).properties(height=_HEIGHT)


def _curves(data: Table, table: str, y: alt.Y, by: str, tip: tuple[str, str], **line: Any) -> alt.LayerChart:
    """Return the curve of a value that is recorded at each step, with invisible points for tooltips."""
    chart = _chart(data, table).encode(x=_clock(by), y=y, color=_runs(data, table))
    hover = chart.mark_point(size=80, opacity=0).encode(tooltip=_tips("run:N", (f"{by}:Q", ",.0f"), tip))
    return chart.mark_line(**line).encode(strokeWidth=_widths(data)) + _lone(chart) + hover


def _evaluated(data: Table, table: str, of: str, title: str, by: str) -> alt.LayerChart:
    """Return the curve of a value evaluated during training, with ± one standard error."""
    chart, y = _chart(data, table).encode(x=_clock(by), color=_runs(data, table)), _y("value:Q", title)
    tips = _tips("run:N", f"{of}:N", _SAID, (f"{by}:Q", ",.0f"))
    points = chart.mark_point(filled=True, opacity=1).encode(y=y, tooltip=tips, size=_sizes(data))
    bars = chart.mark_rule().encode(y=y, y2=alt.Y2("high:Q")).transform_calculate(value="datum.low")
    line = chart.mark_line().encode(y=y, strokeDash=_dash(data, table, of), strokeWidth=_widths(data))
    return line + bars + points


def _clock(by: str) -> alt.X:
    axis = alt.Axis(format="~s" if by == "tokens" else ",d", tickMinStep=1)
    return alt.X(f"{by}:Q", title=CLOCKS[by], scale=alt.Scale(zero=True), axis=axis)


def _y(field: str, title: str) -> alt.Y:
    # If a curve is constant, the label of its only tick would be rounded to an integer.
    label = "+datum.label === datum.value ? datum.label : format(datum.value, '~g')"
    return alt.Y(field, title=title, scale=alt.Scale(zero=False), axis=alt.Axis(labelExpr=label))


def _diagonal() -> alt.Chart:
    """Return the diagonal, on which two fractions are equal."""
    scale, ends = alt.Scale(domain=[0, 1]), alt.InlineData(values=[{"a": 0, "b": 0}, {"a": 1, "b": 1}])
    line = alt.Chart(ends).mark_line(strokeDash=[4, 4], color="#999", strokeWidth=1)
    return line.encode(x=alt.X("a:Q", scale=scale), y=alt.Y("b:Q", scale=scale))


def _runs(data: Table, table: str) -> alt.Color:
    """Return the colours of the runs, which stay the same when runs are hidden; the legend lists runs with data."""
    legend = data.get("legend", len(data["runs"]) > 1)
    there = {row["run"] for row in data["tables"][table]}
    colours = {run["name"]: PALETTE[i % len(PALETTE)] for i, run in enumerate(data["runs"])}
    domain = [name for name in colours if name in there or not legend]
    scale = alt.Scale(domain=domain, range=[colours[name] for name in domain])
    return alt.Color("run:N", scale=scale, legend=alt.Legend() if legend else None)


# A later run is drawn over earlier runs, whose wider lines and larger points therefore stay visible. A single
# run gets a constant, because Vega interpolates a range of one number to NaN and draws no point.
def _widths(data: Table) -> alt.StrokeWidth | alt.StrokeWidthValue:
    if len(data["runs"]) == 1:
        return alt.StrokeWidthValue(1.5)
    return alt.StrokeWidth("run:O", scale=_falling(data, 1.5), legend=None)


def _sizes(data: Table) -> alt.Size | alt.SizeValue:
    if len(data["runs"]) == 1:
        return alt.SizeValue(60)
    return alt.Size("run:O", scale=_falling(data, 60), legend=None)


def _falling(data: Table, last: float) -> alt.Scale:
    """Return a number for each run, falling from at most four times `last` for the first run to `last` for the last."""
    names = [run["name"] for run in data["runs"]]
    before = range(len(names) - 1, -1, -1)
    return alt.Scale(domain=names, range=[last * (1 + i * min(1, 3 / max(1, len(names) - 1))) for i in before])


def _dash(data: Table, table: str, field: str) -> alt.StrokeDash:
    legend = alt.Legend(symbolType="stroke", symbolSize=400, symbolStrokeColor="#888")
    return alt.StrokeDash(f"{field}:N", legend=legend if _several(data, table, field) else None)


def _several(data: Table, table: str, field: str) -> bool:
    """Return whether a legend has several entries; on a page, the script decides this once it has the data."""
    return not data.get("legend", True) or len({row[field] for row in data["tables"][table]}) > 1


def _lone(chart: alt.Chart, shape: str = "circle") -> alt.Chart:
    """Return a point for each run with a single row, because a curve with one point is invisible."""
    counted = chart.transform_joinaggregate(lines="count()", groupby=["run"]).transform_filter("datum.lines === 1")
    return counted.mark_point(filled=shape == "circle", size=60, opacity=1, shape=shape, aria=False)


def _tips(*fields: str | tuple[str, str] | alt.Tooltip) -> list[alt.Tooltip]:
    """Return the tooltip of a row: its fields, some of them with a format."""

    def tip(field: str | tuple[str, str] | alt.Tooltip) -> alt.Tooltip:
        if isinstance(field, tuple):
            return alt.Tooltip(field[0], format=field[1])
        return alt.Tooltip(field) if isinstance(field, str) else field  # Altair is slow with a plain string

    return list(map(tip, fields))
