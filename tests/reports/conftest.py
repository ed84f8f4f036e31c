"""The browser, in which pages are tested."""

import pytest

from tests.reports.browser import chromium


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found
