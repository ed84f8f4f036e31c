"""Answers beside the true ones."""

import pytest

from atat_zoo.measure.answering import shared_words


@pytest.mark.parametrize(
    ("one", "other", "f1"),
    [("a b", "B, c.", 0.5), ("a a b", "a", 0.5), ("a", "a b c", 0.5), ("a b", "b a", 1.0), ("", "", 1.0), ("a", "", 0)],
)
def test_shared_words_are_f1_by_hand(one, other, f1):
    assert shared_words(one, other) == shared_words(other, one) == f1
