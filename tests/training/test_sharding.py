"""Weights, gradients and the optimizer's state sharded over two ranks: the training of whole ones, to rounding."""

import copy
import json
import re

import pytest
import torch
from torch import distributed, nn
from torch.distributed.tensor import DTensor

from atat_zoo.training import sharding
from atat_zoo.training.sharding import WholeWeights, shard
from tests import forked
from tests.training import die_at, with_changed
from tests.training.test_resume import killed, same, two_ranks, unfinished

# What of the weights, and of the optimizer's state, a rank has when its training ends.
HOLDS = with_changed(
    "composer:Trainer.fit",
    """
    original(*words)
    from atat_zoo.training.sharding import local
    state = [value for each in words[0].state.optimizers[0].state.values() for value in each.values() if value.ndim]
    for name, tensors in (("weights", list(words[0].state.model.parameters())), ("state", state)):
        print(name, sum(local(one).numel() for one in tensors), sum(one.numel() for one in tensors))
    """,
)
NORMS = 'train.callbacks=[{use="gradient_norms", every=1}]'
SHORT = ("train.steps=4", "train.save_every=2", "train.evaluate_every=4", "train.precision=fp32", NORMS)
ADAMW = 'optimizer={use="adamw", learning_rate=3e-3}'
# The tiny experiment has every kind of state; these have other networks, too, and other ways to clip.
WAYS = {
    "muon": ("train.max_grad_norm=8", "backbone.time_conditioning=true"),
    "causal": (
        ADAMW,
        'objective.use="autoregressive"',
        'sampler.use="left_to_right"',
        "train.max_grad_norm=0",
        'train.algorithms=[{use="gradient_clipping", clipping_type="per_module", clipping_threshold=0.1}]',
    ),
    # Rows of which some need carriers for tokens alone: whole weights read them apart, parts of weights at once.
    "in mixed turns": (
        ADAMW,
        'objective.use="set_causal"',
        'position_sets={use="mixture", components=["strided", "random"]}',
        'estimator={use="transformer", layers=1, width=16, heads=2, reads="z"}',
        "backbone.dropout=0.1",
        "backbone.layers=2",
        "backbone.tied=true",
        "backbone.ngram_prior=2",
        "backbone.checkpoint_activations=true",
        "train.max_grad_norm=0",
        'train.algorithms=["gradient_clipping"]',
    ),
}


def two(tiny, run, *words, code=None):
    return two_ranks(tiny, str(tiny.path), "--out", run, *words, code=code)


@pytest.fixture(scope="module")
def sharded(tiny):
    """Return what two ranks print of a training by Muon with parts of the weights."""
    return two(tiny, "sharded-muon", *SHORT, *WAYS["muon"], "train.sharding=full", code=HOLDS)


def evaluations(tiny, run):
    """Return the values of the bounds in the evaluations of a run, by step."""
    return [
        {name: bound["value"] for name, bound in json.loads(path.read_text())["bounds"].items()}
        for path in sorted((tiny.root / run / "evaluations").glob("*.json"))
    ]


class Net(nn.Module):
    """Layers in a list, and a head; returns figures by name, as an objective does."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.head = nn.Linear(4, 2)
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x):
        """Return the loss."""
        for layer in self.layers:
            x = layer(x).tanh()
        return {"loss": self.scale * self.head(x).square().mean()}


@pytest.fixture
def one_rank(tmp_path):
    """Have a process group of this process alone."""
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def test_one_rank_shards_into_itself(one_rank, monkeypatch):
    """Gradients are those of the whole model, every layer is a unit, and a copy has the weights while it needs them."""
    asked, units = [], []
    fully_shard = sharding.fully_shard
    monkeypatch.setattr(sharding.dist, "initialize_dist", asked.append)
    monkeypatch.setattr(sharding, "fully_shard", lambda unit, mesh: units.append(unit) or fully_shard(unit, mesh=mesh))
    net, x = Net(), torch.randn(3, 4)
    plain = copy.deepcopy(net)
    plain(x)["loss"].backward()
    whole = WholeWeights(net)
    shard(net, "cpu")
    assert asked == ["cpu"]
    assert units[:3] == [*net.layers, net]
    net(x)["loss"].backward()
    for ours, theirs in zip(net.parameters(), plain.parameters(), strict=True):
        assert isinstance(ours, DTensor)
        assert sharding.local(ours).shape == theirs.shape
        torch.testing.assert_close(sharding.whole(ours.grad), theirs.grad)
        again = sharding.sharded_like(theirs.detach(), ours)
        assert again.placements == ours.placements
        assert torch.equal(again.full_tensor(), theirs)
    with whole.gathered():
        torch.testing.assert_close(whole.module(x)["loss"], plain(x)["loss"])
    assert all(parameter.is_meta for parameter in whole.module.parameters())
    assert torch.equal(whole.module.scale, net.scale)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_it_trains_as_with_whole_weights(tiny, way, sharded):
    """The same draws, losses, gradients and evaluations; and each rank has half of what there is."""
    run, words = way.replace(" ", "-"), (*SHORT, *WAYS[way])
    two(tiny, f"whole-{run}", *words)
    said = sharded if way == "muon" else two(tiny, f"sharded-{run}", *words, "train.sharding=full", code=HOLDS)
    for what in ("weights", "state"):
        held, total = zip(*(map(int, re.search(rf"{what} (\d+) (\d+)", each).groups()) for each in said), strict=True)
        assert sum(held) == total[0], what
        assert max(held) < 0.55 * total[0], what
    whole, sharded = tiny.losses(f"whole-{run}"), tiny.losses(f"sharded-{run}")
    assert list(whole) == list(sharded) == [1, 2, 3, 4]
    for step, line in whole.items():
        assert sharded[step].get("mask_rates") == line.get("mask_rates"), step
        for name in ("loss", "gradient_norm/denoiser", *({"gradient_norm/estimator"} & line.keys())):
            assert sharded[step][name] == pytest.approx(line[name], rel=1e-3, abs=1e-6), (step, name)
    for one, other in zip(evaluations(tiny, f"whole-{run}"), evaluations(tiny, f"sharded-{run}"), strict=True):
        assert other == pytest.approx(one, rel=1e-3)


@pytest.mark.slow
def test_killed_it_goes_on_bit_for_bit_and_with_other_parts_to_rounding(tiny, sharded):
    """A checkpoint has whole tensors: it goes on on two ranks with parts of them, on one, and on two with all."""
    words = ["train", str(tiny.path), "--out", "sharded-killed", *SHORT, *WAYS["muon"], "train.sharding=full"]
    killed(forked.ranks(2, words, tiny.root, code=die_at(3)))
    two_ranks(tiny, "--resume", "sharded-killed")
    same(tiny, "sharded-killed", "sharded-muon")

    alone = unfinished(tiny, tiny.root / "sharded-muon", "sharded-alone", step=2)
    assert "ranks from 2 to 1" in tiny.atat("train", "--resume", alone.name).stdout
    whole = unfinished(tiny, alone, "sharded-whole", step=2)
    words = ("--resume", whole.name, "train.sharding=none", "train.microbatch_size=4")
    changed = "2: train.microbatch_size changed from 2 to 4, train.sharding changed from 'full' to 'none'"
    assert changed in two_ranks(tiny, *words)[0]
    reference = tiny.losses("sharded-muon")
    for run in (alone.name, whole.name):
        losses = tiny.losses(run)
        assert losses.keys() == reference.keys()
        for step, line in reference.items():
            assert losses[step]["loss"] == pytest.approx(line["loss"], rel=1e-3), (run, step)


@pytest.mark.slow
def test_weights_that_are_not_finite_stop_all_ranks(tiny):
    """Also where they are in the part of another rank than the one that writes."""
    code = with_changed(
        "atat_zoo.training.checkpoints:Checkpoints.save",
        """
        from atat_zoo.training.sharding import dist, local
        if dist.get_global_rank() == 1:
            local(next(words[1].model.parameters()).detach()).fill_(float("nan"))
        original(*words)
        """,
    )
    words = ["train", str(tiny.path), "--out", "spoilt-shards", "train.sharding=full", "train.steps=2"]
    for rank in forked.ranks(2, words, tiny.root, code=code):
        said, _ = rank.communicate()
        assert rank.returncode == 2
        assert "the weights are not finite after step 2" in said
