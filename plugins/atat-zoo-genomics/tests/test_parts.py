"""The alphabet, k-mer models, the recipe of the human genome, and the contract of every part."""

import gzip
import itertools
import math
from pathlib import Path

import atat_zoo_genomics
import numpy as np
import pytest
from atat_zoo_genomics.alphabet import BASES, COMPLEMENT, DNAModel, DNATokenizer, read_bases, reverse_complement
from atat_zoo_genomics.kmer_likelihood import kmer_nats
from hypothesis import given
from hypothesis import strategies as st
from webdataset.shardlists import expand_urls

from atat_zoo.data.corpora import text_source
from atat_zoo.experiment import load
from atat_zoo.registry import Zoo
from atat_zoo.system.errors import UserError
from atat_zoo.testing import cases, check_backbone, check_estimator

TEXTS = st.text("ACGTN")


@given(TEXTS)
def test_the_complement_of_the_ids_is_that_of_the_letters(text):
    model = DNAModel()
    other = [COMPLEMENT[i] for i in reversed(model.encode(text))]
    assert model.decode(other) == reverse_complement(text)
    assert reverse_complement(reverse_complement(text)) == text


def test_the_complement_exchanges_the_ends_too():
    model = DNAModel()
    assert [COMPLEMENT[i] for i in (model.eos, model.bos)] == [model.bos, model.eos]
    assert [COMPLEMENT[i] for i in COMPLEMENT] == list(range(model.vocabulary_size))


def test_lower_case_rna_and_ambiguous_codes_are_read():
    assert read_bases("acgtuACGTU") == "ACGTTACGTT"
    assert read_bases("RYSWKMBDHVNryswkmbdhvn") == "N" * 22
    assert DNAModel().encode("gaRn") == [2, 0, 4, 4]


@given(st.characters(exclude_characters="ACGTURYSWKMBDHVNacgturyswkmbdhvn"))
def test_any_other_character_is_refused_and_named(character):
    with pytest.raises(ValueError) as raised:
        read_bases(f"ACG{character}T")
    assert raised.value.args == (character,)
    with pytest.raises(UserError, match="tokenizer 'dna' supports A, C, G, T, U, N"):
        DNAModel().encode(character)


def test_the_tokenizer_learns_nothing():
    assert DNATokenizer().train(lambda: iter(["?"])).vocabulary_size == len(BASES) + 2


def test_by_hand():
    # AAC: p(A) = (2 + 2/2)/(3 + 2), p(C) = (1 + 2/2)/(3 + 2).
    one, two = kmer_nats(np.array([[0, 0, 1]]), np.array([[0, 1, 0]]), 2, 2)
    assert np.exp(-one).tolist() == [pytest.approx([0.6, 0.4, 0.6])]
    # The beginning is a context, after which A was seen; after A, A and C once each; after C nothing was.
    first = (1 + 1 * 0.6) / (1 + 1)
    assert np.exp(-two).tolist() == [pytest.approx([first, (1 + 2 * 0.4) / 4, 0.6])]


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 2**31))
def test_all_sequences_of_a_length_have_probability_one(rows, k, seed):
    train = np.random.default_rng(seed).integers(0, 4, (rows, 6))
    train[0, 4:] = 3  # 3 stands for what is not text
    every = np.array(list(itertools.product(range(3), repeat=4)))
    for nats in kmer_nats(train, every, 3, k):
        assert math.fsum(np.exp(-nats.sum(1))) == pytest.approx(1)


def test_what_is_not_text_costs_nothing():
    for nats in kmer_nats(np.array([[0, 1, 2]]), np.array([[0, 2, 2]]), 2, 3):
        assert nats[0, 1:].tolist() == [0, 0]
        assert nats[0, 0] > 0


def test_tables_that_no_machine_holds_are_refused_before_anything_is_counted():
    with pytest.raises(UserError, match=r"a 30-mer model.*use a smaller k"):
        next(kmer_nats(np.array([[0, 1, 2]]), np.array([[0, 2, 2]]), 7, 30))


FILE = Path(atat_zoo_genomics.__file__).parent / "experiments" / "hg38.toml"


def test_every_chromosome_is_fetched_and_is_in_one_split(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (file,) = text_source.read(str(FILE)).files
    corpus = load(str(FILE)).parts["corpus"]
    with pytest.raises(UserError, match=r"file not found: corpora/hg38/"):
        corpus.stamp()
    paths, addresses = (list(map(Path, expand_urls(text))) for text in (file.to, file.url))
    assert [path.name for path in paths] == [address.name for address in addresses]
    assert {path.name for path in paths} == {f"chr{each}.fa.gz" for each in [*range(1, 23), "X", "Y"]}
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(f">{path.name}\nacgt{'N' * 9}\n".encode()))
    read = [Path(stamp.path).relative_to(tmp_path) for stamps in corpus.stamp().values() for stamp in stamps]
    assert sorted(read) == sorted(paths)
    assert [len(list(corpus.documents(split))) for split in ("train", "validation", "test")] == [21, 1, 2]


@pytest.mark.parametrize("case", cases(distribution="atat-zoo-genomics"), ids=str)
def test_conformance(case):
    case.run()


def test_both_strands_keep_the_contract_of_a_backbone():
    table = {"use": "gated_convolution", "width": 16, "layers": 3, "reverse_complement": True}
    check_backbone(Zoo.load().spec("backbone", table))


def test_one_place_on_either_side_keeps_the_contract_of_an_estimator():
    check_estimator(Zoo.load().spec("estimator", {"use": "kmer", "reach": 1}))


def test_kmers_are_told_apart_once_they_are_learned():
    estimator = Zoo.load().spec("estimator", {"use": "kmer"})
    assert [estimator.tells_apart(True), estimator.tells_apart(False)] == [True, False]
