"""What a training leaves behind, and what it does not depend on."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from atat_zoo.data.sequences import held_out_sequences
from atat_zoo.diffusion import chunks
from atat_zoo.diffusion.ngram_prior import NGramPrior
from atat_zoo.evaluation.likelihood import measure
from atat_zoo.evaluation.text_scores import measure_texts
from atat_zoo.experiment import load
from atat_zoo.experiment.runs import RunFolder
from atat_zoo.generation.model import Model
from atat_zoo.modeling.objectives import assemble
from atat_zoo.registry import Context
from atat_zoo.system.errors import UserError
from atat_zoo.training import evaluator as evaluating
from atat_zoo.training import resume, train, trainer
from atat_zoo.training.checkpoints import CurrentModel
from atat_zoo.training.composer_model import ZooModel
from atat_zoo.training.evaluator import Evaluator
from atat_zoo.training.trainer import Silent
from tests.limited import full_disk

pytestmark = pytest.mark.slow


class Listener(Silent):
    """Keeps the messages."""

    def __init__(self):
        self.said = []

    def message(self, text):
        self.said.append(text)


def held_out_of(tiny):
    (data,) = (tiny.root / "shards").glob("*/")
    return held_out_sequences(data, "validation", 8)[:2]


def evaluations(folder):
    """Return the tables of the evaluations of a run."""
    return [json.loads(path.read_text()) for path in folder.evaluations.iterdir()]


class Enough(Exception):
    """Ends a training before its first step."""


@pytest.mark.parametrize(("together", "ema", "precision"), [(1, 0.0, "fp32"), (2, 0.9, "bf16")])
def test_the_settings_of_the_stream_and_of_the_ema_reach_them(tiny, monkeypatch, tmp_path, together, ema, precision):
    taken, stream = {}, trainer.TokenStream

    def current(experiment, context, objective, average, whole, base):
        taken["ema"] = average.decay if average else 0.0
        raise Enough

    monkeypatch.setattr(trainer, "TokenStream", lambda data, **given: taken.update(given) or stream(data, **given))
    monkeypatch.setattr(trainer, "CurrentModel", current)
    experiment = load(
        str(tiny.path), [f"train.precision={precision}", f"data.shuffled_shards={together}", f"train.ema_decay={ema}"]
    )
    with pytest.raises(Enough):
        train(experiment, tmp_path / "run")
    assert (taken["together"], taken["ema"]) == (together, ema)
    computes = {"device": "cpu", "precision": precision, "ranks": 1}
    assert json.loads(RunFolder(tmp_path / "run").environment.read_text())["computes"] == computes


def test_a_run_leaves_everything_behind(tiny, uninterrupted):
    folder = RunFolder(uninterrupted)
    files = {".lock", "resolved.toml", "environment.json", "metrics.jsonl", "samples.txt"}
    assert {p.name for p in uninterrupted.iterdir()} == files | {"checkpoints", "model", "evaluations"}
    environment = json.loads(folder.environment.read_text())
    assert environment["seed"] == 5
    assert environment["packages"]["mosaicml"]
    (evaluation,) = evaluations(folder)
    assert (evaluation["ema"], evaluation["step"]) == (True, 24)
    assert evaluation["perplexity"] == pytest.approx(math.exp(evaluation["nats_per_token"]))
    assert evaluation["perplexity_stderr"] > 0
    line = folder.read_metrics()[-1]
    assert {"importance_loss", "importance_spearman", "stage", "tokens_per_second"} <= set(line)
    assert line["mask_rate"] == pytest.approx(line["mask_rate_target"], abs=0.2)
    assert folder.samples.read_text().strip()
    assert not list(uninterrupted.rglob("*.part"))
    # Every trained weight has changed, and the parts with a memory have learned.
    model = Model.from_run(uninterrupted)
    fresh, trained = assemble(model.experiment, model.context), dict(model.module.named_parameters())
    assert not [name for name, p in fresh.named_parameters() if p.requires_grad and torch.equal(p, trained[name])]
    buffers = dict(fresh.named_buffers())
    changed = {name for name, b in model.module.named_buffers() if not torch.equal(b, buffers[name])}
    assert "rates.sums" in changed
    assert {"masking", "curriculum", "target"} <= {name.partition(".")[0] for name in changed}


@pytest.mark.parametrize("name", ["a{b", "\udcff", "a\x1b[31m", "a#b"])
def test_a_name_in_which_nothing_could_be_saved_is_refused_before_anything(tiny, name):
    folder = tiny.root / name
    for begin in (lambda: train(load(str(tiny.path)), folder), lambda: resume(folder)):
        with pytest.raises(UserError, match="choose a different name") as caught:
            begin()
        assert not folder.exists()
        str(caught.value).encode()


def test_a_run_stays_until_the_new_one_begins(tiny, uninterrupted, tmp_path):
    """What is refused or fails before the first step leaves the old run; the new one has nothing of it."""

    def files():
        paths = {path.relative_to(copy): path for path in copy.rglob("*") if path.is_file() and path.name != ".lock"}
        return {name: path.read_bytes() for name, path in paths.items()}

    copy = Path(shutil.copytree(uninterrupted, tmp_path / "run"))
    (copy / "notes.md").write_text("kept")
    before = files()
    nothing = load(str(tiny.path), [f"corpus.train=['{tmp_path}/nothing.txt']"])
    for out in (copy, tmp_path / "runs" / "new"):
        with pytest.raises(UserError):
            train(nothing, out, overwrite=True)
    assert files() == before
    assert not (tmp_path / "runs").exists()
    other = load(str(tiny.path), ["train.steps=2", "seed=6", "evaluation.samples=0"])
    with full_disk(100), pytest.raises(UserError, match=r"run/environment\.json cannot be written: File"):
        train(other, copy, overwrite=True)
    assert files() == before
    assert train(other, copy, overwrite=True).finished
    assert (copy / "notes.md").read_text() == "kept"
    assert RunFolder(copy).steps() == [2]
    assert [line["step"] for line in RunFolder(copy).read_metrics()] == [1, 2]
    assert not (copy / "samples.txt").exists()
    assert len(list((copy / "evaluations").iterdir())) == 1


def test_a_final_model_stays_until_it_is_written_again(tiny, trained):
    """As `--resume` of a finished run does."""
    before = {path.name: path.read_bytes() for path in (trained / "model").iterdir()}
    with full_disk(20_000), pytest.raises(UserError, match="cannot be written"):
        resume(trained)
    assert {path.name: path.read_bytes() for path in (trained / "model").iterdir()} == before


def test_it_evaluates_on_the_way(tiny, tmp_path):
    """Fewer sequences, under the masks of the end; the metrics at the end are those of the saved model."""
    listener = Listener()
    said = ["train.steps=4", "train.evaluate_every=2", "train.evaluate_sequences=4", "train.precision=fp32"]
    said += ['evaluation.metrics=["calibration_error", "distinct"]', "evaluation.texts=3"]
    result = train(load(str(tiny.path), said), tmp_path / "run", reporter=listener)
    told = [text.partition(":")[0] for text in listener.said]
    assert told == ["trainable parameters", "step 0, before training", "step 2", "step 4"]
    said = ("validation perplexity (any-order ELBO) ", "(4 of 8 sequences, 2 masks each)")
    assert all(part in text for text in listener.said[1:] for part in said)
    found = {(table["step"], table["sequences"]): table for table in evaluations(result.folder)}
    assert sorted(found) == [(0, 4), (2, 4), (4, 4), (4, 8)]
    rows, (tokens, maskable) = torch.arange(0, 8, 2), held_out_of(tiny)
    spec = result.model.experiment.evaluation
    again = measure(result.model.module, tokens[rows], maskable[rows], spec, seed=5, rows=rows)
    nats = float(again.contribution["nelbo"].sum() / maskable[rows].sum())
    assert found[4, 4]["nats_per_token"] == pytest.approx(nats, rel=1e-5)
    assert found[4, 4]["ngram_prior"]["value"] == found[0, 4]["ngram_prior"]["value"]
    assert found[4, 4]["ngram_prior"]["difference"] != found[0, 4]["ngram_prior"]["difference"]
    assert found[4, 8]["ngram_prior"]["value"] != found[4, 4]["ngram_prior"]["value"]
    calibration = [table["metrics"]["calibration_error"] for table in found.values()]
    assert len({each["value"] for each in calibration}) == 4
    assert all(0 <= each["value"] <= 1 and each["stderr"] > 0 for each in calibration)
    (text,) = measure_texts(result.model, tokens, maskable, spec, seed=5).values()
    assert found[4, 8]["metrics"]["distinct_2"]["value"] == text.value


# Rates at which the perplexity falls to the end, and at which it soon rises.
@pytest.mark.parametrize(("rate", "sequences"), [(3e-3, 8), (1.0, 4)])
def test_the_best_model_is_kept_and_named(tiny, tmp_path, rate, sequences):
    said = [
        *("train.steps=6", "train.evaluate_every=2", "train.keep_best=true", "train.ema_decay=0", "optimizer=adamw"),
        *(f"optimizer.learning_rate={rate}", f"train.evaluate_sequences={sequences}", "train.precision=fp32"),
    ]
    result = train(load(str(tiny.path), said), tmp_path / "run")
    found = [table for table in evaluations(result.folder) if table["sequences"] == sequences]
    nats = {table["step"]: table["nats_per_token"] for table in found}
    assert sorted(nats) == [0, 2, 4, 6]
    best = min(nats, key=nats.get)
    assert (best == 6) == (rate < 1)
    assert result.model.step == 6
    model = Model.from_run(tmp_path / "run", step="best")
    rows, (tokens, maskable) = torch.arange(sequences) * 8 // sequences, held_out_of(tiny)
    again = measure(model.module, tokens[rows], maskable[rows], model.experiment.evaluation, seed=5, rows=rows)
    assert float(again.contribution["nelbo"].sum() / maskable[rows].sum()) == pytest.approx(nats[best], rel=1e-5)
    kept = json.loads((result.folder.best / "evaluation.json").read_text())
    assert (model.step, kept["step"], kept["nats_per_token"]) == (best, best, nats[best])


def test_one_rank_alone_makes_the_numbers(tiny, tmp_path, monkeypatch):
    """It decodes and ranks every token of all ranks; the others wait for what it has found."""
    result = train(load(str(tiny.path), ["train.steps=1"]), tmp_path / "run")
    model, (data,) = result.model, (tiny.root / "shards").glob("*/")
    evaluator = Evaluator(CurrentModel(model.experiment, model.context, model.module, None), data, result.folder, "cpu")

    def broadcast(found):
        assert found == [None]
        found[0] = "what rank 0 has found"

    second = {"get_global_rank": lambda: 1, "get_world_size": lambda: 2, "broadcast_object_list": broadcast}
    for name, function in (second | {"all_gather_object": lambda mine: [mine]}).items():
        monkeypatch.setattr(evaluating.dist, name, function)
    for name in ("summarise", "measure_ngram_prior"):
        monkeypatch.delattr(evaluating, name)
    assert evaluator(1) == "what rank 0 has found"


def test_what_the_counts_say_alone_is_measured_once_and_changes_no_step(tiny, tmp_path):
    """The network starts at zero: before the first step it is the counts, whatever its seed."""
    counts = ["train.steps=4", "train.save_every=2", "backbone.ngram_prior=1", 'backbone.output_bias="unigram"']
    evaluates = load(str(tiny.path), [*counts, "train.evaluate_every=4"])
    without = train(load(str(tiny.path), counts), tmp_path / "without").folder
    first, again = Listener(), Listener()
    measured = train(evaluates, tmp_path / "with", reporter=first).folder
    final = tiny.weights(measured.path)
    assert tiny.losses(measured.path) == tiny.losses(without.path)
    assert final == tiny.weights(without.path)
    assert first.said[1].startswith("step 0, n-gram prior only: validation perplexity ")
    (beginning,) = measured.evaluations.glob("*step00000000.json")
    perplexity = json.loads(beginning.read_text())["perplexity"]
    narrower = load(str(tiny.path), [*counts, "train.steps=1", "train.evaluate_every=1", "backbone.width=16"])
    (other,) = train(narrower, tmp_path / "narrower").folder.evaluations.glob("*step00000000.json")
    assert json.loads(other.read_text())["perplexity"] == pytest.approx(perplexity, rel=1e-6)
    # A run that is continued does not measure it again.
    beginning.unlink()
    for gone in (measured.checkpoints / "step-00000004.json", measured.model / "model.json"):
        gone.unlink()
    resume(measured.path, reporter=again)
    assert (tiny.weights(measured.path), beginning.exists()) == (final, False)
    assert again.said == [f"continuing {measured.path} after step 2 of 4"]


def test_evaluating_again_gives_the_same_numbers(tiny, uninterrupted, tmp_path):
    """In another process, with another batch size: the masks are a function of the seed and the sequence."""
    run = Path(shutil.copytree(uninterrupted, tmp_path / "run"))
    (first,) = evaluations(RunFolder(run))
    said = json.loads(tiny.atat("eval", str(run), "--batch-size", "3", "--json").stdout)
    assert said["perplexity"] == pytest.approx(first["perplexity"], rel=1e-5)
    other = json.loads(tiny.atat("eval", str(run), "--seed", "6", "--json").stdout)
    assert other["perplexity"] != first["perplexity"]


def test_counts_are_not_broadcast_at_every_forward(tiny):
    """DDP does not with those buffers whose names this attribute has."""
    table = NGramPrior.count([np.arange(48).reshape(3, 16) % 7], 256)
    context = Context(vocabulary_size=256, length=16, steps=2, seed=0, ngram_prior=lambda: table)
    model = ZooModel(assemble(load(str(tiny.path), ["backbone.ngram_prior=2"]), context), 2, False)
    counts = {name for name, _ in model.named_buffers() if ".prior." in name}
    assert len(counts) == 3
    assert set(model._ddp_params_and_buffers_to_ignore) == counts


@pytest.mark.parametrize("logits", [chunks.LOGITS, 5 * 256])
def test_bf16_is_for_the_network_alone(tiny, logits, monkeypatch):
    """Losses, importance, gradients, weights and the optimizer's state are in float32, or wider; in chunks, too."""
    monkeypatch.setattr(chunks, "LOGITS", logits)
    experiment = load(str(tiny.path))
    context = Context(vocabulary_size=256, length=16, steps=2, seed=0)
    model = ZooModel(assemble(experiment, context), 2, bf16=True)
    optimizer = experiment.parts["optimizer"].build(model)
    computed = []
    model.objective.backbone.blocks[0].qkv.register_forward_hook(lambda *seen: computed.append(seen[-1].dtype))
    rows = torch.arange(8)
    tokens = (rows[:, None] * 31 + torch.arange(16) * 7) % 256
    everything = {"maskable": torch.ones(8, 16, dtype=torch.bool), "mean_maskable": torch.full((8,), 16.0)}
    figures = model({"tokens": tokens, "index": rows, **everything})
    figures["loss"].backward()
    optimizer.step()
    states = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert computed == [torch.bfloat16]
    assert states
    assert len(gradients) == sum(p.requires_grad for p in model.parameters())
    for value in (*figures.values(), *gradients, *states, *model.state_dict().values()):
        assert not value.is_floating_point() or value.dtype in (torch.float32, torch.float64)
