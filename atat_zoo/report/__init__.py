"""The report: run folders or a study to one self-contained HTML page that people look at, keep and share.

`collect` and `studies` read what is recorded, without torch; `charts` has a function for each chart, data → Vega-Lite;
`page` puts both into a page. Every number is one that a command printed or recorded; nothing is computed anew.
"""

from __future__ import annotations

from importlib.util import find_spec

from atat_zoo.errors import UserError

PAGE = ("altair", "vl_convert")  # the packages of a page


def require(command: str, *packages: str) -> None:
    """Raise a `UserError` if a package that a command needs is not installed."""
    for package in packages:
        if find_spec(package) is None:
            raise UserError(f"{command} needs the package {package}; install it with `pip install 'atat-zoo[report]'`")
