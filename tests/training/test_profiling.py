"""`atat train --profile N`: where the time of a step goes."""

import json
from types import SimpleNamespace

import pytest
from composer import Event
from torch.autograd import DeviceType
from torch.profiler import ProfilerAction

from atat_zoo.training.profiling import PHASES, Profile, operations


@pytest.mark.slow
def test_a_profile_of_some_steps(tiny):
    done = tiny.atat("train", str(tiny.path), "--out", "profiled", "--profile", "2", "--overwrite", "train.steps=6")
    lines = done.stdout.splitlines()
    (first,) = [number for number, line in enumerate(lines) if line.startswith("one step takes ")]
    assert lines[first].endswith("ms (mean of 2 steps):")
    names = [line.strip().split("  ")[0] for line in lines[first + 1 : first + 7]]
    assert names[:3] == ["waiting for data", "between phases", "forward and loss"]
    table = json.loads((tiny.root / "profiled/profile/steps.json").read_text())
    assert len(table["phases"]) == 2
    assert all(row["backward"] > 0 and row["forward and loss"] > 0 for row in table["phases"])
    names = [name for name, _, _ in table["operations"]]
    assert any("mm" in name for name in names)
    assert not any("ProfilerStep" in name for name in names), "of torch's schedule"
    trace = json.loads((tiny.root / "profiled/profile/trace.json").read_text())
    assert len(trace["traceEvents"]) > 100
    short = tiny.atat("train", str(tiny.path), "--out", "short", "--profile", "2", "train.steps=4").stdout
    assert "nothing was profiled: 3 warm-up steps and 2 more are needed, but only 4 ran" in short


def test_the_time_between_two_events_is_of_the_phase_that_ends(tmp_path, monkeypatch):
    clock = iter([0.0, 1.0, 3.0, 7.0, 15.0])
    monkeypatch.setattr(Profile, "_now", lambda self: next(clock))
    made, steps = Profile(tmp_path, 1), []
    action = ProfilerAction.RECORD
    made._profiler = SimpleNamespace(current_action=action, step=lambda: steps.append(made.done))
    made.before_dataloader(None, None)
    for event in (Event.AFTER_DATALOADER, Event.BEFORE_FORWARD, Event.AFTER_LOSS, Event.BATCH_START, Event.BATCH_END):
        made.run_event(event, SimpleNamespace(), None)
    spent = {"waiting for data": 1, "between phases": 2, "forward and loss": 4, "optimizer, EMA, logs": 8}
    assert made.rows == [{"backward": 0} | spent]
    assert steps == [1]


def test_a_gpu_has_its_kernels_and_a_cpu_all_operations_but_the_schedule_s():
    def average(key, device, annotation=False):
        times = {"self_device_time_total": 2e6, "self_cpu_time_total": 1e6}
        return SimpleNamespace(key=key, device_type=device, is_user_annotation=annotation, count=3, **times)

    cpu, cuda = DeviceType.CPU, DeviceType.CUDA
    every = [average("mm", cpu), average("mine", cpu, True), average("ProfilerStep#1", cpu, True)]
    every += [average("gemm", cuda), average("mine", cuda, True), average("ProfilerStep", cuda)]
    profiler = SimpleNamespace(key_averages=lambda: every)
    assert operations(profiler, gpu=False) == [("mm", 1.0, 3), ("mine", 1.0, 3)]
    assert operations(profiler, gpu=True) == [("gemm", 2.0, 3), ("ProfilerStep", 2.0, 3)]


def test_operations_have_their_share_of_all_time(tmp_path):
    made = Profile(tmp_path, 1)
    made.rows, made.operations = [dict.fromkeys(PHASES.values(), 0.5)], [("mm", 3.0, 7), ("add", 1.0, 2)]
    mm, add = (line.split() for line in made.lines()[-3:-1])
    assert (mm[0], mm[-3:], add[-3]) == ("mm", ["75.0%", "7", "calls"], "25.0%")
