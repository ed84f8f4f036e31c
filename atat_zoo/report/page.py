"""The page: data, charts, styles and scripts in one HTML file that asks the network for nothing.

What a run has written is data and nothing else: it stands in a script element of JSON, and the page's script puts it on
the page as text. The policy in the page's head lets no other script run, and nothing be fetched.
"""

import base64
import hashlib
import html
import json
import re
from functools import cache
from importlib.resources import files
from typing import Any

from atat_zoo.report import charts

Table = dict[str, Any]
_SELF, _NOTHING = "'self'", "'none'"


def page(data: Table, *, live: str | None = None) -> str:
    """Return the page of the data of `collect` or `of_study`.

    `live` is an address on the same host from which the page fetches new data every few seconds; None for a file.
    """
    library = _library()
    script = _alone(_asset("page.js"))
    given = {"data": data, "charts": charts.specifications(data), "config": charts.CONFIG, "palette": charts.PALETTE}
    hashes = " ".join(_hash(each) for each in (library, script))
    parts = {
        "head": _head(data),
        "title": html.escape(f"{data['title']} · atat report").encode("utf-8", "replace").decode(),
        # Vega compiles expressions, hence 'unsafe-eval'; what a run has written is in none: see `charts`.
        "policy": f"default-src 'none'; script-src {hashes} 'unsafe-eval'; style-src 'unsafe-inline'; img-src data:; "
        f"connect-src {_SELF if live else _NOTHING}; base-uri 'none'; form-action 'none'",
        "style": _asset("page.css"),
        "licences": html.escape(_asset("licences.txt")),
        "given": inert({**given, "live": live}),
        "library": library,
        "script": script,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _asset("page.html"))


def _head(data: Table) -> str:
    """Return what is read without JavaScript, which puts its own in this place: the title, the verdict, the bounds."""

    def words(text: str) -> str:
        return re.sub("`(.*?)`", r"<code>\1</code>", html.escape(text.encode("utf-8", "replace").decode()))

    said = [
        f'<h1 dir="auto">{words(data["title"])}</h1>',
        *(f'<p dir="auto">{words(each)}</p>' for each in data["verdict"]),
    ]
    for block in [data["overview"]] if data.get("overview") else data.get("blocks", []):
        rows = [("th", block["columns"]), *(("td", row) for row in block["rows"])]
        cells = ("".join(f"<{tag}>{words(each)}</{tag}>" for each in row) for tag, row in rows)
        said.append(f'<div class="scroll"><table>{"".join(f"<tr>{row}</tr>" for row in cells)}</table></div>')
    return "\n".join(said)


@cache
def _library() -> str:
    """Return Vega, Vega-Lite and vega-embed; bundling them takes seconds."""
    import vl_convert

    bundle = vl_convert.javascript_bundle()  # type: ignore[call-arg]  # its stub lacks the default
    return f"/* Vega, Vega-Lite, vega-embed and others, with the notices at the end of this page. */\n{_alone(bundle)}"


def inert(value: Any) -> str:
    """Return JSON in which nothing can end a script element or begin a comment."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for mark in "<>&\u2028\u2029":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text.encode("utf-8", "replace").decode()  # JSON can have half of a pair of surrogates, UTF-8 cannot


def _asset(name: str) -> str:
    return files("atat_zoo.report").joinpath(name).read_text(encoding="utf-8")


def _alone(script: str) -> str:
    """Return a script whose names are its own: the library has short ones of every kind."""
    return f"(() => {{\n{script}\n}})();"


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
