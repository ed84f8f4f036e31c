"""A run of `adaptive` from the command line: trained, killed and resumed, evaluated, and sampled in its own order."""

from __future__ import annotations

import json
import math
import signal
from typing import TYPE_CHECKING

import pytest
import torch

from atat_zoo.model import Model
from atat_zoo.objectives.assembly import assemble
from tests.training.test_resume import KILL_IN_CHECKPOINT, same

if TYPE_CHECKING:
    from pathlib import Path

    from tests.tiny import Tiny

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
# What the objective uses no part of: a declared table of theirs is refused.
UNUSED = ("rates", "masking", "curriculum", "estimator", "sampler")


def experiment(tiny: Tiny, form: str) -> str:
    """Write the tiny experiment with another objective; returns its file."""
    tables = tiny.path.read_text().split("\n[")
    kept = [table for table in tables if table.partition("]")[0] not in UNUSED]
    path = tiny.root / f"adaptive-{form}.toml"
    path.write_text("\n[".join(kept) + CHANGES.format(form=form))
    return str(path)


@pytest.mark.parametrize("form", ["order", "timed"])
def test_a_run_has_both_bounds_and_writes_in_its_order(tiny: Tiny, form: str) -> None:
    run = tiny.root / f"adaptive-{form}"
    said = tiny.atat("train", experiment(tiny, form), "--out", run.name).stdout
    assert "adaptive bound" in said
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
    told = json.loads(tiny.atat("sample", run.name, "--number", "2", "--json").stdout)
    assert told


def test_a_killed_run_goes_on_as_if_nothing_had_happened(tiny: Tiny) -> None:
    path = experiment(tiny, "order")
    tiny.atat("train", path, "--out", "adaptive-whole")
    killed = tiny.atat("train", path, "--out", "adaptive-half", check=False, code=KILL_IN_CHECKPOINT)
    assert killed.returncode == -signal.SIGKILL
    tiny.atat("train", "--resume", "adaptive-half")
    reference: Path = tiny.root / "adaptive-whole"
    same(tiny, "adaptive-half", reference)
