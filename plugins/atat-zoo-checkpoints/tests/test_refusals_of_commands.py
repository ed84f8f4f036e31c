"""What `atat import` and `atat export` say of bad input: bad_input.toml, in the form of the core's."""

import tomllib
from pathlib import Path

import pytest

from tests.bad_input import produce

CASES = tomllib.loads(Path(__file__).with_name("bad_input.toml").read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize("title", CASES)
def test_a_sentence_and_nothing_else_is_printed(title):
    code, message, output = produce(CASES[title])
    assert (code, message) == (2, CASES[title]["prints"]), output
