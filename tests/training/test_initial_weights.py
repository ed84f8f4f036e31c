"""Trainings that begin with another run's weights."""

import hashlib
import json
import math
import shutil

import pytest
import torch
from safetensors.torch import load_file, save

from atat_zoo.data import shard_manifest
from atat_zoo.data.build import build
from atat_zoo.experiment import from_table, load
from atat_zoo.generation.model import Model
from atat_zoo.modeling.objectives import assemble
from atat_zoo.system.atomic_files import discard
from atat_zoo.system.errors import UserError
from atat_zoo.training import resume, train
from atat_zoo.training.initial_weights import InitialWeights, parts_of
from tests.tiny import folder_of
from tests.training.test_trainer import Listener

pytestmark = pytest.mark.slow

# Of both trainings.
SHARED = """
corpus = {{ use = "files", document = "line" }}
data = {{ root = "{root}/shards", sequences_per_member = 8, sequences_per_shard = 32, lanes = 4 }}
train = {{ batch_size = 8, log_every = 1, precision = "fp32" }}
optimizer.learning_rate = 3e-3
schedule.warmup_steps = 1
evaluation = {{ sequences = 8, mask_samples = 2, samples = 0 }}
"""
# Plain masked diffusion on the tiny corpus, and the same parts as in `tests.tiny` where nothing is said.
PLAIN = """
extends = "shared.toml"
corpus.train = ["{root}/train.txt"]
corpus.validation = ["{root}/validation.txt"]
tokenizer = {{ use = "bpe", vocabulary_size = 300 }}
backbone = {{ layers = 1, width = 32, heads = 2, max_length = 32 }}
data.length = 16
train.steps = 6
"""
# Another corpus: other words in other lines.
OTHER = """
extends = "shared.toml"
init_from = "{source}"
corpus.train = ["{root}/other.txt"]
train = {{ steps = 12, save_every = 5, keep_checkpoints = 3 }}
"""
ATAT = [
    "estimator={use='transformer', layers=1, width=16, heads=2}",
    "masking={use='position', bias='running'}",
    "curriculum=three_stage",
]


@pytest.fixture(scope="module")
def root(tmp_path_factory, tiny):
    folder = tmp_path_factory.mktemp("finetuning")
    for name in ("train", "validation"):
        shutil.copy(tiny.root / f"{name}.txt", folder)
    other = [f"{i} ships sail towards {i % 7} distant harbours in stormy weather" for i in range(300)]
    (folder / "other.txt").write_text("\n".join(other) + "\n")
    (folder / "shared.toml").write_text(SHARED.format(root=folder))
    return folder


@pytest.fixture(scope="module")
def source(root):
    """Return a run of plain masked diffusion."""
    (root / "plain.toml").write_text(PLAIN.format(root=root))
    return train(load(str(root / "plain.toml")), root / "source").folder.path


@pytest.fixture
def copy(source, tmp_path):
    """Return a copy of it, to be changed."""
    return shutil.copytree(source, tmp_path / "copy")


def tuning(root, source, *overrides):
    (root / "tuning.toml").write_text(OTHER.format(root=root, source=source))
    return load(str(root / "tuning.toml"), overrides)


def begun(experiment):
    """Return the model as a training begins with it, and what is said of it."""
    model = Model.from_run(experiment.init_from)
    objective = assemble(experiment, model.context)
    initial = InitialWeights.from_experiment(experiment)
    return objective, initial.load_into(objective)


def test_a_training_begins_with_the_source_s_final_weights_and_its_tokenizer(root, source, tmp_path):
    experiment = tuning(root, source)
    objective, said = begun(experiment)
    theirs = load_file(source / "model" / "model.safetensors")
    assert set(objective.state_dict()) == set(theirs)
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in objective.state_dict().items())
    assert said == f"initialising backbone from {source} (objective mdlm, step 6)"
    result = train(experiment, tmp_path / "run")
    # The shards are of the other text by the source's tokenizer, which would itself have learned another one.
    data = folder_of(experiment)
    ours = (source / "model" / "tokenizer.json").read_bytes()
    assert data.name.startswith("files-run-16-")
    assert (data / "tokenizer.json").read_bytes() == (result.folder.model / "tokenizer.json").read_bytes() == ours
    own = experiment.parts["tokenizer"].like.train(lambda: experiment.parts["corpus"].documents("train"))
    own.save(tmp_path)
    assert (tmp_path / "tokenizer.json").read_bytes() != ours
    # What is recorded.
    environment = json.loads(result.folder.environment.read_text())
    digest = hashlib.sha256((source / "model" / "model.safetensors").read_bytes()).hexdigest()
    assert environment["init_from"] == {"run": str(source), "step": 6, "sha256": digest}
    assert from_table(result.folder.table()) == Model.from_run(tmp_path / "run").experiment == experiment
    # It was not begun anew: a fresh network knows its V tokens alike.
    assert abs(result.folder.read_metrics()[0]["cross_entropy"] - math.log(300)) > 1e-3


def test_what_only_the_new_model_has_starts_fresh(root, source, tmp_path):
    said = Listener()
    result = train(tuning(root, source, *ATAT), tmp_path / "run", reporter=said)
    assert said.said[0] == (
        f"initialising backbone from {source} (objective mdlm, step 6); "
        "newly initialised: estimator (the run does not have this component), the state of masking"
    )
    # The curriculum follows this training's own progress.
    stages = [line["stage"] for line in result.folder.read_metrics()]
    assert (stages[0], stages[5], stages[-1]) == ("easy", "medium", "hard")


def test_counts_are_those_of_the_new_text(root, source, tmp_path):
    counted = load(str(root / "plain.toml"), ["backbone.ngram_prior=1", "train.steps=2"])
    folder = train(counted, tmp_path / "counted").folder.path
    said = Listener()
    model = train(tuning(root, folder, "train.steps=1"), tmp_path / "run", reporter=said).model
    assert said.said[0].endswith("; newly initialised: the counts of backbone.ngram_prior (from the new text)")
    state, theirs = model.module.state_dict(), load_file(folder / "model" / "model.safetensors")
    assert not torch.equal(state["backbone.prior.tokens"], theirs["backbone.prior.tokens"])
    again = Listener()
    train(load(str(root / "plain.toml"), [f"init_from={folder}", "train.steps=1"]), tmp_path / "same", reporter=again)
    assert "fresh" not in again.said[0], "the same text has the same counts"


def test_an_estimator_that_both_have_is_taken_without_its_memory(root, source, tmp_path):
    middle = train(tuning(root, source, *ATAT, "train.steps=4"), tmp_path / "middle").folder.path
    theirs = load_file(middle / "model" / "model.safetensors")
    objective, said = begun(tuning(root, middle, *ATAT))
    assert said.startswith("initialising backbone and estimator from ")
    assert said.endswith("; newly initialised: the state of masking")
    parts = parts_of(objective)
    assert set(parts) == {"backbone", "estimator"}
    assert all(torch.equal(tensor, theirs[name]) for part in parts.values() for name, tensor in part.items())
    memory = {name: buffer for name, buffer in objective.named_buffers() if name.startswith("masking.")}
    assert memory
    assert all(not buffer.any() and theirs[name].any() for name, buffer in memory.items())
    # One of another shape is not taken as a whole, those of its weights included that would fit.
    narrow = tuning(root, middle, "estimator={use='transformer', layers=1, width=8, heads=2}")
    objective, said = begun(narrow)
    assert "; newly initialised: estimator (estimator." in said
    fresh = dict(assemble(narrow, Model.from_run(middle).context).named_parameters())
    ours = {name: p for name, p in objective.named_parameters() if name.startswith("estimator.")}
    assert all(torch.equal(p, fresh[name]) for name, p in ours.items())


@pytest.mark.parametrize(
    "overrides",
    [
        ["objective=autoregressive", "sampler=left_to_right"],
        ["objective={use='block', block_size=4}", "sampler=left_to_right"],
        ["objective={use='strided_causal', stride=4}", "sampler={use='strided', stride=4}"],
        ["objective=sedd"],
        ["objective={use='adaptive', bias='left_to_right'}", "sampler=learned_order"],
        ["objective=adaptive", "sampler=learned_order", ATAT[0]],
    ],
    ids=["autoregressive", "block", "strided", "sedd", "adaptive position", "adaptive importance"],
)
def test_every_objective_can_begin_with_mdlm_and_with_itself(root, source, tmp_path, overrides):
    said = Listener()
    first = train(tuning(root, source, *overrides, "train.steps=2"), tmp_path / "one", reporter=said).folder.path
    assert "backbone" in said.said[0]
    objective, words = begun(tuning(root, first, *overrides))
    assert "fresh" not in words
    theirs = load_file(first / "model" / "model.safetensors")
    trained = {name for name, p in objective.named_parameters() if p.requires_grad}
    assert all(torch.equal(p, theirs[name]) for name, p in objective.named_parameters() if name in trained)
    # And masked diffusion with its backbone.
    _, words = begun(tuning(root, first))
    assert words.startswith("initialising backbone from ")
    assert words.endswith(")")


# Resuming


def interrupted(root, source, run, *, after):
    """Train to the end, put the run back to a checkpoint or before the first, and return the weights it had."""
    result = train(tuning(root, source, *ATAT), run)
    weights = (run / "model" / "model.safetensors").read_bytes()
    for path in result.folder.checkpoints.iterdir():
        if after is None or int(path.stem.removeprefix("step-")) > after:
            discard(path)
    shutil.rmtree(result.folder.model)
    return weights


def test_it_resumes_without_the_source(root, copy, tmp_path):
    weights = interrupted(root, copy, tmp_path / "run", after=5)
    shutil.rmtree(copy)
    said = Listener()
    resume(tmp_path / "run", reporter=said)
    assert said.said == [f"continuing {tmp_path / 'run'} after step 5 of 12"]
    assert (tmp_path / "run" / "model" / "model.safetensors").read_bytes() == weights
    # Nor does it take it to evaluate and to write.
    model = Model.from_run(tmp_path / "run")
    assert build(model.experiment) == folder_of(model.experiment)


def test_before_the_first_checkpoint_it_begins_again_with_the_same_weights(root, copy, tmp_path):
    weights = interrupted(root, copy, tmp_path / "run", after=None)
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    shutil.copytree(tmp_path / "run", tmp_path / "unknown")
    resume(tmp_path / "run", overrides=["train.log_every=7"])
    assert (tmp_path / "run" / "model" / "model.safetensors").read_bytes() == weights
    assert "log_every = 7" in (tmp_path / "run" / "resolved.toml").read_text()
    # Nobody knows any more with which weights it began: it begins with those that are there.
    (tmp_path / "unknown" / "environment.json").unlink()
    said = Listener()
    resume(tmp_path / "unknown", reporter=said)
    assert any("environment.json does not identify the initial weights" in text for text in said.said)
    assert (tmp_path / "unknown" / "model" / "model.safetensors").read_bytes() == weights
    # The source was trained again in between: it would be another training under the same name.
    other = Model.from_run(copy)
    with torch.no_grad():
        next(other.module.parameters()).mul_(2)
    other.save(copy / "model")
    with pytest.raises(
        UserError, match=r"init_from: .* no longer has the initial weights of .*, which has no checkpoint"
    ):
        resume(tmp_path / "again")
    shutil.rmtree(copy)
    with pytest.raises(UserError, match=r"init_from: .* is not a run folder"):
        resume(tmp_path / "again")


# What is refused


def test_a_run_cannot_replace_what_it_continues_from(root, copy):
    with pytest.raises(UserError, match=r"init_from: .* would be overwritten by the run that starts from it"):
        train(tuning(root, copy), copy, overwrite=True)
    assert (copy / "model" / "model.safetensors").is_file()


def put(run, name, data):
    """Write a file of a run's model, and its hash."""
    (run / "model" / name).write_bytes(data)
    description = run / "model" / "model.json"
    said = json.loads(description.read_text())
    said["sha256"][name] = hashlib.sha256(data).hexdigest()
    description.write_text(json.dumps(said))


def test_a_source_that_is_not_what_it_says_is_refused(root, source, copy, tmp_path):
    def refuses(said, experiment=None):
        with pytest.raises(UserError, match=said):
            train(experiment or tuning(root, copy), tmp_path / "run")
        assert not (tmp_path / "run" / "resolved.toml").exists()

    experiment = tuning(root, copy)
    tokenizer = (copy / "model" / "tokenizer.json").read_bytes()
    (copy / "model" / "tokenizer.json").write_text("{}")
    refuses(r"init_from: .*tokenizer\.json differs from model\.json", experiment)
    put(copy, "tokenizer.json", b"{}")
    refuses(r"tokenizer\.sha256: ", experiment)
    put(copy, "tokenizer.json", tokenizer)
    put(copy, "model.safetensors", b"no weights")
    refuses(r"init_from: .*model\.safetensors cannot be read: .*; copy the run again")
    weights = load_file(source / "model" / "model.safetensors")
    weights["backbone.embedding.weight"][0, 0] = float("nan")
    put(copy, "model.safetensors", save(weights))
    refuses(r"init_from: .*: the weights backbone\.embedding\.weight are not finite")
    # Weights of another backbone than is said.
    put(copy, "model.safetensors", (source / "model" / "model.safetensors").read_bytes())
    said = json.loads((copy / "model" / "model.json").read_text())
    said["experiment"]["backbone"]["width"] = 16
    (copy / "model" / "model.json").write_text(json.dumps(said))
    resolved = copy / "resolved.toml"
    resolved.write_text(resolved.read_text().replace("width = 32", "width = 16"))
    refuses(r"does not fit \[backbone\]: backbone\.\S+ has shape \[.*\] there and \[.*\] here")
    shutil.rmtree(copy)
    refuses(r"init_from: .* is not a run folder", experiment)


def test_shards_that_are_built_already_must_be_by_the_same_tokenizer(root, source, tmp_path):
    fitting = build(tuning(root, source))
    experiment = tuning(root, source, f"corpus={{use='shards', path='{fitting}'}}")
    assert build(experiment) == fitting
    # The source's own shards are by it, too; those of the same kind of tokenizer, learned from other text, are not.
    assert build(tuning(root, source, f"corpus={{use='shards', path='{build(load(str(root / 'plain.toml')))}'}}"))
    words = [f"corpus.train=['{root}/other.txt']", "tokenizer.vocabulary_size=300", "data.length=16"]
    own = build(load(str(root / "shared.toml"), words))
    assert shard_manifest.load(own).tokenizer == shard_manifest.load(fitting).tokenizer
    with pytest.raises(UserError, match=r"tokenizer: the shards in .* have SHA-256 of tokenizer\.json = "):
        build(tuning(root, source, f"corpus={{use='shards', path='{own}'}}"))
