"""The suites of optimizers, schedules, loggers, callbacks and algorithms find what is broken, and name it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from composer import Algorithm, Callback, Event
from composer.loggers import LoggerDestination
from torch.optim.lr_scheduler import LambdaLR

from atat_zoo import testing
from atat_zoo.training.optimizers import AdamWOptimizer


class Built:
    """A part whose `build` is given."""

    def __init__(self, build: Any) -> None:
        self.build = build


def adam(parameters: Any, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, **{"lr": 1e-2} | options)


class Forgetful(torch.optim.Adam):
    """Has a state that it does not save."""

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"state": {}}


class Ordered(torch.optim.SGD):
    """Steps its first parameter further than the others."""

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        with torch.no_grad():
            self.param_groups[0]["params"][0].mul_(0.99)
        return loss


OPTIMIZERS = {
    "every parameter is in a group": lambda model: adam(list(model.linear.parameters())[:1]),
    "a frozen parameter is in no group": lambda model: adam(list(model.parameters())),
    "it lowers a convex loss": lambda model: adam(model.linear.parameters(), maximize=True),
    "every parameter moves": lambda model: adam(
        [{"params": [model.linear.weight]}, {"params": [model.linear.bias], "lr": 1e-30}]
    ),
    "state_dict continues bit for bit": lambda model: Forgetful(model.linear.parameters(), lr=1e-2),
    "whatever the order of the parameters": lambda model: Ordered(model.linear.parameters(), lr=1e-2),
}
SCHEDULES = {
    "the rate is finite": lambda done: float("nan"),
    "the rate is not negative": lambda done: 0.5 - done,
    "the rate is at most its peak": lambda done: 1 + done,
    "some step of the training has a rate above 0": lambda done: 0.0,
}


@pytest.mark.parametrize("words", OPTIMIZERS)
def test_a_broken_optimizer_is_named(words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        testing.check_optimizer(Built(OPTIMIZERS[words]))


@pytest.mark.parametrize("words", SCHEDULES)
def test_a_broken_schedule_is_named(words: str) -> None:
    def build(optimizer: Any, steps: int) -> Any:
        return LambdaLR(optimizer, lambda step: SCHEDULES[words](min(1.0, step / steps)))

    with pytest.raises(AssertionError, match=words):
        testing.check_schedule(Built(build))


def test_a_schedule_with_a_memory_that_is_not_saved_is_named() -> None:
    def build(optimizer: Any, steps: int) -> Any:
        seen: list[int] = []

        def rate(step: int) -> float:
            seen.append(step)
            return 1 / len(seen)

        return torch.optim.lr_scheduler.LambdaLR(optimizer, rate)

    with pytest.raises(AssertionError, match=r"state_dict continues exactly|same share of its peak"):
        testing.check_schedule(Built(build))


def test_a_logger_that_writes_over_its_file_is_named() -> None:
    class Over(LoggerDestination):
        def __init__(self, folder: Any) -> None:
            self.path = folder / "log"

        def fit_end(self, state: Any, logger: Any) -> None:
            self.path.write_text("a" if not self.path.exists() else "b")

    with pytest.raises(AssertionError, match="leaves what was logged before"):
        testing.check_logger(Built(Over))


def test_a_callback_that_changes_what_is_learned_is_named() -> None:
    class Meddles(Callback):
        def batch_end(self, state: Any, logger: Any) -> None:
            with torch.no_grad():
                next(state.model.parameters()).mul_(0.5)

    with pytest.raises(AssertionError, match="does not change what is learned"):
        testing.check_callback(Built(Meddles))


def test_an_algorithm_that_draws_from_elsewhere_is_named() -> None:
    elsewhere = torch.Generator()

    class Noisy(Algorithm):
        def match(self, event: Any, state: Any) -> bool:
            return event == Event.BATCH_END

        def apply(self, event: Any, state: Any, logger: Any) -> None:
            with torch.no_grad():
                next(state.model.parameters()).add_(torch.randn(1, generator=elsewhere))

    with pytest.raises(AssertionError, match="two trainings with one seed"):
        testing.check_algorithm(Built(Noisy))


def test_ours_pass() -> None:
    testing.check_optimizer(AdamWOptimizer(weight_decay=0.1))
