"""A study from its text."""

from pathlib import Path

import pytest

from atat_zoo.studies import load
from tests.studies.making import TINY


@pytest.fixture
def read(tmp_path, monkeypatch):
    """Return a function that loads a study from its text."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.toml").write_text(TINY)

    def read(text):
        Path("study.toml").write_text(text)
        return load(Path("study.toml"))

    return read
