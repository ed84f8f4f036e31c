"""A paper's folder: every number is of a result, what is missing says how it is measured, and LaTeX can read it."""

import contextlib
import csv
import io
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import tomli_w
from atat_zoo.studies.sensitivity import sensitivity
from atat_zoo_paper import latex
from atat_zoo_paper.cells import HIGHER, LOWER, Cell, Column, FilledTable, missing
from atat_zoo_paper.folder import fill, write
from atat_zoo_paper.manifest import load
from atat_zoo_paper.samplers import axis_of
from hypothesis import given
from hypothesis import strategies as st
from manifests import ARMS, Place, evaluation, scored

from atat_zoo import Zoo
from atat_zoo import experiment as experiments
from atat_zoo.errors import UserError
from atat_zoo.registry.spec import unstructure
from atat_zoo.studies import study_file
from atat_zoo.studies.differences import over_both
from tests.limited import full_disk
from tests.pages import ROOT

STUDIES = ROOT / "experiments" / "studies"
CITED = {"table": "main", "name": "Other_one", "source": "arXiv:2406.07524", "differs": "50 % of the data"}


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def balanced(text):
    """Whether braces and environments of LaTeX close in the order in which they open, and mathematics ends."""
    text = re.sub(r"\\[\\{}$%&#_]", "", re.sub(r"(?<!\\)%.*", "", text))
    stack = []
    for begin, end, brace in re.findall(r"\\begin\{(\w+)\}|\\end\{(\w+)\}|([{}])", text):
        if begin or brace == "{":
            stack.append(begin or "{")
        elif not stack or stack.pop() != (end or "{"):
            return False
    return not stack and text.count("$") % 2 == 0


def test_what_is_not_balanced_is_found():
    assert balanced(r"\begin{a}{\{ 5\,\%}$x$\end{a}")
    for text in (r"\begin{a}", r"\begin{a}\end{b}", "{", "}", r"{\}", "$x", r"\begin{a}{\end{a}}"):
        assert not balanced(text), text


# The one that ships


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    out = tmp_path_factory.mktemp("paper")
    with contextlib.chdir(ROOT):
        filled = fill(load(Path("atat")))
        write(filled, out)
    return filled, out


def test_latex_can_read_the_paper_that_ships(shipped):
    filled, out = shipped
    main = (out / "main.tex").read_text(encoding="utf-8")
    inputs = re.findall(r"\\input\{(.+?)\}", main)
    assert len(inputs) == 1 + len(filled.tables) + len(filled.figures)
    texts = {name: (out / f"{name}.tex").read_text(encoding="utf-8") for name in inputs}
    assert [name for name, text in [*texts.items(), ("main", main)] if not balanced(text)] == []
    labels = re.findall(r"\\label\{(.+?)\}", "".join(texts.values()))
    assert sorted(set(labels)) == sorted(labels)
    assert set(re.findall(r"\\ref\{(.+?)\}", "".join(texts.values()))) <= set(labels)
    keys = re.findall(r"^@misc\{(.+),$", (out / "references.bib").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(set(keys)) == sorted(keys)
    assert {"arXiv-2406.07524", "arXiv-2211.15029"} <= set(keys)
    assert set(re.findall(r"\\cite\{(.+?)\}", "".join(texts.values()))) <= set(keys)
    assert balanced((out / "references.bib").read_text(encoding="utf-8"))
    for figure in re.findall(r"\\includegraphics\{(.+?)\}", "".join(texts.values())):
        assert (out / figure).read_bytes().startswith(b"%PDF")
        assert "<svg" in (out / figure).with_suffix(".svg").read_text(encoding="utf-8")


@pytest.mark.skipif(not (shutil.which("tectonic") or shutil.which("latexmk")), reason="no LaTeX is installed")
def test_the_paper_that_ships_compiles(shipped, tmp_path):
    from atat_zoo_paper.folder import compile_in, compiler

    shutil.copytree(shipped[1], tmp_path / "it")
    assert compile_in(tmp_path / "it", compiler()) == ""
    assert (tmp_path / "it" / "main.pdf").is_file()


def test_what_is_committed_is_not_missing_and_the_rest_says_how_it_is_measured(shipped):
    filled, out = shipped
    by_table = {what.partition(":")[0]: command for command, found in filled.missing().items() for what in found}
    committed = "main ablation parts sampling screen samplers budgets gaps steps arms sensitivity control infilling"
    assert not by_table.keys() & set(committed.split())
    assert by_table.keys() >= {"lm1b", "zero-shot", "glue", "dna", "efficiency"}
    assert by_table["lm1b"].endswith("--split validation")  # its corpus has no test split
    page = (out / "missing.md").read_text(encoding="utf-8")
    assert all(f"`{command}`" in page for command in filled.missing())


# Numbers


def test_a_changed_value_is_in_every_form(place):
    place.study("sets")
    place.made(ARMS)
    before = place.texts("main")

    def change(report):
        for run in report["arms"]["sets_417"]["runs"]:
            run["bounds"]["sets bound"]["nats_per_token"] += 1.0
        table = next(each for each in report["comparisons"] if each["arm"] == "sets_417")["both"]
        table |= {"percent": -1.2345, "percent_low": -2.3456, "percent_high": 0.1234}

    place.study("sets", change)
    place.made(ARMS)
    tex, markdown, table = place.texts("main")
    assert all(a != b for a, b in zip(before, (tex, markdown, table), strict=True))
    rows = {row["name"]: row for row in csv.DictReader(io.StringIO(table))}
    old = {row["name"]: row for row in csv.DictReader(io.StringIO(before[2]))}
    for key in ("value", "value low", "value high"):
        assert float(rows["sets_417"][key]) == pytest.approx(float(old["sets_417"][key]) * 2.718281828)
    assert rows["sets_417"]["difference"] == "-1.2345"
    assert "| −1.2 % [−2.3, +0.1] |" in markdown
    assert r"$-$1.2~\% {[}$-$2.3, +0.1{]}" in tex
    assert rows["MDLM"] == old["MDLM"]
    claims = (place.out / "results.tex").read_text(encoding="utf-8")
    assert r"sets\_417 and MDLM cannot be told apart in e to the nats per token (sets bound of one, " in claims
    assert r"perplexity of the other): $-$1.2~\%" in claims
    assert "autoregressive is lower than MDLM in perplexity" in claims


def test_the_interval_of_bits_per_byte_is_as_wide_as_that_of_nats_per_token(place):
    place.study("sets")
    place.made(ARMS | {"columns": ["nats_per_token", "bits_per_byte"], "intervals": "sequences"})
    for row in csv.DictReader(io.StringIO(place.texts("main")[2])):
        shares = [float(row[f"{key} high"]) / float(row[key]) for key in ("nats_per_token", "bits_per_byte")]
        assert shares[0] == pytest.approx(shares[1])
        assert 1.0 < shares[0] < 1.02


def test_special_characters_are_escaped(place):
    place.study("sets")
    place.made(ARMS, cited=[CITED], title="A_paper & 100 %")
    tex, markdown, _ = place.texts("main")
    assert r"\caption{What 50~\% \& more\_of \#1 costs.}" in tex
    assert r"Other\_one~\cite{arXiv-2406.07524}" in tex
    assert "not comparable" in tex
    assert "| Other_one [arXiv:2406.07524] | not comparable |" in markdown
    assert r"\title{A\_paper \& 100~\%}" in (place.out / "main.tex").read_text(encoding="utf-8")


@given(st.text(st.sampled_from('a_%&#${}\\~^<>[]|"−±×≤—–é '), max_size=30))
def test_no_special_character_is_left(text):
    escaped = latex.escape(text)
    assert balanced(escaped)
    plain = re.sub(r"~\\%|\\[a-z]+(\{\})?|\\.|\$(<|>|\||-|\\pm|\\times|\\le)\$|\{\[\}|\{\]\}", "", escaped)
    assert not set(plain) & set('_%&#${}\\~^<>[]|"−±×≤—')


def test_what_latex_cannot_set_is_refused():
    with pytest.raises(UserError, match=r"LaTeX cannot set '語' here; write it in Latin letters"):
        latex.escape("a 語")


intervals = st.tuples(st.integers(-9, 9), st.integers(0, 3), st.integers(0, 3))


@given(st.lists(st.one_of(st.none(), intervals), min_size=2, max_size=5), st.sampled_from([LOWER, HIGHER]))
def test_the_best_is_bold_where_its_interval_lies_apart_from_all_others(ends, better):
    cells = [
        missing("atat eval")
        if each is None
        else Cell(text="x", value=each[0], low=each[0] - each[1], high=each[0] + each[2])
        for each in ends
    ]
    table = FilledTable(
        label="a",
        caption="b",
        columns=[Column(key="c", heading="c", better=better)],
        rows=[("r", [cell]) for cell in cells],
    )
    wanted = set()
    if None not in ends:
        for i, one in enumerate(cells):
            others = [other for j, other in enumerate(cells) if j != i]
            if all(one.high < o.low if better == LOWER else one.low > o.high for o in others):
                wanted.add((i, 0))
    assert table.best() == wanted
    assert ("**x**" in table.to_markdown()) == bool(wanted)


@pytest.mark.parametrize(
    ("column", "ends", "bold"),
    [
        ({"better": LOWER, "than": 0}, [(-3, -2), (1, 2)], True),
        ({"better": LOWER, "than": 0}, [(1, 2), (3, 4)], False),
        ({"better": LOWER, "than": 0}, [(-1, 1), (3, 4)], False),
        ({"better": HIGHER, "than": 1}, [(1.5, 2), (0.5, 0.8)], True),
        ({"better": HIGHER, "than": 1}, [(0.8, 0.9), (0.5, 0.7)], False),
    ],
)
def test_what_is_no_better_than_the_baseline_is_not_bold(column, ends, bold):
    rows = [("r", [Cell(text="x", value=sum(each) / 2, low=each[0], high=each[1])]) for each in ends]
    table = FilledTable(label="a", caption="b", columns=[Column(key="c", heading="c", **column)], rows=rows)
    assert table.best() == ({(0, 0)} if bold else set())


@pytest.mark.parametrize(("value", "bold"), [(None, True), (60.0, True), (39.6, False), (30.0, False)])
def test_what_is_cited_may_be_the_best(place, value, bold):
    place.study("sets")
    place.made(ARMS, cited=[CITED | ({"column": "value", "value": value} if value else {})])
    assert ("| autoregressive | **39.5" in place.texts("main")[1]) == bold


# What is missing


def test_a_study_without_results_is_missing_until_it_is_written(place):
    filled = place.made(ARMS)
    (command,) = filled.missing()
    assert command == f"atat study sets --jobs 2 --write {place.results}/sets.md"
    assert len(filled.missing()[command]) == 4 * 4
    assert place.texts("main")[0].count("& --") == 4 * 4
    assert "No comparison has been measured yet." in (place.out / "results.tex").read_text(encoding="utf-8")
    place.study("sets")
    assert place.made(ARMS).missing() == {}
    assert (place.out / "missing.md").read_text(encoding="utf-8") == "# Missing\n\nNothing.\n"


def test_an_arm_that_failed_is_missing(place):
    place.study("sets", lambda report: report["arms"].pop("sets_417"))
    filled = place.made(ARMS)
    assert [what for found in filled.missing().values() for what in found] == [
        f"main: sets_417, {column}" for column in ARMS["columns"]
    ]


def test_a_seed_that_failed_is_noted_and_missing_and_none_of_its_column_is_bold(place):
    place.study("sets")
    place.made(ARMS)
    assert place.texts("main")[1].count("**") == 2 * 2

    def change(report):
        report["arms"]["sets_417"]["runs"].pop()
        report["arms"]["sets"]["runs"] = report["arms"]["sets"]["runs"][:1]
        for each in report["comparisons"]:
            each["seeds"] = each["seeds"][: 2 if each["arm"] == "sets_417" else 3]

    place.study("sets", change)
    filled = place.made(ARMS)
    (command,) = filled.missing()
    assert command.startswith("atat study sets ")
    assert filled.missing()[command] == ["main: sets, value", "main: sets_417, value", "main: sets_417, difference"]
    markdown = place.texts("main")[1]
    assert re.search(r"^\| sets \| 1 of 3 seeds \| sets bound \|", markdown, re.MULTILINE)
    assert re.search(
        r"^\| sets_417 \| [^|]+\] \(2 of 3 seeds\) \| sets bound \| [^|]+\(2 of 3 ", markdown, re.MULTILINE
    )
    assert "**" not in markdown


RUNS = {
    "data": "evaluations",
    "label": "runs",
    "caption": "Runs.",
    "columns": ["value", "bits_per_byte", "brier_score"],
}
RUNS |= {"metrics": ["brier_score"]}


def test_a_run_is_trained_finished_or_evaluated(place):
    names = ("absent", "unfinished", "unmeasured")
    place.run("unfinished", trained=False)
    place.run("unmeasured")
    measured = place.run("measured", [evaluation(60.0, metrics={"brier_score": {"value": 0.5, "stderr": 0.1}})])
    rows = [{"experiment": "mdlm", "run": str(place.root / name)} for name in names]
    filled = place.made(RUNS | {"rows": [*rows, {"experiment": "mdlm", "run": measured}]})
    absent, unfinished, unmeasured = (str(place.root / name) for name in names)
    assert list(filled.missing()) == [
        f"atat train mdlm --out {absent} && atat eval {absent} --split validation --metric brier_score",
        f"atat train --resume {unfinished} && atat eval {unfinished} --split validation --metric brier_score",
        f"atat eval {unmeasured} --split validation --metric brier_score",
    ]
    assert "| measured | 60.0 [59.0, 61.0] | 1.500 [1.480, 1.520] | 0.50 [0.30, 0.70] |" in place.texts("runs")[1]


@pytest.mark.parametrize("turned", [False, True])
def test_the_last_evaluation_with_the_most_sequences_is_shown(place, turned):
    tables = [
        evaluation(60.0),
        evaluation(70.0, step=200, sequences=9999),
        evaluation(65.0, sequences=8),
        evaluation(1.0, corpus="ptb"),
    ]
    run = place.run("it", tables[::-1] if turned else tables)
    place.made(RUNS | {"columns": ["value"], "rows": [{"experiment": "mdlm", "run": run}]})
    assert "| it | 60.0 [59.0, 61.0] |" in place.texts("runs")[1]


def test_seconds_of_runs_that_were_not_trained_alike_say_so(place):
    said, rows = "Not all runs were trained alike", []
    for name in "ab":
        rows.append({"experiment": "mdlm", "run": place.run(name, [evaluation(60.0)])})
        here = {"machine": {"processor": name, "cores": 2, "threads": name}, "computes": {"device": "cpu"}}
        (place.root / name / "environment.json").write_text(json.dumps(here))
    place.made(RUNS | {"columns": ["value", "tokens_per_second"], "rows": rows})
    assert said in place.texts("runs")[1]
    place.made(RUNS | {"columns": ["value"], "rows": rows})
    assert said not in place.texts("runs")[1]
    here["machine"] |= {"processor": "a"}  # with another number of threads
    (place.root / "b" / "environment.json").write_text(json.dumps(here))
    place.made(RUNS | {"columns": ["tokens_per_second"], "rows": rows})
    assert said not in place.texts("runs")[1]


@pytest.mark.parametrize("other", [{"bytes": 1}, {"seed": 1}])
def test_runs_on_other_text_are_not_in_one_column(place, other):
    runs = [place.run("a", [evaluation(60.0)]), place.run("b", [evaluation(50.0, **other)])]
    with pytest.raises(UserError, match="is measured on other text than"):
        place.made(RUNS | {"rows": [{"experiment": "mdlm", "run": run} for run in runs]})


def test_a_column_of_runs_is_one_that_they_have(place):
    with pytest.raises(UserError, match=r"table\[0\].columns: runs have no 'brier'; did you mean 'brier_score'\?"):
        place.made(RUNS | {"columns": ["brier"], "rows": [{"experiment": "mdlm", "run": "absent"}]})


def test_a_run_of_another_experiment_is_refused(place):
    run = place.run("it", [evaluation(60.0)])
    with pytest.raises(UserError, match="is a run of another experiment"):
        place.made(RUNS | {"rows": [{"experiment": "sets", "run": run}]})


@pytest.mark.parametrize(("key", "line"), [("corpus.seed", "seed = 1"), ("init_from", 'init_from = "elsewhere"')])
def test_a_run_on_other_text_or_from_another_run_is_of_another_experiment(place, key, line):
    run = place.run("it", [evaluation(60.0)])
    table = experiments.load("mdlm").to_table()
    (table["corpus"] if "." in key else table).update(tomllib.loads(line))
    (place.root / "it" / "resolved.toml").write_text(tomli_w.dumps(table), encoding="utf-8")
    with pytest.raises(UserError, match=f"another experiment: {key} is"):
        place.made(RUNS | {"rows": [{"experiment": "mdlm", "run": run}]})


TASK = {"data": "tasks", "label": "task", "caption": "Gaps.", "columns": ["price"], "lower": ["price"]}
TASK |= {"task": {"use": "infilling", "gap": 3}}


def test_scores_are_shown_beside_what_is_published(place):
    spec = unstructure(Zoo.load().spec("task", TASK["task"]))
    runs = [place.run(name, [scored(spec, value, MDLM=3.25)]) for name, value in (("a", 2.0), ("b", 4.0))]
    other = place.run("c", [scored(spec | {"gap": 4}, 3.0)])
    filled = place.made(TASK | {"rows": [{"experiment": "mdlm", "run": run} for run in (*runs, other)]})
    markdown = place.texts("task")[1]
    assert "| a | 2.00 [1.80, 2.20] |" in markdown
    assert re.search(r"^\| MDLM, published( \[\S+\])? \| 3\.25 \|$", markdown, re.MULTILINE)
    assert "- a_note" in markdown
    assert list(filled.missing()) == [f"""atat eval {other} --task '{{use = "infilling", gap = 3}}'"""]
    place.made(TASK | {"rows": [{"experiment": "mdlm", "run": run} for run in runs]})
    assert "| a | **2.00 [1.80, 2.20]** |" in place.texts("task")[1]
    assert r"\textbf{2.00" in place.texts("task")[0]


def test_scores_of_other_items_are_not_in_one_column(place):
    spec = unstructure(Zoo.load().spec("task", TASK["task"]))
    runs = [place.run(of, [scored(spec, 2.0, of)]) for of in "ab"]
    with pytest.raises(UserError, match="is of other items than"):
        place.made(TASK | {"rows": [{"experiment": "mdlm", "run": run} for run in runs]})


def test_hyper_parameters_are_those_of_the_run_if_it_is_there(place):
    columns = ["train.steps", "rates.use"]
    rows = [{"experiment": "mdlm", "run": str(place.root / "absent"), "overrides": ["train.steps=7"]}]
    rows += [{"experiment": "bell", "run": place.run("bell", experiment="bell")}]
    table = {"data": "parameters", "label": "keys", "caption": "Keys.", "columns": columns, "rows": rows}
    place.made(table)
    lines = place.texts("keys")[1].splitlines()
    assert lines[2:] == ["| parameter | absent | bell |", "| --- | --- | --- |", "| train.steps | 7 | 450 |", lines[-1]]
    assert lines[-1].endswith("| bell |")


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("objective.importance_loss_weight", 0.25, "0.25"),
        ("train.compile", True, "yes"),
        ("train.compile", False, "no"),
        ("train.steps", 45000, "45,000"),
        ("corpus.train", ["a.txt", "b.txt"], "a.txt, b.txt"),
    ],
)
def test_a_hyper_parameter_is_shown_as_one_reads_it(place, key, value, shown):
    table = experiments.load("mdlm", ["corpus.use=files", 'corpus.train=["x"]']).to_table()
    room, _, name = key.partition(".")
    (place.root / "made.toml").write_text(tomli_w.dumps(table | {room: table.get(room, {}) | {name: value}}))
    rows = [{"experiment": str(place.root / "made.toml"), "run": str(place.root / "absent")}]
    place.made({"data": "parameters", "label": "keys", "caption": "Keys.", "columns": [key], "rows": rows})
    assert place.texts("keys")[1].splitlines()[-1] == f"| {key} | {shown} |"


def test_the_frame_loads_what_tables_and_figures_need():
    text = latex.main("A title", ["one"], ["two"])
    packages = ["[T1]{fontenc}", "{lmodern}", "{textcomp}", "[margin=2.5cm]{geometry}", "{adjustbox}", "{booktabs}"]
    packages += ["{graphicx}", "[hidelinks]{hyperref}"]
    assert [line.removeprefix("\\usepackage") for line in text.splitlines() if "usepackage" in line] == packages
    assert "\\input{tables/one}\n\\input{figures/two}\n" in text


@pytest.mark.parametrize("intervals", ["both", "sequences"])
def test_a_metric_of_an_arm_has_the_interval_over_seeds_and_texts(place, intervals):
    values, errors = [0.5, 0.75, 0.625], [0.25, 0.25, 0.25]
    text = (STUDIES / "sets.toml").read_text().replace("[evaluation]", '[evaluation]\nmetrics = ["brier_score"]')
    (place.root / "sets.toml").write_text(text)

    def change(report):
        for run, value, stderr in zip(report["arms"]["sets"]["runs"], values, errors, strict=True):
            run["metrics"] = {"brier_score": {"value": value, "stderr": stderr}}

    place.study("sets", change)
    scored = {"study": str(place.root / "sets.toml"), "columns": ["brier_score"], "rows": [{"arm": "sets"}]}
    place.made(ARMS | scored | {"intervals": intervals})
    (read,) = csv.DictReader(io.StringIO(place.texts("main")[2]))
    assert float(read["brier_score"]) == statistics.fmean(values)
    if intervals == "both":
        found = over_both(values, errors)
        assert [float(read[f"brier_score {end}"]) for end in ("low", "high")] == [found.low, found.high]
    else:
        assert not read.get("brier_score low")


GAPS = {"data": "gaps", "study": "sets", "label": "gaps", "caption": "Gaps.", "columns": ["the whole"]}
GAPS |= {"rows": [{"arm": "mdlm", "name": "MDLM_bound"}, {"arm": "atat", "by": "strided", "name": "ATAT in turns"}]}


@pytest.mark.parametrize("intervals", ["both", "sequences"])
def test_a_difference_of_prices_has_the_interval_that_is_asked_for(place, intervals):
    report = place.study("sets")
    row = {"arm": "atat", "by": "strided", "against": "strided"}
    place.made(GAPS | {"rows": [row], "intervals": intervals})
    (read,) = csv.DictReader(io.StringIO(place.texts("gaps")[2]))
    price = next(
        each
        for each in report["gaps"][0]["rows"]
        if each["arm"] == "atat" and (each["by"] or {}).get("use") == "strided"
    )
    against = next(each for each in price["against"] if (each["by"] or {}).get("use") == "strided")
    ends = [float(read[f"the whole{end}"]) for end in ("", " low", " high")]
    assert ends == [against[intervals][key] for key in ("percent", "percent_low", "percent_high")]
    assert against["both"]["percent_low"] < against["sequences"]["percent_low"]
    said = (place.out / "results.tex").read_text(encoding="utf-8")
    assert ("over seeds and sequences" in said) is (intervals == "both")


SAMPLERS = {"data": "samplers", "study": "system", "label": "samplers", "caption": "Samplers."}
SAMPLERS |= {"columns": ["value", "difference", "evaluations", "times_as_long"]}
SAMPLERS |= {"rows": [{"arm": "all_parts", "sampler": 1}, {"arm": "all_parts", "sampler": 3, "name": "certain first"}]}


def test_a_table_of_samplers_has_prices_evaluations_and_differences_from_the_first(place):
    report = place.study("system")
    found = report["samplers"][0]["samplers"]
    place.made(SAMPLERS)
    lines = place.texts("samplers")[1].splitlines()
    mean = math.exp(statistics.fmean(map(math.log, found[2]["values"])))
    certain, both = found[2], found[2]["both"]
    assert lines[4].startswith("| all_parts, strided | ")
    assert lines[4].endswith(" | — | 16.0 | — |")
    first, difference, *others = lines[5].split(" | ")[1:]
    assert first == f"{mean:.1f}"
    assert difference.startswith(f"{both['percent']:+.1f} % [")
    assert others == [f"{certain['nfe']:.1f}", f"{certain['seconds_ratio']:.2f} |"]
    # Not trained yet: each cell has the command; a seed less is said.
    place.study("system", lambda report: report["samplers"][0].update(seeds=[18, 19]))
    place.made(SAMPLERS)
    assert "(2 of 3 seeds)" in place.texts("samplers")[1]
    place.study("system", lambda report: report.update(samplers=None))
    filled = place.made(SAMPLERS)
    assert {each.command for _, cells in filled.tables[0].rows for each in cells} == {
        filled.tables[0].rows[0][1][0].command
    }
    assert "atat study system" in filled.tables[0].rows[0][1][0].command


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"columns": ["values"]}, "table[0].columns: 'values' is no column of samplers; did you mean 'value'?"),
        ({"study": "sets"}, "table[0].study: 'sets' has no [samplers]"),
        (
            {"rows": [{"arm": "all_part", "sampler": 1}]},
            "has no samplers of the arm 'all_part'; did you mean 'all_parts'?",
        ),
        ({"rows": [{"arm": "all_parts", "sampler": 4}]}, "the study 'system' has 3 samplers, and no 4"),
    ],
)
def test_a_table_of_samplers_names_what_is_not_there(place, changed, said):
    place.study("system")
    with pytest.raises(UserError, match=re.escape(said)):
        place.made(SAMPLERS | changed)


def test_sentences_call_rows_by_their_names(place):
    place.study("sets")
    row = {"arm": "atat", "by": "strided", "name": "ATAT against both"}
    place.made(GAPS | {"rows": [*GAPS["rows"], *(row | {"against": each} for each in ("bound", "strided"))]})
    said = (place.out / "results.tex").read_text(encoding="utf-8")
    assert re.search(r"ATAT in turns .+ MDLM\\_bound in the price of the whole", said)
    assert re.search(r"ATAT in turns .+ mdlm by the sampler strided in", said)  # of which there is no row


def test_what_the_author_has_written_is_kept(place):
    place.study("sets")
    place.made(ARMS, cited=[CITED])
    bibliography, main = place.out / "references.bib", place.out / "main.tex"
    text = bibliography.read_text(encoding="utf-8")
    assert "ATAT," not in text
    mine = text.replace("title = {{arXiv:2406.07524}}", "title = {Mine}") + "@book{own, title = {Own}}\n"
    bibliography.write_text(mine, encoding="utf-8")
    main.write_text("mine", encoding="utf-8")
    filled = fill(load(place.manifest(ARMS, cited=[CITED, CITED | {"source": "arXiv:1901.02860"}])))
    for _ in range(2):
        write(filled, place.out)
        again = bibliography.read_text(encoding="utf-8")
        assert again.startswith(mine)
        assert (again.count("{arXiv-2406.07524,"), again.count("{arXiv-1901.02860,")) == (1, 1)
    assert main.read_text(encoding="utf-8") == "mine"


# Figures

FIGURE = {"kind": "curve", "study": "sets_budgets", "label": "steps", "caption": "Steps.", "intervals": "sequences"}


def test_a_figure_is_drawn_from_the_results_and_alike_each_time(place):
    place.study("sets_budgets")

    def drawn():
        place.made(figures=[FIGURE, FIGURE | {"kind": "arms", "label": "arms", "names": {"sets": "One_for_all"}}])
        return [path.read_bytes() for path in sorted((place.out / "figures").iterdir())]

    once = drawn()
    svg = (place.out / "figures" / "arms.svg").read_text(encoding="utf-8")
    assert "One_for_all" in svg
    assert ">sets</text>" in (place.out / "figures" / "steps.svg").read_text(encoding="utf-8"), "as it is called"
    assert set(re.findall(r"font-size: ([\d.]+)px", svg)) == {"6.5", "7"}  # as in the figures of importance

    def change(report):
        report["arms"]["mdlm-225"]["runs"][0]["bounds"]["perplexity"]["nats_per_token"] += 0.1

    place.study("sets_budgets", change)
    again = drawn()
    assert [a != b for a, b in zip(once, again, strict=True)] == [False, False, False, True, True, False], "arms, curve"


def test_a_paper_that_finds_no_room_is_as_it_was(place):
    def files():
        return {path: path.read_bytes() for path in place.out.rglob("*") if path.is_file()}

    place.study("sets_budgets")
    place.made(figures=[FIGURE])
    before = files()
    changed = place.manifest(figures=[FIGURE | {"names": {"mdlm": "another"}}])
    for room, what in ((0, ""), (8_000, rf"{place.out}/figures/steps\.(pdf|svg) ")):
        refused = rf"{what}cannot be written: File too large; free some space"
        with full_disk(room), pytest.raises(UserError, match=refused):
            write(fill(load(changed)), place.out)
        assert files() == before
    write(fill(load(changed)), place.out)
    assert files() != before
    assert not list(place.out.rglob("*.part"))


def test_a_figure_without_results_says_how_to_measure_them(place):
    filled = place.made(figures=[FIGURE])
    (command,) = filled.missing()
    assert filled.missing()[command] == ["steps: the figure"]
    text = (place.out / "figures" / "steps.tex").read_text(encoding="utf-8")
    assert r"\texttt{atat study sets\_budgets -{}-jobs 2" in text


def test_an_arm_that_a_figure_lacks_is_missing(place):
    place.study(
        "sets_budgets", lambda report: [report["arms"].pop(name) for name in [*report["arms"]] if "sets" in name]
    )
    filled = place.made(figures=[FIGURE])
    assert list(filled.missing().values()) == [["steps: sets"]]
    assert (place.out / "figures" / "steps.pdf").is_file()


def test_a_sweep_is_drawn_point_by_point(place):
    study = 'seeds = [1, 2]\nbaseline = "a"\n[sweep]\nseed = 7\n[sweep.points]\nslow = ["train.steps=8"]\n'
    study += 'fast = ["train.steps=9"]\n[arms.a]\nexperiment = "mdlm"\n[arms.b]\nexperiment = "bell"\n'
    (place.root / "swept.toml").write_text(study)
    figure = FIGURE | {"kind": "sensitivity", "study": str(place.root / "swept.toml"), "names": {"a": "panel_of_a"}}
    arms = {arm: {"chosen": "fast", "at_an_end": True, "nats_per_token": {"slow": 4.0, "fast": 3.5}} for arm in "ab"}
    report = {"arms": {"a": {"runs": []}}, "comparisons": [], "sweep": {"arms": arms}}
    (place.results / "swept.json").write_text(json.dumps(report))
    place.made(figures=[figure])
    svg = (place.out / "figures" / "steps.svg").read_text(encoding="utf-8")
    assert all(word in svg for word in ("panel_of_a", "slow", "fast"))


def test_grids_are_drawn_axis_by_axis(place):
    study = 'seeds = [18, 19, 20]\nbaseline = "a"\n[arms.a]\nexperiment = "mdlm"\n[grid]\narm = "a"\n'
    study += "[grid.axes]\ntrain.steps = [8, 9]\nschedule.warmup_steps = [3]\n[samplers]\narms = ['a']\n"
    study += "each = [{ use = 'ancestral', steps = 8 }, { use = 'ancestral', steps = 4 }]\n"
    (place.root / "varied.toml").write_text(study)
    figure = FIGURE | {"kind": "sensitivity", "study": str(place.root / "varied.toml"), "intervals": "both"}
    arm = json.loads((ROOT / "docs" / "studies" / "sets.json").read_text())["arms"]["mdlm"]
    report = {"arms": dict.fromkeys(("a", "a-train.steps=8"), arm), "comparisons": [], "tokens": 1}
    rows = [{"quantity": "policy bound", "values": values} for values in ([50.0, 51.0, 52.0], [60.0, 60.0, 63.0])]
    report["samplers"] = [{"arm": "a", "samplers": rows}]
    (place.results / "varied.json").write_text(json.dumps(report))
    filled = place.made(figures=[figure])
    (missing,) = filled.missing().values()
    assert missing == ["steps: a-train.steps=9", "steps: a-schedule.warmup_steps=3"]
    steps = filled.figures[0].points["train.steps"]
    assert [(label, own) for label, _, own in steps] == [("8", False), ("450", True)]
    grid = sensitivity(filled.figures[0].known.study, report)[0]  # as the page of the study has it
    for (_, bound, _), point in zip(steps, grid["points"], strict=True):
        assert (bound.low, bound.high) == pytest.approx((point["low"], point["high"]))
    by_steps = filled.figures[0].points["samplers.steps"]
    assert [(label, own) for label, _, own in by_steps] == [("4", False), ("8", True)]
    assert [bound.value for _, bound, _ in by_steps] == pytest.approx([60.98, 50.99], abs=0.01)  # geometric means
    svg = (place.out / "figures" / "steps.svg").read_text(encoding="utf-8")
    assert all(f">{word}</text>" in svg for word in ("steps", "warmup_steps", "8", "450", "perplexity", "policy bound"))


@pytest.mark.parametrize(
    ("other", "axis"),
    [
        ("{ use = 'ancestral', steps = 4 }", ("samplers.steps", [8, 4])),
        ("{ use = 'ancestral', steps = 4, temperature = 0.5 }", None),
        ("{ use = 'ancestral', steps = 8 }", None),
        ("{ use = 'strided' }", None),
    ],
)
def test_samplers_that_differ_in_one_number_have_an_axis(place, other, axis):
    study = "seeds = [18]\nbaseline = 'a'\n[arms.a]\nexperiment = 'mdlm'\n[samplers]\narms = ['a']\n"
    (place.root / "few.toml").write_text(f"{study}each = [{{ use = 'ancestral', steps = 8 }}, {other}]\n")
    assert axis_of(study_file.load(place.root / "few.toml")) == axis


# The command


def test_the_command_lists_what_is_missing(atat, place):
    code, out, err = atat("paper", str(place.manifest(ARMS)), "--out", str(place.out))
    assert (code, err) == (0, "")
    assert "1 table and 0 figures" in out
    assert "16 cells missing" in out
    assert re.search(r"^16 cells  atat study sets --jobs 2 --write ", out, re.MULTILINE)


@pytest.mark.parametrize(("code", "said"), [(0, "compiled: "), (1, "cannot compile")])
def test_where_latex_is_installed_it_compiles(atat, place, monkeypatch, code, said):
    programs = place.root / "bin"
    programs.mkdir()
    (programs / "tectonic").write_text(f"#!/bin/sh\necho it says; test -f $1 && exit {code}\n")
    (programs / "tectonic").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    found, out, err = atat("paper", str(place.manifest(ARMS)), "--out", str(place.out))
    assert found == code
    assert said in out + err
    assert ("it says" in err) == bool(code)


def test_a_paper_is_made_without_torch(place):
    place.study("sets")
    path = place.manifest(ARMS)
    code = "import sys; from atat_zoo_paper.folder import *; from atat_zoo_paper.manifest import load; "
    code += f"write(fill(load(Path({str(path)!r}))), Path({str(place.out)!r})); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


# Refusals; those of the command line are in docs/bad-input.md


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"columns": ["valeu"]}, "table[0].columns: a study has no 'valeu'; did you mean 'value'?"),
        ({"columns": []}, "table[0].columns: there are none"),
        ({"rows": [{"arm": "set"}]}, "table[0].rows: the study 'sets' has no arm 'set'; did you mean 'sets'?"),
        ({"rows": [{"arm": "sets", "nmae": "x"}]}, "table[0].rows[0].nmae: is not a parameter of 'table[0].rows[0]'"),
        (
            {"rows": [{"arm": "sets", "against": "atat"}]},
            "does not compare 'sets' with 'atat' (it is compared with: mdlm)",
        ),
        ({"rows": [{"arm": "sets"}, {"arm": "mdlm", "study": "sets_256"}], "intervals": "sequences"}, "on other text"),
        (
            {"rows": [{"arm": "mdlm", "study": "longer"}]},
            "has one seed, and there is no interval over seeds; take intervals",
        ),
        ({"label": "A b"}, "table[0].label: expected small letters, digits and hyphens"),
        (
            {"data": "studies"},
            "table[0].data: expected study | gaps | samplers | scores | evaluations | tasks | parameters, got",
        ),
    ],
)
def test_a_table_that_cannot_be_is_one_sentence(place, change, said):
    place.study("sets")
    with pytest.raises(UserError) as refused:
        fill(load(place.manifest(ARMS | change)))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"source": "Sahoo et al., 2024"}, "source: expected arXiv:2406.07524 or doi:10.1162/tacl_a_00300"),
        ({"table": "mian"}, "cited[0].table: there is no table 'mian'; did you mean 'main'?"),
        ({"value": 1.0}, "value and column: name both, or neither where nothing is comparable"),
        ({"value": 1.0, "column": "valu"}, "cited[0].column: 'valu' is no column of 'main'; did you mean 'value'?"),
    ],
)
def test_a_cited_row_has_a_source_and_a_place(place, change, said):
    with pytest.raises(UserError) as refused:
        load(place.manifest(ARMS, cited=[CITED | change]))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "sensitivity"}, "figure[0].study: 'sets_budgets' has no [grid] and no [sweep]"),
        ({"study": "sets"}, "figure[0].study: 'sets' has no budgets"),
        ({"arms": ["sets-450"]}, "figure[0].arms: 'sets-450' of the study 'sets_budgets' has no budgets"),
        ({"kind": "arms", "arms": ["sets-450"]}, "does not compare 'sets-450' with its baseline 'mdlm'"),
        ({"intervals": "both"}, "has one seed"),
    ],
)
def test_a_figure_that_cannot_be_is_one_sentence(place, change, said):
    with pytest.raises(UserError) as refused:
        fill(load(place.manifest(figures=[FIGURE | change])))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_damaged_results_are_refused(place):
    place.study("sets", lambda report: report["arms"]["sets"].pop("runs"))
    with pytest.raises(UserError, match=r"table\[0\]: results that it names are damaged"):
        place.made(ARMS)
    (place.results / "sets.json").write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        place.made(ARMS)
