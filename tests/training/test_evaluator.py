"""The evaluation of a training over several ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from atat_zoo.experiment import load
from atat_zoo.training import evaluator
from atat_zoo.training.evaluator import Evaluator

if TYPE_CHECKING:
    import pytest


def test_what_is_not_the_networks_work_is_done_on_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    def gave(made: list[Any]) -> None:
        made[0] = "what rank 0 found"

    ranks = {"get_global_rank": lambda: 1, "get_world_size": lambda: 2, "all_gather_object": lambda mine: [mine] * 2}
    monkeypatch.setattr(evaluator, "dist", SimpleNamespace(**ranks, broadcast_object_list=gave))
    measured: list[Any] = []
    monkeypatch.setattr(evaluator, "measure", lambda objective, tokens, *rest, **how: measured.append(len(tokens)))
    monkeypatch.setattr(evaluator, "summarise", None)  # decodes the text and ranks its tokens: not here
    made = object.__new__(Evaluator)
    made.experiment, made.objective, made.average, made.sequences = load("mdlm"), None, None, 5
    made.tokens, made.maskable = torch.zeros(9, 8, dtype=torch.int64), torch.ones(9, 8, dtype=torch.bool)
    assert [made(3), made(3, final=False)] == ["what rank 0 found"] * 2
    assert measured == [4, 2]
