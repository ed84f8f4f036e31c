"""The shipped experiments, trained for a few steps, and the report's pictures."""

import json

import pytest
import torch
from pictures import EXPERIMENTS, SMALL, write_pictures

from atat_zoo import Model, training
from atat_zoo.experiment import load
from atat_zoo.reports.report_records import compute

TINY = (*SMALL, "train.steps=4", "train.evaluate_every=2", "train.batch_size=8", "evaluation.sequences=8")
NAMES = ("digits", "digits_autoregressive", "digits_sets")


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


def test_the_experiments_have_the_same_size_and_the_same_training():
    def shared(experiment):
        parts = experiment.parts
        of_parts = (parts["backbone"].weights(27), parts["corpus"], parts["optimizer"], parts["schedule"])
        return (*of_parts, experiment.train.steps, experiment.train.batch_size, experiment.seed)

    first, *others = (shared(load(str(EXPERIMENTS / f"{name}.toml"))) for name in NAMES)
    assert others == [first, first]


@pytest.mark.slow
def test_the_sampler_of_sets_decodes_the_sets_that_were_learned(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    training.train(load(str(EXPERIMENTS / "digits_sets.toml"), TINY), tmp_path / "run")
    model = Model.from_run(tmp_path / "run")
    parts, records = model.experiment.parts, []
    given = torch.full((2, 65), model.context.mask_id)
    given[:, 0] = model.tokenizer.labels["7"]
    model.text_generator().fill(parts["sampler"], given, seed=1, observe=records.append)
    steps = parts["position_sets"].step_indices(given == model.context.mask_id, torch.zeros(2), torch.zeros_like)
    decoded = torch.full_like(steps, -1)
    for each in records:
        decoded[each["rows"], each["positions"]] = each["step"]
    assert torch.equal(decoded, steps)
    assert int(steps.amax()) == 15
