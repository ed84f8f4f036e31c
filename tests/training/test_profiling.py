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
    assert any("mm" in name for name, _, _ in table["operations"])
    trace = json.loads((tiny.root / "profiled/profile/trace.json").read_text())
    assert len(trace["traceEvents"]) > 100
