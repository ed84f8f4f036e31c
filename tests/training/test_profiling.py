"""`atat train --profile N`: where the time of a step goes."""

import json

import pytest


@pytest.mark.slow
def test_a_profile_of_some_steps(tiny):
    done = tiny.atat("train", str(tiny.path), "--out", "profiled", "--profile", "2", "--overwrite", "train.steps=6")
    lines = done.stdout.splitlines()
    (first,) = [number for number, line in enumerate(lines) if line.startswith("a step of ")]
    assert lines[first].endswith("ms, mean of 2:")
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
    assert "nothing was profiled: that takes 3 steps and then 2, and 4 were done" in short
