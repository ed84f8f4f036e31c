"""Numbers over texts, by hand; and a run that writes and is judged, from end to end."""

import json
import math

import attrs
import numpy as np
import pytest
import torch

from atat_zoo import UserError, Zoo
from atat_zoo.data.build import build
from atat_zoo.data.sequences import held_out
from atat_zoo.data.tokenizers.tables import BytesModel
from atat_zoo.evaluation import metric_states, metrics, sample_quality, text_scores
from atat_zoo.evaluation.judges import RunJudge
from atat_zoo.evaluation.overlap import Overlap
from atat_zoo.evaluation.sample_quality import judge_run, score, scored_by
from atat_zoo.evaluation.text_scores import Judges, ScoredTexts
from atat_zoo.experiment import EvaluationSpec
from atat_zoo.generation.model import Model
from atat_zoo.generation.samplers import Sample
from atat_zoo.generation.writer import Generation
from tests.evaluation.making import make_run


def ids(text):
    return np.frombuffer(text.encode(), np.uint8).astype(np.int64)


class Toy:
    """Two nats a character, and an odd tokenizer: every two characters are a token."""

    title = "toy"

    def nats(self, texts):
        sizes = torch.tensor([len(text) for text in texts])
        return 2.0 * sizes.double(), (sizes + 1) // 2


def texts_of(*texts, copied=None, windows=None, span=()):
    """Return texts of letters, each in one piece."""
    overlap = Overlap(copied=copied or {}, windows=windows or {}, span=span)
    return ScoredTexts(texts=texts, pieces=[[ids(text)] for text in texts], overlap=overlap)


def test_scores_by_hand():
    """Texts of 4 and 2 characters: 12 nats over 3 tokens; one has a repeated letter."""
    sample = Sample(tokens=torch.zeros(2, 8), nfe=torch.tensor([3, 4]), max_nfe=8)
    written = Generation(texts=["aabb", "ab"], sample=sample, seconds=0.5)
    toy, counts = Toy(), {"copied": {4: np.array([1, 0])}, "windows": {4: np.array([1, 3])}}
    judges, texts = Judges(known=[(toy, toy)]), texts_of("aabb", "ab", **counts, span=tuple(ids("ab")))
    options = {"tokenizer": BytesModel(), "written": written, "further": (Zoo.load().spec("metric", "self_bleu"),)}
    found = score(texts, scored_by(toy, (4,), mauve=False), judges, **options)
    assert found.stderr == pytest.approx(0.0, abs=1e-9)  # both cost 4 nats a token
    assert (found.texts, found.tokens, found.judged_tokens) == (2, 6, 3)
    assert found.unigram_entropy == pytest.approx(math.log(2))
    assert found.distinct_2 == pytest.approx(3 / 4)  # aa, ab, bb; ab
    assert (found.nfe, found.max_nfe, found.tokens_per_second) == (3.5, 8, 32)
    table = found.to_table()
    assert table["generative_perplexity"] == pytest.approx(math.exp(4))
    assert (table["copied"], table["longest_copy_tokens"], table["longest_copy"]) == ({"4": 0.25}, 2, "ab")
    assert (table["mauve"], table["nfe"], table["unigram_entropy"]) == (None, 3.5, found.unigram_entropy)
    assert table["metrics"]["self_bleu"]["value"] == 0.0


def test_text_without_a_token_is_refused_in_a_sentence():
    toy, nothing = Toy(), np.zeros(2, np.int64)
    of, copied = Judges(known=[(toy, toy)]), {"copied": {4: nothing}, "windows": {4: nothing}}
    metrics = scored_by(toy, (4,), mauve=False)
    with pytest.raises(UserError, match="the judge toy finds nothing to score in 2 texts"):
        score(texts_of("", "", **copied), metrics, of, tokenizer=BytesModel())
    found = score(texts_of("", "ab", **copied), metrics, of, tokenizer=BytesModel())
    assert found.value == pytest.approx(math.exp(4))
    assert found.copied == {4: None}  # no text is that long


def clouds(shift, number=60):
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(number, 6, generator=generator) for _ in range(2))
    return a, b + shift


@pytest.mark.slow
def test_mauve_of_the_same_texts_is_1_and_falls_as_they_part(capfd):
    pytest.importorskip("mauve", reason="the extra atat-zoo[mauve] is not installed")
    a, _ = clouds(0)
    assert metric_states.mauve_of(a, a) == pytest.approx(1.0, abs=1e-6)
    values = [metric_states.mauve_of(*clouds(shift)) for shift in (0, 1, 5)]
    assert values[0] > values[1] > values[2]
    assert values[2] < 0.05
    assert metric_states.mauve_of(*clouds(1)) == values[1]
    assert capfd.readouterr() == ("", "")


def test_what_mauve_needs_is_said_in_a_sentence(monkeypatch):
    a, b = clouds(0, 19)
    with pytest.raises(UserError, match="MAUVE needs 20 texts at least, and better 1000, not 19; ask for more"):
        metric_states.mauve_of(a, b)
    monkeypatch.setattr(metrics, "find_spec", lambda name: True)
    a, b = clouds(0, 20)
    with pytest.raises(UserError, match="not finite"):
        metric_states.mauve_of(a * math.nan, b)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("judged")


@pytest.fixture(scope="module")
def judge(root):
    return RunJudge(path=str(make_run(root, "judge", length=32)))


@pytest.mark.parametrize("objective", ["autoregressive", {"use": "strided", "stride": 4}])
def test_the_features_of_a_judge_are_what_predicts_the_tokens(tmp_path, objective):
    """Under the attention that its network has learned: the head makes of them what the judge says of the tokens."""
    changes = {} if objective == "autoregressive" else {"sampler": {"use": "strided", "stride": 4}}
    run = make_run(tmp_path, "judge", objective, data={"special": "both"}, **changes)
    scorer = RunJudge(path=str(run)).build("cpu")
    texts = ["the old man", "sea"]
    (_, tokens, counted), *_ = scorer._batches(scorer.encode(texts), 1)
    with torch.no_grad():
        hidden = scorer.hidden(tokens, counted)
        logits = scorer.module.backbone.head(hidden)
    nats = torch.nn.functional.cross_entropy(logits.transpose(1, 2), tokens, reduction="none")
    torch.testing.assert_close(nats[counted].double(), scorer.losses(tokens, counted)[counted], rtol=1e-4, atol=1e-5)
    mean = torch.stack([each[where].mean(0) for each, where in zip(hidden, counted, strict=True)])
    torch.testing.assert_close(scorer.features(texts), mean)


@pytest.fixture(scope="module")
def writer(root):
    return make_run(root, "writer", "mdlm", sampler={"use": "ancestral", "steps": 4})


def test_each_rank_writes_the_texts_of_its_own_numbers(writer, monkeypatch):
    """Together they write what one process writes, beside the held-out texts of the same numbers."""
    model, shown = Model.from_run(writer), []
    monkeypatch.setattr(text_scores, "values_of", lambda metrics, texts, *_: shown.append(texts) or {})
    tokens = torch.randint(97, 123, (5, 16), generator=torch.Generator().manual_seed(0))
    spec = EvaluationSpec(metrics=("unigram_entropy",), texts=9)
    for rank, ranks in ((0, 1), (0, 2), (1, 2)):
        text_scores.measure_texts(model, tokens, tokens > 0, spec, seed=3, rank=rank, ranks=ranks)
    whole, *shares = shown
    assert whole.sequence.tolist() == [0, 1, 2, 3, 4]
    assert [each.sequence.tolist() for each in shares] == [[0, 2, 4], [1, 3]]
    for share in shares:
        for number, text, reference, cut in zip(
            share.sequence.tolist(), share.texts, share.references, share.pieces, strict=True
        ):
            assert text == whole.texts[number]
            assert reference == bytes(tokens[number].tolist()).decode() == whole.references[number]
            assert [each.tolist() for each in cut] == [each.tolist() for each in whole.pieces[number]]
    assert len(set(whole.texts)) == 5


def test_the_references_of_mauve_are_other_sequences(writer):
    model = Model.from_run(writer)
    every, _ = held_out(build(model.experiment), "validation", 8)
    data, reference = sample_quality._held_out(model, writer, model.experiment.evaluation, 4, 16)
    assert torch.equal(torch.stack(data), every[0::2])
    assert torch.equal(torch.stack(reference), every[1::2])


def judged(writer, judge, *, number=6, **options):
    model = Model.from_run(writer)
    options = {"sampler": model.experiment.parts["sampler"], "spec": model.experiment.evaluation, **options}
    return judge_run(model, writer, judge.build("cpu"), judge, number=number, **options)


def test_a_run_writes_and_is_judged(writer, judge):
    told = []
    found = judged(writer, judge, sizes=(1, 4), progress=lambda *said: told.append(said))
    assert (found.judge, found.number, found.length) == ("judge (autoregressive, step 3)", 6, 16)
    assert found.model.tokens == found.data.tokens == 6 * 16
    assert 0 < found.model.nfe <= found.model.max_nfe == 4
    assert found.data.nfe is None
    # The texts are five words again and again, so that all letters, and nearly all 4-grams, have been seen.
    assert found.data.copied[1] == 1.0
    assert found.data.copied[4] > 0.9 > found.model.copied[4]
    # The data row is what the judge says of the held-out text.
    model = Model.from_run(writer)
    rows, _ = held_out(build(model.experiment), "validation", 12)
    nats, tokens = judge.build("cpu").nats([model.tokenizer.decode(row) for row in rows[0::2].tolist()])
    assert found.data.nats_per_token == pytest.approx(float(nats.sum() / tokens.sum()), rel=1e-6)
    assert {what for what, _, _ in told} == {"writing", "reading the training text", "judging"}
    (path,) = (writer / "evaluations").glob("judged-ancestral-6x16-seed0-step00000003-*.json")
    said = json.loads(path.read_text())
    assert said == json.loads(json.dumps(found.to_table()))
    assert said["judge_table"] == {"use": "run", "path": judge.path}


def test_the_same_seed_gives_the_same_numbers_and_other_settings_another_file(writer, judge):
    def timeless(found):
        return attrs.evolve(found.model, tokens_per_second=None), found.data

    found = judged(writer, judge, number=3)
    assert timeless(judged(writer, judge, number=3)) == timeless(found)
    assert judged(writer, judge, number=3, seed=1).model.nats_per_token != found.model.nats_per_token
    sampler = attrs.evolve(Model.from_run(writer).experiment.parts["sampler"], steps=2)
    assert judged(writer, judge, number=3, sampler=sampler).model.max_nfe == 2
    assert len(list((writer / "evaluations").glob("*-3x16-*"))) == 3


def test_a_shorter_length_holds_for_both(writer, judge, root):
    found = judged(writer, judge, number=3, length=8)
    assert (found.length, found.model.tokens, found.data.tokens) == (8, 24, 24)
    around = make_run(root, "around", "mdlm", data={"special": "sequence"})
    for length in (8, 16):
        found = judged(around, judge, number=3, length=length)
        assert found.data.tokens == 3 * (length - 2)
        assert found.model.tokens <= 3 * (length - 2)  # the model may write BOS or EOS inside, too


@pytest.mark.slow
def test_mauve_stands_beside_that_of_real_text(writer, judge):
    pytest.importorskip("mauve", reason="the extra atat-zoo[mauve] is not installed")
    found = judged(writer, judge, number=20, mauve=True)
    assert 0 < found.model.mauve < found.data.mauve <= 1
    # 72 held-out sequences are too few for two sets of 50, and for one of 100.
    assert judged(writer, judge, number=50, mauve=True).data.mauve is None


@pytest.mark.parametrize(("number", "apart"), [(30, True), (50, False)])
def test_mauve_is_of_model_and_data_unless_the_data_would_be_compared_with_itself(
    writer, judge, monkeypatch, number, apart
):
    """Of 72 held-out sequences there are two sets of 30, and one of 50."""
    shown = []
    monkeypatch.setattr(sample_quality, "check_mauve", lambda number: shown.append(number))
    monkeypatch.setattr("atat_zoo.evaluation.metric_states.mauve_of", lambda one, other: shown.append(len(one)) or 0.5)
    found = judged(writer, judge, number=number, mauve=True)
    assert (found.model.mauve, found.data.mauve) == (0.5, 0.5 if apart else None)
    assert shown == [number] * (3 if apart else 2)
    assert found.data.longest_copy_tokens > 0  # what needs no other set is of the data, too
