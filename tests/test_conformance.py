"""Every promise of every part that is installed: ours, and the example plugin's."""

import pytest

from atat_zoo.testing import cases, check_imports

ALL = cases()


@pytest.mark.parametrize("case", [c for c in ALL if c.promise != "imports"], ids=str)
def test_conformance(case):
    case.run()


def test_no_part_needs_torch_to_be_listed():
    # All in one interpreter; one each would take a minute.
    check_imports(path for case in ALL if case.promise == "imports" for path in case.makes())


@pytest.mark.slow
@pytest.mark.parametrize("case", [c for c in ALL if c.kind == "masking" and c.promise != "description"], ids=str)
def test_masking_under_a_thousand_examples(case):
    case.run(examples=1000)
