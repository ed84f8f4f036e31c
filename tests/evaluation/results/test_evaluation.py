"""The table of an evaluation: what stands at its top, and an n-gram model beside it."""

import math

import attrs
import pytest

from atat_zoo.evaluation.results.evaluation import BoundValue, Evaluation, NGramPriorValue

BOUND = BoundValue(nats_per_token=2.0, value=math.exp(2), stderr=0.5, bits_per_byte=1.5, bits_per_byte_stderr=0.25)
NGRAM = NGramPriorValue(
    reads="two neighbours",
    counted=7,
    nats_per_token=2.5,
    value=math.exp(2.5),
    stderr=0.75,
    difference=math.log(0.8),
    difference_stderr=0.125,
)


def evaluation(**changes):
    numbers = dict.fromkeys(("sequences", "draws", "seed", "tokens", "special_tokens", "padding", "bytes"), 1)
    absent = [field.name for field in attrs.fields(Evaluation) if field.default is attrs.NOTHING]
    about = {"corpus": "", "split": "test", "step": 3, "ema": False, "method": "exact_k", "bounds": {"nelbo": BOUND}}
    return Evaluation(**{**dict.fromkeys(absent), **numbers, **about, **changes})


def test_the_perplexity_stands_at_the_top():
    table = evaluation().to_table()
    assert table["bounds"] == {"nelbo": attrs.asdict(BOUND)}
    top = {"perplexity": BOUND.value, "perplexity_stderr": 0.5, "nats_per_token": 2.0}
    top |= {"bits_per_byte": 1.5, "bits_per_byte_stderr": 0.25, "ngram_prior": None}
    assert {key: table[key] for key in top} == top
    assert "perplexity" not in evaluation(bounds={"other": BOUND}).to_table()


def test_an_n_gram_model_is_beside_it_in_percent():
    table = evaluation(ngram_prior=NGRAM).to_table()["ngram_prior"]
    assert table == {**attrs.asdict(NGRAM), "percent": pytest.approx(-20), "percent_stderr": pytest.approx(10)}
    assert NGRAM.verdict == "20.0 ± 10.0 % lower"
    assert attrs.evolve(NGRAM, difference=math.log(1.25)).verdict == "25.0 ± 15.6 % higher"


@pytest.mark.parametrize(
    ("rho", "chance", "said"),
    [(0.5, 0.1, 1), (0.2, 0.1, 2), (None, 0.1, 2), (0.0, None, 1), (None, None, 0)],
    ids=["learned", "by chance", "constant", "not learned", "no importance"],
)
def test_an_importance_that_is_no_better_than_chance_is_said_to_have_learned_nothing(rho, chance, said):
    found = evaluation(importance_spearman=rho, importance_chance=chance)
    assert len(found.on_importance()) == said
    assert found.learned_nothing == (said == 2)
