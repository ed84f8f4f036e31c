"""What measures a GPU runs on a CPU, too, and on a virtual GPU: it must work when there is one at last."""

import json
import os
import signal
import subprocess
import time

import attrs
import pytest
import torch

from atat_zoo import Zoo
from atat_zoo.experiment import load
from benchmarks import gpu, pairs
from benchmarks.gpu import correct, sampling, steps, trainings
from benchmarks.gpu.measured import Found, Part, Report
from benchmarks.gpu.setting import SMALL, Setting
from tests import forked
from tests.virtual_gpu.device import VirtualGPU, to_gpu


@pytest.fixture(autouse=True)
def nothing_to_remember(monkeypatch):
    monkeypatch.setattr(pairs, "RATIOS", {})


def replaced(name, measure):
    return tuple(attrs.evolve(part, measure=measure) if part.name == name else part for part in gpu.PARTS)


def states(page):
    return {name: part["state"] for name, part in json.loads(page.with_suffix(".json").read_text())["parts"].items()}


@pytest.fixture
def forks(monkeypatch):
    """Let what needs a process of its own have a fork, which has imported everything."""
    monkeypatch.setattr(pairs, "get_context", lambda method: forked.SERVER)


@pytest.mark.slow
@pytest.mark.usefixtures("forks")
def test_the_small_form_is_interrupted_and_goes_on(tmp_path, monkeypatch):
    page, words = tmp_path / "gpu.md", ["--small", "--tests", "tests/system/test_parsing.py", "--markdown"]

    def interrupted(setting, found):
        found.row("half", "", "measured")
        raise KeyboardInterrupt

    names = [part.name for part in gpu.PARTS]
    monkeypatch.setattr(gpu, "PARTS", replaced("sampling", interrupted))
    with pytest.raises(KeyboardInterrupt):
        gpu.main([*words, str(page)])
    done = names[: names.index("sampling")]
    assert states(page) == dict.fromkeys(done, "done") | {"sampling": "unfinished"}
    assert page.read_text().count("\n## ") == len(done) + 1
    assert (
        "**Unfinished**: it was stopped here.\n\n| what | required | measured | |\n| --- | --- | --- | --- |\n| half |"
        in page.read_text()
    )

    monkeypatch.undo()
    monkeypatch.setattr(pairs, "RATIOS", {})
    monkeypatch.setattr(gpu, "PARTS", replaced("correct", lambda *_: pytest.fail("it was done")))
    gpu.main([*words, str(page)])
    assert states(page) == dict.fromkeys(names, "done")
    rows = [line.strip("| ").split(" | ") for line in page.read_text().splitlines() if line.startswith("| ")]
    bars = [row[1] for row in rows if row[0] != "what"]
    assert bars.count("equal") == 9
    assert bars.count("≤ 1.06") == 3
    assert bars.count("≤ 1e-05, 1e-04") == (0 if correct.refused() else 3)
    assert {"≤ 1e-05", "≤ 1e-03", "≤ 1e-04", "≥ 0.95", "≥ 40 %", "≥ 60%", "pass", "falls"} < set(bars)
    assert not [row for row in rows if row[1].startswith(("equal", "≤ 1e")) and row[3:] != ["met"]]


# Of which newer releases of torch warn.
@pytest.mark.filterwarnings("ignore:CUDA is not available:UserWarning")
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:User provided device_type of 'cuda', but CUDA is not available")
def test_on_a_virtual_gpu(tmp_path, monkeypatch):
    setting = Setting(SMALL, tmp_path, "cuda:0", move=to_gpu)
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)  # which its tensors cannot be
    # tests/virtual_gpu has a step of every objective.
    monkeypatch.setattr(correct, "RECIPES", ("mdlm", *correct.MASKED))
    found = Found()
    with VirtualGPU():
        for part in (correct.measure, sampling.measure, steps.objectives):
            part(setting, found)
    held = [row for row in found.rows if row[3] is not None and "share" not in row[0]]
    assert len(held) >= 10
    # Autocast casts nothing there, and on the CPU it does.
    assert [row for row in held if row[3] is False and "bf16" not in row[0]] == []


def test_every_objective_and_sampler_is_held_against_the_cpu():
    zoo = Zoo.load()
    assert {load(name).parts["objective"].name for name in correct.RECIPES} == set(zoo.names("objective"))
    assert {name for name, _ in sampling.samplers()} == set(zoo.names("sampler"))


def fine(setting, found):
    found.row("speed", "≥ 1", "2", True)
    found.figures["speed"] = 2.0


def broken(setting, found):
    found.row("half", "≥ 1", "0", False)
    raise RuntimeError("no\nkernel")


class Setup:
    """The parts share nothing here."""

    end, figures = 0.0, None

    def tidy(self):
        pass


def measured(path, *parts, seconds=100.0, heading="mine"):
    report = Report({"device": heading}, "abc", path)
    report.go_on()
    report.measure(parts, Setup(), seconds)
    return report


def test_what_fails_and_what_does_not_fit_is_said_and_the_rest_goes_on(tmp_path, capsys):
    page = tmp_path / "gpu.md"
    parts = Part("a", "A", 1, broken), Part("b", "B", 1000, fine), Part("c", "C", 1, fine)
    report = measured(page, *parts)
    assert states(page) == {"a": "failed", "b": "left out", "c": "done"}
    text = page.read_text()
    assert "**Failed**: RuntimeError: no kernel." in text
    assert "| half | ≥ 1 | 0 | **not met** |" in text
    assert "**Left out**: it takes about 1000 s, and 100 s were left." in text
    assert report.missed(parts) == ["half", "a: failed", "b: left out"]
    assert text.index("## A") < text.index("## B") < text.index("## C")
    assert capsys.readouterr().err.count("Traceback") == 1
    # Another call: what has failed comes after what was left out.
    order = []

    def noted(name):
        return lambda setting, found: order.append((name, dict(setting.figures)))

    measured(page, *(attrs.evolve(part, measure=noted(part.name), seconds=1) for part in parts))
    assert [name for name, _ in order] == ["b", "a"]
    assert order[0][1]["c"] == {"speed": 2.0}
    assert set(states(page).values()) == {"done"}


def test_the_minutes_end_within_a_part_and_a_failure_is_not_forgotten(tmp_path):
    page, last = tmp_path / "gpu.md", Part("b", "B", 1, fine)
    measured(page, Part("a", "A", 0, lambda *_: time.sleep(60)), last, seconds=0.2)
    assert states(page) == {"a": "failed", "b": "left out"}
    assert "OutOfTime: not done at the time limit" in page.read_text()
    measured(page, Part("a", "A", 10, fine), last, seconds=5)  # no time to try again
    assert states(page) == {"a": "failed", "b": "done"}


def test_a_signal_keeps_what_is_done(tmp_path, monkeypatch):
    page, words = tmp_path / "gpu.md", ["--small", "--markdown"]
    stopped = Part("b", "B", 1, lambda *_: os.kill(os.getpid(), signal.SIGTERM) or time.sleep(60))
    monkeypatch.setattr(gpu, "PARTS", (Part("a", "A", 1, fine), stopped))
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit, match="143"):
        gpu.main([*words, str(page)])
    assert states(page) == {"a": "done"}
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.slow
def test_what_was_measured_elsewhere_is_not_gone_on_with(tmp_path, monkeypatch, capsys):
    page = tmp_path / "gpu.md"
    monkeypatch.setattr(gpu, "PARTS", (Part("a", "A", 1, fine),))
    measured(page, *gpu.PARTS, heading="another")
    for text, said in ((None, "device is another, but now"), ("{", "cannot be read"), ("[]", "cannot be read")):
        if text is not None:
            page.with_suffix(".json").write_text(text)
        with pytest.raises(SystemExit, match="2"):
            gpu.main(["--small", "--markdown", str(page)])
        error = capsys.readouterr().err
        assert said in error
        assert "--fresh" in error
    gpu.main(["--small", "--markdown", str(page), "--fresh"])
    assert states(page) == {"a": "done"}
    monkeypatch.setattr(gpu.torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="2"):
        gpu.main([])
    assert "torch finds no GPU; pass --small to run the same checks on a CPU" in capsys.readouterr().err


def test_the_tests_pass_where_one_has(monkeypatch):
    for code, met in ((0, True), (1, False)):
        done = subprocess.CompletedProcess([], code, stdout="FAILED a - b\n7 passed in 2.00s\n")
        monkeypatch.setattr(trainings.subprocess, "run", lambda *_, done=done, **__: done)
        found = Found()
        trainings.waiting_tests(Setting(SMALL, None, "cpu"), found)
        assert found.rows == [("tests that need a GPU", "pass", "7 passed in 2.00s", met)]
        assert found.lines == ["FAILED a - b"]
