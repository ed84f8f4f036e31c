"""The line of a step, its speed and its memory; and the moving average of the weights."""

import gc
from itertools import count
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from atat_zoo.errors import UserError
from atat_zoo.experiment import load
from atat_zoo.experiment.runs import RunFolder
from atat_zoo.training import metrics_writer, train
from atat_zoo.training.composer_model import Progress, ZooModel, sum_over_ranks
from atat_zoo.training.ema import MovingAverage
from atat_zoo.training.memory import peak_memory
from atat_zoo.training.metrics_writer import MetricsWriter


@pytest.mark.parametrize("before", [0, 50])
def test_the_speed_is_that_of_the_steps_since_the_last_line(tmp_path, monkeypatch, before):
    """100 tokens a step, half a second each: also in the first line after a resume, and beside other work."""
    clock = count(step=0.5)
    monkeypatch.setattr(metrics_writer.time, "perf_counter", lambda: next(clock))
    objective = SimpleNamespace(curriculum_strength=lambda progress: None, stage=lambda progress: "train")
    model = SimpleNamespace(objective=objective, meters=SimpleNamespace(compute=dict), steps=60)
    spec = SimpleNamespace(log_every=2, steps=60, loggers=())
    lines = []
    folder = RunFolder(tmp_path)
    writer = MetricsWriter(model, folder, spec, lambda step, steps, line: lines.append(line))
    for step in range(before, before + 5):
        state = SimpleNamespace(
            timestamp=SimpleNamespace(batch=step, token=100 * step, total_wct=SimpleNamespace(total_seconds=float)),
            total_loss_dict={"loss/train/total": 1.0},
            schedulers=[SimpleNamespace(get_last_lr=lambda: [0.1])],
            model=nn.Linear(1, 1),
        )
        if step == before:
            writer.fit_start(state, None)
        next(clock)  # an evaluation between two steps
        writer.batch_start(state, None)
        state.timestamp.batch, state.timestamp.token = step + 1, 100 * (step + 1)
        writer.batch_end(state, None)
        writer.batch_checkpoint(state, None)
    assert [(line["step"] - before, line["tokens_per_second"]) for line in lines] == [(2, 200.0), (4, 200.0)]


@pytest.mark.parametrize("recorded", [0, 1 << 50])
def test_a_continued_run_keeps_what_it_took_before(tmp_path, recorded):
    folder = RunFolder(tmp_path)
    folder.append_metrics({"step": 1, "peak_memory": recorded})
    folder.append_metrics({"step": 2, "peak_memory": recorded // 2})
    state = SimpleNamespace(timestamp=SimpleNamespace(token=64), model=nn.Linear(1, 1))
    records = MetricsWriter(None, folder, None, print)
    records.fit_start(state, None)
    assert records._peak(state) == (recorded or peak_memory(torch.device("cpu"))) > 0


@pytest.mark.slow
def test_a_training_lets_go_of_its_model(tiny, tmp_path):
    def alive():
        gc.collect()
        return sum(type(each) is ZooModel for each in gc.get_objects())

    before = alive()
    assert train(load(str(tiny.path), ["train.steps=1"]), tmp_path / "run").finished
    assert alive() == before


@given(decay=st.floats(0, 0.999), steps=st.integers(1, 30))
def test_it_is_the_formula_and_stays_where_it_is(decay, steps):
    """a ← d a + (1 − d) w with d = min(decay, (1 + k)/(10 + k)), in the memory in which it began."""
    net = nn.Linear(3, 2)
    average, places = MovingAverage(net, decay), []
    expected = [p.detach().double() for p in net.parameters()]
    for k in range(steps):
        with torch.no_grad():
            for p in net.parameters():
                p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(k)))
        places.append([a.data_ptr() for a in average.average])
        average.batch_end(None, None)
        d = min(decay, (1 + k) / (10 + k))
        expected = [d * a + (1 - d) * p.detach().double() for a, p in zip(expected, net.parameters(), strict=True)]
    assert all(place == places[0] for place in places)
    for a, b in zip(average.average, expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)


def test_it_is_on_the_device_that_is_asked_for():
    """Where the weights are: no step copies them to another one."""
    average = MovingAverage(nn.Linear(3, 2).to("meta"), 0.9, "meta")
    average.batch_end(None, None)
    assert {a.device.type for a in average.average} == {"meta"}


def test_an_average_goes_on_from_its_checkpoint():
    """Its next step has the decay, and the average, that it would have had."""
    net = nn.Linear(3, 2)
    one, other = MovingAverage(net, 0.5), MovingAverage(nn.Linear(3, 2), 0.5)
    other.live = one.live
    for _ in range(3):
        with torch.no_grad():
            net.weight.add_(1.0)
        one.batch_end(None, None)
    other.load_state_dict(one.state_dict())
    with torch.no_grad():
        net.weight.add_(1.0)
    for each in (one, other):
        each.batch_end(None, None)
    assert one.steps == other.steps == 4
    assert all(torch.equal(a, b) for a, b in zip(one.average, other.average, strict=True))


def test_the_parts_get_the_progress_of_each_step_and_no_step_is_updated_twice():
    began, ended = [], []
    objective = SimpleNamespace(
        begin_step=lambda: began.append(model.step), end_step=lambda *words: ended.append(words)
    )
    model = SimpleNamespace(objective=objective, meters=SimpleNamespace(reset=list), steps=8, step=0)
    progress = Progress(model)
    for step in range(2):
        state = SimpleNamespace(timestamp=SimpleNamespace(batch=step))
        progress.before_train_batch(state, None)
        progress.before_train_batch(state, None)  # again, with smaller micro-batches
        progress.after_train_batch(state, None)
        state.timestamp.batch = step + 1
        progress.batch_end(state, None)
    assert began == [0, 0, 1, 1]
    assert ended == [(sum_over_ranks, 1 / 8), (sum_over_ranks, 2 / 8)]
    state.timestamp.batch = 1
    with pytest.raises(UserError, match="does not suffice for the optimizer's update at step 2"):
        progress.before_train_batch(state, None)
