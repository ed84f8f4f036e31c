"""The weights by their formula, the slopes against finite differences, and trainings that resume and share steps."""

import json
import os
import random
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from atat_zoo_learned_curriculum.learned_curriculum import LearnedCurriculum, LookAheadAlgorithm
from atat_zoo_learned_curriculum.look_ahead import gradient, slopes_of
from composer.core import Event, Precision
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from atat_zoo.data.sequences import Sequences, held_out_sequences
from atat_zoo.diffusion.contracts import NoisedBatch
from atat_zoo.experiment import from_table, load
from atat_zoo.experiment.runs import RunFolder
from atat_zoo.modeling.objectives import assemble
from atat_zoo.registry import Context
from atat_zoo.studies import load as load_study
from atat_zoo.system.errors import UserError
from atat_zoo.testing import cases
from atat_zoo.training import resume, train
from atat_zoo.training.composer_model import ZooModel, prepare

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
WORDS = ["the", "people", "of", "this", "nation", "keep", "a", "just", "peace", "with", "all", "states"]


@pytest.mark.parametrize("case", cases(distribution="atat-zoo-learned-curriculum"), ids=str)
def test_conformance(case):
    case.run()


def step(hidden, x=None, maskable=None):
    """Return a batch whose masked tokens are written as `_`."""
    masked = torch.tensor([[c == "_" for c in row] for row in hidden])
    maskable = torch.ones_like(masked) if maskable is None else maskable
    x = torch.zeros(masked.shape, dtype=torch.int64) if x is None else x
    t = torch.full((len(masked),), 0.5)
    z = torch.where(masked, 9, x)
    return NoisedBatch(x=x, z=z, masked=masked, maskable=maskable, t=t, rate=t, p=t[:, None] * maskable)


def built(*log_weights, **parameters):
    module = LearnedCurriculum(bins=len(log_weights), **parameters).build(Context(vocabulary_size=9, length=8))
    module.log_weights.copy_(torch.tensor(log_weights))
    return module


def test_the_masked_tokens_of_a_sequence_are_divided_by_importance():
    module = built(0.0, 0.0, 0.0)
    importance = torch.tensor([[0.9, 0.2, 0.5, 0.0, 0.1, 0.6, 0.3, 1.0]])
    assert module.bins(importance, step(["______.."]).masked).tolist() == [[2, 1, 1, 0, 0, 2, 0, 0]]
    assert module.bins(importance, step(["_......."]).masked).tolist() == [[0] * 8]
    assert module.bins(importance, step([".._.._.."]).masked)[0, [2, 5]].tolist() == [0, 1]
    equal = torch.full((1, 8), 0.5)
    assert module.bins(equal, step(["___.___."]).masked).tolist() == [[0, 0, 1, 0, 1, 2, 2, 0]]


def test_the_weights_are_those_of_the_formula():
    module = built(0.0, 0.5, -1.0)
    importance = torch.tensor([[0.9, 0.2, 0.5, 0.0, 0.1, 0.6]])
    w = torch.tensor([-1.0, 0.0, 0.0, 0.5]).exp()  # of the tokens at 0, 1, 2 and 5, in bins 2, 0, 0 and 1
    found = module.weights(step(["___.._"]), importance, 0.3)
    expected = 4 * w / w.sum()
    torch.testing.assert_close(found, torch.tensor([[*expected[:3].tolist(), 1, 1, expected[3].item()]]))
    with module.unweighted():
        assert module.weights(step(["___.._"]), importance, 0.3).tolist() == [[1.0] * 6]
    assert torch.equal(module.weights(step(["___.._"]), importance, 0.3), found)
    assert module.stage(0.3) == "learned"


LOG_WEIGHTS = st.lists(st.floats(-25, 25), min_size=2, max_size=6)


@given(LOG_WEIGHTS, st.integers(0, 2**31), st.floats(0, 1))
def test_weights_are_positive_with_mean_one_and_their_derivative_is_that_of_the_formula(log_weights, seed, rate):
    draw = torch.Generator().manual_seed(seed)
    shape, module = (5, 17), built(*log_weights)
    maskable = torch.rand(shape, generator=draw) < 0.8
    masked = (torch.rand(shape, generator=draw) < rate) & maskable
    importance = (torch.rand(shape, generator=draw) * 8).round() / 8
    given_step = step([["_" if m else "." for m in row] for row in masked], maskable=maskable)
    weights = module.weights(given_step, importance, 0.5)
    assert weights.dtype == torch.float32
    assert bool((weights >= 0).all())
    assert bool((weights[~masked] == 1).all())
    torch.testing.assert_close((weights * masked).sum(1), masked.sum(1).float())
    total, small = torch.zeros(shape), 1e-4
    for number in range(len(log_weights)):
        with module.derivative(number):
            found = module.weights(given_step, importance, 0.5)
        total += found
        ends = []
        for sign in (-1, 1):
            moved = torch.tensor(log_weights, dtype=torch.float64)
            moved[number] += sign * small
            share = moved[module.bins(importance, masked)].masked_fill(~masked, -torch.inf).softmax(-1)
            ends.append(torch.where(masked, share * masked.sum(1, keepdim=True), 0.0))
        expected = ((ends[1] - ends[0]) / (2 * small)).float()
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(total, torch.zeros(shape), atol=1e-5, rtol=0)


@given(st.integers(2, 9), st.integers(0, 2**31), st.floats(0, 1))
def test_without_log_weights_every_weight_is_exactly_one(bins, seed, rate):
    draw = torch.Generator().manual_seed(seed)
    masked = torch.rand(4, 61, generator=draw) < rate
    given_step = step([["_" if m else "." for m in row] for row in masked])
    weights = built(*[0.0] * bins).weights(given_step, torch.rand(4, 61, generator=draw), 0.5)
    assert torch.equal(weights, torch.ones(4, 61))


def test_weights_depend_only_on_visible_tokens():
    """So the posterior still minimises the loss: texts that agree with z have the same weights."""
    module, importance = built(0.3, -0.8, 0.1), torch.rand(1, 6)
    one, other = (module.weights(step(["__.__."], x=torch.tensor([x])), importance, 0.5) for x in ([1] * 6, [2] * 6))
    assert torch.equal(one, other)
    with pytest.raises(UserError, match="curriculum: 'learned' needs the importance of masked tokens"):
        from_table({"name": "a", **LEARNED, "estimator": "frequency"}, where="here")


def test_log_weights_change_within_their_limits_and_not_by_what_is_not_finite():
    module = built(0.0, 0.0, 0.0, sharpness=1.0)
    module.learn(torch.tensor([0.3, 0.0, 0.0]))
    assert module.log_weights.tolist() == pytest.approx([0.2, -0.1, -0.1])
    module.learn(torch.tensor([0.0, 0.3, 0.0]))
    assert module.log_weights.tolist() == pytest.approx([0.1, 0.1, -0.2])
    for bad in (float("nan"), float("inf")):
        module.learn(torch.tensor([bad, 0.0, 1.0]))
        assert module.log_weights.tolist() == pytest.approx([0.1, 0.1, -0.2])
    module.learn(torch.tensor([9.0, 0.0, 0.0]))
    assert module.log_weights.tolist() == [0.5, -0.5, -0.5]


LEARNED = {
    "curriculum": {"use": "learned"},
    "estimator": {"use": "loss_prediction", "width": 8},
    "train": {"algorithms": ["look_ahead"]},
}
SMALL = {"layers": 1, "width": 16, "heads": 2, "dropout": 0.1, "output_bias": "zero"}
OBJECTIVES = [
    {"objective": {"use": "mdlm", "weight": "nelbo"}},
    {"objective": {"use": "mdlm", "weight": "simple", "visible_loss_weight": 0.5}},
    {"objective": {"use": "set_causal"}},
    {"objective": {"use": "set_causal"}, "estimator": {"use": "transformer", "reads": "z", "layers": 1, "width": 16}},
]


def enumerable(tables):
    """Return a model of texts of four bits in float64, and the batches of all 16 texts and of four of them."""
    table = {"name": "toy", "tokenizer": "bytes", "backbone": SMALL, **LEARNED, **tables, "data": {"length": 4}}
    experiment = from_table(table | {"train": {"algorithms": ["look_ahead"], "batch_size": 16}})
    module = assemble(experiment, Context(vocabulary_size=2, length=4, steps=10)).double().train()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    module.curriculum.log_weights.copy_(torch.tensor([0.4, -0.3, 0.1]))
    texts = torch.tensor([[i >> k & 1 for k in range(4)] for i in range(16)])
    batches = []
    for rows, first in ((texts, 0), (texts[[1, 2, 7, 11]], 160)):
        batch = {"tokens": rows, "maskable": torch.ones_like(rows).bool(), "index": first + torch.arange(len(rows))}
        batches.append(prepare(batch))
    return ZooModel(module, steps=10, bf16=False), *batches


@pytest.mark.parametrize("tables", OBJECTIVES, ids=["nelbo", "visible", "sets", "sets_before_step"])
def test_slopes_are_the_change_of_the_held_out_loss_after_a_small_step(tables):
    """The step of gradient descent on the training loss, with the log-weight of a bin a little larger or smaller."""
    model, trained, held_out = enumerable(tables)
    objective, small, size = model.objective, 1e-2, 1e-7
    weights = [p for name, p in objective.named_parameters() if "estimator" not in name]
    before = [p.detach().clone() for p in weights]
    at = objective.curriculum.log_weights.clone()

    def held_out_loss():
        model.eval()
        with objective.curriculum.unweighted(), torch.no_grad():
            found = model(held_out)
        model.train()
        # The estimator's loss trains no other weights.
        return float(found["loss"] - objective.importance_loss_weight * found["importance_loss"])

    def after_a_step(log_weights):
        objective.curriculum.log_weights.copy_(log_weights)
        found = torch.autograd.grad(model(trained)["loss"], weights, allow_unused=True)
        with torch.no_grad():
            for p, g in zip(weights, found, strict=True):
                if g is not None:
                    p -= size * g
            loss = held_out_loss()
            for p, value in zip(weights, before, strict=True):
                p.copy_(value)
        objective.curriculum.log_weights.copy_(at)
        return loss

    slopes = slopes_of(model, trained, held_out).double()
    assert model.training
    model.eval()
    with objective.curriculum.unweighted():
        v = gradient(model, held_out, weights).double()
    model.train()
    change = []
    for number in range(3):
        ends = [after_a_step(at + sign * small * torch.eye(3, dtype=torch.float64)[number]) for sign in (1, -1)]
        change.append((ends[0] - ends[1]) / (2 * small) / size)
    expected = -torch.tensor(change, dtype=torch.float64) / (v @ v)
    scale = expected.abs().max()
    assert scale > 1e-3
    torch.testing.assert_close(slopes - slopes.mean(), expected, atol=2e-3 * float(scale), rtol=0)
    torch.testing.assert_close(expected.mean(), torch.tensor(0.0).double(), atol=2e-3 * float(scale), rtol=0)


def problems(**tables):
    with pytest.raises(UserError) as raised:
        from_table({"name": "a", **LEARNED, **tables}, where="here")
    return str(raised.value)


def test_what_cannot_work_is_refused():
    assert "curriculum: nothing learns the weights of 'learned'; set train.algorithms" in problems(train={})
    assert "train.algorithms: 'look_ahead' learns only the weights of the curriculum" in problems(curriculum="none")
    train = {"algorithms": ["look_ahead"], "sharding": "full"}
    assert "train.sharding: 'look_ahead' needs the whole gradient on every rank" in problems(train=train)
    assert "masking: 'progressive' knows no masks for held-out sequences" in problems(masking="progressive")
    train = {"algorithms": ["look_ahead"], "batch_size": 15}
    assert "train.algorithms: 'look_ahead' reads 16 sequences of a training step, which has 15" in problems(train=train)
    from_table({"name": "a", **LEARNED, "train": train | {"batch_size": 16}})
    with pytest.raises(UserError, match=r"'learned' uses the importance of tokens, but .* learns nothing"):
        load(str(EXPERIMENTS / "learned.toml"), ["objective.importance_loss_weight=0"])


def test_a_step_is_looked_ahead_once():
    model = SimpleNamespace(objective=SimpleNamespace(curriculum=built(0.0, 0.0)))
    algorithm = LookAheadAlgorithm(every=3).build()

    def matches(step, event=Event.BEFORE_TRAIN_BATCH, model=model):
        return algorithm.match(event, SimpleNamespace(model=model, timestamp=SimpleNamespace(batch=step)))

    assert [step for step in range(8) if matches(step)] == [0, 3, 6]
    assert not matches(3, Event.BATCH_START)
    assert not matches(3, model=SimpleNamespace())
    assert not matches(3, model=SimpleNamespace(objective=SimpleNamespace(curriculum=torch.nn.Identity())))


def test_a_step_that_is_repeated_is_looked_ahead_once():
    """For lack of memory, for example."""
    model, trained, held_out = enumerable(OBJECTIVES[0])
    algorithm, at, logged = LookAheadAlgorithm(every=3, sequences=4).build(), SimpleNamespace(batch=3), []
    algorithm.text = Sequences(held_out["tokens"], held_out["maskable"])
    state = SimpleNamespace(model=model, batch=trained, timestamp=at, precision=Precision.FP32)
    before, model.step = model.objective.curriculum.log_weights.clone(), 3
    slopes = slopes_of(model, algorithm.trained(trained), algorithm.held_out(state, 3)).double()
    model.step = 0
    assert algorithm.match(Event.BEFORE_TRAIN_BATCH, state)
    algorithm.apply(Event.BEFORE_TRAIN_BATCH, state, SimpleNamespace(log_metrics=logged.append))
    assert not algorithm.match(Event.BEFORE_TRAIN_BATCH, state)
    assert model.step == 3
    expected = before + 0.5 * (slopes - slopes.mean())
    torch.testing.assert_close(model.objective.curriculum.log_weights, expected, atol=1e-6, rtol=0)
    assert (expected - before).abs().max() > 1e-3
    assert [*logged[0]] == ["curriculum/weight_1", "curriculum/weight_2", "curriculum/weight_3"]
    at.batch = 6
    assert algorithm.match(Event.BEFORE_TRAIN_BATCH, state)


TINY = """
name = "tiny"
seed = 5
[corpus]
use = "files"
train = ["ROOT/train.txt"]
validation = ["ROOT/validation.txt"]
document = "line"
[tokenizer]
use = "bytes"
[backbone]
layers = 1
width = 16
heads = 2
dropout = 0.1
[curriculum]
use = "learned"
[estimator]
use = "loss_prediction"
width = 8
# Components whose state must not follow the sequences of which only the gradient is computed.
[mask_rates]
use = "adaptive"
bins = 2
[target]
use = "difficulty"
scale = "running"
[data]
root = "ROOT/shards"
length = 16
special_tokens = "none"
sequences_per_member = 8
sequences_per_shard = 32
lanes = 4
[train]
steps = 8
batch_size = 8
log_every = 1
save_every = 5
device = "cpu"
precision = "fp32"
algorithms = [{ use = "look_ahead", every = 2, sequences = 4, rate = 3.0 }]
[optimizer]
use = "adamw"
learning_rate = 1e-2
[schedule]
warmup_steps = 1
[evaluation]
sequences = 8
mask_samples = 1
samples = 0
"""
CLOCK = ("tokens_per_second", "flops_per_second", "seconds", "peak_memory")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder with text and the experiment `tiny.toml`, whose shards are built once."""
    root, draw = tmp_path_factory.mktemp("learned"), random.Random(0)
    for name, count in (("train", 400), ("validation", 60)):
        (root / f"{name}.txt").write_text("".join(" ".join(draw.choices(WORDS, k=12)) + "\n" for _ in range(count)))
    (root / "tiny.toml").write_text(TINY.replace("ROOT", str(root)))
    return root


def trained(root, name, *overrides):
    train(load(str(root / "tiny.toml"), overrides), root / name)
    return root / name


@pytest.fixture(scope="module")
def run(root):
    return trained(root, "run")


def weights_of(run):
    return load_file(run / "model" / "model.safetensors")


def log_weights_of(run):
    (found,) = (value for name, value in weights_of(run).items() if name.endswith("curriculum.log_weights"))
    return found


def lines_of(run):
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [{key: value for key, value in line.items() if key not in CLOCK} for line in lines]


def test_a_training_learns_the_weights_and_records_them(run):
    lines = lines_of(run)
    found = [[line.get(f"curriculum/weight_{number}") for number in (1, 2, 3)] for line in lines]
    assert [weights[0] is not None for weights in found] == [True, False] * 4
    assert all(sum(weights) == pytest.approx(3) for weights in found[::2])
    assert len({tuple(weights) for weights in found[::2]}) == 4
    assert found[6] == pytest.approx((log_weights_of(run).softmax(0) * 3).tolist())
    assert "curriculum/weight_4" not in lines[0]
    assert float(log_weights_of(run).std()) > 0.01


def test_without_a_learning_rate_there_is_no_curriculum(root, run):
    """To the bit, and whatever is computed besides."""
    none = trained(root, "none", "curriculum.use=none", "train.algorithms=[]")
    still = trained(root, "still", 'train.algorithms=[{use="look_ahead", every=1, sequences=4, rate=0.0}]')
    assert not log_weights_of(still).any()
    assert weights_of(still).keys() - weights_of(none).keys() == {"curriculum.log_weights"}
    for name, value in weights_of(none).items():
        assert torch.equal(weights_of(still)[name], value), name
    assert any(not torch.equal(weights_of(run)[name], value) for name, value in weights_of(none).items())
    for one, other in zip(lines_of(still), lines_of(none), strict=True):
        assert {key: one[key] for key in other if key != "stage"} == {
            key: other[key] for key in other if key != "stage"
        }


def test_a_resumed_training_ends_with_the_same_weights(root, run):
    """From a checkpoint between two changes of the weights."""
    again = root / "again"
    shutil.copytree(run, again)
    for path in [*again.glob("checkpoints/*8*"), again / "model"]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert RunFolder(again).last_checkpoint().step == 5
    resume(again)
    assert (again / "model" / "model.safetensors").read_bytes() == (run / "model" / "model.safetensors").read_bytes()
    assert lines_of(again) == lines_of(run)


@pytest.mark.slow
def test_two_ranks_learn_the_weights_of_one(root, run):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {**os.environ, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "0", "MASTER_PORT": str(port)}
    command = [sys.executable, "-m", "atat_zoo", "train", str(root / "tiny.toml"), "--out", str(root / "shared")]
    ranks = [
        subprocess.Popen(command, env={**shared, "MASTER_ADDR": "127.0.0.1", "RANK": rank, "LOCAL_RANK": rank})
        for rank in ("0", "1")
    ]
    assert [rank.wait(timeout=300) for rank in ranks] == [0, 0]
    torch.testing.assert_close(log_weights_of(root / "shared"), log_weights_of(run), atol=1e-3, rtol=0)


def state_of(root, step):
    """Return the state before a step, as the algorithm reads it."""
    (shards,) = (path for path in (root / "shards").iterdir() if path.is_dir())
    objective = SimpleNamespace(batch_size=8)
    rows = torch.arange(32).view(8, 4)
    batch = {"tokens": rows, "maskable": rows >= 0, "index": 8 * step + torch.arange(8)}
    return SimpleNamespace(
        model=SimpleNamespace(objective=objective),
        timestamp=SimpleNamespace(batch=step),
        batch=prepare(batch),
        train_dataloader=SimpleNamespace(dataset=SimpleNamespace(folder=shards)),
    )


def test_held_out_sequences_are_those_of_the_selection_half(root, run):
    validation = held_out_sequences(state_of(root, 0).train_dataloader.dataset.folder, "validation").tokens
    number = {tuple(row.tolist()): i for i, row in enumerate(validation)}
    assert len(number) == len(validation) > 40
    algorithm, read, indices = LookAheadAlgorithm(every=2, sequences=4).build(), [], []
    for step in range(0, 2 * len(validation), 2):
        batch = algorithm.held_out(state_of(root, step), step)
        found = [number[tuple(row.tolist())] for row in batch["tokens"]]
        assert len(set(found)) == 4
        assert max(found) - min(found) > len(validation) / 2, "from all over the text"
        read.append(found)
        indices += batch["index"].tolist()
    assert {i for found in read for i in found} == {*range(0, len(validation), 2)}
    assert read[0] != read[1]
    assert len({*indices}) == len(indices)
    assert min(indices) >= 8 * 2**32, "no training sequence has the number, and so the masks, of one of these"


def test_ranks_read_equally_many_sequences_and_no_fewer_than_one_rank(monkeypatch):
    monkeypatch.setattr("composer.utils.dist.get_world_size", lambda: 4)
    assert [LookAheadAlgorithm(sequences=n).build().per_rank for n in (1, 4, 5, 8)] == [1, 1, 2, 2]


def test_training_sequences_are_the_first_of_the_batch(root, run):
    batch = LookAheadAlgorithm(sequences=3).build().trained(state_of(root, 2).batch)
    assert batch["tokens"].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert batch["index"].tolist() == [16, 17, 18]
    assert batch["mean_maskable"].tolist() == [4.0] * 3


@pytest.mark.slow
def test_the_shipped_experiment_trains_as_it_is(tmp_path):
    few = ["train.steps=2", "evaluation.sequences=4", "evaluation.samples=0", f"data.root={tmp_path}/data"]
    experiment = load(str(EXPERIMENTS / "learned.toml"), [*few, "train.log_every=1"])
    assert experiment.parts["backbone"].ngram_prior == 0
    train(experiment, tmp_path / "run")
    assert log_weights_of(tmp_path / "run").any()


def test_the_arms_of_the_study_take_equally_long():
    """A step with `look_ahead` takes the passes of K + 1 times its sequences more, once in `every` steps."""
    study = load_study(EXPERIMENTS / "curricula.toml")
    steps = {arm: study.run(arm, 18).experiment.train for arm in study.arms}
    (algorithm,) = steps["learned"].algorithms
    bins = load(str(EXPERIMENTS / "learned.toml")).parts["curriculum"].bins
    cost = 1 + (bins + 1) * algorithm.sequences / (algorithm.every * steps["learned"].batch_size)
    assert steps["none"].steps == steps["three_stage"].steps == 225
    assert steps["learned"].steps == round(225 / cost)
    assert study.held_out.half == "claim"
