"""The site, which `make docs` builds offline from these pages and from the code; warnings are errors."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

if TYPE_CHECKING:
    from sphinx.application import Sphinx

os.environ["ATAT_ZOO_PLUGINS"] = ""  # so that every machine builds the same pages, whatever is installed
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

# The path above leads to all of them.
import packages  # noqa: E402
import reference  # noqa: E402

import atat_zoo  # noqa: E402

project = "atat_zoo"
author = "the authors of atat_zoo"
version = release = atat_zoo.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
nitpicky = True
suppress_warnings = ["misc.highlighting_failure"]  # the output of a command is not shell code
nitpick_ignore = [("py:exc", "SkipTest")]

html_theme = "furo"
html_title = f"atat_zoo {version}"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_show_sourcelink = html_copy_source = False
html_show_copyright = False
html_math_renderer = "mathml"
pygments_style, pygments_dark_style = "friendly", "github-dark"

myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
myst_dmath_allow_digits = False  # $3 is a price

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings state shapes and units
autodoc_preserve_defaults = True
napoleon_use_ivar, napoleon_attr_annotations, napoleon_use_rtype = True, False, False
default_role = "literal"
copybutton_prompt_text, copybutton_prompt_is_regexp = r"\$ ", True


def _as_rest(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Convert a docstring to reStructuredText: indented lines after a blank one are literal; |M| and x* are text."""
    if what in ("property", "attribute"):
        lines.insert(0, "\\ ")  # empty; otherwise "m: always V" would be read as a type with its description
    made: list[str] = []
    literal = False
    for line in lines:
        indented = line.startswith("    ")
        if indented and len(made) > 1 and not made[-1] and not made[-2].startswith("    "):
            literal, made = True, [*made, "::", ""]
        literal = literal and (indented or not line)
        if not literal:
            pieces = re.split(r"(`+[^`]*`+)", line)
            pieces[::2] = [re.sub(r"([*|]|(?<=\w)_(?!\w))", r"\\\1", piece) for piece in pieces[::2]]
            line = "".join(pieces)
        made.append(line)
    lines[:] = made


def _inside(app: Sphinx, name: str, source: list[str]) -> None:
    """Redirect links to plugins/ to the pages that `packages` writes into the site."""
    if not name.startswith("plugins/"):
        source[0] = re.sub(r"\]\(\.\./((?:\.\./)*plugins/)", r"](\1", source[0])


def _formula(translator: Any, node: nodes.math | nodes.math_block) -> None:
    """Write a formula as MathML, which browsers display without a script or a font."""
    block = isinstance(node, nodes.math_block)
    formula = tex2mathml(node.astext(), as_block=block)
    translator.body.append(f'<div class="formula">{formula}</div>' if block else formula)
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Register what the build needs for the reference, the pages of the packages, formulas and docstrings."""
    app.add_html_math_renderer("mathml", (_formula, None), (_formula, None))
    app.connect("source-read", _inside)
    app.connect("autodoc-process-docstring", _as_rest, priority=400)  # before napoleon reads the sections
    app.connect("builder-inited", lambda app: reference.write(Path(app.srcdir) / "reference"))
    app.connect("builder-inited", lambda app: packages.write(Path(app.srcdir) / "plugins"))
