"""The n-gram prior: its probabilities by hand, by a dictionary, and as distributions; kept, or counted again."""

import os
import shutil
import zipfile
from collections import Counter, defaultdict
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from atat_zoo.data import shard_manifest
from atat_zoo.data.build import build
from atat_zoo.data.shards import read
from atat_zoo.diffusion import ngram_prior
from atat_zoo.diffusion.ngram_prior import FILE, LARGEST_VOCABULARY, NGramPrior, load_ngram_prior
from atat_zoo.modeling.backbones import dit
from atat_zoo.modeling.backbones.dit import DiTBackbone
from atat_zoo.registry import Context
from atat_zoo.system import machine
from atat_zoo.system.errors import UserError
from tests import forked
from tests.data.in_memory import Memory, experiment_of, texts
from tests.limited import limited

V, PAD = 4, 2**16 - 1
ROWS = st.integers(1, 6).flatmap(
    lambda length: arrays.arrays(
        np.uint16, st.tuples(st.integers(0, 8), st.just(length)), elements=st.sampled_from([*range(V), PAD])
    )
)


class Slow:
    """The same estimates from dictionaries, one at a time and exactly."""

    def __init__(self, rows):
        self.seen = defaultdict(Counter)
        for row in rows:
            places = dict(enumerate(row))
            for i, x in places.items():
                if x == PAD:
                    continue
                before, last, after = (places.get(i + j, PAD) for j in (-2, -1, 1))
                for context in (
                    ("",),
                    ("left", last),
                    ("right", after),
                    ("between", last, after),
                    ("after", before, last),
                ):
                    if PAD not in context:
                        self.seen[context][x] += 1

    def unigram_prob(self, x):
        counts = self.seen[("",)]
        return Fraction(counts[x] + 1, counts.total() + V)

    def left(self, x, last):
        return self.interpolated(x, ("left", last), self.unigram_prob(x))

    def right(self, x, after):
        return self.interpolated(x, ("right", after), self.unigram_prob(x))

    def prob_between(self, x, last, after):
        if after == V:
            return self.left(x, last)
        if last == V:
            return self.right(x, after)
        shorter = (self.left(x, last) + self.right(x, after)) / 2
        return self.interpolated(x, ("between", last, after), shorter)

    def prob_after(self, x, before, last):
        return self.interpolated(x, ("after", before, last), self.left(x, last))

    def interpolated(self, x, context, shorter):
        counts = self.seen.get(context)
        if not counts:
            return shorter
        return (counts[x] + len(counts) * shorter) / (counts.total() + len(counts))


def asked(of, *arguments):
    return float(of(*(np.array([each]) for each in arguments))[0])


def test_the_numbers_of_a_text_by_hand():
    """0 1 0 1 2 over three tokens: p = 3/8, 3/8, 1/4."""
    table = NGramPrior.count([np.array([[0, 1, 0, 1, 2]])], 3)
    assert (table.tokens.tolist(), table.sequences) == ([2, 2, 1], 1)
    assert dict(zip(*(part.tolist() for part in table.pairs), strict=True)) == {1: 2, 3: 1, 5: 1}
    # After 0 comes 1, twice: N = 2, T = 1. After 1 come 0 and 2: N = 2, T = 2.
    assert [asked(table.prob_given_neighbour, x, 0) for x in range(3)] == pytest.approx([1 / 8, 19 / 24, 1 / 12])
    assert [asked(table.prob_given_neighbour, x, 1) for x in range(3)] == pytest.approx([7 / 16, 3 / 16, 3 / 8])
    # Between two zeros is 1, once: (1 + (19/24 + 11/16)/2) / 2. After 0 1 come 0 and 2: (1 + 2 · 3/8) / 4.
    assert asked(table.prob_between, 1, 0, 0) == pytest.approx(167 / 192)
    assert asked(table.prob_after, 2, 0, 1) == pytest.approx(7 / 16)


@given(ROWS)
def test_every_distribution_sums_to_one(rows):
    table = NGramPrior.count([rows], V)
    x, a, b = np.ix_(range(V), range(-1, V + 1), range(-1, V + 1))
    for probability in (
        table.prob_between(x, a, b),
        table.prob_after(x, a, b),
        table.prob_given_neighbour(x, a),
        table.prob_given_neighbour(x, a, of_the_right=True),
    ):
        assert (probability > 0).all()
        np.testing.assert_allclose(probability.sum(0), 1, rtol=1e-12)


@given(ROWS)
def test_they_are_those_of_dictionaries(rows):
    table, slow = NGramPrior.count([rows], V), Slow(rows.tolist())
    x, a, b = (each.flatten() for each in np.meshgrid(range(V), range(V + 1), range(V + 1)))
    for fast, of in ((table.prob_between, slow.prob_between), (table.prob_after, slow.prob_after)):
        expected = [float(of(*each)) for each in zip(x.tolist(), a.tolist(), b.tolist(), strict=True)]
        np.testing.assert_allclose(fast(x, a, b), expected, rtol=1e-12)


@given(ROWS, st.integers(1, 9), st.integers(1, 9))
def test_blocks_and_their_order_do_not_matter(rows, size, chunk):
    whole = NGramPrior.count([rows], V)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ngram_prior, "_CHUNK", chunk)
        pieces = NGramPrior.count([rows[i : i + size] for i in reversed(range(0, len(rows), size))], V)
    assert pieces.sequences == len(rows)
    np.testing.assert_array_equal(pieces.tokens, whole.tokens)
    for one, other in ((pieces.pairs, whole.pairs), (pieces.triples, whole.triples)):
        np.testing.assert_array_equal(one.keys, other.keys)
        np.testing.assert_array_equal(one.counts, other.counts)


def test_ids_near_the_largest_that_fit():
    top = LARGEST_VOCABULARY - 1
    table = NGramPrior.count([np.array([[top, top, top - 1]], np.uint32)], LARGEST_VOCABULARY)
    assert table.triples.keys.tolist() == [(top * (top + 1) + top) * (top + 1) + top - 1]
    assert asked(table.prob_after, top - 1, top, top) > 0.5 > asked(table.prob_after, top, top, top)
    with pytest.raises(UserError, match=r"at most 2,097,151 token ids, not 2,097,152"):
        NGramPrior.count([], LARGEST_VOCABULARY + 1)


@pytest.fixture(scope="module")
def counted(tmp_path_factory):
    folder = build(experiment_of(tmp_path_factory.mktemp("counted"), remainder="pad"))
    load_ngram_prior(folder)
    return folder


def same(one, other):
    assert one.sequences == other.sequences
    ours, theirs = [(table.tokens, *table.pairs, *table.triples) for table in (one, other)]
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)


def by_counting(folder):
    contents = shard_manifest.load(folder)
    rows = [read(folder, contents, shard) for shard in contents.splits["train"].shards]
    return NGramPrior.count([np.concatenate(rows)], contents.vocabulary_size)


def test_all_training_sequences_are_counted_once(counted, monkeypatch):
    expected = by_counting(counted)
    np.testing.assert_array_equal(expected.tokens, shard_manifest.load_counts(counted))
    monkeypatch.setattr(NGramPrior, "count", None)
    same(load_ngram_prior(counted), expected)


def repacked(path, method=zipfile.ZIP_STORED, **changed):
    with np.load(path) as old:
        arrays = {name: changed.get(name, lambda array: array)(old[name]) for name in old}
    np.savez(path, **arrays)
    if method != zipfile.ZIP_STORED:
        np.savez_compressed(path, **arrays)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-100]),
        lambda path: repacked(path, about=lambda _: np.frombuffer(b"{}", np.uint8)),
        lambda path: repacked(path, zipfile.ZIP_DEFLATED),
        lambda path: repacked(path, tokens=lambda a: a + 1),
        lambda path: repacked(path, pairs_keys=lambda a: a[::-1]),
        lambda path: repacked(path, pairs_keys=lambda a: a + 2**17),  # more than V², and less than V³
        lambda path: repacked(path, pairs_keys=lambda a: a - a[0] - 1),
        lambda path: repacked(path, pairs_counts=lambda a: a * 0),
        lambda path: repacked(path, pairs_counts=lambda a: a.astype(float)),
        lambda path: repacked(path, triples_keys=lambda a: a + 2**40),
        lambda path: repacked(path, triples_counts=lambda a: a[1:]),
        lambda path: os.truncate(path, 1 << 40),
    ],
)
def test_what_is_damaged_is_counted_again(tmp_path, counted, damage, monkeypatch):
    folder = Path(shutil.copytree(counted, tmp_path / "shards"))
    damage(folder / FILE)
    expected = by_counting(counted)
    with limited():
        same(load_ngram_prior(folder), expected)
    monkeypatch.setattr(NGramPrior, "count", None)  # what replaced it is kept
    same(load_ngram_prior(folder), expected)


def test_more_text_than_can_be_counted(counted, monkeypatch):
    tokens = shard_manifest.load(counted).splits["train"].tokens
    monkeypatch.setattr(machine, "memory", lambda: 256 * (tokens - 1))
    with pytest.raises(UserError, match=rf"training tokens, but this machine counts n-grams in at .* {tokens - 1:,}$"):
        load_ngram_prior(counted)
    monkeypatch.setattr(machine, "memory", lambda: 256 * tokens)
    assert load_ngram_prior(counted).sequences
    monkeypatch.setattr(ngram_prior, "_MOST", tokens - 1)
    monkeypatch.setattr(dit, "require", lambda *_: None)
    context = Context(vocabulary_size=258, length=8, steps=1, seed=0, ngram_prior=lambda: load_ngram_prior(counted))
    with pytest.raises(UserError, match=rf"^backbone.ngram_prior = 1: .* at most {tokens - 1:,}; set it to 0$"):
        DiTBackbone(ngram_prior=1).build(context)


@pytest.mark.slow
def test_several_processes_count_once(tmp_path, counted):
    folder = tmp_path / "copy"
    shutil.copytree(counted, folder, ignore=shutil.ignore_patterns("neighbours*"))
    code = (
        "import sys; from pathlib import Path; from atat_zoo.diffusion import ngram_prior; "
        "count = ngram_prior._count; ngram_prior._count = lambda *given: print('counted') or count(*given); "
        "ngram_prior.load_ngram_prior(Path(sys.argv[1]))"
    )
    both = [forked.Atat([str(folder)], tmp_path, code=code) for _ in "12"]
    assert sorted(process.communicate() for process in both) == [("", ""), ("counted\n", "")]


def test_that_of_other_shards_is_not_used_and_nothing_has_to_be_written(tmp_path, counted):
    other = build(experiment_of(tmp_path, corpus=Memory(train=texts(45)), remainder="pad"))
    shutil.copy(counted / FILE, other / FILE)
    same(load_ngram_prior(other), by_counting(other))
    (other / FILE).unlink()
    (other / FILE).mkdir()
    same(load_ngram_prior(other), by_counting(other))
    assert not list(other.glob(".*.part"))
