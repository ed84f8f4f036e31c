"""Progress on a terminal."""

from __future__ import annotations

import pytest

from atat_zoo.cli.console import Bars


@pytest.fixture
def bars(monkeypatch):
    monkeypatch.setattr("atat_zoo.cli.console.on_terminal", lambda: True)
    with Bars(silent=False) as bars:
        yield bars


def test_what_has_no_known_length_has_ended_where_something_else_begins(bars):
    for done in (1, 5):
        bars.building("validation", done, None)
    (validation,) = bars.progress.tasks
    assert not validation.finished
    bars.building("test", 1, None)
    assert [task.finished for task in bars.progress.tasks] == [True, False]
    assert validation.total == 5


@pytest.mark.parametrize(("stage", "said"), [("easy", "  easy"), ("none", ""), ("train", "")])
def test_a_stage_is_said_where_there_is_a_curriculum(bars, stage, said):
    bars.training(1, 2, {"loss": 2.5, "tokens_per_second": 1000.0, "stage": stage})
    assert bars.progress.tasks[0].fields["note"] == f"loss 2.500  1,000 tokens/s{said}"
