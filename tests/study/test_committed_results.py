"""The numbers of README.md and docs/study.md are those of the committed results in docs/studies."""

from __future__ import annotations

import json
import math
import re
import statistics
from pathlib import Path
from typing import Any

import pytest

from atat_zoo import study
from atat_zoo.study import page
from benchmarks import study_figure, study_samples

ROOT = Path(__file__).parents[2]
RESULTS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (ROOT / "docs/studies").glob("*.json")}
PAGES = [ROOT / "README.md", ROOT / "docs/study.md"]
# Under this line is a table: label, arm, value ± error, against the count table, against the baseline.
MARK = re.compile(r"^<!-- table of (\w+) -->\n\n((?:\|.*\n)+)", re.MULTILINE)


@pytest.mark.parametrize("name", RESULTS)
def test_a_page_is_written_from_its_results(name: str) -> None:
    assert (ROOT / f"docs/studies/{name}.md").read_text(encoding="utf-8") == page.page(RESULTS[name])


@pytest.mark.parametrize("name", RESULTS)
def test_results_are_of_the_study_that_ships(name: str) -> None:
    made, report = study.load(Path(name)), RESULTS[name]
    assert report["study"] == name
    assert report["half"] == made.held_out.half
    assert not report["failed"]
    for arm, found in report["arms"].items():
        chain = made.chain(arm)
        assert found["experiment"] == made.arms[chain[0]].experiment, arm
        assert found["overrides"] == [*made.overrides, *(text for each in chain for text in made.arms[each].overrides)]
        assert [run["seed"] for run in found["runs"]] == list(made.seeds[arm]), arm


def row_of(report: dict[str, Any], arm: str) -> list[str]:
    """What a table says of an arm: its value, for several seeds each; against the counts; against the baseline."""
    runs = report["arms"][arm]["runs"]
    bounds = [run["bounds"][run["bound"]] for run in runs]
    values = ", ".join(f"{bound['value']:.1f}" for bound in bounds)
    against = next((each for each in report["comparisons"] if each["arm"] == arm), None)
    beside = statistics.fmean(run["count_table"]["difference"] for run in runs)
    return [
        f"{values} ± {bounds[0]['stderr']:.1f}" if len(runs) == 1 else values,
        f"{100 * math.expm1(beside):+.1f} %",
        "" if against is None else page._change(against["over_seeds"] or against["sequences"], 1),
    ]


def tables() -> list[tuple[str, str, str]]:
    """The page, the study and the rows of each table that names its study."""
    return [(path.name, *found) for path in PAGES for found in MARK.findall(path.read_text(encoding="utf-8"))]


def test_there_are_tables() -> None:
    assert {name for name, _, _ in tables()} == {path.name for path in PAGES}


@pytest.mark.parametrize(("where", "name", "text"), tables(), ids=lambda value: value if len(value) < 20 else "")
def test_a_table_says_what_was_measured(where: str, name: str, text: str) -> None:
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in text.splitlines()[2:]]
    assert rows
    for row in rows:
        arm = row[1].strip("`")
        assert row[2:] == row_of(RESULTS[name], arm), (where, arm)


# Under this line is a table: label, evaluations, bound of each seed, against the first sampler, seconds against it.
SAMPLERS = re.compile(r"^<!-- samplers of (\w+) -->\n\n((?:\|.*\n)+)", re.MULTILINE)


def sampler_rows(report: dict[str, Any]) -> list[list[str]]:
    """What a table says of the samplers of a study's one arm."""
    (arm,) = report["samplers"]
    return [
        [
            f"{row['nfe']:.1f}",
            ", ".join(f"{value:.1f}" for value in row["values"]),
            page._change(row["sequences"], 1) if "sequences" in row else "",
            f"{row['seconds_ratio']:.2f}" if "seconds_ratio" in row else "1",
        ]
        for row in arm["samplers"]
    ]


def test_a_table_of_samplers_says_what_was_measured() -> None:
    found = SAMPLERS.findall((ROOT / "docs/study.md").read_text(encoding="utf-8"))
    assert {name for name, _ in found} == {name for name, report in RESULTS.items() if report["samplers"]}
    for name, text in found:
        rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in text.splitlines()[2:]]
        assert [row[1:] for row in rows] == sampler_rows(RESULTS[name]), name


def test_the_table_of_written_texts_is_that_of_its_results() -> None:
    rows = json.loads(study_samples.RESULT.read_text(encoding="utf-8"))
    assert study_samples.table_of(rows) in (ROOT / "docs/study.md").read_text(encoding="utf-8")


def figures(value: Any) -> list[float]:
    """Every number in a JSON value."""
    if isinstance(value, dict | list):
        return [found for inner in (value.values() if isinstance(value, dict) else value) for found in figures(inner)]
    return [float(value)] if isinstance(value, int | float) and not isinstance(value, bool) else []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_other_figure_is_in_the_results(path: Path) -> None:
    # In the README, what stands above the two commands.
    text = SAMPLERS.sub("", MARK.sub("", path.read_text(encoding="utf-8").partition("## Two commands")[0]))
    known = [each for report in RESULTS.values() for each in figures(report)]
    known += [each for row in json.loads(study_samples.RESULT.read_text(encoding="utf-8")) for each in figures(row)]
    for figure in re.findall(r"(?<![\w.:])[−+]?\d+\.\d+(?![\w.])", text):
        decimals, value = len(figure.partition(".")[2]), float(figure.replace("−", "-"))
        near = 0.51 * 10**-decimals
        # One with a sign is a difference; any other is a size.
        signed = figure[0] in "−+-"
        found = any(abs((each if signed else abs(each)) - (value if signed else abs(value))) <= near for each in known)
        assert found, f"{figure} is in no result"


def test_the_figure_is_drawn_from_the_results() -> None:
    assert study_figure.digest() in study_figure.FIGURE.read_text(encoding="utf-8")
