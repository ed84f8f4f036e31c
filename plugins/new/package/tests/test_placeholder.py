"""The conformance suite; add tests for what only this component does."""

import pytest

from atat_zoo.testing import Case, cases


@pytest.mark.parametrize("case", cases(distribution="atat-zoo-placeholder"), ids=str)
def test_conformance(case: Case) -> None:
    case.run()
