"""A few cases of `make attack`: models of others are damaged, and import and export are stopped while they write."""

import pytest

from tests.attack import driver, received, replacements

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("kind", "numbers"), [("received", range(4, 8)), ("replacements", (5, 13))])
def test_nothing_is_lost_and_nothing_trusted(kind, numbers):
    assert list(replacements.VARIANTS)[5:] == ["import", "export"]
    tally = driver.run({"received": received, "replacements": replacements}[kind].KIND, numbers, seed=17)
    assert tally.count(driver.FINE) > 0 or kind == "replacements"  # which are all stopped
    assert not tally.failures
