"""Bad input prints what bad_input.toml says, and so does docs/reference/error-messages.md."""

import pytest

from tests.bad_input import CASES, PAGE, on_the_page, produce


@pytest.mark.slow
@pytest.mark.parametrize("title", CASES)
def test_a_sentence_and_nothing_else_is_printed(title):
    code, message, output = produce(CASES[title])
    assert (code, message) == (2, CASES[title]["prints"]), output
    assert "Traceback" not in message + output
    assert all(line.startswith("error: ") for line in message.splitlines())


def test_the_page_has_ten_of_them():
    text = PAGE.read_text(encoding="utf-8")
    assert text.count("\n## ") == 10
    assert on_the_page(text) == text
