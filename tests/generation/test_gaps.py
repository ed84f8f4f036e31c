"""`[MASK]`, `[MASK:n]` and `[MASK:a-b]` in a text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atat_zoo.errors import UserError
from atat_zoo.generation.layout import Gap, parse

PIECES = st.text(st.characters(exclude_characters="["))
GAPS = st.tuples(st.integers(1, 50), st.integers(0, 20)).map(lambda pair: Gap(pair[0], sum(pair)))


def written(gap: Gap) -> str:
    if gap == Gap(1, 1):
        return "[MASK]"
    return f"[MASK:{gap.shortest}-{gap.longest}]" if gap.shortest < gap.longest else f"[MASK:{gap.shortest}]"


@given(PIECES, st.lists(st.tuples(GAPS, PIECES), min_size=1, max_size=4))
def test_what_is_written_is_read(first: str, rest: list[tuple[Gap, str]]) -> None:
    text = first + "".join(written(gap) + piece for gap, piece in rest)
    found = parse(text)
    assert found.pieces == (first, *(piece for _, piece in rest))
    assert found.gaps == tuple(gap for gap, _ in rest)


def test_brackets_that_are_no_gap_are_text() -> None:
    found = parse("[MASKED] [mask] [x] [[MASK]] [MASK")
    assert found.pieces == ("[MASKED] [mask] [x] [", "] [MASK")
    assert parse("[MASK:3-3]").gaps == (Gap(3, 3),)
    assert parse("[MASK][MASK:2]").pieces == ("", "", "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a [MASK:0] b", r"'\[MASK:0\]' is a gap without a token"),
        ("a [MASK:5-3] b", r"ends before it begins; write the smaller number first, \[MASK:3-5\]"),
        ("a [MASK:x] b", r"'\[MASK:x\]' is no gap; write \[MASK\] for a token"),
        ("a [MASK:-2] b", "is no gap"),
        ("a [MASK:2-] b", "is no gap"),
        ("a [MASK:٣] b", "is no gap"),
        ("a [MASK:99999999999] b", "is no gap"),
        ("a [MASK:3 b [MASK]", "is no gap"),
        ("no gap at all", r"has no gap: 'no gap at all'; write \[MASK\]"),
    ],
)
def test_a_gap_that_is_none(text: str, said: str) -> None:
    with pytest.raises(UserError, match=f"^line 7.*{said}") as told:
        parse(text, "line 7")
    assert "\n" not in str(told.value)
