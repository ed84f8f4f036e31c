"""Pages of the site for plugins/ and its packages, from their Markdown files."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

PLUGINS = Path(__file__).parents[1] / "plugins"


def write(folder: Path) -> None:
    """Write a page for each Markdown file in plugins/ and in its packages, at the same relative path."""
    shutil.rmtree(folder, ignore_errors=True)
    for source in (PLUGINS / "README.md", *PLUGINS.glob("atat-zoo-*/*.md")):
        page = folder / source.relative_to(PLUGINS)
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(_linked(source), encoding="utf-8")


def _linked(source: Path) -> str:
    """Return the text of a file with the site's paths in links; a link that leaves the site becomes plain text."""

    def kept(link: re.Match[str]) -> str:
        target = link["target"]
        there = re.match("https?:|#", target) or (target.endswith(".md") and (source.parent / target).exists())
        return link[0].replace("(../../docs/", "(../../") if there else link["words"]

    return re.sub(r"\[(?P<words>[^\]]+)\]\((?P<target>[^)]+)\)", kept, source.read_text(encoding="utf-8"))
