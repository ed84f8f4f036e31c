"""The report page: data, charts, styles and scripts in one HTML file; only a live page makes requests, to its server.

Text from a run is data: it is JSON in a script element, and the page's script inserts it as text, never as markup. The
content security policy in the page's head allows no other script and no other request.
"""

import html
from functools import cache
from typing import Any

from atat_zoo.evaluation.results import table as results
from atat_zoo.evaluation.results.table import in_html
from atat_zoo.reports import PALETTE, charts
from atat_zoo.reports.offline_page import alone, asset, fill, inert, policy

Table = dict[str, Any]


def page(data: Table, *, live: str | None = None) -> str:
    """Return the HTML page for the data of `report_data.collect` or `study_data.of_study`.

    `live` is a URL on the same host, from which the page fetches new data every few seconds, or None for a file.
    """
    library = _library()
    script = alone(asset("page.js"))
    given = {"data": data, "charts": charts.specifications(data), "config": charts.CONFIG, "palette": PALETTE}
    parts = {
        "head": _head(data),
        "title": html.escape(f"{data['title']} · atat report").encode("utf-8", "replace").decode(),
        # Vega compiles expressions, hence 'unsafe-eval'; none of them contains text from a run: see `charts`.
        "policy": policy(library, script, more="'unsafe-eval'", connect="'self'" if live else "'none'"),
        "style": asset("page.css"),
        "licences": html.escape(asset("licences.txt")),
        "given": inert({**given, "live": live}),
        "library": library,
        "script": script,
    }
    return fill(asset("page.html"), parts)


def _head(data: Table) -> str:
    """Return the title, verdict and bounds for browsers without JavaScript; the page's script replaces them."""
    said = [f'<h1 dir="auto">{in_html(data["title"])}</h1>']
    said += [f'<p dir="auto">{in_html(each)}</p>' for each in (*data["verdict"], *data["conditions"])]
    blocks = [data["overview"]] if data.get("overview") else data.get("blocks", [])
    said += [results.Table(columns=block["columns"], rows=block["rows"]).to_html() for block in blocks]
    return "\n".join(said)


@cache
def _library() -> str:
    """Return the script with Vega, Vega-Lite and vega-embed, which takes seconds to bundle."""
    import vl_convert

    bundle = vl_convert.javascript_bundle()  # type: ignore[call-arg]  # its stub lacks the default
    script = alone(bundle)
    return f"/* Vega, Vega-Lite, vega-embed and others; see the licence notices at the end of this page. */\n{script}"
