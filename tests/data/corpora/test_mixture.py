"""Several corpora in given proportions."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.data.corpora import Corpus, MixtureCorpus
from atat_zoo.errors import UserError
from atat_zoo.registry import Zoo


class Lists(Corpus):
    """A corpus in memory."""

    name = "lists"

    def __init__(self, train, validation=(), test=()):
        self.texts = {"train": train, "validation": validation, "test": test}

    def documents(self, split):
        return iter(self.texts[split])

    def fingerprint(self):
        return {"of": self.texts}


def mixed(*corpora, **settings):
    return MixtureCorpus(of=corpora, **settings)


lengths = st.lists(st.integers(1, 20), min_size=1, max_size=20)


@given(st.lists(lengths, min_size=2, max_size=4), st.data())
def test_shares_hold_as_far_as_documents_allow(sizes, data):
    weights = tuple(data.draw(st.floats(0.1, 10)) for _ in sizes)
    corpora = [Lists([chr(97 + i) * size for size in each]) for i, each in enumerate(sizes)]
    found = list(mixed(*corpora, weights=weights).documents("train"))
    taken = {chr(97 + i): 0 for i in range(len(sizes))}
    for text in found:
        # It is of the corpus that is furthest behind its share.
        behind = [taken[chr(97 + i)] / weights[i] for i in range(len(sizes))]
        assert behind[ord(text[0]) - 97] == min(behind)
        taken[text[0]] += len(text)
    for i, each in enumerate(sizes):  # in their order, and none twice
        mine = [len(text) for text in found if text[0] == chr(97 + i)]
        assert mine == each[: len(mine)]
    assert any(sum(each) == taken[chr(97 + i)] for i, each in enumerate(sizes))


@given(st.lists(lengths, min_size=2, max_size=3))
def test_until_all_are_exhausted(sizes):
    corpora = [Lists([chr(97 + i) * size for size in each]) for i, each in enumerate(sizes)]
    found = list(mixed(*corpora, until="all").documents("train"))
    for i, each in enumerate(sizes):
        mine = [len(text) for text in found if text[0] == chr(97 + i)]
        assert len(mine) >= len(each)
        assert mine == list(itertools.islice(itertools.cycle(each), len(mine)))


def test_held_out_text_is_all_of_it():
    made = mixed(Lists(["a"], ["va"], ["ta"]), Lists(["b"], ["vb", "vc"]))
    assert list(made.documents("validation")) == ["va", "vb", "vc"]
    assert list(made.documents("test")) == ["ta"]
    assert made.fingerprint() == {"of": [{"of": each.texts} for each in made.of]}


def test_what_is_wrong_is_said():
    for table, sentence in (
        ({"of": [{"use": "sotu"}]}, "of names no two corpora"),
        ({"of": [{"use": "sotu"}, {"use": "sotu"}], "weights": [1.0]}, "weights has 1 numbers for 2 corpora"),
        ({"of": [{"use": "sotu"}, {"use": "sotu"}], "weights": [1.0, 0.0]}, "greater than 0"),
        ({}, "corpus.of: is missing"),
    ):
        _, problems = Zoo.load().structure("corpus", {"use": "mixture", **table}, "corpus")
        assert any(sentence in str(problem) for problem in problems), problems


def test_a_corpus_without_text_is_named():
    with pytest.raises(UserError, match=r"corpus\.of: corpus 'lists' has no training text; leave it out"):
        list(mixed(Lists(["a"]), Lists([]), until="all").documents("train"))
