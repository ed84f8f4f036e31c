"""Which class a word is of."""

import pytest
from atat_zoo_paper.word_classes import CLASSES, CONTENT, FUNCTION, NAME, NUMBER, PUNCTUATION, word_classes
from hypothesis import given
from hypothesis import strategies as st

F, C, A, N, P = FUNCTION, CONTENT, NAME, NUMBER, PUNCTUATION


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (["The", " Senate", " sat", "."], [F, A, C, P]),
        (["Congress", " sat", ". ", "Congress", " voted"], [C, C, P, C, C]),  # a sentence begins
        (["He", " said", ":", " “", "Congress"], [F, C, P, P, C]),
        (["Mrs", ".", " Smith", " and", " Dr", " .", " St", ". ", "Clair"], [C, P, A, F, A, P, A, P, A]),  # none does
        (["of", " J", ".", " Q", ".", " Adams", " and", " I", ". ", "Congress"], [F, A, P, A, P, A, F, F, P, C]),
        (["the", " Dr", "!", " Congress", " loses", " one", "’s", " way"], [F, A, P, C, C, F, F, C]),
        (["of", " “", "Congress", "”"], [F, P, A, P]),
        (["a", "\n", "Congress"], [F, None, C]),
        (["in", " 17", "90", ",", " 1,000", " men", " of", " the", " 20", "th"], [F, N, N, P, N, C, F, F, N, N]),
        (["I", " don", "'", "t", " see", " Lincoln", "'s", " five", " Twelve"], [F, F, F, F, C, A, A, N, N]),
        (["of", " Rep", "resent", "atives", "-", "_"], [F, A, A, A, P, P]),
        (["caf", "\ufffd", "\ufffd", " the", "\ufffd"], [C, C, C, C, C]),
        ([], []),
    ],
)
def test_each_token_has_the_class_of_its_word(text, expected):
    assert word_classes(text) == expected


@given(st.text(max_size=40), st.data())
def test_a_token_without_a_visible_character_alone_has_none(text, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    tokens = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    found = word_classes(tokens)
    assert [number is None for number in found] == [not token.strip() for token in tokens]
    # In tokens of one character each is of the word that it is in, however the text is cut.
    whole = word_classes(list(text))
    begin = 0
    for token, number in zip(tokens, found, strict=True):
        visible = [each for each in whole[begin : begin + len(token)] if each is not None]
        assert number == (visible[0] if visible else None)
        assert number is None or 0 <= number < len(CLASSES)
        begin += len(token)
