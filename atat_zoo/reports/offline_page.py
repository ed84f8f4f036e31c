"""Helpers for a page without network requests: templates, inert data, and scripts that are allowed by their hash."""

import base64
import hashlib
import json
import re
from importlib.resources import files
from typing import Any


def fill(template: str, parts: dict[str, str]) -> str:
    """Return `template` with `parts[name]` in place of each `{{name}}`; placeholders inside a part are kept."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template)


def asset(name: str, package: str = "atat_zoo.reports") -> str:
    """Return the text of a file in a package."""
    return files(package).joinpath(name).read_text(encoding="utf-8")


def inert(value: Any) -> str:
    """Return a value as JSON that can neither end a script element nor begin a comment."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for mark in "<>&\u2028\u2029":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text.encode("utf-8", "replace").decode()  # JSON can contain half of a surrogate pair, but UTF-8 cannot


def alone(script: str) -> str:
    """Return a script in a function scope, so that short global names of two minified libraries do not clash."""
    return f"(() => {{\n{script}\n}})();"


def policy(*scripts: str, more: str = "", connect: str = "'none'") -> str:
    """Return a content security policy with only these scripts, the script sources `more` and requests to `connect`."""
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join([*(f"'sha256-{digest}'" for digest in hashes), *filter(None, [more])])
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    )
