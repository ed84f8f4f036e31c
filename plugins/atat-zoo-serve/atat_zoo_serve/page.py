"""The page on which a text unmasks; it asks nothing of any network but its own server."""

from __future__ import annotations

import html
from typing import Any

from atat_zoo.reports.offline import alone, asset, fill, inert, policy

_HERE = "atat_zoo_serve"


def page(name: str, about: dict[str, Any], *, keyed: bool) -> tuple[str, str]:
    """Return the page of a model, of which it says what is `about` it, and its content security policy."""
    script = alone(asset("page.js", _HERE))
    allowed = policy(script, connect="'self'")
    parts = {
        "policy": allowed,
        "name": html.escape(name.encode("utf-8", "replace").decode()),
        "style": asset("page.css") + asset("page.css", _HERE),
        "given": inert({"about": about, "keyed": keyed}),
        "script": script,
    }
    return fill(asset("page.html", _HERE), parts), f"{allowed}; frame-ancestors 'none'"
