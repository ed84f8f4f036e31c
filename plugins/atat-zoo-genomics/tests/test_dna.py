"""The alphabet: what is read as which base, and the other strand."""

import pytest
from atat_zoo_genomics.alphabet import BASES, COMPLEMENT, DNAModel, DNATokenizer, read_bases, reverse_complement
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.errors import UserError

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
    with pytest.raises(UserError, match="tokenizer 'dna' knows A, C, G, T, U, N"):
        DNAModel().encode(character)


def test_the_tokenizer_learns_nothing():
    assert DNATokenizer().train(lambda: iter(["?"])).vocabulary_size == len(BASES) + 2
