"""LoRA from any run: what is trained and saved; all other weights are those of the run that it began with."""

import json
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file

from atat_zoo.cli.experiment_command import missing
from atat_zoo.evaluation.likelihood import evaluate_run
from atat_zoo.experiment import load
from atat_zoo.generation.model import Model, plain_weights
from atat_zoo.modeling.backbones.lora import merge
from atat_zoo.modeling.objectives import assemble
from atat_zoo.system.atomic_files import discard
from atat_zoo.system.errors import UserError
from atat_zoo.training import resume, train
from atat_zoo.training.initial_weights import InitialWeights
from tests import forked
from tests.training.test_trainer import Listener

pytestmark = pytest.mark.slow

pytest.importorskip("peft", reason="the extra atat-zoo[lora] is not installed")

BASE = """
tokenizer.use = "bytes"
corpus = {{ use = "files", document = "line", train = ["{root}/train.txt"], validation = ["{root}/validation.txt"] }}
backbone = {{ layers = 1, width = 32, heads = 2, max_length = 32 }}
data = {{ root = "{root}/shards", length = 16, sequences_per_member = 8, sequences_per_shard = 32, lanes = 4 }}
train = {{ steps = 4, batch_size = 8, save_every = 2, log_every = 1, precision = "fp32" }}
optimizer.learning_rate = 1e-2
schedule.warmup_steps = 1
evaluation = {{ sequences = 8, mask_samples = 2, samples = 0 }}
"""
RANK = "backbone.lora_rank=4"


@pytest.fixture(scope="module")
def root(tmp_path_factory, tiny):
    folder = tmp_path_factory.mktemp("lora")
    for name in ("train", "validation"):
        shutil.copy(tiny.root / f"{name}.txt", folder)
    (folder / "base.toml").write_text(BASE.format(root=folder))
    return folder


def trained(root, run, *overrides):
    """Train the experiment with other settings; returns the run's folder."""
    train(load(str(root / "base.toml"), overrides), run)
    return run


@pytest.fixture(scope="module")
def base(root):
    return trained(root, root / "base")


@pytest.fixture(scope="module")
def tuned(root, base):
    return trained(root, root / "tuned", f"init_from={base}", RANK)


def logits(model, tokens=None):
    """Return what a model predicts for a text without masks; the last id is the mask."""
    tokens = torch.arange(60, 76)[None] if tokens is None else tokens
    backbone = model.module.backbone
    with torch.no_grad():
        return backbone.head(backbone(tokens))


def test_the_matrices_alone_are_trained_and_saved(root, base, tuned):
    model, theirs = Model.from_run(tuned), load_file(base / "model" / "model.safetensors")
    saved, state = load_file(tuned / "model" / "model.safetensors"), model.module.state_dict()
    layers = {name.partition(".lora_")[0] for name in saved}
    assert layers == {f"backbone.blocks.0.{name}" for name in ("qkv", "out", "up", "down")}
    assert all(".lora_" in name for name in saved)
    plain = {name.replace(".base_layer", ""): tensor for name, tensor in state.items() if name not in saved}
    assert plain.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in plain.items())
    assert all(saved[name].any() for name in saved), "the second matrix begins at zero, and has been trained"
    # Rank 4 beside matrices of 32 x 96, 32 x 32, 32 x 128 and 128 x 32.
    environment = json.loads((tuned / "environment.json").read_text())
    own = sum(tensor.numel() for tensor in theirs.values())
    assert environment["parameters"] == {"trainable": 4 * 512, "all": own + 4 * 512}
    assert json.loads((base / "environment.json").read_text())["parameters"] == {"trainable": own, "all": own}
    said = json.loads((tuned / "model" / "model.json").read_text())["base"]
    assert said == {**environment["init_from"], "path": str(base.resolve())}


def test_a_loaded_model_is_the_trained_one(tuned):
    model = Model.from_run(tuned)
    (recorded,) = (json.loads(path.read_text()) for path in (tuned / "evaluations").iterdir())
    again = evaluate_run(model, tuned, model.experiment.evaluation, seed=17)
    assert again.nelbo.value == recorded["perplexity"]
    assert torch.equal(logits(Model.from_run(tuned, "spread")), logits(model))


def test_merged_it_predicts_the_same_without_matrices(base, tuned):
    model = Model.from_run(tuned)
    before = logits(model)
    merge(model.module)
    torch.testing.assert_close(logits(model), before, rtol=1e-5, atol=1e-5)
    assert (logits(Model.from_run(base)) - before).abs().max() > 1e-3
    weights = plain_weights(tuned / "model")
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.module.state_dict().items())
    assert weights.keys() == load_file(base / "model" / "model.safetensors").keys()


@pytest.mark.parametrize(("rank", "alpha"), [(4, 16.0), (2, 3.0)])
def test_the_product_of_the_matrices_counts_alpha_by_rank(root, base, rank, alpha):
    said = [f"init_from={base}", f"backbone.lora_rank={rank}", f"backbone.lora_alpha={alpha}"]
    objective = assemble(load(str(root / "base.toml"), said), Model.from_run(base).context)
    wanted = {}
    for name, layer in objective.named_modules():
        if hasattr(layer, "lora_A"):
            first, second = layer.lora_A["default"].weight, layer.lora_B["default"].weight
            assert not second.any(), "it begins as no change"
            torch.nn.init.normal_(second)
            wanted[f"{name}.weight"] = layer.base_layer.weight + alpha / rank * second @ first
    merge(objective)
    merged = dict(objective.named_parameters())
    assert len(wanted) == 4
    for name, weight in wanted.items():
        torch.testing.assert_close(merged[name], weight, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rank", [0, 2])
def test_the_next_training_begins_with_the_merged_weights(root, tuned, tmp_path, rank):
    experiment = load(str(root / "base.toml"), [f"init_from={tuned}", f"backbone.lora_rank={rank}"])
    source = Model.from_run(tuned)
    objective = assemble(experiment, source.context)
    InitialWeights.from_experiment(experiment).load_into(objective)
    merge(source.module)
    with torch.no_grad():
        hidden = objective.backbone.eval()(torch.arange(60, 76)[None])
        assert torch.equal(objective.backbone.head(hidden), logits(source))
    copy = shutil.copytree(tuned, tmp_path / "copy")
    assert torch.equal(logits(Model.from_run(copy)), logits(Model.from_run(tuned)))


@pytest.mark.parametrize(
    "overrides",
    [
        ["backbone.tied=true", "backbone.time_conditioning=true", "backbone.dropout=0.1"],
        ["backbone.ngram_prior=1", "backbone.output_bias=unigram", "backbone.local_heads=1"],
        ["train.ema_decay=0.5", "backbone.checkpoint_activations=true", "train.microbatch_size=2"],
        ["objective={use='block', block_size=4}", "sampler=left_to_right", "optimizer=muon"],
        ["estimator={use='transformer', layers=1, width=16, heads=2}", "masking={use='position', bias='running'}"],
        ['backbone.lora_layers=["qkv", "up"]', "backbone.lora_alpha=4"],
        ["train.precision=bf16", 'train.algorithms=["gradient_clipping"]'],
    ],
    ids=["conditioned", "counts", "average", "block", "estimator", "layers", "bf16"],
)
def test_whatever_is_trained_is_loaded_again(root, base, tmp_path, overrides):
    fixed = [each for each in overrides if each.startswith(("backbone.t", "backbone.n", "backbone.o", "backbone.loc"))]
    first = trained(root, tmp_path / "base", *fixed, "train.steps=1") if fixed else base
    said = Listener()
    experiment = load(str(root / "base.toml"), [f"init_from={first}", RANK, *overrides])
    result = train(experiment, tmp_path / "run", reporter=said)
    assert "initialising backbone from" in said.said[0]
    assert re.match(r"trainable parameters: [\d,]+ of [\d,]+ \([\d.]+%\)$", said.said[1])
    kept, theirs = result.model.module.state_dict(), load_file(first / "model" / "model.safetensors")
    saved = load_file(tmp_path / "run" / "model" / "model.safetensors")
    frozen = {name: tensor for name, tensor in kept.items() if name not in saved}
    assert frozen
    assert all(torch.equal(tensor, theirs[name.replace(".base_layer", "")]) for name, tensor in frozen.items())
    again = evaluate_run(result.model, tmp_path / "run", result.model.experiment.evaluation, seed=17)
    assert next(iter(again.bounds.values())).value == next(iter(result.evaluation.bounds.values())).value
    assert not any(torch.equal(saved[name], torch.zeros_like(saved[name])) for name in saved if ".lora_" in name)


# Resuming


@pytest.fixture
def interrupted(base, tuned, tmp_path):
    """Return a copy of the run, back at its first checkpoint, whose base is a copy, too."""
    folder, other = shutil.copytree(tuned, tmp_path / "run"), shutil.copytree(base, tmp_path / "base")
    for path in (*folder.glob("checkpoints/step-00000004*"), folder / "model"):
        discard(path)
    for path in (folder / "resolved.toml", *folder.rglob("*.json")):
        path.write_text(path.read_text().replace(f'"{base}"', f'"{other}"'))
    return folder


def test_a_checkpoint_has_the_matrices_alone_and_continues_bit_for_bit(interrupted, tuned):
    state = torch.load(interrupted / "checkpoints" / "step-00000002.pt", weights_only=False)["state"]["model"]
    assert state
    assert all(".lora_" in name for name in state)
    said = Listener()
    resume(interrupted, reporter=said)
    assert said.said == [f"continuing {interrupted} after step 2 of 4"]
    weights = (tuned / "model" / "model.safetensors").read_bytes()
    assert (interrupted / "model" / "model.safetensors").read_bytes() == weights


def test_a_run_whose_base_is_gone_or_has_changed_is_refused(interrupted, tmp_path):
    resume(interrupted)
    other = Model.from_run(tmp_path / "base")
    with torch.no_grad():
        next(other.module.parameters()).mul_(2)
    other.save(tmp_path / "base" / "model")
    with pytest.raises(UserError, match=r"model contains only LoRA matrices .*, whose weights have changed; restore"):
        Model.from_run(interrupted)
    with pytest.raises(
        UserError, match=r"init_from: .* the initial weights of .*, which is trained with LoRA; train this run"
    ):
        resume(interrupted)
    shutil.rmtree(tmp_path / "base")
    with pytest.raises(UserError, match=r"which no longer exists; restore that run at "):
        Model.from_run(interrupted)
    with pytest.raises(UserError, match=r"init_from: .* is not a run folder"):
        resume(interrupted)


def test_a_base_is_found_from_any_folder(root, base, tmp_path, monkeypatch):
    monkeypatch.chdir(root)
    run = trained(root, tmp_path / "run", "init_from=base", RANK, "train.steps=1")
    found = logits(Model.from_run(run))
    monkeypatch.chdir(tmp_path)
    assert torch.equal(logits(Model.from_run(run)), found)


def test_a_checkpoint_is_continued_from_by_ranks_that_share_the_weights(root, base, tuned, interrupted):
    """It lacks the weights of the base, which each rank has and gives a part of."""
    path = interrupted / "resolved.toml"
    path.write_text(path.read_text().replace('sharding = "none"', 'sharding = "full"'))
    said = [rank.communicate() for rank in forked.ranks(2, ["train", "--resume", str(interrupted)], root)]
    assert "ranks from 1 to 2" in said[0][0], said
    theirs, ours = (load_file(run / "model" / "model.safetensors") for run in (tuned, interrupted))
    assert ours.keys() == theirs.keys()
    for name, matrix in ours.items():
        torch.testing.assert_close(matrix, theirs[name], rtol=1e-3, atol=1e-5)


# What is refused


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([RANK], r"backbone\.lora_rank: LoRA freezes the backbone, whose weights are random; set init_from"),
        (["backbone.lora_layers=['qkv']"], r"backbone\.lora_rank: lora_layers and lora_alpha have no effect at rank 0"),
        (["init_from={base}", "backbone.lora_rank=-1"], r"backbone\.lora_rank: must be at least 0, not -1"),
        (
            ["init_from={base}", RANK, 'backbone.lora_layers=["qkv", "query"]'],
            r"lora_layers: 'dit' has no linear layer 'query'; use any of .*out, qkv, up",
        ),
        (["init_from={base}", RANK, 'backbone.lora_layers=["head"]'], r"lora_layers: .*Head.* is not supported"),
        (["init_from={base}", RANK, "backbone.width=16"], r"backbone\.width: 16 here, but 32 in"),
    ],
)
def test_what_cannot_be_trained_by_lora_is_said(root, base, tmp_path, overrides, message):
    with pytest.raises(UserError, match=message):
        trained(root, tmp_path / "run", *(each.format(base=base) for each in overrides))
    assert not (tmp_path / "run" / "resolved.toml").exists()


def test_without_peft_it_is_said_how_to_install_it(root, base, tmp_path, monkeypatch):
    monkeypatch.setattr("atat_zoo.system.machine.find_spec", lambda name: None)
    experiment = load(str(root / "base.toml"), [f"init_from={base}", RANK])
    assert missing(experiment) == ["dit needs the package peft; install it with `pip install 'atat-zoo[lora]'`"]
    with pytest.raises(UserError, match=r"dit needs the package peft; install it with `pip install 'atat-zoo\[lora\]'"):
        trained(root, tmp_path / "run", f"init_from={base}", RANK)
