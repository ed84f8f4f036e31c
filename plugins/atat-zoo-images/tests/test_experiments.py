"""The shipped experiments, trained for a few steps, and the report's pictures."""

import json

import pytest
from pictures import EXPERIMENTS, SMALL, write_pictures

from atat_zoo import Model, training
from atat_zoo.experiment import load
from atat_zoo.reports.report_records import compute

TINY = (*SMALL, "train.steps=4", "train.evaluate_every=2", "train.batch_size=8", "evaluation.sequences=8")
NAMES = ("digits", "digits_autoregressive")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_an_experiment_trains_and_its_report_shows_pictures(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    training.train(load(str(EXPERIMENTS / f"{name}.toml"), TINY), run)
    model = Model.from_run(run)
    assert model.step == 4
    assert {"text", "replay"} <= set(compute(run))
    for file in ("text", "replay"):
        picture = json.loads((run / "report" / f"{file}.json").read_text(encoding="utf-8"))["picture"]
        assert (picture["first"], picture["columns"]) == (1, 8)
        assert sorted(picture["colours"].values()) == ["#" + 3 * f"{round(i * 255 / 16):02x}" for i in range(17)]
    for text in json.loads((run / "report" / "text.json").read_text(encoding="utf-8"))["texts"]:
        assert len(text["tokens"]) == 65


@pytest.mark.slow
def test_a_model_learns_from_a_folder_of_pictures(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    changes = ["corpus.use=pictures", f"corpus.path={write_pictures(tmp_path / 'in')}", "corpus.side=4"]
    settings = ["corpus.palette=4", "corpus.validation=0.3", "data.length=17", "data.lanes=2"]
    training.train(load(str(EXPERIMENTS / "digits.toml"), [*TINY, *changes, *settings]), tmp_path / "run")
    tokenizer = Model.from_run(tmp_path / "run").tokenizer
    assert set(tokenizer.labels) == {"blue", "red"}
    assert sum(each is not None for each in tokenizer.colours) <= 4


def test_both_experiments_have_the_same_size_and_the_same_training():
    digits, rows = (load(str(EXPERIMENTS / f"{name}.toml")) for name in NAMES)
    assert digits.parts["backbone"].weights(27) == rows.parts["backbone"].weights(27)
    assert digits.train.steps == rows.train.steps
    assert (digits.parts["optimizer"], digits.parts["schedule"]) == (rows.parts["optimizer"], rows.parts["schedule"])
    assert (digits.parts["corpus"], digits.seed) == (rows.parts["corpus"], rows.seed)
