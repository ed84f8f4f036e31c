"""Runs mutmut: `python mutmut_run.py run …`, in the folder of a group.

A process that a test starts in another folder would look there for mutmut's configuration, so it does not count which
functions it calls. A test that fails though nothing is changed, as one does that looks at the names of functions, holds
no function; `failing.txt` has their names. mutmut would stop in both cases.
"""

import os
from pathlib import Path

import pytest
from mutmut import __main__ as mutmut
from mutmut.runners.harness import PytestRunner
from mutmut.state import state

FAILING = Path("failing.txt").absolute()
execute, set_mutant = PytestRunner.execute_pytest, mutmut.set_mutant_under_test


class Failing:
    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item):
        report = yield
        if report.failed:
            state()._stats.clear()  # the functions that it has called
            with FAILING.open("a", encoding="utf-8") as file:
                file.write(f"{item.nodeid}\n")
            report.outcome = "passed"
        return report


def execute_pytest(runner, words, plugins=()):
    if plugins:  # it counts which functions a test calls
        FAILING.write_text("", encoding="utf-8")
        plugins = [*plugins, Failing()]
    return execute(runner, words, plugins=plugins)


def set_here(name):
    set_mutant(name)
    if name == "stats":
        del os.environ["MUTANT_UNDER_TEST"]


if __name__ == "__main__":
    PytestRunner.execute_pytest = execute_pytest
    mutmut.set_mutant_under_test = set_here
    mutmut.cli()
