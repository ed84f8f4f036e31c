"""The transform that moves the middle of a sequence to its end."""

from types import SimpleNamespace

import numpy as np
import pytest
from atat_zoo_code.fill_in_the_middle import FillInTheMiddleTransform, middle_last
from code_models import EXPERIMENTS
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.data.tokenizers.components import BytesTokenizer, CharactersTokenizer
from atat_zoo.experiment import load
from atat_zoo.registry import Context
from atat_zoo.system.errors import UserError

BYTES = BytesTokenizer().train(lambda: iter(()))
CONTEXT = Context(vocabulary_size=258, length=64, tokenizer=BYTES)
KEYS = st.integers(0, 2**64 - 1)


def moved(tokens, key, probability=1.0):
    return FillInTheMiddleTransform(probability=probability).apply(np.array(tokens), key, CONTEXT).tolist()


@given(st.lists(st.integers(0, 255), min_size=3, max_size=64), KEYS)
def test_the_three_parts_are_the_sequence(tokens, key):
    found = moved(tokens, key)
    assert len(found) == len(tokens)
    first, last = found.index(BYTES.bos), found.index(BYTES.eos)
    assert found[:first] + found[last + 1 :] + found[first + 1 : last] == tokens[:-2]


@given(st.lists(st.integers(0, 255), min_size=1, max_size=2), KEYS)
def test_a_sequence_without_a_middle_does_not_change(tokens, key):
    assert moved(tokens, key) == tokens


def test_cuts_are_uniform_and_a_fraction_is_moved():
    firsts, lasts, unchanged = [], [], 0
    for key in range(4000):
        found = moved(list(range(12)), key * 0x9E3779B97F4A7C15 % 2**64, probability=0.25)
        if found == list(range(12)):
            unchanged += 1
            continue
        first, last = found.index(BYTES.bos), found.index(BYTES.eos)
        firsts.append(first)
        lasts.append(first + 12 - last - 1)
    assert unchanged / 4000 == pytest.approx(0.75, abs=0.03)
    cuts = np.bincount(firsts + lasts, minlength=11) / len(firsts + lasts)
    assert len(cuts) == 11
    assert cuts == pytest.approx(np.full(11, 1 / 11), abs=0.02)


def test_a_tokenizer_needs_both_marks():
    one_mark = SimpleNamespace(bos=256, eos=256)
    for tokenizer in (CharactersTokenizer().train(lambda: iter(())), one_mark):
        with pytest.raises(
            UserError, match='needs a tokenizer with BOS and EOS, which differ; use the tokenizer "bpe"'
        ):
            middle_last([1], [2], [3], tokenizer)
    assert middle_last([1], [2], [3], BYTES) == [1, 256, 2, 257, 3]


def test_a_text_with_bos_or_eos_is_refused():
    path = str(EXPERIMENTS / "code_fill_in_the_middle.toml")
    assert load(path).data.transforms == (FillInTheMiddleTransform(),)
    with pytest.raises(UserError, match=r"data.special_tokens: transform 'fill_in_the_middle' marks the suffix"):
        load(path, ["data.special_tokens=document"])
