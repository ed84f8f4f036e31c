"""Parts of plugins train together: an objective, an optimizer, a schedule and a logger, as `atat new` writes them."""

import os

import pytest

from atat_zoo.cli.new import write_package
from tests import forked
from tests.installing import install_beside

KINDS = ("objective", "optimizer", "schedule", "logger")


@pytest.mark.slow
def test_parts_of_plugins_train_together(tmp_path):
    packages = {kind: write_package(kind, f"my-{kind}", tmp_path) for kind in KINDS}
    paths = [str(tmp_path), *(install_beside(package, tmp_path) for package in packages.values())]
    words = [f"{kind}=my_{kind}" for kind in KINDS[:3]] + ['train.loggers=["my_logger"]']
    words += ["train.steps=3", "evaluation.samples=0", "--out", "run"]
    env = {"PYTHONPATH": os.pathsep.join(paths)}
    done = forked.run(["train", "experiment.toml", *words], packages["objective"], env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    run = packages["objective"] / "run"
    assert all(f'"my_{kind}"' in (run / "resolved.toml").read_text() for kind in KINDS)
    assert "loss" in "".join(path.read_text() for path in run.rglob("my_logger.csv"))
