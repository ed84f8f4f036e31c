"""A run of `adaptive` from the command line: trained, killed and resumed, evaluated, and sampled in its own order."""

import json
import math

import pytest
import torch

from atat_zoo.generation.model import Model
from atat_zoo.modeling.objectives import assemble
from tests.training.test_resume import killed_and_resumed

pytestmark = pytest.mark.slow

CHANGES = """
[objective]
use = "adaptive"
form = "{form}"
bias = "running"
temperature = 0.5
learn_importance = true
learn_position = true
[estimator]
use = "transformer"
layers = 1
width = 16
heads = 2
[sampler]
use = "learned_order"
"""
# Tables of which the objective uses no part, or that are above.
UNUSED = ("rates", "masking", "curriculum", "estimator", "target", "sampler")


def experiment(tiny, form):
    """Write the tiny experiment with another objective; returns its file."""
    tables = tiny.path.read_text().split("\n[")
    kept = [table for table in tables if table.partition("]")[0] not in UNUSED]
    path = tiny.root / f"adaptive-{form}.toml"
    path.write_text("\n[".join(kept) + CHANGES.format(form=form))
    return str(path)


@pytest.mark.parametrize("form", ["order", "timed"])
def test_a_run_has_both_bounds_and_goes_on_when_it_was_killed(tiny, form):
    run, path = tiny.root / f"adaptive-{form}", experiment(tiny, form)
    assert "adaptive bound" in tiny.atat("train", path, "--out", run.name).stdout
    (file,) = (run / "evaluations").iterdir()
    bounds = json.loads(file.read_text())["bounds"]
    assert set(bounds) == {"nelbo", "adaptive"}
    assert all(0 < bound["nats_per_token"] < math.log(300) for bound in bounds.values())
    lines = tiny.losses(run)
    assert lines[24]["loss"] < lines[1]["loss"]
    assert all(math.isfinite(line["reverse_loss"]) for line in lines.values())
    assert lines[24]["reverse_loss"] != 0

    model = Model.from_run(run)
    trained = dict(model.module.named_parameters())
    fresh = assemble(model.experiment, model.context)
    assert not [name for name, p in fresh.named_parameters() if torch.equal(p, trained[name])]
    assert (run / "samples.txt").read_text().strip()
    assert len(model.sample(2, seed=0).texts) == 2
    if form == "timed":
        killed_and_resumed(tiny, "adaptive-half", run, path)
