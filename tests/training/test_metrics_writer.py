"""The line of a step, its speed and its memory; the moving average of the weights; what a step and its end update."""

import gc
import statistics
import tempfile
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

from atat_zoo.diffusion.statistics import spearman
from atat_zoo.experiment import load
from atat_zoo.experiment.runs import RunFolder
from atat_zoo.system.errors import UserError
from atat_zoo.training import composer_model, metrics_writer, train
from atat_zoo.training.composer_model import Progress, StepMeters, ZooModel, sum_over_ranks
from atat_zoo.training.ema import MovingAverage
from atat_zoo.training.memory import peak_memory
from atat_zoo.training.metrics_writer import MetricsWriter


def lines_of(folder, losses, *, before=0, log_every=2, every=0, resumed=None, clock=()):
    """Return the lines of so many steps of 100 tokens each, after `before`; after `resumed` of them from a state."""

    def writer():
        objective = SimpleNamespace(curriculum_strength=lambda progress: None, stage=lambda progress: "train")
        model = SimpleNamespace(objective=objective, meters=SimpleNamespace(compute=dict), steps=60)
        spec = SimpleNamespace(log_every=log_every, steps=60, loggers=())
        made = MetricsWriter(model, RunFolder(folder), spec, lambda step, steps, line: lines.append(line), every=every)
        made.fit_start(state, None)
        return made

    lines, writing = [], None
    state = SimpleNamespace(
        timestamp=SimpleNamespace(batch=before, token=100 * before, total_wct=SimpleNamespace(total_seconds=float)),
        schedulers=[SimpleNamespace(get_last_lr=lambda: [0.1])],
        model=nn.Linear(1, 1),
    )
    for done, loss in enumerate(losses):
        if not done:
            writing = writer()
        if done == resumed:
            kept, writing = writing.state_dict(), writer()
            writing.load_state_dict(kept)
        next(clock, None) if clock else None  # an evaluation between two steps
        writing.batch_start(state, None)
        step = before + done + 1
        state.timestamp.batch, state.timestamp.token = step, 100 * step
        state.total_loss_dict = {"loss/train/total": loss}
        writing.batch_end(state, None)
        writing.batch_checkpoint(state, None)
    return lines


@pytest.mark.parametrize("before", [0, 50])
def test_the_speed_is_that_of_the_steps_since_the_last_line(tmp_path, monkeypatch, before):
    """100 tokens a step, half a second each: also in the first line after a resume, and beside other work."""
    clock = count(step=0.5)
    monkeypatch.setattr(metrics_writer.time, "perf_counter", lambda: next(clock))
    lines = lines_of(tmp_path, [1.0] * 5, before=before, clock=clock)
    assert [(line["step"] - before, line["tokens_per_second"]) for line in lines] == [(2, 200.0), (4, 200.0)]


@example([0.0, 1.0, 5.0], 3, 0, 2)
@example([0.0, 1.0, 5.0, 2.0], 4, 3, 9)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9), st.integers(1, 4), st.integers(0, 3), st.integers(0, 9))
def test_the_loss_of_a_line_is_the_mean_of_the_steps_since_the_one_before(losses, log_every, every, resumed):
    """Also where an evaluation has a line of its own, and where the run was continued within an interval."""
    with tempfile.TemporaryDirectory() as folder:
        lines = lines_of(Path(folder), losses, log_every=log_every, every=every, resumed=resumed)
    steps = [step for step in range(1, len(losses) + 1) if step % log_every == 0 or (every and step % every == 0)]
    assert [line["step"] for line in lines] == steps
    for first, line in zip([0, *steps], lines, strict=False):
        assert line["loss"] == pytest.approx(statistics.fmean(losses[first : line["step"]]))


@pytest.mark.parametrize("recorded", [0, 1 << 50])
def test_a_continued_run_keeps_what_it_took_before(tmp_path, recorded):
    folder = RunFolder(tmp_path)
    folder.append_metrics({"step": 1, "peak_memory": recorded})
    folder.append_metrics({"step": 2, "peak_memory": recorded // 2})
    state = SimpleNamespace(timestamp=SimpleNamespace(token=64), model=nn.Linear(1, 1))
    records = MetricsWriter(None, folder, None, print)
    records.fit_start(state, None)
    assert records._peak(state) == (recorded or peak_memory(torch.device("cpu"))) > 0


@pytest.mark.parametrize("sizes", [(6,), (1, 2, 3), (4, 2)])
def test_the_figures_of_a_step_are_those_of_all_its_rows_and_tokens_whatever_the_micro_batches(sizes):
    draw = torch.Generator().manual_seed(0)
    importance, loss, uniform = torch.rand(3, 6, 5, generator=draw)
    masked, maskable = uniform < 0.4, uniform < 0.8
    rates, rows = torch.tensor([0.02, 0.04, 0.31, 0.5, 0.99, 1.0]), torch.arange(6)
    meters = StepMeters(detailed=True)
    meters.update({"masked": masked, "maskable": maskable, "rates": rates, "mask_rate": torch.tensor(0.1)})
    meters.reset()  # that was the step before
    assert meters.compute() == {}
    for some in rows.split(sizes):
        tensors = {"importance": importance, "token_loss": loss, "masked": masked, "maskable": maskable, "rates": rates}
        figures = {name: tensor[some] for name, tensor in tensors.items()}
        figures["cross_entropy"] = figures["token_loss"][figures["masked"]].mean()
        figures["diffusion_loss"] = rates[some].mean()
        figures["mask_rate"] = figures["masked"].sum() / figures["maskable"].sum()
        meters.update(figures)
    found = meters.compute()
    assert found.pop("mask_rates") == [2, *[0] * 5, 1, 0, 0, 0, 1, *[0] * 8, 2]
    assert found == {
        "diffusion_loss": pytest.approx(float(rates.mean())),
        "cross_entropy": pytest.approx(float(loss[masked].mean())),
        "mask_rate": pytest.approx(float(masked.sum() / maskable.sum())),
        "importance_spearman": pytest.approx(float(spearman(importance[masked], loss[masked]))),
    }
    mean, spread = importance[maskable].mean(), importance[maskable].std(correction=0)
    assert meters.details() == pytest.approx({"importance_mean": float(mean), "importance_spread": float(spread)})
    drawn = meters.histograms()
    assert torch.equal(drawn.pop("mask_rates"), rates)
    assert {name: values.tolist() for name, values in drawn.items()} == {
        "importance": importance[masked].tolist(),
        "token_loss": loss[masked].tolist(),
    }


@pytest.mark.slow
def test_a_training_lets_go_of_its_model(tiny, tmp_path):
    def alive():
        gc.collect()
        return sum(type(each) is ZooModel for each in gc.get_objects())

    before = alive()
    assert train(load(str(tiny.path), ["train.steps=1"]), tmp_path / "run").finished
    assert alive() == before


@given(decay=st.floats(0, 0.999), steps=st.integers(1, 30), saved=st.integers(0, 30))
def test_the_average_is_the_formula_stays_where_it_is_and_goes_on_from_a_checkpoint(decay, steps, saved):
    """a ← d a + (1 − d) w with d = min(decay, (1 + k)/(10 + k)), in the memory in which it began."""
    net = nn.Linear(3, 2)
    average, places = MovingAverage(net, decay), []
    expected = [p.detach().double() for p in net.parameters()]
    for k in range(steps):
        with torch.no_grad():
            for p in net.parameters():
                p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(k)))
        if k == saved:
            resumed = MovingAverage(net, decay)
            resumed.load_state_dict(average.state_dict())
            average, places = resumed, []
        places.append([a.data_ptr() for a in average.average])
        average.batch_end(None, None)
        d = min(decay, (1 + k) / (10 + k))
        expected = [d * a + (1 - d) * p.detach().double() for a, p in zip(expected, net.parameters(), strict=True)]
    assert all(place == places[0] for place in places)
    for a, b in zip(average.average, expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)


def test_the_average_is_on_the_device_that_is_asked_for():
    """Where the weights are: no step copies them to another one."""
    average = MovingAverage(nn.Linear(3, 2).to("meta"), 0.9, "meta")
    average.batch_end(None, None)
    assert {a.device.type for a in average.average} == {"meta"}


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
    with pytest.raises(UserError, match="out of GPU memory in the optimizer's update at step 2"):
        progress.before_train_batch(state, None)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_what_is_over_ranks_is_their_sum_and_their_mean(monkeypatch, ranks):
    """Each of them has the same here. One rank alone asks no other."""
    asked = []

    def all_reduce(tensor, reduce_operation="SUM"):
        asked.append(reduce_operation)
        tensor.mul_(ranks)

    monkeypatch.setattr(composer_model, "dist", SimpleNamespace(get_world_size=lambda: ranks, all_reduce=all_reduce))
    found = composer_model.prepare({"maskable": torch.tensor([[1, 1, 1], [1, 0, 0]]), "tokens": torch.zeros(2, 3)})
    assert found["mean_maskable"].tolist() == [2, 2]
    sum_over_ranks(value := torch.tensor([1.0, 3.0]))
    assert value.tolist() == [ranks, 3 * ranks]
    assert asked == ["SUM", "SUM"] * (ranks > 1)


def test_the_values_of_a_histogram_are_drawn_as_they_are():
    drawn, told, values = [], [], torch.tensor([0.25, 0.5])
    meters = SimpleNamespace(details=lambda: {"importance_mean": 0.5}, histograms=lambda: {"importance": values})
    destinations = [SimpleNamespace(), SimpleNamespace(log_histogram=lambda *given: drawn.append(given))]
    logger = SimpleNamespace(log_metrics=lambda *given: told.append(given), destinations=destinations)
    writer = SimpleNamespace(model=SimpleNamespace(meters=meters))
    MetricsWriter._log(writer, logger, {"step": 3, "loss": 1.0, "mask_rates": [1], "stage": "train", "lr": None}, 3)
    assert drawn == [("train/importance", values, 3)]
    assert told == [({"train/loss": 1.0, "train/importance_mean": 0.5, "train/stage/train": 1}, 3)]
