"""A package that `atat new` wrote: it trains, is killed, continues, and is missed when it is gone.

`make test-new` does this for every kind, in an empty environment.
"""

from __future__ import annotations

import json
import os

import pytest

from atat_zoo.cli.new import write_package
from tests import forked
from tests.installing import install_beside

# Trains, and is killed when the last step is told: after the checkpoint of step 10, and before that of step 20.
KILLED = """
import os
from pathlib import Path
from atat_zoo.experiment import load
from atat_zoo.training import trainer

class Told(trainer.Silent):
    def training(self, step, steps, line):
        if step == 20:
            os._exit(9)

trainer.train(load("mine.toml"), Path("run"), reporter=Told())
"""


@pytest.mark.slow
def test_a_package_trains_continues_and_is_missed_when_it_is_gone(tmp_path):
    package = write_package("noise", "fresh", tmp_path)
    env = {"PYTHONPATH": os.pathsep.join([str(tmp_path), install_beside(package, tmp_path)])}

    def run(*words, code=None, **where):
        return forked.run(words, tmp_path, code=code, **where)

    # An experiment that `atat new` wrote, too.
    run("new", "experiment", "mine", "--like", str(package / "experiment.toml"), env=env).check_returncode()
    assert run(env=env, code=KILLED).returncode == 9
    done = run("train", "--resume", "run", "--json", env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["step"] == 20
    # Neither the experiment nor the run goes without it, and both say what to install.
    for words in (["check", "mine.toml"], ["eval", "run"]):
        gone = run(*words)
        assert gone.returncode == 2
        assert "requires: atat-zoo-fresh is not installed; pip install atat-zoo-fresh" in gone.stderr
        assert "there is no noise named 'fresh'" in gone.stderr
