"""A training of four steps in this process: what the numbers of a run say of each other, in seconds."""

import json
import math
import random
from types import SimpleNamespace

import attrs
import pytest
import torch
from safetensors.torch import load_file

from atat_zoo.experiment import load
from atat_zoo.experiment.runs import RunFolder
from atat_zoo.generation.model import Model
from atat_zoo.training import resume, train
from atat_zoo.training.checkpoints import is_better
from atat_zoo.training.evaluator import Evaluations
from tests.tiny import lines, tiny_toml

STEPS = ["train.steps=4", "train.save_every=2", "train.evaluate_every=2", "train.evaluate_sequences=4"]
STEPS += ["evaluation.sequences=6", "evaluation.mask_samples=1", "evaluation.samples=0", "train.keep_checkpoints=3"]


class Told:
    """A reporter that keeps what it is told."""

    def __init__(self):
        self.messages, self.lines = [], []

    def message(self, text):
        self.messages.append(text)

    def training(self, step, steps, line):
        assert (step, steps) == (line["step"], 4)
        self.lines.append(line)

    def building(self, *words):
        pass

    working = building


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Return a run, what its training returned, and what it told."""
    root, draw, told = tmp_path_factory.mktemp("small"), random.Random(0), Told()
    for name, count in (("train", 60), ("validation", 20)):
        (root / f"{name}.txt").write_text(lines(count, draw))
    (root / "small.toml").write_text(tiny_toml(root))
    return train(load(str(root / "small.toml"), STEPS), root / "run", reporter=told), told


@pytest.mark.slow
def test_a_run_says_what_was_done(small):
    result, told = small
    assert (result.finished, result.step, result.signal, list(result.tasks)) == (True, 4, None, [])
    assert result.model.step == 4
    assert [line["step"] for line in told.lines] == [1, 2, 3, 4]
    assert told.lines == list(result.folder.read_metrics())
    for line in told.lines:
        assert line["tokens"] == line["step"] * 8 * 16
        assert sum(line["mask_rates"]) == 8
        assert 0 < line["mask_rate"] <= 1
        assert 0 < line["loss"] < 20
        assert line["tokens_per_second"] > 0
        assert line["peak_memory"] > 1 << 20
    # Warm-up of four steps to 3e-3: the rate after a step is that of the next.
    assert [line["learning_rate"] for line in told.lines[:3]] == pytest.approx([1.5e-3, 2.25e-3, 3e-3])
    began = result.folder.began_with()
    assert (began["device"], began["ranks"]) == ("cpu", 1) or began["ranks"] == 1
    assert json.loads(result.folder.environment.read_text())["seed"] == 5


@pytest.mark.slow
def test_the_loss_by_mask_rate_is_that_of_the_saved_weights(small, tmp_path):
    """The final model has that of the final evaluation, and a checkpoint that of its own step, if there was one."""
    result, _ = small
    found = {step: Model.from_run(result.folder.path, step=step).module.loss_by_mask_rate for step in (None, 2, 4)}
    of = {"sequences": 6, "masks": 1, "split": "validation", "seed": 5}
    assert (found[None].step, found[None].measured_on) == (4, of)
    assert (found[2].step, found[2].measured_on) == (2, of | {"sequences": 4})
    assert found[4] is None or found[4].step == 4
    assert result.model.module.loss_by_mask_rate == found[None]
    # The sampler of the experiment may use it in the first evaluation, which generates texts before training.
    sampler = 'sampler={use="combination",tokens_per_step={use="optimal",steps=3}}'
    words = [*STEPS, "train.steps=1", "train.evaluate_every=1", sampler, 'evaluation.metrics=["distinct"]']
    again = train(load(str(result.folder.path.parent / "small.toml"), words), tmp_path / "run")
    assert again.model.sample(2).sample.nfe.tolist() == [3, 3]


def test_evaluations_are_of_their_sequences_and_the_final_one_is_of_all(small):
    result, told = small
    found = {path.name[-13:-5]: json.loads(path.read_text()) for path in result.folder.evaluations.glob("*.json")}
    assert sorted(found) == ["00000000", "00000002", "00000004"]
    at = {int(step): each["bounds"]["nelbo"]["value"] for step, each in found.items()}
    assert at[4] == result.evaluation.nelbo.value
    # 256 bytes, and nothing learned: the bound is near that of a guess.
    assert at[0] == pytest.approx(256, rel=0.5)
    assert at[4] < at[2] < at[0]
    assert [text.partition(":")[0] for text in told.messages if text.startswith("step")] == [
        "step 0, before training",
        "step 2",
        "step 4",
    ]


def test_the_saved_model_is_the_moving_average_and_that_of_the_last_checkpoint(small):
    result, _ = small
    model = load_file(result.folder.model / "model.safetensors")
    of_checkpoint = load_file(result.folder.checkpoint_model(4) / "model.safetensors")
    assert model.keys() == of_checkpoint.keys()
    assert all(torch.equal(model[name], of_checkpoint[name]) for name in model)
    earlier = load_file(result.folder.checkpoint_model(2) / "model.safetensors")
    assert any(not torch.equal(model[name], earlier[name]) for name in model)
    live = dict(result.model.module.named_parameters())
    assert all(torch.equal(live[name].cpu(), model[name]) for name in live if name in model)
    assert not math.isnan(sum(float(each.float().sum()) for each in model.values()))


def test_a_finished_run_that_is_resumed_is_evaluated_as_it_was(small):
    result, _ = small
    told = Told()
    again = resume(result.folder.path, reporter=told)
    assert (again.finished, again.step) == (True, 4)
    assert again.evaluation.nelbo.value == result.evaluation.nelbo.value
    assert told.lines == []
    assert told.messages == [f"continuing {result.folder.path} after step 4 of 4"]


def test_another_model_is_the_best_if_its_bound_of_the_same_text_is_lower(small, tmp_path):
    result, _ = small
    folder, now = RunFolder(tmp_path), result.evaluation.to_table()
    folder.best.mkdir(parents=True)
    nats = now["bounds"]["nelbo"]["nats_per_token"]

    def better(recorded, **changed):
        table = {**now, "bounds": {"nelbo": {"nats_per_token": recorded}}, **changed}
        (folder.best / "evaluation.json").write_text(json.dumps(table))
        return is_better(result.evaluation, folder)

    assert is_better(result.evaluation, folder)
    assert (better(nats), better(nats - 0.1), better(nats + 0.1)) == (False, False, True)
    for key in ("corpus", "split", "form", "method", "sequences", "draws", "seed", "bounds"):
        assert better(0.1, **{key: None}), key


def test_the_best_model_has_the_lowest_bound_of_the_objectives_own_order(small, tmp_path):
    result, _ = small
    folder, nelbo = RunFolder(tmp_path), result.evaluation.bounds["nelbo"]
    folder.best.mkdir(parents=True)

    def of_both(any_order, own):
        bounds = {
            name: attrs.evolve(nelbo, nats_per_token=nats) for name, nats in (("nelbo", any_order), ("sets", own))
        }
        return attrs.evolve(result.evaluation, bounds=bounds)

    (folder.best / "evaluation.json").write_text(json.dumps(of_both(3.0, 2.0).to_table()))
    assert is_better(of_both(4.0, 1.9), folder)
    assert not is_better(of_both(2.0, 2.1), folder)
    # Early stopping follows the same bound.
    told, silent = [], SimpleNamespace(log_metrics=lambda *_: None)
    listener = SimpleNamespace(evaluated=lambda perplexity, state: told.append(perplexity))
    own = attrs.evolve(nelbo, value=7.5)
    evaluation = attrs.evolve(result.evaluation, bounds={"nelbo": nelbo, "sets": own})
    state = SimpleNamespace(timestamp=SimpleNamespace(batch=2), callbacks=[SimpleNamespace(), listener])
    Evaluations(2, 4, lambda step: evaluation).batch_end(state, silent)
    assert told == [7.5]
