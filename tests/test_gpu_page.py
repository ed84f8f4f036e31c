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


@pytest.mark.parametrize(
    ("code", "printed", "met"),
    [
        (0, "..\n7 passed, 3 deselected in 2.00s\n", ("7 passed, 3 deselected in 2.00s", True)),
        (1, "..E\n7 passed, 1 error in 2.00s\n", ("7 passed, 1 error in 2.00s", False)),
        (0, "8 skipped in 2.00s\n", ("8 skipped in 2.00s", False)),
        (4, "", ("pytest ended with 4", False)),
    ],
)
def test_only_a_suite_that_passes_is_met(code, printed, met, monkeypatch):
    done = subprocess.CompletedProcess([], code, stdout=printed)
    monkeypatch.setattr(gpu.subprocess, "run", lambda *_, **__: done)
    assert gpu.waiting_tests([]) == met


def test_without_a_gpu_it_says_so(monkeypatch):
    monkeypatch.setattr(gpu.torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="--small"):
        gpu.main([])


def test_a_bar_that_is_missed_is_told():
    rows = [("a", "≥ 1", "0", False), ("b", "≥ 1", "2", True), ("c", "", "3", None)]
    assert gpu.page(rows, gpu.SMALL).splitlines()[-3:] == [
        "| a | ≥ 1 | 0 | **not met** |",
        "| b | ≥ 1 | 2 | met |",
        "| c |  | 3 |  |",
    ]
