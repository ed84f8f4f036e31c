"""What is broken must be found: the checks try all their examples here, and the first failure will do."""

import pytest
from hypothesis import Phase, settings

from atat_zoo.testing import batches


@pytest.fixture(autouse=True)
def until_the_first_failure(monkeypatch):
    monkeypatch.setattr(batches, "share", 1.0)
    settings.register_profile("first_failure", settings.get_profile("zoo"), phases=[Phase.generate])
    settings.load_profile("first_failure")
    yield
    settings.load_profile("zoo")
