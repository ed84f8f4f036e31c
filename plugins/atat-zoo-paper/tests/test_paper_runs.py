"""Tables of run folders: their evaluations, their tasks and their hyper-parameters."""

import json
import re
import tomllib

import pytest
import tomli_w
from manifests import evaluation, scored

from atat_zoo import Zoo
from atat_zoo import experiment as experiments
from atat_zoo.registry.spec import unstructure

RUNS = {"data": "evaluations", "label": "runs", "caption": "Runs.", "metrics": ["brier_score"]}
RUNS |= {"columns": ["value", "bits_per_byte", "brier_score"]}
TASK = {"data": "tasks", "label": "task", "caption": "Gaps.", "columns": ["price"], "lower": ["price"]}
TASK |= {"task": {"use": "infilling", "gap": 3}}


def rows_of(*runs):
    return {"rows": [{"experiment": "mdlm", "run": run} for run in runs]}


def test_a_run_is_trained_finished_or_evaluated(place):
    absent, unfinished, unmeasured = (str(place.root / name) for name in ("absent", "unfinished", "unmeasured"))
    place.run("unfinished", trained=False)
    place.run("unmeasured")
    measured = place.run("measured", [evaluation(60.0, metrics={"brier_score": {"value": 0.5, "stderr": 0.1}})])
    filled = place.made(RUNS | rows_of(absent, unfinished, unmeasured, measured))
    assert list(filled.missing()) == [
        f"atat train mdlm --out {absent} && atat eval {absent} --split validation --metric brier_score",
        f"atat train --resume {unfinished} && atat eval {unfinished} --split validation --metric brier_score",
        f"atat eval {unmeasured} --split validation --metric brier_score",
    ]
    assert "| measured | 60.0 [59.0, 61.0] | 1.500 [1.480, 1.520] | 0.50 [0.30, 0.70] |" in place.texts("runs")[1]


@pytest.mark.parametrize("turned", [False, True])
def test_the_last_evaluation_with_the_most_sequences_is_shown(place, turned):
    tables = [evaluation(60.0), evaluation(70.0, step=200, sequences=9999), evaluation(65.0, sequences=8)]
    tables.append(evaluation(1.0, corpus="ptb"))
    place.made(RUNS | {"columns": ["value"]} | rows_of(place.run("it", tables[::-1] if turned else tables)))
    assert "| it | 60.0 [59.0, 61.0] |" in place.texts("runs")[1]


def test_seconds_of_runs_that_were_not_trained_alike_say_so(place):
    rows, here = rows_of(*(place.run(name, [evaluation(60.0)]) for name in "ab")), {}
    for processor, columns, said in (
        ("b", ["value", "tokens_per_second"], True),
        ("b", ["value"], False),
        ("a", ["tokens_per_second"], False),  # with another number of threads
    ):
        for name, of in (("a", "a"), ("b", processor)):
            here = {"machine": {"processor": of, "cores": 2, "threads": name}, "computes": {"device": "cpu"}}
            (place.root / name / "environment.json").write_text(json.dumps(here))
        place.made(RUNS | {"columns": columns} | rows)
        assert ("Not all runs were trained under the same conditions" in place.texts("runs")[1]) is said


@pytest.mark.parametrize("other", [{"bytes": 1}, {"seed": 1}])
def test_runs_on_other_text_are_not_in_one_column(place, other):
    runs = place.run("a", [evaluation(60.0)]), place.run("b", [evaluation(50.0, **other)])
    place.refused("was evaluated on different text or masks from", RUNS | rows_of(*runs))


@pytest.mark.parametrize(
    ("key", "line"), [("objective.use", ""), ("corpus.seed", "seed = 1"), ("init_from", 'init_from = "elsewhere"')]
)
def test_a_run_of_another_experiment_or_on_other_text_is_refused(place, key, line):
    run, table = place.run("it", [evaluation(60.0)]), experiments.load("mdlm").to_table()
    (table["corpus"] if key.startswith("corpus") else table).update(tomllib.loads(line))
    (place.root / "it" / "resolved.toml").write_text(tomli_w.dumps(table), encoding="utf-8")
    wanted = {"rows": [{"experiment": "mdlm" if line else "sets", "run": run}]}
    place.refused(f"a different experiment: {key} is", RUNS | wanted)


def test_a_column_of_runs_is_one_that_they_have(place):
    said = "table[0].columns: runs have no column 'brier'; did you mean 'brier_score'?"
    place.refused(said, RUNS | {"columns": ["brier"]} | rows_of("absent"))


def test_scores_are_shown_beside_what_is_published(place):
    spec = unstructure(Zoo.load().spec("task", TASK["task"]))
    runs = [place.run(name, [scored(spec, value, MDLM=3.25)]) for name, value in (("a", 2.0), ("b", 4.0))]
    other = place.run("c", [scored(spec | {"gap": 4}, 3.0)])
    filled = place.made(TASK | rows_of(*runs, other))
    markdown = place.texts("task")[1]
    assert "| a | 2.00 [1.80, 2.20] |" in markdown
    assert re.search(r"^\| MDLM, published( \[\S+\])? \| 3\.25 \|$", markdown, re.MULTILINE)
    assert "- a_note" in markdown
    assert list(filled.missing()) == [f"""atat eval {other} --task '{{use = "infilling", gap = 3}}'"""]
    place.made(TASK | rows_of(*runs))
    assert "| a | **2.00 [1.80, 2.20]** |" in place.texts("task")[1]
    of_others = place.run("d", [scored(spec, 2.0, "others")])
    place.refused("the quantities or items (such as tokens) differ", TASK | rows_of(runs[0], of_others))


def test_hyper_parameters_are_those_of_the_run_if_it_is_there(place):
    rows = [{"experiment": "mdlm", "run": str(place.root / "absent"), "overrides": ["train.steps=7"]}]
    rows += [{"experiment": "bell", "run": place.run("bell", experiment="bell")}]
    table = {"data": "parameters", "label": "keys", "caption": "Keys.", "columns": ["train.steps", "mask_rates.use"]}
    place.made(table | {"rows": rows})
    lines = place.texts("keys")[1].splitlines()
    assert lines[2:5] == ["| parameter | absent | bell |", "| --- | --- | --- |", "| train.steps | 7 | 450 |"]
    assert lines[-1].endswith("| logit_normal |")


def test_a_hyper_parameter_is_shown_as_one_reads_it(place):
    shown = {
        "objective.importance_loss_weight": (0.25, "0.25"),
        "train.compile": (True, "yes"),
        "train.ema_decay": (0, "0"),
    }
    shown |= {"train.steps": (45000, "45,000"), "corpus.train": (["a.txt", "b.txt"], "a.txt, b.txt")}
    table = experiments.load("mdlm", ["corpus.use=files", 'corpus.train=["x"]']).to_table()
    for key, (value, _) in shown.items():
        room, _, name = key.partition(".")
        table[room] = table.get(room, {}) | {name: value}
    rows = [{"experiment": place.file("made.toml", tomli_w.dumps(table)), "run": str(place.root / "absent")}]
    place.made({"data": "parameters", "label": "keys", "caption": "Keys.", "columns": [*shown], "rows": rows})
    said = {line.split(" | ")[0][2:]: line.split(" | ")[1][:-2] for line in place.texts("keys")[1].splitlines()[4:]}
    assert {key: said[key] for key in shown if key != "train.ema_decay"} == {
        key: words for key, (_, words) in shown.items() if key != "train.ema_decay"
    }
