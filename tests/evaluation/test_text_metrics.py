"""Metrics of texts: by hand, against torchmetrics, and on real process groups."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchmetrics.text import BLEUScore

from atat_zoo import UserError, Zoo
from atat_zoo.evaluation import mauve, metric_states
from atat_zoo.evaluation.metric_states import adjacent, distinct, entropy
from atat_zoo.evaluation.metrics import GenerativeMetric, MauveMetric
from atat_zoo.evaluation.text_scores import ScoredTexts, values_of


def ids(text):
    return np.frombuffer(text.encode(), np.uint8).astype(np.int64)


def found(metric, *texts):
    """Return what a metric finds in texts whose tokens are letters, cut at each space."""
    spec = Zoo.load().spec("metric", metric)
    (value,) = values_of(
        [spec], ScoredTexts(texts=texts, pieces=[[*map(ids, text.split())] for text in texts])
    ).values()
    return value


def test_unigram_entropy_by_hand():
    assert found("unigram_entropy", "abcd").value == pytest.approx(math.log(4))
    expected = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert found("unigram_entropy", "aa ab").value == pytest.approx(expected)  # over all pieces of the text
    # Within each text: two dull texts are dull, though they differ.
    assert found("unigram_entropy", "aaaa", "bbbb").value == 0.0
    both = found("unigram_entropy", "aabb", "")
    assert (both.value, both.stderr) == pytest.approx((math.log(2) / 2, math.log(2) / 2))  # of log 2 and 0


class Known:
    """A judge that knows what each text costs."""

    title, folder = "known", None

    def nats(self, texts):
        return torch.tensor([1.0, 4.0, 6.0]).double(), torch.tensor([1, 2, 2])


def test_generative_perplexity_by_hand():
    judge = Known()
    texts = ScoredTexts(texts=["a", "b", "c"], pieces=[[]] * 3)
    (value,) = values_of([GenerativeMetric(judge=judge)], texts, lambda spec: spec).values()
    error = math.sqrt((1.2**2 + 0.4**2 + 1.6**2) * 3 / 2) / 5  # 11 nats in 5 tokens: 2.2 each
    assert (value.value, value.stderr) == pytest.approx((math.exp(2.2), math.exp(2.2) * error))
    assert {name: number for name, (number,) in value.table.items()} == pytest.approx(
        {"nats_per_token": 2.2, "nats_per_token_stderr": error, "tokens": 5.0}
    )


def test_mauve_is_of_the_texts_against_the_references_in_the_order_of_their_numbers(monkeypatch):
    seen = []
    monkeypatch.setattr(metric_states, "mauve_of", lambda *features: seen.extend(features) or 0.5)
    texts = ScoredTexts(texts=["a", "b"], pieces=[[], []], references=["c", "d"], sequence=torch.tensor([5, 2]))
    judge = SimpleNamespace(features=lambda texts: torch.tensor([[ord(text), 0] for text in texts]).float())
    (value,) = values_of([MauveMetric(judge=judge)], texts, lambda spec: spec).values()
    assert value.value == 0.5
    assert [each[:, 0].tolist() for each in seen] == [[98, 97], [100, 99]]


def clouds(shift, number=60):
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(number, 6, generator=generator) for _ in range(2))
    return a, b + shift


@pytest.mark.slow
def test_mauve_of_the_same_texts_is_1_and_falls_as_they_part(capfd):
    pytest.importorskip("mauve", reason="the extra atat-zoo[mauve] is not installed")
    a, _ = clouds(0)
    assert mauve.mauve_of(a, a) == pytest.approx(1.0, abs=1e-6)
    values = [mauve.mauve_of(*clouds(shift)) for shift in (0, 1, 5)]
    assert values[0] > values[1] > values[2]
    assert values[2] < 0.05
    assert mauve.mauve_of(*clouds(1)) == values[1]
    assert capfd.readouterr() == ("", "")


def test_what_mauve_needs_is_said_in_a_sentence(monkeypatch):
    with pytest.raises(UserError, match=r"at least 20 texts of each kind .*, preferably 1000, not 19; use more"):
        mauve.mauve_of(*clouds(0, 19))
    monkeypatch.setattr(mauve, "find_spec", lambda name: True)
    a, b = clouds(0, 20)
    with pytest.raises(UserError, match="not finite"):
        mauve.mauve_of(a * math.nan, b)


def test_distinct_by_hand():
    assert found("distinct", "abab").value == pytest.approx(2 / 3)  # ab, ba, ab
    assert found("distinct", "ab", "ab").value == 0.5  # of all texts together, and not across two
    assert found("distinct", "ab ab").value == 0.5  # nor across two pieces
    assert found({"use": "distinct", "n": 3}, "abc").value == 1.0
    assert math.isnan(found("distinct", "a").value)
    assert [distinct([ids("abab"), ids("abc")], n) for n in (1, 2, 3)] == [(3, 7), (3, 5), (3, 3)]


@pytest.mark.parametrize(
    ("text", "sum_", "pairs"),
    [
        ("One word. One word! One word?", 2.0, 2),
        ("Peace to all. War to none.", 1 / 3, 1),  # one of three words in common
        ("a a b.\nA c", 2 / math.sqrt(10), 1),  # counts 2, 1 and 1, 1
        ("No end", 0.0, 0),
        ("First. ... Second.", 0.0, 1),  # dots are no sentence
    ],
)
def test_coherence_by_hand(text, sum_, pairs):
    assert adjacent(text, []) == pytest.approx((sum_, pairs))


WORDS = st.text("ab .\n", max_size=30)


@given(texts=st.lists(WORDS, min_size=2, max_size=5))
def test_coherence_is_a_mean_over_pairs_and_entropy_within_what_letters_allow(texts):
    sums = [adjacent(text, []) for text in texts]
    pairs, value = sum(count for _, count in sums), found("coherence", *texts).value
    assert math.isnan(value) if not pairs else 0 <= value <= 1 + 1e-12
    assert not pairs or value == pytest.approx(sum(total for total, _ in sums) / pairs)
    value, one = entropy(texts[0], [ids(piece) for piece in texts[0].split()])
    assert one == 1
    assert 0 <= value <= math.log(max(1, min(3, len("".join(texts[0].split()))))) + 1e-12


def test_self_bleu_is_that_of_torchmetrics():
    texts = ["the people of this nation are free", "the people of a nation are free", "peace be with you", ""]
    value = found({"use": "self_bleu", "n": 2}, *texts)
    each = [float(BLEUScore(2)([text], [texts[:i] + texts[i + 1 :]])) for i, text in enumerate(texts)]
    assert value.value == pytest.approx(np.mean(each))
    assert value.stderr == pytest.approx(np.std(each, ddof=1) / 2)
    assert found("self_bleu", *["the people are free"] * 3).value == 1.0
    # Only the first ones are compared.
    assert found({"use": "self_bleu", "n": 2, "most": 2}, *texts).value == pytest.approx(np.mean(each[:2]), abs=0.01)


def test_texts_are_compared_by_their_numbers():
    texts = ["peace be with you all", "peace be with you all", "war is over now then"]
    metric = Zoo.load().spec("metric", {"use": "self_bleu", "most": 2}).build()
    for number in (2, 0, 1):
        metric.update(texts=[texts[number]], sequence=torch.tensor([number]))
    assert (metric.texts(), metric.compute().value) == (texts[:2], 1.0)


@pytest.mark.parametrize(
    ("texts", "sequences", "every", "of_training", "said"),
    [
        (64, 0, 0, 9, None),
        (19, 0, 0, 9, "evaluation.texts = 19"),
        (20, 20, 0, 9, None),
        (64, 19, 0, 9, "evaluation.sequences = 19"),
        (64, 64, 5, 9, "train.evaluate_sequences = 9"),
        (18, 19, 5, 0, "evaluation.texts = 18"),
    ],
)
def test_mauve_of_too_few_texts_is_refused(monkeypatch, texts, sequences, every, of_training, said):
    monkeypatch.setattr("atat_zoo.system.machine.find_spec", lambda module: True)
    evaluation = SimpleNamespace(texts=texts, sequences=sequences)
    train = SimpleNamespace(evaluate_every=every, evaluate_sequences=of_training)
    found = list(MauveMetric(judge=Known()).check(SimpleNamespace(evaluation=evaluation, train=train)))
    wanted = [f"{said}: mauve needs at least 20 texts, preferably 1000; raise {said.split()[0]}"] if said else []
    assert found == wanted
