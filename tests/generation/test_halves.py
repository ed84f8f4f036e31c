"""Trial 28: half a surrogate pair, as JSON whose escapes were cut has it, is refused by its place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.errors import UserError
from atat_zoo.registry import Zoo
from atat_zoo.system.parsing import refuse_halves
from tests.generation.making import tiny_model

HALF = "a\ud83d b"
SAID = r"has half a surrogate pair, '\\ud83d', at character 1, which is no text; remove it, or replace it by U\+FFFD"


@pytest.fixture(scope="module", params=["bytes", "bpe", "characters"])
def model(request):
    table = {"characters": {"use": "characters", "unknown": "space"}}
    return tiny_model(tokenizer=table.get(request.param, request.param), data={"special": "none"})


@pytest.mark.parametrize(
    ("ask", "where"),
    [
        (lambda model: model.score(["b", HALF]), "text 2"),
        (lambda model: model.score([HALF]), "the text"),
        (lambda model: model.embed(HALF), "the text"),
        (lambda model: model.importance(HALF), "the text"),
        (lambda model: model.uncertainty(HALF), "the text"),
        (lambda model: model.log_probs(HALF, [0]), "the text"),
        (lambda model: model.infill(["[MASK]", HALF + "[MASK]"]), "text 2"),
        (lambda model: model.log_probs(HALF + "[MASK]"), "the text"),
        (lambda model: model.fill(HALF + "[MASK]"), "the text"),
        (lambda model: model.sample(prompt=HALF), "the prompt"),
        (lambda model: model.sample(suffix=HALF), "the suffix"),
        (lambda model: model.unmask(prompt=HALF), "the prompt"),
    ],
)
def test_a_text_in_hand_is_refused_by_the_place(model, ask, where):
    with pytest.raises(UserError, match=f"^{where} {SAID}$"):
        ask(model)


@pytest.mark.parametrize("use", ["bytes", "bpe"])
def test_so_is_one_that_a_tokenizer_is_given(use):
    tokenizer = Zoo.load().spec("tokenizer", use).train(lambda: iter(["a text"]))
    for encode in (tokenizer.encode, lambda text: tokenizer.encode_batch(["b", text])):
        with pytest.raises(UserError, match=f"^the text {SAID}$"):
            encode(HALF)


@given(st.text(), st.integers(0xD800, 0xDFFF), st.text())
def test_the_place_is_that_of_the_first_half(before, half, after):
    """Whole characters beyond U+FFFF are no halves."""
    refuse_halves(before + after, "it")
    with pytest.raises(UserError, match=f"at character {len(before)}, "):
        refuse_halves(before + chr(half) + after, "it")
