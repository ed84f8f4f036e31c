"""k-mer models: probabilities by hand, and that they are normalised."""

import itertools
import math

import numpy as np
import pytest
from atat_zoo_genomics.counts import kmer_nats
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.errors import UserError


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
    with pytest.raises(UserError, match=r"a 30-mer model.*take a smaller k"):
        next(kmer_nats(np.array([[0, 1, 2]]), np.array([[0, 2, 2]]), 7, 30))
