"""The figures of a run's importance: their numbers, their files, and what is refused."""

import csv
import io
import json
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from atat_zoo_paper import importance_figures
from atat_zoo_paper.importance_tables import Analysis, classes, correlations, frequency, partial_correlation
from atat_zoo_paper.importance_tables import _rank_sums as rank_sums
from atat_zoo_paper.style import WIDTH
from atat_zoo_paper.word_classes import CLASSES
from scipy import stats

from atat_zoo.evaluation.importance_quality import weigh
from atat_zoo.experiment.runs import RunFolder
from atat_zoo.generation.model import Model
from atat_zoo.reports.run_records import figures
from tests.cli.terminal import printed
from tests.evaluation.making import make_run
from tests.reports.run_folders import HOSTILE

LEARNED = {"use": "transformer", "layers": 1, "width": 8, "heads": 2}
ALWAYS = ("rates", "classes", "frequency", "evaluations")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("figures")


@pytest.fixture(scope="module")
def run(root):
    return make_run(root, "one", "mdlm", estimator={**LEARNED, "reads": "z"})


@pytest.fixture(scope="module")
def other(root):
    return make_run(root, "other", "mdlm", estimator={"use": "hybrid", "learned": LEARNED}, seed=5)


def analysed(run, *others, **changed):
    model = Model.from_run(run)
    own = model.experiment
    how = {"spec": own.evaluation, "seed": own.seed, "sampler": own.parts["sampler"], **changed}
    analysis = Analysis(model=model, run=run, others=others, **how)
    analysis.check()
    weighed = weigh(model, run, own.evaluation, seed=own.seed)
    return analysis, weighed, *analysis.tables(weighed)


def test_the_correlations_are_those_of_all_tokens_and_of_what_frequency_leaves():
    generator = torch.Generator().manual_seed(0)
    columns = torch.randn(3, 400, generator=generator).double()
    columns[0] += columns[2]
    columns[1] += columns[0] + columns[2]
    columns = columns.mul(3).round()  # with ties
    sums = rank_sums(columns.unbind(), torch.randint(7, (400,), generator=generator), 7)
    rho = correlations(sums.sum(0))
    assert torch.allclose(rho, torch.from_numpy(stats.spearmanr(columns.numpy(), axis=1).statistic))
    # What a line through the ranks of the third leaves of the others.
    ranks = stats.rankdata(columns.numpy(), axis=1)
    left = [each - np.polyval(np.polyfit(ranks[2], each, 1), ranks[2]) for each in ranks[:2]]
    assert float(partial_correlation(rho)) == pytest.approx(np.corrcoef(*left)[0, 1])
    same = correlations(rank_sums([columns[0], columns[1], columns[1]], torch.zeros(400).long(), 1)[0])
    assert partial_correlation(same).isnan()
    constant = rank_sums([columns[0], torch.ones(400)], torch.zeros(400).long(), 1)
    assert correlations(constant)[0, 0, 1].isnan()


def test_every_token_is_in_one_class_and_in_one_band_of_frequency(run):
    model = Model.from_run(run)
    text, measured = weigh(model, run, model.experiment.evaluation, seed=4)
    seen = measured.maskable & measured.token_loss.isfinite()
    importance, loss, tokens = (each[seen] for each in (measured.importance, measured.token_loss, measured.tokens))
    by_class = classes(measured, model)
    assert [row["class"] for row in by_class] == [name for name in CLASSES if name in {r["class"] for r in by_class}]
    space = torch.tensor([model.tokenizer.decode([i]).isspace() for i in tokens.tolist()])
    assert sum(row["tokens"] for row in by_class) == int((~space).sum())
    whole = sum(row["tokens"] * row["mean"] for row in by_class)
    assert whole == pytest.approx(float(importance[~space].double().sum()), abs=1e-3)
    bands = frequency(measured, text.counts)
    assert sum(row["tokens"] for row in bands) == len(tokens)
    assert all(low["most"] < high["least"] for low, high in pairwise(bands))
    for row in bands:
        inside = (text.counts[tokens] >= row["least"]) & (text.counts[tokens] <= row["most"])
        assert row["tokens"] == int(inside.sum())
        assert row["most"] + 1 < 2 * (row["least"] + 1)
        assert row["median"] == pytest.approx(float(np.median(importance[inside].numpy())), abs=1e-6)
        assert row["p05"] <= row["p25"] <= row["median"] <= row["p75"] <= row["p95"]
        assert row["loss"] == pytest.approx(float(loss[inside].mean()), abs=1e-6)


def test_a_single_run_says_what_it_has_no_figure_of(run):
    _, (_, measured), tables, said = analysed(run)
    assert tuple(tables) == ALWAYS
    assert [sentence.partition(" is omitted")[0] for sentence in said] == ["checkpoints", "agreement", "context_probe"]
    rates = tables["rates"]
    assert {row["rate"] for row in rates} == {round(0.1 * i, 1) for i in range(1, 10)}
    assert len(rates) == 9 * measured.tokens.shape[1]
    assert all(row["depends_on_rate"] for row in rates)
    assert sum(row["texts"] for row in tables["evaluations"]) == 64
    fixed = Model.from_run(run)._parts({"sampler": {"use": "strided", "stride": 4}})["sampler"]
    *_, tables, said = analysed(run, sampler=fixed)
    assert [(row["evaluations"], row["texts"]) for row in tables["evaluations"]] == [(4, 64)]
    assert "evaluations has one bar: every text takes 4 decoding steps with strided; pass another --sampler" in said


def test_runs_agree_as_far_as_the_ranks_of_their_importance(run, other):
    told = set()
    _, (text, one), tables, _ = analysed(run, other, progress=lambda what, *_: told.add(what))
    assert "other" in told
    (row,) = tables["agreement"]
    assert (row["run"], row["other"], row["seed"], row["other_seed"]) == ("one", "other", 4, 5)
    spec = Model.from_run(run).experiment.evaluation
    two = weigh(Model.from_run(other), other, spec, seed=4)[1]
    seen = one.maskable & one.token_loss.isfinite() & two.token_loss.isfinite()
    a, b, count = (each[seen].numpy() for each in (one.importance, two.importance, text.counts[one.tokens]))
    assert row["tokens"] == len(a)
    assert row["rho"] == pytest.approx(stats.spearmanr(a, b).statistic, abs=1e-5)
    assert row["low"] <= row["rho"] <= row["high"]
    assert row["low"] < row["high"]
    assert row["partial_rho"] != row["rho"]
    assert row["partial_low"] <= row["partial_rho"] <= row["partial_high"]
    assert abs(stats.spearmanr(b, count).statistic) > 0.1  # frequency is a part of it


def rows_of(*tokens):
    """Rows of every figure, as a run could have them."""
    tokens = tokens or ("a",)
    token = tokens[0]
    spread = {"tokens": 30, "mean": 0.5, "p05": 0.1, "p25": 0.4, "median": 0.5, "p75": 0.6, "p95": 0.9, "loss": 2.0}
    rho = {"rho": 0.5, "low": 0.4, "high": 0.6}
    pair = {"run": token, "seed": 1, "other": "b", "other_seed": 1, "tokens": 30, **rho}
    places = [{"position": i, "token": tokens[i % len(tokens)], "importance": None, "loss": None} for i in range(60)]
    return {
        "rates": [{"depends_on_rate": False, "rate": rate, **place} for rate in (0.1, 0.2) for place in places],
        "classes": [{"class": name, "share": 0.2, **spread} for name in CLASSES],
        "frequency": [{"least": n, "most": 2 * n, "entries": 3, **spread} for n in (0, 1, 9)],
        "checkpoints": [
            {"step": n, **spread, **rho, "rho_last": 1.0, "low_last": None, "high_last": None} for n in (1, 2)
        ],
        "agreement": [{**pair, **dict.fromkeys(("partial_rho", "partial_low", "partial_high"))}],
        "evaluations": [{"sampler": token, "settings": "", "evaluations": 7, "texts": 64}],
        "context_probe": [
            {"score": name, "quantity": name, "value": 0.5, "stderr": None} for name in ("right", "margin")
        ],
    }


@pytest.mark.parametrize("depends", [False, True])
def test_the_heat_map_has_a_grid_a_legend_and_its_tokens_in_print(depends):
    rows = [row | {"depends_on_rate": depends} for row in rows_of(" a\n")["rates"]]
    spec = importance_figures.rates(rows).to_dict(validate=False)
    empty, filled, names = spec["vconcat"][0]["layer"]
    assert empty["mark"]["stroke"] == filled["mark"]["stroke"] == "white"
    assert ("every mask rate" in filled["encoding"]["color"]["legend"]["title"]) is not depends
    assert {row["token"] for row in spec["datasets"][names["data"]["name"]]} == {"·a↵"}


def written(folder, *only):
    """Write the figures of rows with hostile texts, and return each file's content."""
    rows = rows_of("$x_", *HOSTILE, "\ufffd", "")
    files = importance_figures.write({name: rows[name] for name in only or rows}, folder, 3, clear=True)
    return {file.name: file.read_bytes() for file in files}


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Return a run folder with all figures, and what is in each of their files."""
    run = tmp_path_factory.mktemp("drawn")
    return run, written(run / "report" / "importance")


def test_what_a_run_has_written_is_drawn_as_it_stands_within_a_column(drawn, tmp_path):
    run, files = drawn
    assert files.keys() == {f"{name}.{end}" for name in rows_of() for end in ("pdf", "svg", "csv")}
    for name in rows_of():
        svg = ElementTree.fromstring(files[f"{name}.svg"])
        assert float(svg.get("width")) <= WIDTH + 10, name
        texts = list(svg.iter("{http://www.w3.org/2000/svg}text"))
        assert any(element.text for element in texts)
        assert {element.get("font-size") for element in texts} <= {"6px", "6.5px", "7px"}
        assert next(svg.iter("{http://www.w3.org/2000/svg}rect")).get("fill") == "white"
    assert ">sampler $x_</text>" in files["evaluations.svg"].decode()
    assert [figure["step"] for figure in figures(RunFolder(run))] == [3] * 5  # which a report knows
    # The same rows are the same files, but for the order of fonts in a PDF, and none of others is left.
    again = written(tmp_path)
    assert {name: text for name, text in again.items() if not name.endswith("pdf")} == {
        name: text for name, text in files.items() if not name.endswith("pdf")
    }
    assert written(tmp_path, "evaluations").keys() == {path.name for path in tmp_path.iterdir()}


def test_no_word_of_a_run_is_in_an_expression():
    """Vega compiles them. A word may be in a row of the data, and in a scale's domain, and nowhere else."""
    words = "'+alert(1)+"
    for name, rows in rows_of(words).items():
        rows = [row | {key: words for key in ("score", "quantity", "run") if key in row} for row in rows]
        spec = importance_figures.DRAWN[name](rows).to_dict(validate=False)

        def places(value, at=""):
            if isinstance(value, dict | list):
                each = value.items() if isinstance(value, dict) else enumerate(value)
                return {where for key, inner in each for where in places(inner, f"{at}/{key}")}
            return {at} if isinstance(value, str) and "alert" in value else set()

        assert all(
            where.startswith(("/data/values/", "/datasets/")) or "/data/values/" in where for where in places(spec)
        ), name


def test_a_file_of_the_users_own_is_left(run, tmp_path, atat):
    own = tmp_path / "checkpoints.csv"  # of which a run without checkpoints has no figure
    own.write_text("mine")
    said = printed(atat, "importance-figures", str(run), "--out", str(tmp_path))
    assert f"\n{tmp_path}: {3 * len(ALWAYS)} files\n" in said
    assert own.read_text() == "mine"


def test_what_cannot_be_analysed_is_refused(root, run, other, atat):
    plain = make_run(root, "plain", "mdlm", estimator="uniform")
    longer = make_run(root, "longer", "mdlm", estimator=LEARNED, length=24)
    for words, sentence in [
        (
            [plain],
            f"{plain} has the estimator 'uniform', which gives every token the same importance; choose a run with",
        ),
        ([run, plain], f"{plain} has the estimator 'uniform'"),
        ([run, run], "is passed twice; pass it once"),
        (
            [run, other, longer],
            f"the held-out tokens of {longer} differ from those of {run}; use runs with the same corpus",
        ),
        ([run, root / "none"], f"{root / 'none'} is not a run folder"),
        ([run, "--out", run / "resolved.toml"], f"--out {run / 'resolved.toml'} belongs to the run {run}"),
        ([run, "--out", run / "evaluations"], f"--out {run / 'evaluations'} belongs to the run {run}"),
        ([run, "--out", root / "texts" / "test.txt"], "test.txt is a file; pass a folder"),
    ]:
        code, out, err = atat("importance-figures", *map(str, words))
        assert (code, out, err.count("error:")) == (2, "", 1)
        assert sentence in err
    assert not (run / "report").exists()


@pytest.mark.slow
def test_a_trained_run_has_all_figures_and_the_same_numbers_again(tiny):
    short = ["train.steps=8", "train.save_every=4"]
    trained, other = tiny.train("trained", *short), tiny.train("again", *short, "seed=6")
    tiny.atat("eval", "trained", "--task", "{use = 'context_probe', pairs = {a = ['A [man]', 'The [sea]']}}")
    rho = json.loads(tiny.atat("importance", "trained", "--sequences", "0", "--json").stdout)["importance_spearman"]
    words = ["importance-figures", "trained", str(other), "--sequences", "0", "--sampler", "ancestral"]
    said = json.loads(tiny.atat(*words, "--json").stdout)
    folder = trained / "report" / "importance"
    assert {folder / f"{name}.{end}" for name in importance_figures.DRAWN for end in ("pdf", "svg", "csv")} == {
        tiny.root / path for path in said["figures"]
    }
    assert said["notes"] == []
    rows = {
        name: list(csv.DictReader(io.StringIO((folder / f"{name}.csv").read_bytes().decode(), newline="")))
        for name in importance_figures.DRAWN
    }
    steps = [int(row["step"]) for row in rows["checkpoints"]]
    assert steps == sorted(int(path.name.removeprefix("step-")) for path in trained.glob("checkpoints/step-*[0-9]"))
    last = rows["checkpoints"][-1]
    assert (steps[-1], float(last["rho_last"])) == (8, 1.0)
    assert float(last["rho"]) == pytest.approx(rho, abs=1e-5)
    assert {row["score"] for row in rows["context_probe"]} == {"right", "margin", "importance"}
    assert len({row["evaluations"] for row in rows["evaluations"]}) > 1
    assert {row["depends_on_rate"] for row in rows["rates"]} == {"False"}
    text = tiny.atat(*words, "--out", "elsewhere").stdout
    assert "elsewhere: 21 files" in text
    for path in folder.glob("*.[sc][vs][gv]"):
        assert (tiny.root / "elsewhere" / path.name).read_bytes() == path.read_bytes()
