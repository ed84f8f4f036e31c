"""Runs mutmut: `python mutmut_run.py run …`, in the folder of a group.

A process that a test starts in another folder would look there for mutmut's configuration, so it does not count which
functions it calls. A test that fails though nothing is changed (one that looks at the names of functions) holds none;
`failing.txt` has their names. mutmut would stop in both cases. What a fixture calls is called for all tests that use
it, not only for the first. Tests in a browser take too long for each mutant.
"""

import os
import sys
from pathlib import Path

import pytest
from mutmut import __main__ as mutmut
from mutmut.runners.harness import PytestRunner
from mutmut.state import state

FAILING = Path("failing.txt").absolute()
os.environ["PYTEST_ADDOPTS"] = "--ignore-glob=*_in_browser.py"
execute, set_mutant = PytestRunner.execute_pytest, mutmut.set_mutant_under_test


class Calls:
    def __init__(self):
        self.failing, self.by_fixture = set(), {}

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef):
        called = state()._stats
        before = set(called)
        called.clear()
        try:
            return (yield)
        finally:
            self.by_fixture.setdefault(fixturedef, set()).update(called)
            called.update(before)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item):
        report = yield
        if report.failed:
            report.outcome = "passed"
            if item.nodeid not in self.failing:
                self.failing.add(item.nodeid)
                with FAILING.open("a", encoding="utf-8") as file:
                    file.write(f"{item.nodeid}\n")
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item):
        called = state()._stats
        for fixtures in item._fixtureinfo.name2fixturedefs.values():
            called.update(*(self.by_fixture.get(each, ()) for each in fixtures))
        if item.nodeid in self.failing:
            called.clear()


class Failures:
    """Says which test fails in the run without a mutant, where mutmut stops and shows nothing of this process."""

    def pytest_runtest_logreport(self, report):
        if report.failed:
            print(f"\n{report.nodeid} fails without a mutant\n{report.longreprtext}", file=sys.__stderr__, flush=True)


def execute_pytest(runner, words, plugins=()):
    if plugins:  # it counts which functions a test calls
        FAILING.write_text("", encoding="utf-8")
        plugins = [Calls(), *plugins]
    elif os.environ.get("MUTANT_UNDER_TEST") == "":
        plugins = [Failures()]
    return execute(runner, words, plugins=plugins)


def set_here(name):
    set_mutant(name)
    if name == "stats":
        del os.environ["MUTANT_UNDER_TEST"]


if __name__ == "__main__":
    PytestRunner.execute_pytest = execute_pytest
    mutmut.set_mutant_under_test = set_here
    mutmut.cli()
