"""FLOPs by formula, against those that torch counts; memory, by hand (tests/test_scale.py has torch allocate it)."""

import json

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from atat_zoo.diffusion import attention
from atat_zoo.experiment import from_table, load
from atat_zoo.modeling.estimators import HybridEstimator, TransformerEstimator
from atat_zoo.modeling.objectives import assemble
from atat_zoo.registry import Context
from atat_zoo.training import cost
from atat_zoo.training.cost import peak_flops, step_flops, utilisation
from benchmarks.cuda_autocast import cuda_autocast
from tests.drawn import drawn_batch

V, ROWS, LENGTH = 300, 4, 32
TABLE = {"name": "counted", "data": {"length": LENGTH}, "train": {"batch_size": ROWS}, "backbone": {"preset": "nano"}}
# A shipped experiment of every objective. `adaptive` and `d3pm` also have a column of their own in the head, which the
# formula leaves out.
SHIPPED = ("adaptive_position", "autoregressive", "block", "d3pm", "mdlm", "mlm", "sedd", "sets", "strided")
SMALL = [f"train.batch_size={ROWS}", f"data.length={LENGTH}"]


def experiment_of(**tables):
    return from_table({**TABLE, **tables})


def check(experiment, *, rel, at_most=None):
    """Compare the formula with the FLOPs that torch counts in a step."""
    module = assemble(experiment, Context(vocabulary_size=V, length=LENGTH)).train()
    # torch counts the products of this attention as they are; fused ones compute some of them twice.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        figures = module.loss(drawn_batch(V, ROWS, LENGTH))
        figures["loss"].backward()
    flops, found = counter.get_total_flops(), step_flops(experiment, V, float(figures["mask_rate"]))
    if at_most:
        assert flops <= found < at_most * flops
    else:
        assert found == pytest.approx(flops, rel=rel)


@pytest.mark.parametrize("name", SHIPPED)
def test_the_flops_of_an_objective_are_those_that_torch_counts(name):
    folder = "" if name == "sets" else "baselines/"
    check(load(f"{folder}{name}", [*SMALL, "backbone.ngram_prior=0"]), rel=1e-3 if name[:2] in ("ad", "d3") else 1e-6)


@pytest.mark.parametrize(
    ("tables", "rel"),
    [
        # What is done for t is done once a row: 26 D² a row of 32 tokens, each of them 96 D² and more.
        ({"backbone": {"layers": 2, "width": 64, "heads": 4, "time_conditioning": True}}, 0.05),
        ({"backbone": {"layers": 2, "width": 64, "heads": 4, "mlp_ratio": 2.5, "tied": True}}, 1e-6),
        # Visible tokens need logits, too.
        ({"objective": {"use": "mdlm", "visible_loss_weight": 0.5}}, 1e-6),
        # LoRA's own products are added, and none leads back to the embedding.
        ({"init_from": "runs/base", "backbone": {"preset": "nano", "lora_rank": 1}}, 0.05),
    ],
)
def test_so_are_those_of_other_settings(tables, rel):
    if "init_from" in tables:
        pytest.importorskip("peft", reason="the extra atat-zoo[lora] is not installed")
    check(experiment_of(**tables), rel=rel)


def test_sets_that_read_tokens_twice_count_at_most_twice_and_an_estimator_as_nothing():
    check(load("sets", [*SMALL, "position_sets.use=random"]), rel=0, at_most=1.3)
    estimator = {"use": "transformer", "layers": 1, "width": 64, "heads": 2}
    with_one = experiment_of(estimator=estimator, masking={"use": "importance"})
    assert step_flops(with_one, V, 0.5) == step_flops(experiment_of(), V, 0.5)


def test_a_line_has_the_share_of_the_peak_where_both_are_known():
    line = {"mask_rate": 0.5, "tokens_per_second": 1000.0}
    experiment = experiment_of(train={"batch_size": ROWS, "peak_tflops": 0.25})
    assert peak_flops(experiment, "cpu", bf16=False) == 0.25e12
    expected = step_flops(experiment, V, 0.5) / (ROWS * LENGTH) * 1000
    found = utilisation(experiment, V, 5e9, 2, line)
    assert found["flops_per_second"] == pytest.approx(expected)
    assert found["utilisation"] == pytest.approx(expected / 1e10, abs=1e-4)
    assert utilisation(experiment, V, None, 1, line).keys() == {"flops_per_second"}
    assert utilisation(experiment, V, 1e12, 1, {"tokens_per_second": 1.0}) == {}
    plain = type("Plain", (), {"name": "plain"})()
    without = attrs.evolve(experiment, parts={**experiment.parts, "backbone": plain})
    assert utilisation(without, V, 1e12, 1, line) == {}


@pytest.mark.parametrize(
    ("device", "name", "bf16", "peak"),
    [
        ("cpu", "", True, None),
        ("cuda:0", "NVIDIA H100 80GB HBM3", True, 989.4e12),
        ("cuda:0", "NVIDIA H100 80GB HBM3", False, None),
        ("cuda:0", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", True, None),
    ],
)
def test_the_peak_is_that_of_the_device_s_name_in_bf16(monkeypatch, device, name, bf16, peak):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    assert peak_flops(experiment_of(), device, bf16) == peak


# Memory

WIDTH, LAYERS, HIDDEN = 64, 2, 192
MATRICES = LAYERS * (4 * WIDTH * WIDTH + 2 * WIDTH * HIDDEN)  # 81,920


def backbone(**more):
    table = {"layers": LAYERS, "width": WIDTH, "heads": 8, "mlp_ratio": 3.0, **more}
    return from_table({"name": "x", "backbone": table}).parts["backbone"]


@pytest.mark.parametrize(
    ("dropout", "compiled", "each"),
    [(0.0, True, 5224), (0.1, True, 5224), (0.0, False, 7272), (0.1, False, 7528)],
)
def test_the_layers_keep_so_many_bytes_of_a_token(dropout, compiled, each):
    for rows, length in ((1, 1), (3, 4)):
        found = cost.activations(backbone(dropout=dropout), rows, length, compiled=compiled)
        assert found == rows * length * each
        last = 4 * WIDTH + 8
        recomputed = backbone(dropout=dropout, checkpoint_activations=True)
        found = cost.activations(recomputed, rows, length, compiled=compiled)
        assert found == rows * length * ((each - last) // LAYERS + LAYERS * 4 * WIDTH + last)


@pytest.mark.parametrize(("compiled", "logits"), [(True, 12_000), (False, 36_000)])
def test_memory_is_the_sum_and_sharded_a_share_of_what_belongs_to_weights(compiled, logits):
    """A gradient, two moments and an average of each weight, and buckets among GPUs; matrices are cast and gathered."""
    spec = backbone()
    weights = spec.weights(V)
    head = cost.head(spec, V, 10, compiled=compiled)
    assert head == logits + 76_800 + 5_120
    read = cost.activations(spec, 2, 8, compiled=compiled) + head

    def memory(**how):
        return cost.memory(spec, V, 2, 8, 10, compiled=compiled, **how) - read

    assert (spec.matrices, cost.casts(spec, V), cost.gathered(spec, V)) == (MATRICES, 202_240, 202_240 + 481_280)
    assert memory() == 20 * weights + 202_240
    assert memory(gpus=4) == 24 * weights + 202_240
    assert memory(gpus=4, sharded=True) == 5 * weights + 683_520


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_an_estimator_has_the_weights_of_its_formula(data):
    own, time = data.draw(st.booleans()), data.draw(st.booleans())
    layers, heads = data.draw(st.integers(1, 3)), data.draw(st.sampled_from([1, 2, 4]))
    spec = TransformerEstimator(layers=layers, width=8 * heads, heads=heads, own_embedding=own, time_conditioning=time)
    module = spec.build(Context(vocabulary_size=V, length=LENGTH, width=24))
    assert sum(weight.numel() for weight in module.parameters()) == spec.weights(V, 24, LENGTH)
    mixed = HybridEstimator(learned=spec)
    assert mixed.weights(V, 24, LENGTH) == spec.weights(V, 24, LENGTH)


@pytest.mark.parametrize("own", [False, True])
def test_an_estimator_computes_and_keeps_what_its_formulas_say(own, monkeypatch):
    monkeypatch.setattr(attention, "SHORT", 0)
    spec = TransformerEstimator(width=64, own_embedding=own)
    module = spec.build(Context(vocabulary_size=V, length=LENGTH, width=48))
    embedded, tokens = torch.randn(ROWS, LENGTH, 48), torch.zeros(ROWS, LENGTH, dtype=torch.int64)
    ones = torch.ones(ROWS, LENGTH, dtype=torch.bool)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        module(tokens, embedded, None, ones)
    assert counter.get_total_flops() == spec.flops(ROWS, LENGTH, 48)
    kept, weights = {}, {weight.untyped_storage().data_ptr() for weight in module.parameters()}

    def keep(tensor):
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), cuda_autocast():
        module(tokens, embedded, None, ones)
    # Besides, the weights that are cast, all but vectors.
    cast = sum(2 * each.weight.numel() for each in module.modules() if isinstance(each, torch.nn.Linear))
    found = sum(tensor.untyped_storage().nbytes() for tensor in kept.values()) - cast
    assert found == pytest.approx(spec.activations(ROWS, LENGTH, 48), rel=0.05)


def test_an_estimator_counts_where_the_objective_trains_it():
    learned, without = cost.cost(load("owt-small/documented")), cost.cost(load("owt-small/mdlm"))
    assert without.weights_estimator == 0 < learned.weights_estimator
    assert learned.weights == without.weights
    for name in ("flops", "seconds", "memory_compiled", "memory_eager"):
        assert getattr(learned, name) > getattr(without, name), name


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("A100", "A100-SXM4-80GB"),
        ("a100 pcie 40gb", "A100-PCIE-40GB"),
        ("NVIDIA H100 80GB HBM3", "H100 80GB HBM3"),
        ("H100", "H100 80GB HBM3"),
        ("H100 NVL", "H100 NVL"),
        ("L40", "L40"),
    ],
)
def test_a_gpu_is_known_by_its_short_name(name, known):
    assert cost.gpu_named(name) == known


def test_a_training_that_does_not_fit_says_so_and_what_to_set(atat):
    words = ["train", "owt-small/mdlm", "--dry-run", "--gpu", "L4", "train.microbatch_size=128"]
    of = json.loads(atat(*words, "--json")[1])
    assert not of["fits"]
    assert of["vocabulary_size"] == 50_257, "of GPT-2, whose files are not here"
    assert (128 % of["rows_that_fit"], of["cpu"]) == (0, None)
    assert "does not fit" in (out := atat(*words)[1])
    assert f"train.microbatch_size = {of['rows_that_fit']}" in out
    words[-1] = f"train.microbatch_size={of['rows_that_fit']}"
    assert "does not fit" not in atat(*words)[1]


LONG = ("data.length=24576", "backbone.max_length=24576")
SHARD, RECOMPUTE = 'train.sharding = "full"', "backbone.checkpoint_activations = true"


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (["--gpu", "L4", "backbone.preset=6.7b"], f"set {SHARD} and pass more --gpus, or a larger --gpu"),
        (["--gpu", "L4", "backbone.preset=6.7b", "train.sharding=full"], "pass more --gpus, or a larger --gpu"),
        (["--gpu", "L4", "--gpus", "16", "backbone.preset=2.7b"], f"set {SHARD} and train.microbatch_size = 2"),
        (
            ["--gpu", "L4", "--gpus", "16", "backbone.preset=2.7b", "optimizer.use=adafactor"],
            f"set {SHARD} and pass more --gpus, or a larger --gpu",
        ),
        (
            ["--gpu", "H200", "--gpus", "2", "backbone.preset=2.7b", "train.microbatch_size=1", *LONG],
            f"set {RECOMPUTE}",
        ),
        (["--gpu", "A100", "train.microbatch_size=256"], "set train.microbatch_size = 128"),
    ],
)
def test_the_first_change_with_which_it_fits_is_named(atat, words, remedy):
    lines = atat("train", "owt-small/mdlm", "--dry-run", *words)[1].splitlines()
    assert f"  the training run does not fit in GPU memory; {remedy}" in lines
    changes = [each.replace(" ", "") for each in remedy.removeprefix("set ").split(" and ") if "=" in each]
    if "--gpu" not in remedy:
        assert "does not fit" not in atat("train", "owt-small/mdlm", "--dry-run", *words, *changes)[1]


def test_gpus_that_do_not_divide_the_lanes_are_refused_as_by_a_training(atat):
    code, _, err = atat("train", "owt-small/mdlm", "--dry-run", "--gpus", "8", "data.lanes=12")
    assert (code, err) == (2, "error: --gpus 8 does not divide data.lanes = 12; change one of them\n")


def test_a_checkpoint_has_weights_moments_average_and_model(atat):
    assert (cost.checkpoint_size(5, ema=False), cost.checkpoint_size(5, ema=True)) == (80, 100)
    words = ["train", "owt-small/mdlm", "--dry-run", "--gpu", "A100"]  # without one, it measures this processor
    of = json.loads(atat(*words, "--json")[1])
    assert of["checkpoint"] == 20 * (of["weights"] + of["weights_estimator"])
    size = f"{of['checkpoint'] / 1e9:,.1f} GB per checkpoint"
    assert f"  disk    {size}; the 2 newest are kept (train.keep_checkpoints)\n" in atat(*words)[1]


def test_an_unknown_gpu_is_answered_with_those_that_are_known(atat):
    code, _, err = atat("train", "quickstart", "--dry-run", "--gpu", "TPU")
    assert (code, "--gpu 'TPU'" in err, "A100, H100" in err) == (2, True, True)


def test_on_a_cpu_a_dry_run_measures_this_machine(atat, monkeypatch):
    monkeypatch.setattr(cost, "_MEASURED", 1e8)
    words = ["train", "quickstart", "--dry-run", "train.device=cpu"]
    of = json.loads(atat(*words, "--json")[1])
    assert of["cpu"]["seconds"] == pytest.approx(of["flops"] / of["cpu"]["flops_per_second"])
    assert f"{of['cpu']['threads']} thread" in atat(*words)[1]
    assert json.loads(atat(*words, "--gpu", "A100", "--json")[1])["cpu"] is None


def test_a_training_takes_its_steps_on_a_share_of_the_peak():
    experiment = experiment_of(train={"batch_size": ROWS, "steps": 7})
    found = cost.cost(experiment, gpus=2, gpu="H100 80GB HBM3", utilisation=0.5, price=3.0, vocabulary=V)
    assert found.flops == 7 * step_flops(experiment, V, 0.5)
    assert found.seconds == pytest.approx(found.flops / (2 * 989.4e12 * 0.5))
    assert found.dollars == pytest.approx(found.seconds / 3600 * 2 * 3.0)
    assert (found.tokens, found.rows) == (7 * ROWS * LENGTH, ROWS // 2)


def test_an_estimator_of_hidden_states_reads_the_neighbours_of_the_prior_too():
    table = TABLE | {"objective": "set_causal", "estimator": "loss_prediction", "tokenizer": "bytes"}
    plain, prior = (from_table(table | {"backbone": {"preset": "nano", "ngram_prior": n}}) for n in (0, 2))
    width = plain.parts["backbone"].shape[1]
    for experiment, read in ((plain, width), (prior, width + 4)):
        found = cost.cost(experiment, gpu="A100").weights_estimator
        assert found == experiment.parts["estimator"].weights(258, read, LENGTH) == 128 * (read + 2) + 1


@pytest.mark.parametrize(
    ("tables", "share"),
    [
        ({"objective": "mdlm"}, 0.5),
        ({"objective": {"use": "mdlm", "visible_loss_weight": 0.5}}, 1.0),
        ({"objective": "autoregressive", "sampler": "left_to_right"}, 1.0),
    ],
)
def test_a_dry_run_counts_the_logits_of_every_token_that_has_a_loss(tables, share):
    experiment = experiment_of(**tables)
    network, vocabulary = experiment.parts["backbone"], 300
    found = cost.cost(experiment, gpu="A100", vocabulary=vocabulary)
    for compiled, memory in ((True, found.memory_compiled), (False, found.memory_eager)):
        positions = int(share * ROWS * LENGTH)
        assert memory == cost.memory(network, vocabulary, ROWS, LENGTH, positions, compiled=compiled)
    assert found.flops == experiment.train.steps * 3 * network.flops(vocabulary, ROWS, LENGTH, share * ROWS * LENGTH)


def test_what_a_training_keeps_of_its_weights_is_named():
    assert cost.state(5) == {"weights": 20, "gradients": 20, "AdamW": 40, "EMA": 20}
