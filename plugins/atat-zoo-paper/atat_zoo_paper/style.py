"""Style for a paper's figures: the width of one column, readable text and a white background.

Colours come from the report's `PALETTE`. Identical rows produce identical SVG, but the order of fonts in a PDF may
differ if a text needs several.
"""

import re
from typing import Any

import altair as alt

Chart = alt.Chart | alt.LayerChart | alt.VConcatChart | alt.ConcatChart
WIDTH = 238  # points, 3.3 inches: a column of a paper with two
_ONE = alt.AutoSizeParams(type="fit-x", contains="padding")
CONFIG: Any = {
    "background": "white",
    "font": "sans-serif",
    "padding": 2,
    "view": {"stroke": None},
    "axis": {
        "labelFontSize": 6.5, "titleFontSize": 7, "titleFontWeight": "normal", "labelColor": "black",
        "titleColor": "black", "titlePadding": 3, "labelPadding": 2, "tickSize": 2.5, "tickWidth": 0.6,
        "domainWidth": 0.6, "domainColor": "black", "tickColor": "black", "gridWidth": 0.3, "gridColor": "#cccccc",
        "labelLimit": 90, "titleLimit": 220,
    },
    "legend": {
        "orient": "top", "title": None, "labelFontSize": 6.5, "titleFontSize": 7, "titleFontWeight": "normal",
        "symbolSize": 20, "rowPadding": 1, "columnPadding": 6, "padding": 0, "offset": 3, "labelLimit": 160,
    },
    "title": {"fontSize": 7, "fontWeight": "normal", "offset": 3},
    "line": {"strokeWidth": 1.2},
    "point": {"filled": True, "size": 14, "opacity": 1},
    "concat": {"spacing": 8},
}  # fmt: skip


def chart(rows: Any, height: float | alt.Step = 110) -> alt.Chart:
    """Return an Altair chart of `height` pixels with the rows as its inline data."""
    return alt.Chart(alt.InlineData(values=list(rows))).properties(height=height)


def files(drawn: Chart, said: str = "", width: int = WIDTH) -> dict[str, bytes]:
    """Return a dict from file extension to a figure's content, as PDF and SVG; `said` becomes the SVG's description."""
    import vl_convert

    if not isinstance(drawn, alt.VConcatChart | alt.ConcatChart):
        drawn = drawn.properties(width=width - 4, autosize=_ONE)
    spec = drawn.configure(**CONFIG).to_dict(validate=False)
    svg: str = vl_convert.vegalite_to_svg(spec)
    names: dict[str, str] = {}  # Vega counts gradients and clips over all figures of a process
    svg = re.sub(r"\b(gradient_|clip)\d+", lambda found: names.setdefault(found[0], f"{found[1]}{len(names)}"), svg)
    svg = svg.replace(">", f"><desc>{said}</desc>", 1) if said else svg
    return {"pdf": vl_convert.svg_to_pdf(svg), "svg": svg.encode()}
