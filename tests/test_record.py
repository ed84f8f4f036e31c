"""The record of a machine's benchmarks: what is kept of a ratio, and what is called worse."""

import json

import pytest

from benchmarks import pairs, record


@pytest.fixture
def ratios(monkeypatch):
    monkeypatch.setattr(pairs, "RATIOS", {})
    return pairs.RATIOS


def test_every_report_is_noted_with_its_quartiles(ratios, capsys):
    timed = [(2.0, 1.0), (3.0, 1.0), (1.0, 1.0), (5.0, 1.0), (4.0, 1.0)]
    assert pairs.report("ours", "theirs", timed) == 3.0
    median, low, high = ratios["ours / theirs"]
    assert (median, 1 < low < 3 < high < 5) == (3.0, True)
    assert "median of 5 pairs: 3.0000" in capsys.readouterr().out
    pairs.note("memory", [1.25])
    assert ratios["memory"] == (1.25, 1.25, 1.25)


def test_a_bar_is_a_sentence_where_it_is_missed():
    pairs.hold([("time", 1.05, 1.05), ("memory", 0.3, 0.35)])
    with pytest.raises(
        SystemExit, match=r"^time is 1\.0600, and the limit is 1\.05; memory is nan, and the limit is 0\.35$"
    ):
        pairs.hold([("time", 1.06, 1.05), ("a", 1.0, 1.0), ("memory", float("nan"), 0.35)])


@pytest.mark.parametrize(
    ("now", "worse"), [((1.3, 1.2, 1.4), True), ((1.3, 1.05, 1.4), False), ((0.5, 0.4, 0.6), False)]
)
def test_worse_is_more_than_the_spread(tmp_path, now, worse):
    path = tmp_path / "results" / "machine.json"
    assert "was" not in record.keep("steps", {"a / b": (1.0, 0.9, 1.1)}, path)[0]
    record.keep("others", {"a / b": (7.0, 7.0, 7.0)}, path)
    first, second = record.keep("steps", {"a / b": now, "c": (1.0, 1.0, 1.0)}, path)
    assert "was 1.0000 [0.9000, 1.1000]" in first
    assert ("WORSE" in first) is worse
    assert "was" not in second
    kept = json.loads(path.read_text())
    assert kept["others"]["ratios"] == {"a / b": [7.0, 7.0, 7.0]}
    assert kept["steps"]["ratios"]["a / b"] == list(now)
    assert {"date", "packages", "git", "machine"} <= set(kept["steps"])
