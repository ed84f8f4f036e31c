"""Metrics of predictions: by hand, against enumeration and torchmetrics; and not computed unless asked for."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torchmetrics.classification import MulticlassAccuracy, MulticlassCalibrationError

from atat_zoo import Zoo
from atat_zoo.diffusion.randomness import sequence_keys
from atat_zoo.evaluation.likelihood import measure
from atat_zoo.evaluation.metric_states import Calibration, SequenceMean, among_top, brier
from atat_zoo.experiment import EvaluationSpec
from atat_zoo.modeling.noise import LinearNoise
from atat_zoo.registry import Context
from atat_zoo.testing.toys import toy

V, L = 2, 3
METRICS = tuple(Zoo.load().spec("metric", name) for name in ("brier_score", "top_accuracy"))


@given(values=st.lists(st.floats(-30, 30, width=16), min_size=2, max_size=8), k=st.integers(1, 9), data=st.data())
def test_they_are_of_the_distribution_and_bounded(values, k, data):
    logits, x = torch.tensor([values], dtype=torch.float64), torch.tensor([data.draw(st.integers(0, len(values) - 1))])
    direct = (logits.softmax(-1) - nn.functional.one_hot(x, len(values))).square().sum(-1)
    torch.testing.assert_close(brier(logits.log_softmax(-1), x), direct)
    better = int((logits[0] > logits[0, x]).sum())
    hit = float(among_top(logits.log_softmax(-1), x, k=k))
    assert hit == (better < k) or values.count(values[int(x)]) > 1


def predictions(n, v=6, seed=0):
    """Return n predictions of unequal weights in five sequences."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "log_probs": (3 * torch.randn(n, v, generator=generator)).log_softmax(1),
        "tokens": torch.randint(0, v, (n,), generator=generator),
        "weight": torch.rand(n, dtype=torch.float64, generator=generator),
        "row": torch.arange(n) % 5,
    }


@given(n=st.integers(5, 60), bins=st.integers(1, 20), seed=st.integers(0, 99))
def test_with_equal_weights_they_are_those_of_torchmetrics(n, bins, seed):
    given_ = predictions(n, seed=seed) | {"weight": torch.ones(n, dtype=torch.float64)}
    probabilities, tokens = given_["log_probs"].exp(), given_["tokens"]
    for mine, theirs in (
        (Calibration(bins), MulticlassCalibrationError(num_classes=6, n_bins=bins, norm="l1")),
        (SequenceMean(partial(among_top, k=2)), MulticlassAccuracy(num_classes=6, top_k=2, average="micro")),
    ):
        mine.update(**given_, sequence=torch.arange(5))
        theirs.update(probabilities, tokens)
        assert mine.compute().value == pytest.approx(float(theirs.compute()), abs=1e-6)


@given(seed=st.integers(0, 99), cut=st.integers(1, 29))
def test_they_are_the_same_over_one_batch_and_over_several_and_weights_count_as_repetitions(seed, cut):
    """Sequences in other batches are others, and one that comes again, under other masks, is the same."""
    given_ = predictions(30, seed=seed)
    numbers, times = torch.tensor([7, 3, 11, 4, 9]), torch.arange(30) % 3
    repeated = {name: values.repeat_interleave(times, 0) for name, values in given_.items()}
    for build in (lambda: Calibration(4), lambda: SequenceMean(brier)):
        one, pieces, batches, apart, weighted, several = (build() for _ in range(6))
        one.update(**given_, sequence=numbers)
        for rows in (slice(0, cut), slice(cut, 30)):
            each = {name: values[rows] for name, values in given_.items()}
            pieces.update(**each, sequence=numbers)  # pieces of one batch
            batches.update(**each, sequence=numbers.clone())  # another one of the same sequences
        for row in range(5):
            mine = given_["row"] == row
            each = {name: values[mine] for name, values in given_.items()} | {"row": torch.zeros(6, dtype=torch.long)}
            apart.update(**each, sequence=numbers[row : row + 1])
        weighted.update(**given_ | {"weight": times.double()}, sequence=numbers)
        several.update(**repeated | {"weight": torch.ones(len(repeated["tokens"]))}, sequence=numbers)
        for a, b in ((one, pieces), (one, batches), (one, apart), (weighted, several)):
            a, b = a.compute(), b.compute()
            assert (a.value, a.stderr) == pytest.approx((b.value, b.stderr), abs=1e-7)
        assert one.compute().stderr > 0


def test_the_diagram_of_a_calibration():
    confidence = torch.tensor([0.6, 0.6, 0.85, 0.95])
    log_probs, tokens = torch.stack([confidence, 1 - confidence], 1).log(), torch.tensor([0, 1, 0, 0])
    metric = Calibration(10)
    metric.update(log_probs, tokens, torch.ones(4, dtype=torch.float64), torch.arange(4), torch.arange(4))
    found = metric.compute()
    assert found.value == pytest.approx(0.1)  # 0.6 is right in one of two, the others always are
    assert found.table["share"] == [0.5, 0.25, 0.25]
    assert found.table["accuracy"] == [0.5, 1.0, 1.0]
    assert found.table["confidence"] == pytest.approx([0.6, 0.85, 0.95])


class Backbone(nn.Module):
    """A backbone whose logits are a fixed function of z and the position, and far from sensible."""

    reads_time = False

    def __init__(self):
        super().__init__()
        self.head, self.embedding = nn.Identity(), nn.Embedding(V + 1, V)

    def forward(self, tokens, t=None, *, positions=None, attention=None, cache=None):
        position = torch.arange(tokens.shape[1], dtype=torch.float64)
        causal = isinstance(attention, str)
        seen = tokens.double().cumsum(1) if causal else tokens.double().sum(1, keepdim=True).expand(tokens.shape)
        return torch.stack([(1.7 * seen + position).sin(), (0.3 * seen - position).cos()], -1)


def module(objective):
    context = Context(vocabulary_size=V, length=L, width=V)
    parts = {"backbone": Backbone(), "noise": LinearNoise()}
    return Zoo.load().spec("objective", objective).build(context, parts, 4).double().eval()


def sums(module, x, draws, bound="exact_k"):
    """Return for each metric Σ w · score and Σ w of each sequence, [B, 2]."""
    built = [metric.build() for metric in METRICS]

    def observe(position, **of_tokens):
        assert (position < L).all()
        for each in built:
            each.update(**of_tokens, sequence=torch.arange(len(x)))

    keys = sequence_keys(3, "evaluation", torch.arange(len(x)))
    with torch.no_grad():
        module.bound(x, torch.ones_like(x) > 0, keys, draws, Zoo.load().spec("bound", bound), observe)
    return torch.stack([each.by_sequence() for each in built])


def enumerated(module, x):
    """Return each metric by its definition: over k uniform, over the masks of k tokens, over their tokens; [B, 2]."""
    total = torch.zeros(len(x), len(METRICS), dtype=torch.float64)
    for bits in range(1, 2**L):
        masked = torch.tensor([bool(bits >> i & 1) for i in range(L)]).expand(x.shape)
        k, true = int(masked[0].sum()), x[masked]
        p = module.denoiser()(torch.where(masked, V, x), None, masked).exp()
        values = [(p - nn.functional.one_hot(true, V)).square().sum(-1), (p.argmax(-1) == true).double()]
        total += torch.stack(values, -1).view(len(x), k, -1).mean(1) / (L * math.comb(L, k))
    return total


@pytest.mark.parametrize("objective", ["sedd", "mlm", "d3pm"])
@pytest.mark.parametrize("bound", ["exact_k", "continuous_t"])
def test_they_agree_with_enumeration_on_a_toy(objective, bound):
    made, states, groups = module(objective), toy().states, 4000
    with torch.no_grad():
        expected = enumerated(made, states).mean(0)
    found = sums(made, states.repeat(groups, 1), 3, bound)
    for value, each in zip(expected, found, strict=True):
        by_group = each.view(groups, -1, 2).sum(1)
        residual = by_group[:, 0] - value * by_group[:, 1]
        assert abs(float(residual.mean() / residual.std())) * math.sqrt(groups) < 4
        assert float(by_group[:, 0].sum() / by_group[:, 1].sum()) == pytest.approx(float(value), abs=0.02)
    if bound == "exact_k":  # n/k · k: the weights of a sequence sum to its tokens
        torch.testing.assert_close(found[0][:, 1], torch.full((8 * groups,), float(L)).double())


def test_where_the_likelihood_is_exact_they_are_over_all_tokens():
    made, x = module("autoregressive"), toy().states
    brier_score, hits = sums(made, x, 7)
    with torch.no_grad():
        logits = made.hidden(x, None)
    p = logits.softmax(-1)
    expected = (p - nn.functional.one_hot(x, V)).square().sum((1, 2))
    torch.testing.assert_close(brier_score, torch.stack([expected, torch.full_like(expected, L)], 1))
    torch.testing.assert_close(hits[:, 0], (p.argmax(-1) == x).sum(1).double())


@pytest.mark.parametrize("objective", ["sedd", "d3pm", "autoregressive", {"use": "block", "block_size": 3}])
def test_bounds_are_the_same_with_and_without_metrics_and_these_in_any_batches(objective):
    made, x = module(objective), toy().states
    every = (*METRICS, Zoo.load().spec("metric", "calibration_error"))

    def measured(metrics, rows=slice(None), size=8):
        spec = EvaluationSpec(mask_samples=3, metrics=metrics, batch_size=size)
        return measure(made, x[rows], x[rows] >= 0, spec, seed=3)

    plain, one = measured(()), measured(every)
    assert list(one.contribution) == list(plain.contribution)
    assert next(iter(one.contribution)) == "nelbo"
    assert all(torch.equal(plain.contribution[name], one.contribution[name]) for name in plain.contribution)
    assert plain.metrics == measured((), slice(0, 0)).metrics == {}
    assert list(one.metrics) == ["brier_score", "top_1_accuracy", "calibration_error"]
    assert 0 < one.metrics["brier_score"].value < 2
    for other in (measured(every, size=3), measured(every, size=1)):
        for name, value in one.metrics.items():
            assert (other.metrics[name].value, other.metrics[name].stderr) == pytest.approx((value.value, value.stderr))
            assert value.stderr > 0
    nothing = measured(every, slice(0, 0)).metrics.values()  # of a process without sequences
    assert [math.isnan(value.value) for value in nothing] == [True] * 3
