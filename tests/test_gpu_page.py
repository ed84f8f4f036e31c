"""What measures a GPU runs on a CPU, too: the same code at nano size, for it must work when there is one at last."""

import subprocess

import pytest

from benchmarks import gpu, pairs


@pytest.mark.slow
def test_the_small_form_writes_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pairs, "RATIOS", {})
    page = tmp_path / "gpu.md"
    gpu.main(["--small", "--markdown", str(page), "--tests", "tests/test_parsing.py"])
    rows = [line.split(" | ") for line in page.read_text().splitlines() if line.startswith("| ")][2:]
    bars = ["≥ 0.95", "≥ 40 %", "", *["≤ 1.06"] * 3, "≥ 60 %", "pass"]
    assert [row[1] for row in rows] == bars
    assert all(row[2].strip() for row in rows)
    assert "deselected" in rows[-1][2]
    assert page.read_text() in capsys.readouterr().out


def test_without_a_gpu_it_says_so(monkeypatch):
    monkeypatch.setattr(gpu.torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="--small"):
        gpu.main([])


def test_a_bar_that_is_missed_is_told(monkeypatch):
    for code, met in ((0, True), (1, False)):
        done = subprocess.CompletedProcess([], code, stdout="..\n7 passed in 2.00s\n")
        monkeypatch.setattr(gpu.subprocess, "run", lambda *_, done=done, **__: done)
        assert gpu.waiting_tests([]) == ("7 passed in 2.00s", met)
    rows = [("a", "≥ 1", "0", False), ("b", "≥ 1", "2", True), ("c", "", "3", None)]
    told = ["| a | ≥ 1 | 0 | **not met** |", "| b | ≥ 1 | 2 | met |", "| c |  | 3 |  |"]
    assert gpu.page(rows, gpu.SMALL).splitlines()[-3:] == told
