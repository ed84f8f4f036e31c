"""Texts and samplers by their costs and their quality: by hand, and a run that writes and is judged."""

import json
import math

import attrs
import numpy as np
import pytest
import torch

from atat_zoo import UserError, Zoo
from atat_zoo.data.build import build
from atat_zoo.data.sequences import held_out_sequences
from atat_zoo.data.tokenizers.tokenizer_models import BytesModel
from atat_zoo.evaluation import sample_quality, text_scores
from atat_zoo.evaluation.held_out_text import text_of
from atat_zoo.evaluation.judges import RunJudge
from atat_zoo.evaluation.overlap import Overlap
from atat_zoo.evaluation.policy import measure_policy
from atat_zoo.evaluation.sample_quality import Bench, SamplerResult, bench, judge_run, score, scored_by
from atat_zoo.evaluation.text_scores import Judges, ScoredTexts
from atat_zoo.experiment import EvaluationSpec
from atat_zoo.generation.model import Model
from atat_zoo.generation.samplers import Sample
from atat_zoo.generation.samplers.published_samplers import AncestralSampler, StridedSampler
from atat_zoo.generation.text_generator import Generation
from tests.evaluation.making import runs

root = runs(
    judge={"length": 32},
    text_generator={"objective": "mdlm", "sampler": {"use": "ancestral", "steps": 4}},
    around={"objective": "mdlm", "data": {"special_tokens": "sequence"}},
)


def ids(text):
    return np.frombuffer(text.encode(), np.uint8).astype(np.int64)


class Toy:
    """Two nats a token in the first text, three in the others; a token a character."""

    title = "toy"

    def nats(self, texts):
        sizes = torch.tensor([len(text) for text in texts])
        return torch.tensor([2.0, *[3.0] * (len(texts) - 1)]).double() * sizes, sizes


def texts_of(*texts, copied, windows, span=()):
    """Return texts of letters, each in one piece."""
    overlap = Overlap(copied={4: np.array(copied)}, windows={4: np.array(windows)}, span=span)
    return ScoredTexts(texts=texts, pieces=[[ids(text)] for text in texts], overlap=overlap)


def test_scores_by_hand():
    """Texts of 4 and 2 characters: 8 and 6 nats; one has repeated letters."""
    sample = Sample(tokens=torch.zeros(2, 8), nfe=torch.tensor([3, 4]), max_nfe=8)
    written = Generation(texts=["aabb", "ab"], sample=sample, seconds=0.5)
    toy = Toy()
    metrics = scored_by(toy, (4,), mauve=False)
    judges = Judges(known=[(toy, toy)])
    texts = texts_of("aabb", "ab", copied=[1, 0], windows=[1, 3], span=tuple(ids("ab")))
    options = {"tokenizer": BytesModel(), "written": written, "further": (Zoo.load().spec("metric", "self_bleu"),)}
    table = score(texts, metrics, judges, **options).to_table()
    error = math.sqrt(2 * ((8 - 4 * 14 / 6) ** 2 + (6 - 2 * 14 / 6) ** 2)) / 6
    assert table == {
        "texts": 2,
        "tokens": 6,
        "judged_tokens": 6,
        "nats_per_token": pytest.approx(14 / 6),
        "nats_per_token_stderr": pytest.approx(error),
        "generative_perplexity": pytest.approx(math.exp(14 / 6)),
        "generative_perplexity_stderr": pytest.approx(error * math.exp(14 / 6)),
        "unigram_entropy": pytest.approx(math.log(2)),
        "distinct_2": pytest.approx(3 / 4),  # aa, ab, bb; ab
        **{"nfe": 3.5, "max_nfe": 8, "tokens_per_second": 32, "mauve": None},
        **{"copied": {"4": 0.25}, "longest_copy_tokens": 2, "longest_copy": "ab"},
        "metrics": {"self_bleu": {"value": 0.0, "stderr": 0.0, "table": None}},
    }
    # Text without a token is refused in a sentence.
    none = {"copied": [0, 0], "windows": [0, 0]}
    with pytest.raises(UserError, match="the judge toy finds no tokens to score in 2 texts"):
        score(texts_of("", "", **none), metrics, judges, tokenizer=BytesModel())
    found = score(texts_of("", "ab", **none), metrics, judges, tokenizer=BytesModel())
    assert (found.value, found.copied) == (pytest.approx(math.exp(3)), {4: None})  # no text is that long


@pytest.fixture
def judge(root):
    return RunJudge(path=str(root / "judge"))


@pytest.fixture
def text_generator(root):
    return root / "text_generator"


@pytest.mark.slow
def test_each_rank_writes_the_texts_of_its_own_numbers(text_generator, monkeypatch):
    """Together they write what one process writes, beside the held-out texts of the same numbers."""
    model, shown = Model.from_run(text_generator), []
    monkeypatch.setattr(text_scores, "values_of", lambda metrics, texts, *_: shown.append(texts) or {})
    tokens = torch.randint(97, 123, (5, 16), generator=torch.Generator().manual_seed(0))
    spec = EvaluationSpec(metrics=("unigram_entropy",), texts=9)
    for rank, ranks in ((0, 1), (0, 2), (1, 2)):
        text_scores.measure_texts(model, tokens, tokens > 0, spec, seed=3, rank=rank, ranks=ranks)
    whole, *shares = shown
    assert [each.sequence.tolist() for each in shown] == [[0, 1, 2, 3, 4], [0, 2, 4], [1, 3]]
    for share in shares:
        for i, number in enumerate(share.sequence.tolist()):
            assert share.texts[i] == whole.texts[number]
            assert share.references[i] == bytes(tokens[number].tolist()).decode() == whole.references[number]
            assert [each.tolist() for each in share.pieces[i]] == [each.tolist() for each in whole.pieces[number]]
    assert len(set(whole.texts)) == 5


def judged(text_generator, judge, *, number=6, **options):
    model = Model.from_run(text_generator)
    options = {"sampler": model.experiment.parts["sampler"], "spec": model.experiment.evaluation, **options}
    return judge_run(model, text_generator, judge.build("cpu"), judge, number=number, **options)


def test_a_run_writes_and_is_judged(text_generator, judge):
    told = []
    found = judged(text_generator, judge, sizes=(1, 4), progress=lambda *said: told.append(said))
    assert (found.judge, found.number, found.length) == ("judge (autoregressive, step 3)", 6, 16)
    assert found.model.tokens == found.data.tokens == 6 * 16
    assert 0 < found.model.nfe <= found.model.max_nfe == 4
    assert found.data.nfe is None
    # The texts are five words again and again, so that all letters, and nearly all 4-grams, have been seen.
    assert found.data.copied[1] == 1.0
    assert found.data.copied[4] > 0.9 > found.model.copied[4]
    # The data row is what the judge says of every other held-out text; the rest are MAUVE's references.
    model = Model.from_run(text_generator)
    rows, _, _ = held_out_sequences(build(model.experiment), "validation", 12)
    nats, tokens = judge.build("cpu").nats([model.tokenizer.decode(row) for row in rows[0::2].tolist()])
    assert found.data.nats_per_token == pytest.approx(float(nats.sum() / tokens.sum()), rel=1e-6)
    _, reference = sample_quality._held_out(model, text_generator, model.experiment.evaluation, 6, 16)
    assert torch.equal(torch.stack(reference), rows[1::2])
    assert {what for what, _, _ in told} == {"generating", "reading the training text", "judging"}
    (path,) = (text_generator / "evaluations").glob("judged-ancestral-6x16-seed0-step00000003-*.json")
    said = json.loads(path.read_text())
    assert said == json.loads(json.dumps(found.to_table()))
    assert said["judge_table"] == {"use": "run", "path": judge.path}


def test_the_same_seed_gives_the_same_numbers_and_other_settings_another_file(text_generator, judge):
    def timeless(found):
        return attrs.evolve(found.model, tokens_per_second=None), found.data

    found = judged(text_generator, judge, number=3)
    assert timeless(judged(text_generator, judge, number=3)) == timeless(found)
    assert judged(text_generator, judge, number=3, seed=1).model.nats_per_token != found.model.nats_per_token
    sampler = attrs.evolve(Model.from_run(text_generator).experiment.parts["sampler"], steps=2)
    assert judged(text_generator, judge, number=3, sampler=sampler).model.max_nfe == 2
    assert len(list((text_generator / "evaluations").glob("*-3x16-*"))) == 3


@pytest.mark.slow
def test_a_shorter_length_holds_for_both(text_generator, judge, root):
    found = judged(text_generator, judge, number=3, length=8)
    assert (found.length, found.model.tokens, found.data.tokens) == (8, 24, 24)
    for length in (8, 16):
        found = judged(root / "around", judge, number=3, length=length)
        assert found.data.tokens == 3 * (length - 2)
        assert found.model.tokens <= 3 * (length - 2)  # the model may write BOS or EOS inside, too


@pytest.mark.parametrize(("number", "apart"), [(30, True), (50, False)])
def test_mauve_is_of_model_and_data_unless_the_data_would_be_compared_with_itself(
    text_generator, judge, monkeypatch, number, apart
):
    """Of 72 held-out sequences there are two sets of 30, and one of 50."""
    shown = []
    monkeypatch.setattr(sample_quality, "check_mauve", lambda number: shown.append(number))
    monkeypatch.setattr("atat_zoo.evaluation.metric_states.mauve_of", lambda one, other: shown.append(len(one)) or 0.5)
    found = judged(text_generator, judge, number=number, mauve=True)
    assert (found.model.mauve, found.data.mauve) == (0.5, 0.5 if apart else None)
    assert shown == [number] * (3 if apart else 2)
    assert found.data.longest_copy_tokens > 0  # what needs no other set is of the data, too


# Samplers side by side

FIRST, SECOND = AncestralSampler(steps=2), StridedSampler()
TEXTS = {"ancestral": ["aabb", "abab"], "strided": ["aaaa", "ab  "], "maskgit": ["aaaa", "ab  "]}


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


def test_the_minimum_of_rounds_counts_and_the_first_call_is_not_measured(text_generator, asked):
    calls, seconds = asked
    seconds += [0.125, 4.0, 1.0, 2.0, 8.0]
    stages, pairs = [], [("one", 2, FIRST), ("two", None, SECOND)]
    options = {"number": 9, "length": 8, "seed": 3, "repeat": 2, "batch_size": 6, "sequences": 0}
    found = bench(
        Model.from_run(text_generator), text_generator, Toy(), pairs, progress=lambda *at: stages.append(at), **options
    )
    asked_of = {"length": 8, "seed": 3, "batch_size": 6, "windows": True}
    assert calls == [(6, FIRST, asked_of), *[(9, FIRST, asked_of), (9, SECOND, asked_of)] * 2]
    assert stages == [("one", 0, 4), ("two", 1, 4), ("one", 2, 4), ("two", 3, 4), ("judging", 0, 2), ("judging", 1, 2)]
    one, two = found.measured
    assert (one.name, one.steps, one.seconds, one.tokens_per_second) == ("one", 2, 2.0, 4.0)
    assert (two.name, two.steps, two.seconds, two.tokens_per_second) == ("two", None, 1.0, 8.0)
    assert (found.share(one), found.share(two)) == (1.0, 0.5)
    assert (one.nfe, one.max_nfe, one.sampler["use"], two.sampler["use"]) == (3.5, 5, "ancestral", "strided")
    assert (one.nats_per_token, one.nats_per_token_stderr) == pytest.approx((2.5, 0.5))
    assert one.unigram_entropy == pytest.approx(math.log(2))
    assert two.unigram_entropy == pytest.approx((0 + 1.5 * math.log(2)) / 2)  # halves of 1, and of ½, ¼, ¼
    assert (one.policy, one.policy_difference, one.unpriced, found.prices) == (None, None, None, False)
    assert (found.judge, found.step, found.number, found.length, found.seed) == ("toy", 3, 9, 8, 3)
    assert (found.threads, found.device, found.sequences, found.orders) == (torch.get_num_threads(), "cpu", 0, 1)


def test_policy_bounds_are_paired_with_the_first(text_generator, asked):
    asked[1].extend([1.0] * 4)
    model, maskgit, stages = Model.from_run(text_generator), Zoo.load().spec("sampler", "maskgit"), []
    pairs = [("one", 2, FIRST), ("two", None, SECOND), ("other", None, maskgit)]
    options = {"sequences": 5, "orders": 2, "seed": 3, "batch_size": 4}
    found = bench(model, text_generator, None, pairs, **options, progress=lambda *each: stages.append(each))
    assert stages[-3:] == [("policy bounds", i, 3) for i in range(3)]
    text = text_of(model, text_generator, EvaluationSpec(sequences=5))
    bounds, n, of = model.text_generator("fp32"), text.counted.sum(1), (text.tokens, text.maskable)
    nats = [measure_policy(bounds, each, *of, seed=3, orders=2).nats for each in (FIRST, SECOND)]
    one, two, other = found.measured
    for each, expected in zip((one, two), nats, strict=True):
        assert each.policy.nats_per_token == pytest.approx(float(expected.sum() / n.sum()), rel=1e-6)
        assert (each.policy.seed, each.policy.sequences, each.unpriced) == (3, 5, None)
    assert [each.policy.orders for each in (one, two)] == [2, 1]
    assert (one.policy_difference, one.policy_difference_stderr) == (None, None)
    gap = nats[1] - nats[0]
    residual = gap - n * gap.sum() / n.sum()
    error = math.sqrt(float(residual.square().sum()) * 5 / 4) / float(n.sum())
    found_gap = (two.policy_difference, two.policy_difference_stderr)
    assert found_gap == pytest.approx((float(gap.sum() / n.sum()), error), rel=1e-4)
    assert (other.policy, other.policy_difference) == (None, None)
    assert other.unpriced == "it uses the sampled tokens to choose their positions"
    assert (found.prices, found.sequences, found.orders, found.length) == (True, 5, 2, 16)
    assert (found.judge, one.nats_per_token, found.as_good(two)) == (None, None, None)


def test_as_good_is_within_two_percent_of_perplexity_and_entropy():
    scores = {"unigram_entropy": 4.0, "distinct_2": 0.9, "nats_per_token": 6.0, "nats_per_token_stderr": 0.1}
    costs = {"nfe": 50.0, "max_nfe": 64, "seconds": 2.0, "tokens_per_second": 1.0}
    first = SamplerResult(name="one", steps=8, sampler={"use": "one"}, **costs, **scores)
    about = {"judge": "j", "step": 1, "number": 2, "length": 8, "seed": 0, "threads": 1, "device": "cpu"}
    for nats, entropy, good in (
        (5.0, 4.0, True),
        (6.019, 4.0, True),
        (6.021, 4.0, False),
        (6.0, 3.919, False),
        (6.0, 4.079, True),
        (6.0, 4.081, False),
    ):
        other = attrs.evolve(first, nats_per_token=nats, unigram_entropy=entropy, seconds=1.0)
        result = Bench(**about, measured=(first, other))
        row = result.to_table()["measured"][1]
        assert result.as_good(other) is row["as_good"] is good
        assert (row["time"], row["generative_perplexity"]) == (0.5, pytest.approx(math.exp(nats)))
        assert row["generative_perplexity_stderr"] == pytest.approx(0.1 * math.exp(nats))
