"""The numbers of README.md and of the pages on the study are those of the committed results in docs/studies."""

import json
import math
import re
import statistics
from pathlib import Path

import pytest
import torch

from atat_zoo import studies as study
from atat_zoo.evaluation.results.format import change
from atat_zoo.studies import markdown
from atat_zoo.studies.differences import shown
from benchmarks import joints, streams, study_figure, study_samples
from tests.studies import figures

ROOT = Path(__file__).parents[2]
RESULTS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (ROOT / "docs/studies").glob("*.json")}
SAMPLES = json.loads(study_samples.RESULT.read_text(encoding="utf-8"))
STREAMS = [each(json.loads(streams.RESULT.read_text(encoding="utf-8"))) for each in streams.TABLES]
STUDIES = sorted((ROOT / "docs/results").glob("study*.md"))
PAGES = [ROOT / "README.md", *STUDIES]
# Under this line is a table: label, arm, value ± error, against the n-gram model, against the baseline.
MARK = re.compile(r"^<!-- table of (\w+) -->\n\n((?:\|.*\n)+)", re.MULTILINE)


@pytest.mark.parametrize("name", RESULTS)
def test_a_page_is_written_from_its_results(name):
    assert (ROOT / f"docs/studies/{name}.md").read_text(encoding="utf-8") == markdown.page(RESULTS[name])


def test_one_command_runs_every_study_and_writes_its_page():
    run = re.findall(r"atat study (\w+) --jobs \d --write docs/studies/\1\.md", (ROOT / "Makefile").read_text())
    assert sorted(run) == sorted(path.stem for path in (ROOT / "experiments/studies").glob("*.toml"))


@pytest.mark.parametrize("name", RESULTS)
def test_results_are_of_the_study_that_ships(name):
    made, report = study.load(Path(name)), RESULTS[name]
    assert report["study"] == name
    assert report["half"] == made.held_out.half
    assert not report["failed"]
    for arm, found in report["arms"].items():
        assert found["experiment"] == made.arms[made.chain(arm)[0]].experiment, arm
        assert found["overrides"] == made.overrides_of(arm)
        assert [run["seed"] for run in found["runs"]] == list(made.seeds[arm]), arm


def row_of(report, arm):
    """What a table says of an arm: its value, for several seeds each; against the counts; against the baseline."""
    runs = report["arms"][arm]["runs"]
    bounds = [run["bounds"][run["bound"]] for run in runs]
    values = ", ".join(f"{bound['value']:.1f}" for bound in bounds)
    against = next((each for each in report["comparisons"] if each["arm"] == arm), None)
    tables = [run["ngram_prior"] for run in runs]  # of a bound under masks: another one has none
    beside = None if None in tables else statistics.fmean(each["difference"] for each in tables)
    return [
        f"{values} ± {bounds[0]['stderr']:.1f}" if len(runs) == 1 else values,
        "" if beside is None else f"{100 * math.expm1(beside):+.1f} %",
        "" if against is None else change(shown(against), 1),
    ]


def cells(table):
    return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in table.splitlines()[2:]]


def test_a_table_says_what_was_measured():
    tables = [table for page in STUDIES for table in MARK.findall(page.read_text(encoding="utf-8"))]
    assert tables
    for name, text in tables:
        for row in cells(text):
            assert row[2:] == row_of(RESULTS[name], row[1].strip("`")), row


# Under this line is a table: label, evaluations, bound of each seed, against the first sampler, seconds against it.
SAMPLERS = re.compile(r"^<!-- samplers of (\w+) -->\n\n((?:\|.*\n)+)", re.MULTILINE)


def test_a_table_of_samplers_says_what_was_measured():
    tables = dict(table for page in STUDIES for table in SAMPLERS.findall(page.read_text(encoding="utf-8")))
    # The others are in docs/studies only.
    assert tables.keys() == {"confirm", "ablation", "ablation_no_prior", "importance"}
    for name, table in tables.items():
        rows = [row for arm in RESULTS[name]["samplers"] for row in arm["samplers"]]
        for said, row in zip(cells(table), rows, strict=True):
            values = ", ".join(f"{value:.1f}" for value in row["values"])
            compared = [change(shown(row), 1), f"{row['seconds_ratio']:.2f}"] if "sequences" in row else ["", "1"]
            assert said[1:] == [f"{row['nfe']:.1f}", values, *compared]


@pytest.mark.parametrize("name", SAMPLES)
def test_a_table_of_judged_texts_says_what_was_measured(name):
    assert any(study_samples.table_of(SAMPLES[name]) in page.read_text(encoding="utf-8") for page in STUDIES)


def test_the_tables_of_streams_say_what_was_measured():
    page = (ROOT / "docs/results/study-speed.md").read_text(encoding="utf-8")
    assert all(f"\n\n{table}" in page for table in STREAMS)
    laws = {name: streams.fit(*law) for name, law in streams.LAWS.items()}
    assert laws == json.loads(streams.RESULT.read_text(encoding="utf-8"))["laws"]
    # With two numbers, the law holds exactly for the two arms that it is fitted to; the excess is that of the study.
    assert laws["gaps"]["fitted"] == pytest.approx(laws["gaps"]["excess"])
    of_two, of_eight = laws["whole"]["excess"].values()
    assert laws["whole"]["cold_start"]["value"] == pytest.approx(512 * (of_two + 7 * of_eight) / 50)
    known = {each["arm"]: each["sequences"]["nats_per_token"] for each in RESULTS[streams.FITTED]["comparisons"]}
    for law in laws.values():
        assert law["excess"] == pytest.approx({arm: known[arm] for arm in law["excess"]}, abs=1e-5)


def test_tokens_around_joints_are_compared_with_the_others_of_a_text():
    nats = torch.ones(3, 512)
    nats[:, [128 * k + i for k in (1, 2, 3) for i in range(8)]] = 3.0  # after joints
    nats[:, [128 * k - i for k in (1, 2, 3) for i in range(1, 9)]] = 1.5
    nats[:, [*range(8), *range(504, 512)]] = 100.0  # the text's own ends
    assert joints.around(nats, 4) == ["+0.50 [+0.50, +0.50]", "+2.00 [+2.00, +2.00]"]


# Under this line is a table: what is to be written; what is paid for it by the bound of the baseline, and along turns
# by the baseline and by another arm; how far the last is from both; and what an autoregressive arm pays.
GAPS = re.compile(r"^<!-- gaps of (\w+), (\w+) -->\n\n((?:\|.*\n)+)", re.MULTILINE)


def test_a_table_of_gaps_says_what_was_measured():
    tables = [table for page in PAGES for table in GAPS.findall(page.read_text(encoding="utf-8"))]
    assert {name for name, *_ in tables} == {"sets"}  # the others are in docs/studies only
    for name, arm, table in tables:
        report = RESULTS[name]
        for said, part in zip(cells(table), report["gaps"], strict=True):
            rows = {(row["arm"], row["by"] and row["by"]["use"]): row for row in part["rows"]}
            bound, turns = rows[report["baseline"], None], rows[report["baseline"], "strided"]
            other, left = rows[arm, "strided"], rows.get(("autoregressive", "left_to_right"))
            against = {each["by"] and each["by"]["use"]: change(shown(each), 1) for each in other["against"]}
            values = [f"{statistics.geometric_mean(row['values']):.1f}" for row in (bound, turns, other, left) if row]
            # By random orders, on fewer sequences, if the baseline was priced by them.
            compared = [against[by] for by in (None, "strided", "combination") if by in against]
            assert said == [part["what"], *values[:3], *compared, *values[3:]]


# Under this line is a table that a benchmark printed: its results are not in the repository.
PRINTED = re.compile(r"^<!-- printed by python -m benchmarks [^>]+ -->\n\n(?:\|.*\n)+", re.MULTILINE)


def prose(path):
    """Return the text of a page without its tables of results; of the README, its section Results."""
    text = path.read_text(encoding="utf-8")
    if path.name == "README.md":
        text = text.partition("\n## Results\n")[2].partition("\n## ")[0]
    for table in (MARK, SAMPLERS, GAPS, PRINTED):
        text = table.sub("", text)
    for table in (*map(study_samples.table_of, SAMPLES.values()), *STREAMS):
        text = text.replace(table, "")
    return text


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_other_figure_is_what_its_source_says(path):
    for expressions, sources in figures.blocks(prose(path)):
        assert len(expressions) == len(sources), f"{expressions} name {sources}"
        for expression, source in zip(expressions, sources, strict=True):
            assert figures.fits(expression, source, RESULTS, SAMPLES), f"{expression} is not {source}"


def test_hardly_another_figure_fits_its_source():
    sources = {source for path in PAGES for _, named in figures.blocks(prose(path)) for source in named}
    others = [f"{sign}{tenths / 10:.1f}" for sign in "−+" for tenths in range(1, 400)]
    # A difference is one figure, or two that are rounded differently where it is a share of a median.
    for source in (source for source in sources if "/" in source and "parameters" not in source):
        assert sum(figures.fits(other, source, RESULTS, SAMPLES) for other in others) <= 1, source
        assert not figures.fits("−99.9 % [−99.9, −99.9]", source, RESULTS, SAMPLES)


def test_a_figure_belongs_to_the_source_at_its_place():
    text = (
        "- It is −1.5 % [−2.0,\n  −1.0] and 0.3 at\n  56.4.\n  <!-- = a b/c; given 0.3;\n  a arm b -->\n- Another, 2.0."
    )
    found = [(["−1.5 % [−2.0, −1.0]", "0.3", "56.4"], ["a b/c", "given 0.3", "a arm b"]), (["2.0"], [])]
    assert list(figures.blocks(text)) == found
    assert list(figures.blocks("| a | 1.5 <!-- = given 1.5 --> |\n| b | 2.5 |")) == [
        (["1.5"], ["given 1.5"]),
        (["2.5"], []),
    ]
    assert figures.fits("0.3", "given 0.3", {}, {})
    assert not figures.fits("0.4", "given 0.3", {}, {})


def test_the_figure_is_drawn_from_the_results():
    assert study_figure.digest() in study_figure.FIGURE.read_text(encoding="utf-8")
    assert study_figure.of_sensitivity() in study_figure.SENSITIVITY.read_text(encoding="utf-8")
    drawn = {study_figure.by_steps: study_figure.SPEED, study_figure.by_position: study_figure.POSITIONS}
    for rows, figure in drawn.items():
        assert study_figure.digest_of(rows()) in figure.read_text(encoding="utf-8")


def written(use, entropy, perplexity, **settings):
    row = {"run": "a-seed17", "sampler": {"use": use, **settings}, "nfe": 16, "mauve": 0.5, "unigram_entropy": entropy}
    row |= {"nats_per_token": math.log(perplexity), "generative_perplexity": perplexity}
    return row | {"data": {"generative_perplexity": 30.0, "unigram_entropy": 4.1}}


def test_the_reference_is_as_diverse():
    warm, cool = ({"steps": 64, "temperature": each} for each in (1.0, 0.8))
    ancestral = [written("ancestral", 3.9, 100.0, **warm), written("ancestral", 3.7, 25.0, **cool)]
    assert study_samples.at_entropy(ancestral, 3.8) == pytest.approx(50.0)
    assert study_samples.at_entropy(ancestral, 3.95) is None
    other = written("ancestral", 3.8, 70.0, steps=16, temperature=1.0)  # in fewer steps: no reference
    table = study_samples.table_of([*ancestral, other, written("strided", 3.8, 40.0, stride=16)])
    assert "| `a` | strided, stride = 16 | 16.0 | 40.0 | 3.80 | 50 (-20%) | 0.50 |" in table
    assert "| `a` | ancestral, steps = 64, temperature = 1.0 | 16.0 | 100.0 | 3.90 |  | 0.50 |" in table
    assert "| `a` | ancestral, steps = 16, temperature = 1.0 | 16.0 | 70.0 | 3.80 | 50 (+40%) | 0.50 |" in table
