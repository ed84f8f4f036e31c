"""Bad input prints what docs/bad-input.md says, and nothing worse."""

from __future__ import annotations

import pytest

from tests.bad_input import CASES, ENV, FILE_LIMIT, PAGE, PREPARE, TRAINS, produce

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_the_page_says_what_is_printed(case):
    code, message, output = produce(case)
    assert (code, f"{message}\n") == (2, case.message), output
    assert "Traceback" not in message + output
    assert all(line.startswith("error: ") for line in message.splitlines())


def test_every_section_of_the_page_is_a_case():
    titles = [line.removeprefix("## ") for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:3] == "## "]
    assert [case.title for case in CASES] == titles
    assert {*PREPARE, *ENV, *FILE_LIMIT, *TRAINS} <= {*titles}
