"""Samplers side by side, from generations whose texts and times are known, and their policy bounds."""

import math

import attrs
import pytest
import torch

from atat_zoo import Zoo
from atat_zoo.evaluation.policy import measure_policy
from atat_zoo.evaluation.sample_quality import Bench, SamplerResult, bench
from atat_zoo.evaluation.text import text_of
from atat_zoo.experiment import EvaluationSpec
from atat_zoo.generation.model import Model
from atat_zoo.generation.samplers import Sample
from atat_zoo.generation.samplers.published import AncestralSampler, StridedSampler
from atat_zoo.generation.writer import Generation
from tests.evaluation.making import make_run

FIRST, SECOND = AncestralSampler(steps=2), StridedSampler()
TEXTS = {"ancestral": ["aabb", "abab"], "strided": ["aaaa", "ab  "], "maskgit": ["aaaa", "ab  "]}


class Judge:
    """Two nats a token in the first text, three in the others; a token a character."""

    title = "toy"

    def nats(self, texts):
        counted = torch.tensor([len(text) for text in texts])
        return counted * torch.tensor([2.0, *[3.0] * (len(texts) - 1)]).double(), counted


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("sampling"), "writer", "mdlm")


@pytest.fixture
def asked(monkeypatch):
    """Let models write known texts; returns what they were asked, and the seconds that the next ones take."""
    calls, seconds = [], []

    def sample(self, number, *, sampler, **options):
        calls.append((number, sampler, options))
        texts = TEXTS[sampler.name]
        tokens = torch.tensor([list(text.encode()) for text in texts])
        of = Sample(tokens=tokens, nfe=torch.tensor([3, 4]), max_nfe=5)
        return Generation(texts=texts, sample=of, seconds=seconds.pop(0))

    monkeypatch.setattr(Model, "sample", sample)
    return calls, seconds


def test_the_minimum_of_rounds_counts_and_the_first_call_is_not_measured(run, asked):
    calls, seconds = asked
    seconds += [0.125, 4.0, 1.0, 2.0, 8.0]
    stages = []
    options = {"number": 9, "length": 8, "seed": 3, "repeat": 2, "batch_size": 6, "sequences": 0}
    pairs = [("one", 2, FIRST), ("two", None, SECOND)]
    found = bench(Model.from_run(run), run, Judge(), pairs, progress=lambda *each: stages.append(each), **options)
    asked_of = {"length": 8, "seed": 3, "batch_size": 6, "windows": True}
    assert calls == [(6, FIRST, asked_of), *[(9, FIRST, asked_of), (9, SECOND, asked_of)] * 2]
    assert stages == [("one", 0, 4), ("two", 1, 4), ("one", 2, 4), ("two", 3, 4), ("judging", 0, 2), ("judging", 1, 2)]
    one, two = found.measured
    assert [(m.name, m.steps, m.seconds, m.tokens_per_second) for m in found.measured] == [
        ("one", 2, 2.0, 4.0),
        ("two", None, 1.0, 8.0),
    ]
    assert (found.share(one), found.share(two)) == (1.0, 0.5)
    assert (one.nfe, one.max_nfe, one.sampler["use"], two.sampler["use"]) == (3.5, 5, "ancestral", "strided")
    assert (one.nats_per_token, one.nats_per_token_stderr) == pytest.approx((2.5, 0.5))
    assert one.value == pytest.approx(math.exp(2.5))
    assert one.stderr == pytest.approx(0.5 * math.exp(2.5))
    assert one.unigram_entropy == pytest.approx(math.log(2))
    assert two.unigram_entropy == pytest.approx((0 + 1.5 * math.log(2)) / 2)  # halves of 1, and of ½, ¼, ¼
    assert (one.distinct_2, two.distinct_2) == pytest.approx((4 / 6, 4 / 6))
    assert (one.policy, one.policy_difference, one.unpriced, found.prices) == (None, None, None, False)
    assert (found.judge, found.step, found.number, found.length, found.seed) == ("toy", 3, 9, 8, 3)
    assert (found.threads, found.device) == (torch.get_num_threads(), "cpu")
    assert (found.sequences, found.orders) == (0, 1)


def test_policy_bounds_are_paired_with_the_first(run, asked):
    _, seconds = asked
    seconds += [1.0] * 4
    model, maskgit = Model.from_run(run), Zoo.load().spec("sampler", "maskgit")
    pairs = [("one", 2, FIRST), ("two", None, SECOND), ("other", None, maskgit)]
    stages = []
    found = bench(
        model, run, None, pairs, sequences=5, orders=2, seed=3, batch_size=4, progress=lambda *each: stages.append(each)
    )
    assert stages[-3:] == [("along held-out text", i, 3) for i in range(3)]
    text = text_of(model, run, EvaluationSpec(sequences=5))
    n = text.counted.sum(1)
    nats = [
        measure_policy(model.writer("fp32"), each, text.tokens, text.maskable, seed=3, orders=2).nats
        for each in (FIRST, SECOND)
    ]
    one, two, other = found.measured
    for each, expected in zip((one, two), nats, strict=True):
        assert each.policy.nats_per_token == pytest.approx(float(expected.sum() / n.sum()), rel=1e-6)
        assert (each.policy.seed, each.policy.sequences, each.unpriced) == (3, 5, None)
    assert [each.policy.orders for each in (one, two)] == [2, 1]
    assert (one.policy_difference, one.policy_difference_stderr) == (None, None)
    gap = nats[1] - nats[0]
    assert two.policy_difference == pytest.approx(float(gap.sum() / n.sum()), rel=1e-5)
    residual = gap - n * gap.sum() / n.sum()
    error = math.sqrt(float(residual.square().sum()) * 5 / 4) / float(n.sum())
    assert two.policy_difference_stderr == pytest.approx(error, rel=1e-4)
    assert (other.policy, other.policy_difference) == (None, None)
    assert other.unpriced == "it chooses positions by the tokens that are drawn for them"
    assert (found.prices, found.sequences, found.orders, found.length) == (True, 5, 2, 16)
    assert (found.judge, one.nats_per_token, found.as_good(two)) == (None, None, None)


def test_as_good_is_within_two_percent_of_perplexity_and_entropy():
    scores = {"unigram_entropy": 4.0, "distinct_2": 0.9, "nats_per_token": 6.0, "nats_per_token_stderr": 0.1}
    costs = {"nfe": 50.0, "max_nfe": 64, "seconds": 2.0, "tokens_per_second": 1.0}
    first = SamplerResult(name="one", steps=8, sampler={"use": "one"}, **costs, **scores)
    about = {"judge": "j", "step": 1, "number": 2, "length": 8, "seed": 0, "threads": 1, "device": "cpu"}

    def beside(**changes):
        other = attrs.evolve(first, **changes)
        return Bench(**about, measured=(first, other)), other

    for nats, entropy, good in (
        (5.0, 4.0, True),
        (6.019, 4.0, True),
        (6.021, 4.0, False),
        (6.0, 3.919, False),
        (6.0, 4.079, True),
        (6.0, 4.081, False),
    ):
        result, other = beside(nats_per_token=nats, unigram_entropy=entropy, seconds=1.0)
        row = result.to_table()["measured"][1]
        assert result.as_good(other) is row["as_good"] is good
        assert (row["time"], row["generative_perplexity"]) == (0.5, pytest.approx(math.exp(nats)))
        assert row["generative_perplexity_stderr"] == pytest.approx(0.1 * math.exp(nats))
