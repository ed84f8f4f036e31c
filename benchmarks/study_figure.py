"""Draw committed studies, in docs/studies: how far arms are from their baseline, and what ATAT's numbers are worth."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from atat_zoo.studies.differences import shown

DOCS = Path(__file__).parents[1] / "docs"
FIGURE, SENSITIVITY = DOCS / "studies" / "arms.svg", DOCS / "studies" / "sensitivity.svg"
# The rows of a table of docs/study-of-masks.md: words, arm.
ROW = re.compile(r"^\| ([^|]+?) \| `(\w+)` \|", re.MULTILINE)
# What it is, its colour, and its place in a row: one seed and its bootstrap over sequences, pale; several seeds and
# their interval for other seeds and sequences, dark.
STUDIES = {
    "screen": ("one seed, 95 % over sequences", "#9db2c8", 0.2),
    "confirm": ("three seeds, 95 % over seeds and sequences", "#123a63", 0.0),
    "system": ("three seeds, all parts together", "#b5651d", -0.2),
}
PROMISED = -10


def labels() -> dict[str, str]:
    """Return the words for each arm, from the tables of docs/study-of-masks.md."""
    rows = ROW.findall((DOCS / "study-of-masks.md").read_text(encoding="utf-8"))
    return {arm: label for label, arm in reversed(rows)}  # the first of an arm: further down it has other settings


def reports() -> dict[str, Any]:
    """Return the committed results."""
    return {name: json.loads((DOCS / "studies" / f"{name}.json").read_text(encoding="utf-8")) for name in STUDIES}


def digest() -> str:
    """Return the SHA-256 of what the figure is drawn from, which it names."""
    return hashlib.sha256(json.dumps([labels(), reports()], sort_keys=True).encode()).hexdigest()


def of_sensitivity() -> str:
    """Return the SHA-256 of the results that the panels are drawn from."""
    return hashlib.sha256(SENSITIVITY.with_suffix(".json").read_bytes()).hexdigest()


def points(report: dict[str, Any]) -> dict[str, tuple[float, float, float]]:
    """Return the percent and the interval of each arm whose uniform bound is compared with the baseline's."""
    found = {}
    for each in report["comparisons"]:
        # Arms with another likelihood, and those without counts, are in the table; here they would press all else flat.
        if each["against"] == report["baseline"] and each["bound"] == "perplexity":
            change = shown(each)
            if abs(change["percent"]) < 2 * -PROMISED and report["arms"][each["arm"]]["method"] == "exact_k":
                found[each["arm"]] = tuple(change[key] for key in ("percent", "percent_low", "percent_high"))
    return found


def main() -> None:
    """Write the figures. They need matplotlib: pip install -e plugins/atat-zoo-paper."""
    import matplotlib as mpl
    from matplotlib import pyplot

    mpl.use("svg")
    # The same input gives the same file; text stays text.
    mpl.rcParams.update({"svg.hashsalt": "atat_zoo", "svg.fonttype": "none", "font.family": "sans-serif"})
    words, drawn = labels(), {name: points(report) for name, report in reports().items()}
    arms = {arm: found for name in STUDIES for arm, found in drawn[name].items()}
    rows = sorted(arms, key=lambda arm: arms[arm][0], reverse=True)
    figure, axes = pyplot.subplots(figsize=(7.6, 0.28 * len(rows) + 1.1), layout="constrained")
    for name, (label, color, below) in STUDIES.items():
        at = [rows.index(arm) + below for arm in drawn[name]]
        value, low, high = zip(*drawn[name].values(), strict=True)
        error = [[v - a for v, a in zip(value, low, strict=True)], [b - v for v, b in zip(value, high, strict=True)]]
        axes.errorbar(value, at, xerr=error, fmt="o", ms=4, lw=1.4, capsize=2, color=color, label=label)
    axes.axvline(0, color="black", lw=0.8)
    axes.axvline(PROMISED, color="#b03a2e", lw=0.8, ls="--", label="promised by the source documents")
    axes.set_yticks(range(len(rows)), [words.get(arm, arm) for arm in rows])
    axes.set_xlabel("perplexity against MDLM, %")
    axes.grid(axis="x", lw=0.3)
    axes.legend(fontsize="small", loc="lower left")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(FIGURE, metadata={"Date": None, "Description": digest()}, transparent=False)
    print(FIGURE)
    panels()


def panels() -> None:
    """Write what the numbers of the ATAT report are worth, a panel for each, as `atat paper` draws it."""
    from atat_zoo_paper import figures
    from atat_zoo_paper.manifest import FigureSpec
    from atat_zoo_paper.studies import KnownStudy

    from atat_zoo.studies import study_file

    name = SENSITIVITY.stem
    report = json.loads(SENSITIVITY.with_suffix(".json").read_text(encoding="utf-8"))
    known = KnownStudy(study=study_file.load(Path(name)), report=report, command="")
    spec = FigureSpec(kind="sensitivity", label=name, caption="", study=name)
    drawn = dict(figures.draw(spec, known, figures.points(spec, known)))[SENSITIVITY.name].decode()
    SENSITIVITY.write_text(f"{drawn.rstrip()}\n<!-- {of_sensitivity()} -->\n", encoding="utf-8")
    print(SENSITIVITY)
