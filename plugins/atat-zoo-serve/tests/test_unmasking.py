"""What a stream says of a text: its beginning only grows, up to the whole, whatever the order of its tokens."""

from __future__ import annotations

import pytest
from atat_zoo_serve.unmasking import UnmaskingText
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.generation.layout import SpaceAwareTokenizer, lay_out, parse
from atat_zoo.registry import Zoo

TEXT = [
    "the people of the nation keep the peace, and the state of it is good. naïve café — 日本語 \N{GRINNING FACE}\n"
] * 9
TEXTS = ["[MASK:6]", "the [MASK:3] of [MASK] é", "a[MASK:2][MASK:2-3]", "the people \n[MASK:4]"]


TOKENIZERS = {
    "bpe": {"use": "bpe", "vocabulary_size": 300},
    "bytes": {"use": "bytes"},
    "characters": {"use": "characters", "unknown": "space"},
}


@pytest.fixture(scope="module", params=TOKENIZERS)
def words(request):
    return SpaceAwareTokenizer(Zoo.load().spec("tokenizer", TOKENIZERS[request.param]).train(lambda: iter(TEXT)))


@given(st.sampled_from(TEXTS), st.sampled_from(["none", "sequence"]), st.randoms(use_true_random=False), st.data())
def test_the_beginning_grows_up_to_the_whole(words, text, special, draw, data):
    layout = lay_out(parse(text), words, special, 40)
    unmasking = UnmaskingText(layout=layout, lengths=draw.choice(layout.choices), words=words)
    masked = [i for i, token in enumerate(unmasking.ids) if token == unmasking.mask_id]
    draw.shuffle(masked)
    opening, before = layout.opening(unmasking.lengths), ""
    finals = []
    for number, position in enumerate(masked):
        ids = words.openers if position in opening and words.openers else range(unmasking.mask_id)
        unmasking.draw([position], [data.draw(st.sampled_from(list(ids)))])
        final, whole = unmasking.final()
        assert final.startswith(before)
        assert whole == (number == len(masked) - 1)
        before = final
        finals.append(final)
        state = unmasking.state()
        assert sum(segment.get("masked", 0) for segment in state) == len(masked) - 1 - number
        assert sum("new" in segment for segment in state) == 1
        assert [segment["given"] for segment in state if "given" in segment] == [p for p in layout.template.pieces if p]
    fills = layout.fills(unmasking.ids, unmasking.lengths, words)
    assert finals[-1] == layout.text(fills)
    unmasking.new = frozenset()
    assert "".join(text for segment in unmasking.state() for text in segment.values()) == finals[-1]


def test_what_is_masked_again_is_masked(words):
    unmasking = UnmaskingText(layout=lay_out(parse("[MASK:2]"), words, "none", 9), lengths=(2,), words=words)
    unmasking.draw([0, 1], [words.tokenizer.encode("e")[0]] * 2)
    assert unmasking.final() == ("ee", True)
    unmasking.draw([0], [unmasking.mask_id])
    assert unmasking.final() == ("", False)
    assert unmasking.state() == [{"masked": 1}, {"written": "e"}]
