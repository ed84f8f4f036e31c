"""`atat report`, its charts and its files, without a browser; test_report_in_browser.py opens the page."""

import csv
import html
import json
import os
import re
import shlex
import shutil
from pathlib import Path

import pytest
import vl_convert

from atat_zoo.evaluation.results.format import interval, uncertain
from atat_zoo.reports import PALETTE, charts, study_data
from atat_zoo.reports.html_report import page
from atat_zoo.reports.report_data import collect, command, commands
from tests.cli.terminal import printed, refused
from tests.evaluation.making import make_run
from tests.reports.run_folders import CONFIRM, HOSTILE, make, with_grids


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    return [make(root / "one", words=HOSTILE), make(root / "two", experiment="bell", estimator=False, seed=1)]


@pytest.fixture(scope="module")
def data(runs):
    return collect(runs)


TITLE = "</title><script>alert(1)</script>"


@pytest.fixture(scope="module")
def text(data):
    """The page of these runs."""
    return page(data | {"title": TITLE})


@pytest.fixture
def plain(monkeypatch):
    """Make pages without charts and without what draws them, which take most of a page's time."""
    monkeypatch.setattr("atat_zoo.reports.html_report._library", lambda: "")
    monkeypatch.setattr(charts, "specifications", lambda data: {})


def given(text):
    return json.loads(re.search(r'<script type="application/json" id="given">(.*?)</script>', text, re.DOTALL)[1])


@pytest.mark.slow
def test_the_page_holds_the_data_and_what_a_run_wrote_is_no_markup(data, text):
    assert given(text)["data"] == json.loads(json.dumps(data | {"title": TITLE}))
    assert "<title>&lt;/title&gt;&lt;script&gt;alert(1)&lt;/script&gt; · atat report</title>" in text
    assert text.count("<script") == text.count("</script>") == 3
    assert not any(words in text for words in HOSTILE if "<" in words)
    assert len(text.encode()) < 3 << 20


def test_a_page_may_fetch_nothing_and_a_live_one_only_from_its_host(data, text, plain):
    assert "connect-src 'none'" in text
    assert not re.search(r"""(?:src|href|action)\s*=\s*["']?https?:""", text.partition("<script")[0])
    live = page(data, live="/data")
    assert "connect-src 'self'" in live
    assert given(live)["live"] == "/data"


def test_a_legend_is_of_what_a_chart_has(data):
    """The second run has no estimator."""

    def colours(chart):
        return chart(data).to_dict(validate=False)["encoding"]["color"]

    assert colours(charts.bands)["scale"] == {"domain": ["one"], "range": [PALETTE[0]]}
    assert colours(charts.spread)["scale"]["domain"] == ["one", "two"]
    assert '"strokeDash": {"field": "bound", "legend": null' in json.dumps(charts.bound(data).to_dict(validate=False))
    several = json.dumps(charts.uncertainty(data).to_dict(validate=False))
    assert '"strokeDash": {"field": "sampler", "legend": {' in several


@pytest.mark.parametrize("number", [1, 2, 8])
def test_a_curve_does_not_hide_the_one_below_it(number):
    """Each is thinner than those before it, over which it is drawn, and no line is as thick as a bar.

    One by itself has a constant: of a scale whose range is one number Vega makes NaN, and its points do not appear.
    """
    runs = [{"name": f"run{i}"} for i in range(number)]
    data = {"runs": runs, "tables": {table: [] for table, _ in charts.CHARTS.values()}}
    both = (charts.bound, charts.metrics, charts.calibration)
    for channel, drawn, last in (
        ("strokeWidth", (*both, charts.loss, charts.strength), 1.5),
        ("size", (*both, charts.frontier), 60),
    ):
        for make_ in drawn:
            layers = make_(data).to_dict(validate=False)["layer"]
            if number == 1:
                assert {"value": last} in [each["encoding"].get(channel) for each in layers]
                assert "scale" not in str([each["encoding"].get(channel) for each in layers])
                continue
            (found,) = [each["encoding"][channel] for each in layers if "scale" in each["encoding"].get(channel, {})]
            assert found["scale"]["domain"] == [run["name"] for run in runs]
            falling = found["scale"]["range"]
            assert falling == sorted(set(falling), reverse=True)
            assert (falling[-1], falling[0] <= 4 * last) == (last, True)


@pytest.fixture(scope="module")
def of_study(tmp_path_factory):
    """The data of a study with grids, and the charts of its page."""
    data = study_data.of_study(with_grids(tmp_path_factory.mktemp("study") / "study.json"))
    return data, charts.specifications(data)


@pytest.mark.parametrize("name", charts.CHARTS)
def test_every_chart_is_valid_and_every_axis_says_its_unit(data, text, of_study, name):
    table, make_ = charts.CHARTS[name]
    data, bare = of_study if name in ("arms", "sensitivity") else (data, given(text)["charts"])
    spec = make_(data).to_dict()  # validated against the schema of Vega-Lite
    titles = re.findall(r'"title": "([^"]*)"', json.dumps(spec.get("layer", spec), ensure_ascii=False))
    axes = [each for each in titles if re.search(r"nats|0 to 1|no unit|steps|evaluations|%|times|unit", each)]
    assert len(set(axes)) >= (1 if name in ("stages", "arms", "sensitivity") else 2), titles
    assert spec["description"]
    rows = json.dumps(data["tables"][table][:1])[1:-1]
    assert rows
    assert rows in json.dumps(spec)  # as a notebook shows it; a page has the rows apart
    assert rows not in json.dumps(bare[name])
    assert f'"data": {{"name": "{table}"}}' in json.dumps(bare[name])


@pytest.mark.slow
def test_no_word_of_a_run_is_in_an_expression(tmp_path):
    """Vega compiles them. A word may be in a row of the data, and in a scale's domain of runs, and nowhere else."""
    words = "'+alert(1)+\\"
    run = make(tmp_path / f"run{words}", bound=words)
    path = run / "report" / "replay.json"
    table = json.loads(path.read_text()) | {"uncertainty": words, "unit": words}
    table["samplers"][0]["name"] = words
    path.write_text(json.dumps(table))
    data = collect([run])
    assert words in data["runs"][0]["replay"]["unit"]
    assert words in data["tables"]["bounds"][0]["bound"]

    def places(spec, at=""):
        if isinstance(spec, dict | list):
            each = spec.items() if isinstance(spec, dict) else enumerate(spec)
            return {where for key, inner in each for where in places(inner, f"{at}/{key}")}
        return {at} if isinstance(spec, str) and "alert" in spec else set()

    for each in charts.specifications(data).values():
        for spec in each["specs"].values():
            domains = re.compile("/(color|strokeWidth|size)/scale/domain/")
            assert all(domains.search(where) for where in places(spec))
    for name, (table, make_) in charts.CHARTS.items():
        if data["tables"][table]:
            found = places(vl_convert.vegalite_to_vega(make_(data).to_dict(validate=False)))
            assert found, name  # it is among the rows
            elsewhere = {at for at in found if not re.match(r"/data/\d+/values/|/scales/\d+/domain/\d+$", at)}
            assert elsewhere == set(), name


@pytest.mark.slow
def test_the_figures_are_files_and_their_rows_are_those_of_the_page(atat, runs, data, tmp_path, plain, monkeypatch):
    monkeypatch.setattr(charts, "CHARTS", {name: charts.CHARTS[name] for name in ("bound", "spread", "arms")})
    out, folder = tmp_path / "page.html", tmp_path / "figures"
    assert printed(atat, "report", *map(str, runs), "--out", str(out), "--figures", str(folder)).startswith(f"{out}: ")
    shown = {name for name, (table, _) in charts.CHARTS.items() if data["tables"][table]}
    assert {path.name for path in folder.iterdir()} == {f"{n}.{e}" for n in shown for e in ("svg", "png", "csv")}
    assert (folder / "bound.svg").read_text().startswith("<svg")
    assert (folder / "bound.png").read_bytes().startswith(b"\x89PNG")
    with (folder / "bound.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["value"]) for row in rows] == [row["value"] for row in data["tables"]["bounds"]]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere"], "is not a run folder"),
        (["{one}", "{one}"], "is passed twice"),
        (["{one}", "--out", "page.pdf"], "pass a path such as report.html"),
        (["{one}", "--frontier"], "--frontier only works with --compute"),
        (["{one}", "--out", "{one}.html"], "is a folder or does not end in .html"),
        (["{one}", "--out", "{one}/resolved.toml/page.html"], "resolved.toml/page.html belongs to the run "),
        (["{one}", "--out", "{one}.toml/page.html"], "page.html cannot be written: "),
        (["{one}", "--out", "/proc/nowhere/page.html"], "/proc/nowhere/page.html cannot be written: "),
        (["{one}", "--out", "{one}/pipe.html"], "pipe.html is a device or a pipe, which cannot be replaced"),
        (
            ["{one}", "--out", "{one}/page.html", "--figures", "{one}/resolved.toml"],
            "--figures {one}/resolved.toml belongs to the run",
        ),
        (["{one}", "--out", "{one}/page.html", "--figures", "{one}.toml"], ".toml: File exists"),
        ([str(CONFIRM), "--compute"], "does not work with a study"),
        (["nowhere.json"], "cannot be read"),
        (["{one}/report/text.json"], "contains no study results"),
    ],
)
def test_mistakes_are_sentences(atat, runs, words, sentence, plain):
    runs[0].with_suffix(".html").mkdir(exist_ok=True)
    runs[0].with_suffix(".toml").touch()
    if not (runs[0] / "pipe.html").exists():
        os.mkfifo(runs[0] / "pipe.html")
    said = refused(atat, "report", *(word.format(one=runs[0]) for word in words))
    assert sentence.format(one=runs[0]) in said


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("comparisons", 3),
        ("not_worse_percent", 10**400),
        ("study", []),
        ("study", "\ud800"),
        ("percent_low", float("inf")),
    ],
    ids=["number", "huge", "list", "surrogate", "infinite"],
)
def test_a_damaged_study_is_a_sentence(atat, tmp_path, key, value):
    report = json.loads(CONFIRM.read_text(), object_hook=lambda table: table | ({key: value} if key in table else {}))
    path = tmp_path / "study.json"
    path.write_text(json.dumps(report))
    assert "study.json" in refused(atat, "report", str(path))


def test_what_is_damaged_is_said_once_and_without_a_model_there_is_a_page(atat, runs, tmp_path, plain):
    run = shutil.copytree(runs[0], tmp_path / "damaged", ignore=shutil.ignore_patterns("pipe.html"))
    for path in (run / "report" / "replay.json", run / "evaluations" / "importance.json"):
        path.write_text("[")
    code, said, err = atat("report", str(run), "--compute")
    assert (code, said.startswith(f"{run / 'report.html'}: ")) == (0, True)
    evaluation, replay, nothing = err.splitlines()
    assert evaluation.startswith(f"note: {run / 'evaluations' / 'importance.json'} cannot be read: ")
    assert replay.startswith(f"note: {run / 'report' / 'replay.json'} cannot be read: ")
    assert nothing.startswith(f"note: no results were computed for the report: {run} has no final model yet; finish")
    text = (run / "report.html").read_text(encoding="utf-8")
    assert given(text)["data"]["tables"]["curves"]


def test_the_page_keeps_the_notices_of_the_libraries_that_are_in_it(text):
    """Of those in the bundle of this version of vl-convert: another one may hold others."""
    notices = html.unescape(re.search(r'<details id="licences">.*?<pre>(.*?)</pre>', text, re.DOTALL)[1])
    assert f"Vega {vl_convert.get_vega_version()}, Vega-Lite {vl_convert.get_vegalite_versions()[-1]}," in notices
    there = "vega semver process fast-json-patch buffer d3-geo d3-color d3-scale-chromatic internmap topojson-client"
    for name in [*there.split(), "d3-geo-projection", "the parser of vega-expression", "vega-themes"]:
        assert re.search(rf"(^|, ){name}\b", notices, re.MULTILINE), name
    for licence in ("Redistributions in binary form", "AUTHOR DISCLAIMS ALL", "free of charge, to any person"):
        assert licence in notices


# Studies


@pytest.mark.parametrize("name", ["confirm", "wikitext2"])
def test_the_numbers_of_a_study_are_those_of_its_json(name, plain):
    path = CONFIRM.with_name(f"{name}.json")
    report, data = json.loads(path.read_text()), study_data.of_study(path)
    means = {row["arm"]: row for row in data["tables"]["arms"] if row["kind"] == "mean"}
    for each in report["comparisons"]:
        found = each["both"] or each["sequences"]
        row = means[each["arm"]]
        ends = [found[key] for key in ("percent", "percent_low", "percent_high")]
        assert [row["value"], row["low"], row["high"]] == ends
        seeds = [row["value"] for row in data["tables"]["arms"] if (row["arm"], row["kind"]) == (each["arm"], "seed")]
        assert seeds == [one["percent"] for one in each["each"]]
    assert all(len(row) == len(block["columns"]) for block in data["blocks"] for row in block["rows"])
    arms, differences, *_ = data["blocks"]
    assert arms["columns"][:3] == ["arm", "experiment", "factorisation"]
    first, *_, last = (line.partition(":")[0] for line in arms["said"])
    assert (first, last) == ("Perplexity (any-order ELBO)", "N-gram model")
    for row, (arm, found) in zip(arms["rows"], report["arms"].items(), strict=True):
        own = [each for each in found["overrides"] if not each.startswith("evaluation.")]
        assert row[:2] == [arm, " ".join([found["experiment"], *own])]
    assert any("before NLLs per sequence" in each for each in differences["said"])
    assert all(html.escape(each) in re.sub("</?code>", "`", page(data)) for each in data["verdict"])


def test_a_grid_has_a_panel_for_each_axis(of_study, tmp_path, monkeypatch):
    data, _ = of_study
    first, second = (block for block in data["blocks"] if block["title"].startswith("Sensitivity"))
    assert (first["title"], second["columns"][:2]) == (
        "Sensitivity of mdlm to train.steps",
        ["mask_rates.scale", "</script><b>"],
    )
    assert first["rows"][0] == ["450", "any-order ELBO", "55.97 [53.71, 58.32]", "3", "—"]
    assert [row[-1] for row in second["rows"]] == ["-1.77 % [-2.16, -1.38]", "-1.30 % [-1.65, -0.95]", "—"]
    rows = data["tables"]["sensitivity"]
    assert [row["panel"] for row in rows] == [0, 0, 0, 1, 1, 1]
    assert [(row["point"], row["own"]) for row in rows[2:]] == [
        ("315", False),
        ("0.6, on", False),
        ("1.0, on", False),
        ("—, off", True),
    ]
    monkeypatch.setattr(charts, "CHARTS", {"sensitivity": charts.CHARTS["sensitivity"]})
    assert {path.stem for path in charts.figures(data, tmp_path)} == {"sensitivity-1", "sensitivity-2"}


def test_a_page_has_every_table_of_a_study_and_those_of_its_test_split(tmp_path):
    report = json.loads(CONFIRM.read_text())
    multiplier = {"arm": "bell", "curve": ["a", "b"], "each": [{"seed": 1, "multiplier": 2.5, "where": "beyond"}]}
    report["multipliers"] = [multiplier | {"both": None}]
    part = {key: report[key] for key in ("arms", "comparisons", "sequences", "tokens", "draws", "seed")}
    report |= {"test": {"times": 2, **part}, "failed": {"wild-seed1": "why"}}
    (tmp_path / "study.json").write_text(json.dumps(report))
    blocks = {block["title"]: block for block in study_data.of_study(tmp_path / "study.json")["blocks"]}
    assert [*blocks][:3] == ["Arms", "Differences", "Step multipliers"]
    assert blocks["Step multipliers"]["rows"] == [["bell", "1: > 2.50", "—"]]
    tested = blocks["Test split: differences"]
    assert tested["rows"] == blocks["Differences"]["rows"]
    assert tested["said"] == ["This split was evaluated 2 times, after all settings were fixed."]
    assert blocks["Failed"]["rows"] == [["wild-seed1", "why"]]


def test_the_verdict_of_a_study_is_of_the_arm_that_it_names(tmp_path):
    report = json.loads(CONFIRM.read_text())
    rows = report["comparisons"]
    rows[0]["seeds"], rows[1]["against"] = [18, 19], "another"
    (tmp_path / "a study.json").write_text(json.dumps(report))
    data = study_data.of_study(tmp_path / "a study.json")
    first, others, *_ = data["verdict"]
    assert first.startswith("bell differs by −2.2 % [−2.7, −1.6] from mdlm in ")
    assert first.endswith("over 2 seeds.")
    assert f"bell_middle {study_data._change(rows[1])} from another, " in others
    assert data["commands"][1] == f"atat report '{tmp_path}/a study.json'"


# The commands that make a page again: all of them work in one folder, with what the page was asked for


def test_where_the_runs_were_trained_they_are_named_as_they_were_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for train, run in (
        ("atat train z.toml --out full", "full"),
        ("atat train z.toml --out=full", "./full"),
        ("atat train mdlm", "runs/mdlm"),
    ):
        found = commands([Path(run)], [train], False, out=None, figures=None)
        assert found == [train, f"atat eval {Path(run)}", f"atat report {Path(run)} --compute"]


def test_elsewhere_every_path_but_those_of_the_training_is_a_whole_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs, train = [Path("zst/full"), Path("zst/a run")], ["atat train z.toml --out full", None]
    note, *found = commands(runs, train, True, out=Path("page.html"), figures=Path("charts"))
    assert note == "# Run these commands in the folder where the runs were trained:"
    full, other = f"{tmp_path}/zst/full", shlex.quote(f"{tmp_path}/zst/a run")
    assert found == [
        train[0],
        f"atat eval {full}",
        f"atat eval {other}",
        f"atat compare {full} {other}",
        f"atat report {full} {other} --compute --frontier --out {tmp_path}/page.html --figures {tmp_path}/charts",
    ]


def test_a_run_of_the_launcher_is_made_by_it():
    recorded = {"command": ["/a/atat_zoo/train.py", "mdlm", "--out", "a b"], "computes": {"ranks": 2}}
    assert command(recorded) == "composer -n 2 -m atat_zoo.train mdlm --out 'a b'"
    recorded["command"][0] = "/a/atat_zoo/__main__.py"
    assert command(recorded) == "atat mdlm --out 'a b'"
    assert [command(table) for table in ({}, {"command": 3}, {"command": []})] == [None] * 3


# `atat report --compute`: what commands print, and nothing else


@pytest.mark.slow
def test_a_page_has_the_numbers_that_commands_print(atat, tmp_path, plain):
    """Of one objective: `test_recording` computes what the others have."""
    learned = {"use": "transformer", "layers": 1, "width": 8, "heads": 2}
    run = make_run(tmp_path, "mdlm", objective="mdlm", estimator=learned)
    said = printed(atat, "report", str(run), "--compute")
    assert f"{run}: text took " in said
    assert ": no sampler was evaluated; pass --frontier (slow)\n" in said
    bounds = json.loads(printed(atat, "eval", str(run), "--json", "--mask-samples", "1"))["bounds"]
    data = collect([run])
    assert [row["value"] for row in data["tables"]["bounds"]] == [bound["value"] for bound in bounds.values()]
    first = next(iter(bounds.values()))
    assert uncertain(first["value"], first["stderr"]) in " ".join(data["verdict"])
    bands = json.loads(printed(atat, "importance", str(run), "--json"))["bands"]
    rhos = [row["rho"] for row in data["tables"]["bands"] if row["orders by"] == "importance"]
    assert rhos == [band["importance_spearman"] for band in bands if band["importance_spearman"] is not None]


@pytest.mark.slow
def test_runs_are_compared_and_the_verdict_is_what_compare_prints(atat, tmp_path, plain):
    one = make_run(tmp_path, "mdlm", objective="mdlm")
    other = make_run(tmp_path, "mlm", objective="mlm")
    said = printed(atat, "report", str(one), str(other), "--compute", "--out", str(tmp_path / "page.html"))
    assert f"{one}: the comparison took " in said
    row = json.loads(printed(atat, "compare", str(one), str(other), "--json"))["runs"][1]
    difference = next(iter(row["bounds"].values()))["difference"]
    change = interval(*(difference[key] for key in ("percent", "percent_low", "percent_high")))
    assert any(f"{row['run']} {change}" in sentence for sentence in collect([one, other])["verdict"])
