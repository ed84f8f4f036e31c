"""The table of a comparison, from runs whose numbers are known, and from two real tiny ones."""

import json
import math

import attrs
import pytest
import torch
from torch import nn

from atat_zoo.cli.compare_command import as_table, notes, quality
from atat_zoo.cli.compare_command import training as cost
from atat_zoo.evaluation.results.evaluation import MetricValue
from atat_zoo.evaluation.results.history import History
from atat_zoo.evaluation.run_comparison import ComparedRun, compare, measure_runs, sizes
from atat_zoo.experiment import EvaluationSpec, load
from atat_zoo.generation.model import Model
from atat_zoo.system.errors import UserError
from atat_zoo.training import train

N = 50
COUNT = torch.arange(N) % 7 + 10
HARD = 3 + torch.sin(torch.arange(N).double())


def subject(name="a", gap=0.0, evaluated=(), objective="mdlm", experiment=None, **bounds):
    past = {"clock": ((0, 0.0), (10, 5.0)), "tokens_per_second": 123.0, "peak_memory": 3 << 20, "computed": {}}
    about = {"name": name, "objective": objective, "step": 10, "ema": False, "method": "exact_k"}
    return ComparedRun(
        **about,
        nats={"nelbo": (HARD + gap) * COUNT, **bounds},
        count=COUNT,
        bytes=3 * COUNT,
        parameters=1000,
        without_embeddings=600,
        history=History(**past, evaluated=tuple(evaluated)),
        experiment=experiment or {},
    )


def found(*subjects, **options):
    return compare(subjects, EvaluationSpec(), seed=1, **options)


def test_a_constant_gap_is_found_exactly():
    table = found(subject("a"), subject("b", gap=math.log(1.1))).to_table()
    a, b = table["runs"]
    assert a["perplexity"] == pytest.approx(math.exp(float((HARD * COUNT).sum() / COUNT.sum())))
    assert b["perplexity"] == pytest.approx(1.1 * a["perplexity"])
    assert a["bounds"]["nelbo"]["difference"] is None
    assert (a["tokens_per_second"], a["peak_memory"], a["parameters"]) == (123.0, 3 << 20, 1000)
    difference = b["bounds"]["nelbo"]["difference"]
    assert difference["nats_per_token"] == pytest.approx(math.log(1.1))
    for key in ("percent", "percent_low", "percent_high"):
        assert difference[key] == pytest.approx(10)
    assert difference["unpaired_width"] > 0.1 > 1e-9 > difference["paired_width"]
    assert b["bounds"]["nelbo"]["bits_per_byte"] == pytest.approx(b["bounds"]["nelbo"]["nats_per_token"] / math.log(8))
    assert (table["sequences"], table["tokens"], table["level"]) == (N, int(COUNT.sum()), 0.95)
    json.dumps(table, allow_nan=False)


def test_metrics_have_columns_of_their_own():
    metrics = {"brier_score": MetricValue(value=0.25, stderr=0.01), "mine": MetricValue(value=0.5)}
    comparison = found(attrs.evolve(subject("a"), metrics=metrics), subject("b"))
    first, second = comparison.to_table()["runs"]
    assert first["metrics"]["brier_score"] == {"value": 0.25, "stderr": 0.01, "table": None}
    assert second["metrics"] == {}
    table = quality(comparison)
    columns, (a, b) = table.headings, table.texts
    expected = [["brier score", "mine"], ["0.2500 ± 0.0100", "0.5000"], ["—", "—"]]
    assert [columns[-2:], a[-2:], b[-2:]] == expected
    assert any("Brier score: 0 is best" in line for line in notes(comparison))
    assert not any("Brier score" in line for line in notes(found(subject("a"), subject("b"))))


def test_other_bounds_have_names_and_differences_of_their_own():
    better = subject("b", objective="adaptive", adaptive=(HARD - 0.2) * COUNT)
    comparison = found(subject("a"), better)
    bounds = comparison.to_table()["runs"][1]["bounds"]
    assert bounds["nelbo"]["difference"]["nats_per_token"] == 0
    # Against the first run's likelihood bound: both bound −log p(x) of the same text.
    assert bounds["adaptive"]["difference"]["nats_per_token"] == pytest.approx(-0.2)
    table = quality(comparison)
    columns, (first, second) = table.headings, table.texts
    assert columns[2:4] == ["perplexity", "adaptive bound"]
    assert first[3] == "—"
    assert second[3].startswith(f"{bounds['adaptive']['value']:.2f} ± ")
    against = "adaptive bound of b against the perplexity of a: -0.2000"
    assert any(line.startswith(against) for line in notes(comparison))


def test_a_perplexity_names_its_factorisation():
    a, b = (attrs.evolve(subject(name), factorisations={"nelbo": "any-order ELBO"}) for name in "ab")
    alike = found(a, b)
    assert quality(alike).headings[:3] == ["run", "objective", "perplexity (any-order ELBO)"]
    assert notes(alike)[0].startswith("perplexity (any-order ELBO): ")
    other = found(a, attrs.evolve(b, factorisations={"nelbo": "left to right, exact"}))
    table = quality(other)
    assert table.headings[2:4] == ["factorisation", "perplexity"]
    assert [row[2] for row in table.texts] == ["any-order ELBO", "left to right, exact"]


def test_without_the_likelihood_bound_nothing_is_called_perplexity():
    def discrete(name, gap):
        return attrs.evolve(subject(name), nats={"discrete T=8": (HARD + gap) * COUNT})

    comparison = found(discrete("a", 0.0), discrete("b", 0.1))
    assert comparison.quantity == "discrete T=8"
    assert all("perplexity" not in row for row in comparison.to_table()["runs"])
    assert quality(comparison).headings[2] == "discrete T=8 bound"
    assert notes(comparison)[0].startswith("discrete T=8 bound: on 50 sequences")


def test_a_run_without_the_baselines_bound_is_refused():
    other = attrs.evolve(subject("b"), nats={"other": HARD * COUNT})
    with pytest.raises(UserError, match="b does not have the bound 'nelbo', the main bound of a"):
        found(subject("a"), other)


def test_the_value_to_reach_is_the_worst_final_one():
    slow = subject("slow", evaluated=[(5, 40.0), (10, 30.0)])
    fast = subject("fast", evaluated=[(2, 50.0), (4, 29.0), (10, 20.0)])
    silent = subject("silent")
    comparison = found(slow, fast, silent)
    assert comparison.reach == 30.0
    assert [comparison.reached(run) for run in comparison.runs] == [(10, 5.0), (4, 2.0), (None, None)]
    costs = cost(comparison)
    table = [["steps to 30.00", "seconds to 30.00"], ["10", "5"], ["4", "2"], ["—", "—"]]
    assert [row[3:5] for row in (costs.headings, *costs.texts)] == table
    for reach, wanted in ((45.0, [(5, 2.5), (4, 2.0)]), (1.0, [(None, None)] * 2)):
        assert list(map(found(slow, fast, reach=reach).reached, (slow, fast))) == wanted
    assert found(silent, subject("b")).reach is None
    assert not any("sequences ×" in line for line in notes(comparison))
    known = attrs.evolve(slow, history=attrs.evolve(slow.history, evaluated_on="9 sequences, 2 masks each"))
    assert "(9 sequences, 2 masks each) is at most this value." in notes(found(known, fast))[-1]
    assert any("no run recorded an evaluation" in line for line in notes(found(silent, subject("b"))))


def experiment(name="a", seed=1, neighbours=0, objective="mdlm", **train):
    return {
        "name": name,
        "seed": seed,
        "objective": {"use": objective, **({"weight": "nelbo"} if objective == "mdlm" else {"rate": 0.15})},
        "backbone": {"use": "dit", "ngram_prior": neighbours},
        "train": {"steps": 10, "log_every": 5, **train},
        "evaluation": {"sequences": 8},
    }


def test_what_the_runs_differ_in_is_said_and_what_counts_are():
    base = subject("a", experiment=experiment(neighbours=2))
    bare = subject("b", gap=1e6, experiment=experiment("b", seed=2))
    other = subject("c", experiment=experiment("c", neighbours=3, objective="mlm", steps=9, log_every=1))
    same = subject("d", experiment=experiment("d", neighbours=2))
    comparison = found(base, bare, other, same)
    said = notes(comparison)
    assert any(line.startswith("a has backbone.ngram_prior = 2, ") and "seed (2, not 1)" in line for line in said)
    assert any('objective.use ("mlm", not "mdlm"), train.steps (9, not 10)' in line for line in said)
    assert not any(line.startswith("d ") for line in said)
    table = as_table(comparison)
    of_other = {"objective.use": ["mlm", "mdlm"], "backbone.ngram_prior": [3, 2], "train.steps": [9, 10]}
    differs = [{}, {"seed": [2, 1], "backbone.ngram_prior": [0, 2]}, of_other, {}]
    assert [row["differs"] for row in table["runs"]] == differs
    assert table["runs"][1]["perplexity"] is None  # it has diverged
    json.dumps(table, allow_nan=False)


@pytest.mark.parametrize("tied", [True, False])
def test_parameters_that_grow_with_the_vocabulary(tied):
    module, backbone = nn.Module(), nn.Module()
    module.backbone, module.positions = backbone, nn.Embedding(5, 4)
    backbone.embedding, backbone.body, backbone.head = nn.Embedding(11, 4), nn.Linear(4, 4), nn.Linear(4, 10)
    if tied:
        backbone.head.weight = backbone.embedding.weight
    # 44 in the embedding, 20 in the body, 20 in the positions; 40 + 10 in the head, or its bias alone.
    assert sizes(module, 10) == (44 + 20 + 20 + (10 if tied else 50), 40)


@pytest.fixture(scope="module")
def other_seed(tiny, trained):
    return tiny.train("other-seed", "seed=6")


@pytest.mark.slow
def test_two_seeds_are_told_apart_three_times_better_in_pairs(tiny, trained, other_seed):
    chosen = ["--metric", "calibration_error", "--metric", "{use = 'top_accuracy', k = 3}"]
    said = tiny.atat("compare", str(trained), str(other_seed), str(trained), "--sequences", "0", "--json", *chosen)
    a, b, again = json.loads(said.stdout)["runs"]
    assert b["perplexity"] != a["perplexity"]
    assert b["bounds"]["nelbo"]["difference"]["narrower"] >= 3
    same = again["bounds"]["nelbo"]["difference"]
    assert (same["nats_per_token"], same["low"], same["high"]) == (0, 0, 0)
    assert a["peak_memory"] > 1e8
    assert a["steps_to_reach"] == a["step"] == 24
    assert 0 < a["seconds_to_reach"] == a["seconds"]
    assert a["metrics"] == again["metrics"] != b["metrics"]
    rhos = [f"{name}_correlation" for name in ("importance", "entropy", "frequency")]
    assert list(a["metrics"]) == ["calibration_error", "top_3_accuracy", *rhos]
    assert a["parameters"] > a["parameters_without_embeddings"] > 0


@pytest.mark.slow
def test_runs_are_compared_on_other_text(tiny, trained, other_seed, tmp_path, atat, monkeypatch):
    monkeypatch.chdir(tiny.root)
    (tmp_path / "fox.txt").write_text("the quick brown fox jumps over the lazy dog " * 20)
    words = ("--corpus", str(tmp_path / "fox.txt"), "--sequences", "0", "--seed", "5", "--json")
    said = json.loads(atat("compare", "trained", "other-seed", *words)[1])
    assert (said["corpus"], said["split"], said["tokens"]) == (f"{tmp_path.name}/fox.txt", "all", 880)
    assert said["runs"][1]["bounds"]["nelbo"]["difference"]["narrower"] > 1
    assert said["runs"][0]["ngram_prior"] is None
    for row in said["runs"]:
        alone = json.loads(atat("eval", row["run"], *words)[1])
        assert row["perplexity"] == pytest.approx(alone["perplexity"], rel=1e-12)
        assert row["perplexity_stderr"] == pytest.approx(alone["perplexity_stderr"], rel=1e-12)


@pytest.mark.slow
def test_runs_of_other_text_are_refused(tiny, trained, tmp_path):
    every = attrs.evolve(Model.from_run(trained).experiment.evaluation, sequences=0)

    def refused(*overrides):
        other = tmp_path / "other"
        experiment = load(str(tiny.path), ["train.steps=1", "evaluation.samples=0", *overrides])
        train(experiment, other, overwrite=True)
        with pytest.raises(UserError) as said:
            measure_runs([trained, other], every, seed=0)
        assert str(said.value).startswith(f"{other} ")
        return str(said.value)

    assert f"has data.length = 8, but {trained} has 16, so their sequences differ" in refused("data.length=8")
    assert "has a different tokenizer from" in refused("tokenizer.use=characters")
    text = tiny.root / "validation.txt"
    turned = tiny.root / "turned.txt"
    turned.write_text("\n".join(reversed(text.read_text().splitlines())) + "\n")
    assert "has different held-out text from" in refused(f'corpus.validation=["{turned}"]')
    turned.write_text(text.read_text()[:300])
    assert "held-out sequences" in refused(f'corpus.validation=["{turned}"]')


@pytest.mark.slow
def test_mistakes_are_said_in_one_sentence(tiny, trained, atat, monkeypatch):
    monkeypatch.chdir(tiny.root)
    for words, sentence in (
        (["trained"], "is the only run; pass two or more"),
        (["trained", "nowhere"], "nowhere is not a run folder"),
        (["trained", "trained", "--metric", "brier"], "unknown metric 'brier'"),
        (["trained", "trained", *2 * ("--metric", "brier_score")], "--metric: metrics has 'brier_score' twice"),
        (["trained", "trained", "--baseline", "traind"], "is not one of the runs; did you mean 'trained'?"),
    ):
        code, _, err = atat("compare", *words)
        assert (code, sentence in err) == (2, True)
