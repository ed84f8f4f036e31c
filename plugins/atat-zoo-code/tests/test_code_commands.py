"""The command's tables, and the shipped experiments in their true form."""

import math

import pytest
from atat_zoo_code import python_library
from atat_zoo_code.__main__ import class_table, infilling_tables, main
from code_models import EXPERIMENTS, NAMES, untrained

from atat_zoo import Model, training
from atat_zoo.evaluation.results.task_results import Score
from atat_zoo.experiment import load
from atat_zoo.system.errors import UserError
from atat_zoo.testing.invoked_commands import invoke

BANDS = ("1-4 tokens", "5-8 tokens")
TINY = ("backbone.layers=1", "train.steps=4", "train.batch_size=8", "evaluation.sequences=8")


def rates(exact, parsed, side, of="the lines"):
    """Return the scores of lines whose first half is short."""
    found, half = {}, len(exact) // 2
    for what, values in (("exact match", exact), ("parses", parsed)):
        for part, inside in ((f"{what}, {side}", values), *zip(BANDS, (values[:half], values[half:]), strict=True)):
            key = part if part.startswith(what) else f"{what}, {side}, {part}"
            found[key] = Score.over("share of texts", [float(each) for each in inside], of=of + part)
    return found


def test_the_tables_of_infilling():
    both = rates([1, 1, 0, 1, 0, 0, 1, 0, 1, 0], [1] * 10, "both sides")
    left = rates([1, 0, 0, 0, 0, 0, 0, 0, 0, 0], [1, 0] * 5, "left side")
    first, second = infilling_tables({"a": {**both, **left}, "b": left}).split("\n\n")
    assert first.splitlines()[:2] == [
        "| run | given | lines | exact match | parses | exact match against a, both sides |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    # Wilson's interval of 5 of 10 is 1/2 ± (z/2) √(1/(10 + z²)), with z = 1.96.
    half = 100 * 1.959964 / 2 / math.sqrt(10 + 1.959964**2)
    assert (
        first.splitlines()[2] == f"| a | both sides | 10 | 50.0 % [{50 - half:.1f}, {50 + half:.1f}] | "
        "100.0 % [72.2, 100.0] |  |"
    )
    assert first.splitlines()[3].startswith("| a | left side | 10 | 10.0 % [1.8, 40.4] | 50.0 % [23.7, 76.3] | ")
    assert first.splitlines()[4].startswith("| b | left side | 10 | 10.0 %")
    assert second.splitlines() == [
        "| run | given | 1-4 tokens (5 lines) | 5-8 tokens (5 lines) |",
        "| --- | --- | --- | --- |",
        "| a | both sides | 60.0 %, 100.0 % | 40.0 %, 100.0 % |",
        "| a | left side | 20.0 %, 60.0 % | 0.0 %, 40.0 % |",
        "| b | left side | 20.0 %, 60.0 % | 0.0 %, 40.0 % |",
    ]


def test_differences_are_paired_by_line():
    one, other = (rates([1] * 40 + [0] * 60, [1] * 100, "left side", of="the same") for _ in range(2))
    same = infilling_tables({"a": one, "b": other}).splitlines()[3]
    assert same.endswith("| +0.0 [+0.0, +0.0] |")
    fewer = rates([1] * 30 + [0] * 70, [1] * 100, "left side", of="the same")
    difference = infilling_tables({"a": one, "b": fewer}).splitlines()[3].rpartition("| ")[2].removesuffix(" |")
    value, low, high = map(float, difference.replace("[", "").replace("]", "").replace(",", "").split())
    assert value == -10
    assert -16.5 < low < -10 < high < -4  # ± 1.96 √(0.1 · 0.9 / 100)
    others = rates([1] * 30 + [0] * 70, [1] * 100, "left side", of="other lines")
    assert infilling_tables({"a": one, "b": others}).splitlines()[3].endswith("| — |")


def test_the_table_of_classes():
    def scores(importance):
        found = {}
        for name, share in (("identifiers", 0.25), ("white space", 0.75)):
            found[f"{name}, share"] = Score(quantity="share of tokens", value=share, items=4)
            found[f"{name}, loss"] = Score(quantity="nats per token", value=share * 4, stderr=0.5, items=4)
            if importance:
                found[f"{name}, importance"] = Score(quantity="importance", value=share, stderr=0.125, items=4)
        return found

    assert class_table({"a": scores(True), "b": scores(False)}).splitlines() == [
        "| class | share of tokens | a: loss | a: importance | b: loss |",
        "| --- | --- | --- | --- | --- |",
        "| identifiers | 25.0 % | 1.000 ± 0.500 | 0.250 ± 0.125 | 1.000 ± 0.500 |",
        "| white space | 75.0 % | 3.000 ± 0.500 | 0.750 ± 0.125 | 3.000 ± 0.500 |",
    ]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for name in NAMES:
        untrained(name, folder=folder / name)
    return folder


def test_infill_compares_runs_and_saves_their_scores(runs):
    paths = [runs / name for name in NAMES]
    out = invoke(main, "infill", *paths, "--lines", 6)
    rows = [line.split(" | ")[:3] for line in out.split("\n\n")[0].splitlines()[2:]]
    assert [(row[0].rpartition("/")[2], row[1], row[2]) for row in rows] == [
        ("code", "both sides", "6"),
        ("code", "left side", "6"),
        ("code_fill_in_the_middle", "both sides", "6"),
        ("code_fill_in_the_middle", "left side", "6"),
        ("code_autoregressive", "left side", "6"),
    ]
    assert "—" not in out
    assert all(list((path / "evaluations").glob("task-line_infilling*.json")) for path in paths)
    assert invoke(main, "infill", *paths, "--lines", 6) == out


def test_classes_of_a_run(runs):
    out = invoke(main, "classes", runs / "code", "--sequences", 5, "--seed", 3)
    assert out.splitlines()[0].endswith("code: importance |")
    assert [line.split(" | ")[0] for line in out.splitlines()[2:]] == [
        "| keywords",
        "| identifiers",
        "| operators",
        "| numbers",
        "| strings",
        "| comments",
        "| white space",
    ]
    assert "importance" not in invoke(main, "classes", runs / "code_autoregressive", "--sequences", 5)


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(UserError, match="nowhere"):
        invoke(main, "infill", tmp_path / "nowhere")


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return tmp_path_factory.mktemp("trained")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_experiment_trains_and_is_evaluated(name, shared, monkeypatch):
    monkeypatch.chdir(shared)  # the shards are those of the other experiments
    root, files = python_library.library_files()
    monkeypatch.setattr(python_library, "library_files", lambda: (root, files[::6]))
    training.train(load(str(EXPERIMENTS / f"{name}.toml"), TINY), shared / name)
    model = Model.from_run(shared / name)
    assert model.step == 4
    assert model.tokenizer.vocabulary_size == 2048
    out = invoke(main, "infill", shared / name, "--lines", 8)
    assert out.count("| 8 |") == (1 if name == "code_autoregressive" else 2)


def test_the_experiments_differ_only_as_they_say():
    code, middle, rows = (load(str(EXPERIMENTS / f"{name}.toml")) for name in NAMES)
    for kind in ("backbone", "corpus", "tokenizer", "optimizer", "schedule"):
        assert code.parts[kind] == middle.parts[kind] == rows.parts[kind]
    assert code.train == middle.train == rows.train
    assert code.seed == middle.seed == rows.seed
    assert (code.data.transforms, rows.data.transforms) == ((), ())
    assert code.parts["objective"].gap_share == middle.data.transforms[0].probability == 0.5
    assert code.parts["estimator"].reads == "z"
    assert code.data.length == rows.data.length == 128
