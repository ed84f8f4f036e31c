"""The line of a step: its speed."""

from itertools import count
from types import SimpleNamespace

import pytest
import torch

from atat_zoo.run import RunFolder
from atat_zoo.training import lifecycle
from atat_zoo.training.lifecycle import MetricsWriter


@pytest.mark.parametrize("before", [0, 50])
def test_the_speed_is_that_of_the_steps_since_the_last_line(tmp_path, monkeypatch, before):
    """100 tokens a step, half a second each: also in the first line after a resume, and beside other work."""
    clock = count(step=0.5)
    monkeypatch.setattr(lifecycle.time, "perf_counter", lambda: next(clock))
    objective = SimpleNamespace(curriculum_strength=lambda progress: None, stage=lambda progress: "train")
    model = SimpleNamespace(objective=objective, meters=SimpleNamespace(compute=dict), steps=60)
    spec = SimpleNamespace(log_every=2, steps=60, loggers=())
    lines = []
    folder = RunFolder(tmp_path)
    writer = MetricsWriter(model, folder, spec, lambda step, line: lines.append(line))
    for step in range(before, before + 5):
        state = SimpleNamespace(
            timestamp=SimpleNamespace(batch=step, token=100 * step, total_wct=SimpleNamespace(total_seconds=float)),
            total_loss_dict={"loss/train/total": 1.0},
            schedulers=[SimpleNamespace(get_last_lr=lambda: [0.1])],
            model=torch.nn.Linear(1, 1),
        )
        if step == before:
            writer.fit_start(state, None)
        next(clock)  # an evaluation between two steps
        writer.batch_start(state, None)
        state.timestamp.batch, state.timestamp.token = step + 1, 100 * (step + 1)
        writer.batch_end(state, None)
    assert [(line["step"] - before, line["tokens_per_second"]) for line in lines] == [(2, 200.0), (4, 200.0)]
