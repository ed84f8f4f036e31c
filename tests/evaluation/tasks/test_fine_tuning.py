"""A network is fine-tuned with a head: reproducibly, as BERT is, and what it predicts is scored."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import pearsonr, spearmanr
from torch.optim.optimizer import register_optimizer_step_pre_hook

from atat_zoo import Model
from atat_zoo.diffusion.randomness import sequence_keys
from atat_zoo.evaluation.tasks import fine_tuning
from atat_zoo.evaluation.tasks.fine_tuning import NetworkWithHead, Recipe, fine_tuned, score
from tests.evaluation.making import runs

root = runs(dit={"objective": "mdlm", "length": 64}, drops={"objective": "mdlm", "backbone": {"dropout": 0.2}})


@pytest.fixture(scope="module")
def model(root):
    return Model.from_run(root / "dit", "cpu")


def test_metrics_are_those_of_their_definitions():
    draw = np.random.default_rng(0)
    wanted, found = draw.integers(0, 2, 100), draw.integers(0, 2, 100)
    (tp, fp), (fn, tn) = [[((found == f) & (wanted == w)).sum() for w in (1, 0)] for f in (1, 0)]
    expected = {
        "accuracy": (tp + tn) / 100,
        "f1": 2 * tp / (2 * tp + fp + fn),
        "matthews": (tp * tn - fp * fn) / np.sqrt(float((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))),
    }
    for name, value in expected.items():
        assert score(name, torch.tensor(found), wanted.tolist()) == pytest.approx(value)
    numbers, others = draw.normal(size=50), draw.normal(size=50).round(1)
    for name, function in (("pearson", pearsonr), ("spearman", spearmanr)):
        assert score(name, torch.tensor(numbers), others.tolist()) == pytest.approx(function(numbers, others).statistic)
    assert score("accuracy", torch.tensor([0, 1, 2, 2]), [0.0, 1.0, 2.0, 1.0]) == 0.75
    for name in ("matthews", "pearson", "spearman"):  # what does not vary correlates with nothing
        assert score(name, torch.ones(4), [0.0, 1.0, 1.0, 0.0]) == 0.0
        assert score(name, torch.tensor([0, 1, 1, 0]), [1.0] * 4) == 0.0


@given(st.lists(st.integers(1, 12), min_size=2, max_size=5), st.integers(0, 99))
def test_a_row_s_logits_do_not_depend_on_what_fills_it(model, lengths, seed):
    """Nor on the rows beside it; also of a network that takes no attention mask."""
    draw = torch.Generator().manual_seed(seed)
    rows = [torch.randint(0, 256, (n,), generator=draw).tolist() for n in lengths]
    for fill in (None, 12):
        module = NetworkWithHead(model.module.backbone, model.context.mask_id, 3, fill=fill, seed=seed).eval()
        with torch.no_grad():
            together = module(rows)
            alone = torch.cat([module([row]) for row in rows])
        torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_it_learns_and_is_a_function_of_its_seed_and_leaves_the_model_as_it_is(model):
    before = {name: value.clone() for name, value in model.module.state_dict().items()}
    state = torch.random.get_rng_state()
    draw = torch.Generator().manual_seed(0)
    rows = torch.randint(0, 4, (80, 6), generator=draw)
    labels = (rows == 3).any(1).long()
    recipe, calls = Recipe(epochs=8, batch_size=16, learning_rate=1e-2), []
    one, again, other = (
        fine_tuned(
            model, rows.tolist(), labels, recipe, outputs=2, seed=seed, progress=lambda *done: calls.append(done)
        )(rows.tolist())
        for seed in (3, 3, 4)
    )
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert (one.argmax(-1) == labels).double().mean() > 0.9
    assert calls[:40] == [(i + 1, 40) for i in range(40)]
    assert all(torch.equal(value, before[name]) for name, value in model.module.state_dict().items())
    assert torch.equal(state, torch.random.get_rng_state())


def test_random_weights_and_dropout_are_of_the_seed(root, model):
    rows, recipe = [[1, 2], [3]], Recipe(epochs=1, batch_size=2, learning_rate=1e-9)
    found = [
        fine_tuned(model, rows, torch.tensor([0.5, 1.0]), recipe, outputs=1, seed=seed, trained=trained)(rows)
        for seed, trained in ((1, True), (1, False), (1, False), (2, False))
    ]
    assert torch.equal(found[1], found[2])
    assert not torch.equal(found[0], found[1])
    assert not torch.equal(found[1], found[3])
    dropping, recipe = Model.from_run(root / "drops", "cpu"), Recipe(epochs=3, batch_size=1, learning_rate=1e-2)
    one, again = (fine_tuned(dropping, rows, torch.tensor([0, 1]), recipe, outputs=2, seed=3)(rows) for _ in range(2))
    assert torch.equal(one, again)
    heads = (NetworkWithHead(model.module.backbone, 258, 2, fill=None, seed=seed).head.weight for seed in (1, 1, 2))
    one, again, other = heads
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_every_epoch_draws_an_order_and_dropout_of_its_own(model, monkeypatch):
    """By the number of the example among all that are shown."""
    shown = []
    monkeypatch.setattr(fine_tuning, "set_keys", lambda network, keys: shown.extend(keys.tolist()))
    recipe, n = Recipe(epochs=3, batch_size=4, learning_rate=1e-3), 12
    orders = {}
    for seed in (1, 2):
        shown.clear()
        fine_tuned(model, [[1]] * n, torch.zeros(n).long(), recipe, outputs=2, seed=seed)
        numbers = sequence_keys(seed, "dropout", torch.arange(3 * n)).tolist()
        orders[seed] = [numbers.index(key) for key in shown]
        for epoch in range(3):
            of_epoch = orders[seed][epoch * n : (epoch + 1) * n]
            assert sorted(of_epoch) == list(range(epoch * n, (epoch + 1) * n)) != of_epoch
    assert orders[1] != orders[2]


def test_a_step_is_bert_s(model, monkeypatch):
    """Gradients are clipped to a norm of 1; the rate rises and falls; weights without a gradient decay by it."""
    made, norms, rates = [], [], []

    class Kept(NetworkWithHead):
        def __init__(self, *words, **how):
            super().__init__(*words, **how)
            made.append(self)

    def before(optimizer, *_):
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        norms.append(float(torch.stack([g.norm() for g in gradients]).norm()))
        rates.append(optimizer.param_groups[0]["lr"])

    monkeypatch.setattr(fine_tuning, "NetworkWithHead", Kept)
    handle = register_optimizer_step_pre_hook(before)
    try:
        recipe = Recipe(epochs=10, batch_size=1, learning_rate=1e-2)
        fine_tuned(model, [[1, 2], [3]], torch.tensor([90.0, -90.0]), recipe, outputs=1, seed=3)
    finally:
        handle.remove()
    assert norms == pytest.approx([1.0] * 20, rel=1e-3)
    assert rates == pytest.approx([1e-2 * min((i + 1) / 2, 1 - i / 20) for i in range(20)])
    unseen = model.module.backbone.embedding.weight[200]
    left = float(np.prod([1 - 0.01 * rate for rate in rates]))
    torch.testing.assert_close(made[0].network.embedding.weight[200], unseen * left, rtol=1e-5, atol=1e-7)
