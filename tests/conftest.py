"""Settings that hold for every test, and the tiny run that several share."""

import gc
import os
import sys
from collections import Counter

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("WDS_SECURE", "1")

from hypothesis import HealthCheck, settings

from tests.tiny import tiny, trained, uninterrupted

# What a test writes need not outlast a power cut, and a small training would wait for the disk a hundred times.
# Tests of what is written in which order put a function of their own in its place.
os.fsync = lambda descriptor: None

__all__ = ["tiny", "trained", "uninterrupted"]

FULL, FAST = 15, 8  # examples of a property, in the whole suite and in its fast part
OF_OTHERS = 50  # that a check of the conformance suite has in the tests of a plugin


def pytest_configure(config):
    fast = config.option.markexpr == "not slow" or "MUTANT_UNDER_TEST" in os.environ
    examples = FAST if fast else FULL
    settings.register_profile(
        "zoo", deadline=None, max_examples=examples, suppress_health_check=[HealthCheck.too_slow], derandomize=True
    )
    settings.load_profile("zoo")


def pytest_collection_modifyitems(items):
    """Begin with the files that take long, so that no worker is left alone with one at the end."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])


def pytest_collection_finish():
    """Look for garbage in what the tests make only: what was imported stays, and takes a second to go through."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup():
    """Let the checks of the conformance suite, where it is imported, try as many fewer."""
    if batches := sys.modules.get("atat_zoo.testing.batches"):
        batches.share = settings.default.max_examples / OF_OTHERS


@pytest.fixture
def atat(monkeypatch, capsys):
    """Run `atat` in this process; returns exit code, standard output and standard error."""
    from atat_zoo.cli import main

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["atat", *words])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return left.value.code, out, err

    return run
