"""The conformance suite; also test what is special about the part."""

import pytest

from atat_zoo.testing import Case, cases


@pytest.mark.parametrize("case", cases(distribution="atat-zoo-placeholder"), ids=str)
def test_conformance(case: Case) -> None:
    case.run()
