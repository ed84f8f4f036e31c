"""Draw the committed studies in docs/studies: differences of arms from the baseline, and sensitivity to settings."""

from __future__ import annotations

import hashlib
import json
import math
import re
from pathlib import Path
from typing import Any

from atat_zoo.studies.differences import shown
from benchmarks import streams

DOCS = Path(__file__).parents[1] / "docs"
NAMES = ("arms", "sensitivity", "speed", "positions")
FIGURE, SENSITIVITY, SPEED, POSITIONS = (DOCS / "studies" / f"{name}.svg" for name in NAMES)
# Rows in tables of the study of masks and its screen: label, arm.
ROW = re.compile(r"^\| ([^|]+?) \| `(\w+)` \|", re.MULTILINE)
# Kind of result and its colour: pale for one seed with its bootstrap over sequences, dark for several seeds with their
# interval over seeds and sequences.
STUDIES = {
    "screen": ("one seed, 95 % CI over sequences", "#9db2c8"),
    "confirm": ("three seeds, 95 % CI over seeds and sequences", "#123a63"),
    "system": ("three seeds, all components together", "#b5651d"),
}
PROMISED = -10
# The arms of the study of streams, by what they were trained on.
TRAININGS = {
    "a model for each number of streams": ("autoregressive", "two_whole", "four_whole", "eight_whole"),
    "the same, with prompts and gaps": ("one", "eight"),
}


def labels() -> dict[str, str]:
    """Return a label for each arm, from the tables of the study of masks and its screen."""
    pages = (DOCS / "results" / f"study-{name}.md" for name in ("of-masks", "screen"))
    rows = [row for page in pages for row in ROW.findall(page.read_text(encoding="utf-8"))]
    return {arm: label for label, arm in reversed(rows)}  # the first row of an arm; later ones have different settings


def reports() -> dict[str, Any]:
    """Return the committed results."""
    return {name: json.loads((DOCS / "studies" / f"{name}.json").read_text(encoding="utf-8")) for name in STUDIES}


def digest() -> str:
    """Return the SHA-256 of the results that the figure shows; the figure contains it."""
    return hashlib.sha256(json.dumps([labels(), reports()], sort_keys=True).encode()).hexdigest()


def of_sensitivity() -> str:
    """Return the SHA-256 of the results that the panels show."""
    return hashlib.sha256(SENSITIVITY.with_suffix(".json").read_bytes()).hexdigest()


def points(report: dict[str, Any]) -> dict[str, tuple[float, float, float]]:
    """Return the percentage difference and interval of each arm whose uniform bound is compared with the baseline's."""
    found = {}
    for each in report["comparisons"]:
        # Arms with a different likelihood or without n-gram prior are only in the table; they would dominate the scale.
        if each["against"] == report["baseline"] and each["bound"] == "perplexity":
            change = shown(each)
            if abs(change["percent"]) < 2 * -PROMISED and report["arms"][each["arm"]]["method"] == "exact_k":
                found[each["arm"]] = tuple(change[key] for key in ("percent", "percent_low", "percent_high"))
    return found


def by_steps() -> list[dict[str, Any]]:
    """Return the perplexity in percent above the autoregressive model's, by training and number of decoding steps."""
    report = json.loads((DOCS / "studies" / f"{streams.FITTED}.json").read_text(encoding="utf-8"))
    excess = {each["arm"]: shown(each)["percent"] for each in report["comparisons"]} | {streams.BASE: 0.0}
    rows = [
        {"of": of, "steps": streams.LENGTH // ({streams.BASE: 1} | streams.STREAMS)[arm], "percent": excess[arm]}
        for of, arms in TRAININGS.items()
        for arm in arms
    ]
    found = json.loads(streams.RESULT.read_text(encoding="utf-8"))
    plain = found["one_model"][0]["perplexities"][1]
    for each in found["one_model"]:
        steps, percent = streams.LENGTH // each["streams"], 100 * (each["perplexities"][0] / plain - 1)
        rows.append({"of": "one model for all of them", "steps": steps, "percent": percent})
    for steps, nats in found["masked"].items():
        percent = 100 * ((1 + excess[streams.MASKED] / 100) * math.exp(nats) - 1)
        rows.append({"of": "masked diffusion (MDLM), random order", "steps": int(steps), "percent": percent})
    for each in found["speculative"]:
        row = {"of": "speculative decoding, one and two streams", "steps": each["passes"]}
        rows.append(row | {"percent": each["percent"]})
    return [*rows, {"of": "block diffusion, blocks of 8", "steps": streams.LENGTH, "percent": excess["block"]}]


def by_position() -> list[dict[str, Any]]:
    """Return the nats per token above the autoregressive model's, by number of streams and position in the text."""
    found = json.loads(streams.RESULT.read_text(encoding="utf-8"))["positions"]
    return [
        {"of": f"{streams.STREAMS[arm]} streams", "position": streams.BIN * number + streams.BIN / 2, "nats": nats}
        for arm in streams.AT_POSITIONS
        for number, nats in enumerate(found[arm]["curve"])
    ]


def digest_of(rows: list[dict[str, Any]]) -> str:
    """Return the SHA-256 of the results that a curve shows."""
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def main() -> None:
    """Write the figures in the style of the papers. This needs `pip install -e plugins/atat-zoo-paper`."""
    import altair as alt
    from atat_zoo_paper.style import chart, files

    words, drawn = labels(), {name: points(report) for name, report in reports().items()}
    ends = ("percent", "low", "high")
    rows = [
        {"arm": words.get(arm, arm), "of": STUDIES[name][0], **dict(zip(ends, found, strict=True))}
        for name in STUDIES
        for arm, found in drawn[name].items()
    ]
    of, colours = [each[0] for each in STUDIES.values()], [each[1] for each in STUDIES.values()]
    arms = list(dict.fromkeys(row["arm"] for row in sorted(rows, key=lambda row: row["percent"])))
    color = alt.Color("of:N", scale=alt.Scale(domain=of, range=colours), legend=alt.Legend(columns=1, labelLimit=300))
    y = alt.Y("arm:N", sort=arms, title=None, axis=alt.Axis(grid=False, labelLimit=240))
    points_of = chart(rows, alt.Step(4)).encode(y=y, yOffset=alt.YOffset("of:N", sort=of), color=color)
    x = alt.X("low:Q", title="perplexity (any-order ELBO) relative to MDLM, %; dashed: promised")
    bars = points_of.mark_rule(strokeWidth=1.2).encode(x=x, x2="high:Q")
    zero, promised = chart([{"x": 0}], alt.Step(4)), chart([{"x": PROMISED}], alt.Step(4))
    lines = zero.mark_rule().encode(x="x:Q") + promised.mark_rule(color="#b03a2e", strokeDash=[3, 2]).encode(x="x:Q")
    figure = lines + bars + points_of.mark_point().encode(x="percent:Q")
    FIGURE.write_bytes(files(figure, digest(), width=547)["svg"])
    print(FIGURE)
    panels()
    ticks = alt.Axis(values=[64, 128, 256, 512])
    scale = alt.Scale(type="log", base=2, domain=[56, 584])
    x = alt.X(
        "steps:Q",
        title="decoding steps for 512 tokens; speculative: forward passes",
        axis=ticks,
        scale=scale,
    )
    color = alt.Color("of:N", sort=None, legend=alt.Legend(columns=1, labelLimit=300))
    y = alt.Y("percent:Q", title="perplexity relative to the autoregressive model, %")
    curves = chart(by_steps(), 200).encode(x=x, y=y, color=color)
    SPEED.write_bytes(files(curves.mark_line() + curves.mark_point(), digest_of(by_steps()), width=420)["svg"])
    print(SPEED)
    x = alt.X("position:Q", title="position in the text", axis=alt.Axis(values=[*range(0, 513, 64)]))
    y = alt.Y("nats:Q", title="nats per token")
    named = {row["of"]: [each for each in by_position() if each["of"] == row["of"]] for row in by_position()}
    panels_of = [chart(rows, 60).properties(width=380, title=of).encode(x=x, y=y) for of, rows in named.items()]
    curves = alt.vconcat(*(each.mark_line() for each in panels_of))
    POSITIONS.write_bytes(files(curves, digest_of(by_position()))["svg"])
    print(POSITIONS)


def panels() -> None:
    """Write a panel for each setting of the ATAT report with the sensitivity to it, as `atat paper` draws it."""
    from atat_zoo_paper import figures
    from atat_zoo_paper.paper_file import FigureSpec
    from atat_zoo_paper.paper_studies import KnownStudy

    from atat_zoo.studies import study_file

    name = SENSITIVITY.stem
    report = json.loads(SENSITIVITY.with_suffix(".json").read_text(encoding="utf-8"))
    known = KnownStudy(study=study_file.load(Path(name)), report=report, command="")
    spec = FigureSpec(kind="sensitivity", label=name, caption="", study=name)
    drawn = dict(figures.draw(spec, known, figures.points(spec, known)))[SENSITIVITY.name].decode()
    SENSITIVITY.write_text(f"{drawn.rstrip()}\n<!-- {of_sensitivity()} -->\n", encoding="utf-8")
    print(SENSITIVITY)
