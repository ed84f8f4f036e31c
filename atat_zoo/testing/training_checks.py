"""Checks of optimizers, schedules, loggers, callbacks and algorithms."""

import copy
import math
import os
import tempfile
import unittest
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader

from atat_zoo.testing.batches import for_examples


class Bowl(nn.Module):
    """A convex loss of a matrix and a vector: the squared error of a linear map on 8 rows."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.linear = nn.Linear(4, 3)
        for parameter in self.linear.parameters():
            nn.init.normal_(parameter, generator=generator)
        self.inputs = torch.randn(8, 4, generator=generator)
        self.wanted = torch.randn(8, 3, generator=generator)

    def forward(self) -> torch.Tensor:
        """Return the loss."""
        return (self.linear(self.inputs) - self.wanted).square().mean()


def step(model: Bowl, optimizer: torch.optim.Optimizer, steps: int = 1) -> None:
    """Take optimizer steps with a closure that clears the gradients, as some trainers do."""

    def closure() -> float:
        optimizer.zero_grad()
        loss = model()
        loss.backward()
        return float(loss.detach())

    for _ in range(steps):
        optimizer.step(closure)


def check_optimizer(optimizer: Any, examples: int = 20) -> None:
    """Check the contract of an optimizer: its parameter groups, a falling loss, and resuming from its state."""
    installed(optimizer)

    @for_examples(examples, seed=st.integers(0, 2**32 - 1))
    def holds(seed: int) -> None:
        model = Bowl(seed)
        model.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        made = optimizer.build(model)
        listed = [p for group in made.param_groups for p in group["params"]]
        assert len(listed) == len({id(p) for p in listed}), "a parameter must be in only one group"
        assert all(p.requires_grad for p in listed), "a frozen parameter must not be in a group"
        assert {id(p) for p in listed} == {id(p) for p in model.linear.parameters()}, (
            "every trained parameter must be in a group"
        )
        assert all(group["lr"] > 0 for group in made.param_groups), "the learning rate of a group must be above 0"
        before = [p.detach().clone() for p in listed]
        first = float(model().detach())
        step(model, made, 20)
        assert all(not torch.equal(a, b) for a, b in zip(before, listed, strict=True)), (
            "every trained parameter must change within 20 steps"
        )
        assert float(model().detach()) < first, "the optimizer must lower a convex loss within 20 steps"

        resumed = copy.deepcopy(model)
        other = optimizer.build(resumed)
        other.load_state_dict(copy.deepcopy(made.state_dict()))
        step(model, made, 3)
        step(resumed, other, 3)
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter, resumed.get_parameter(name)), (
                "state_dict() must restore the optimizer bit for bit"
            )

        straight, turned = Bowl(seed), Bowl(seed)
        turned.linear._parameters = dict(reversed(turned.linear._parameters.items()))
        for network in (straight, turned):
            step(network, optimizer.build(network), 3)
        for name, parameter in straight.named_parameters():
            same = torch.equal(parameter, turned.get_parameter(name))
            assert same, f"the update of {name} must not depend on the order of the parameters"


def check_schedule(schedule: Any, examples: int = 10) -> None:
    """Check the contract of a schedule: learning rates between 0 and each group's peak, and exact resuming."""
    installed(schedule)

    @for_examples(examples, steps=st.integers(1, 60), cut=st.integers(0, 60))
    def holds(steps: int, cut: int) -> None:
        rates, _ = _rates(schedule, steps)
        for at, (rate, quarter) in enumerate(rates):
            assert math.isfinite(rate), f"the learning rate must be finite at step {at} of {steps}"
            assert rate >= 0, f"the learning rate must not be negative at step {at} of {steps}"
            assert rate <= 1 + 1e-9, f"the learning rate must be at most its peak at step {at} of {steps}"
            assert math.isclose(quarter, rate / 4, rel_tol=1e-9), (
                "every group must have the same fraction of its peak learning rate"
            )
        assert any(rate > 0 for rate, _ in rates[:-1]), "at least one training step must have a learning rate above 0"
        cut = min(cut, steps)
        _, state = _rates(schedule, steps, to=cut)
        continued, _ = _rates(schedule, steps, state=state)
        assert continued == rates[cut:], "state_dict() must restore the schedule exactly"


def _rates(schedule: Any, steps: int, to: int | None = None, state: Any = None) -> tuple[list[list[float]], Any]:
    """Return the learning rates of two groups with peaks 1 and 1/4 at each step from `state` to `to`, and the state."""
    groups = [{"params": [nn.Parameter(torch.zeros(1))], "lr": rate} for rate in (1.0, 0.25)]
    optimizer = torch.optim.SGD(groups)
    made = schedule.build(optimizer, steps)
    if state:
        optimizer.load_state_dict(state[0])
        made.load_state_dict(state[1])
    rates = [made.get_last_lr()]
    for _ in range(made.last_epoch, steps if to is None else to):
        optimizer.step()
        made.step()
        rates.append(made.get_last_lr())
    return rates, copy.deepcopy((optimizer.state_dict(), made.state_dict()))


def check_logger(logger: Any) -> None:
    """Check the contract of a logger: it logs metrics and closes, and resuming a run keeps the earlier log."""
    installed(logger)
    # Nothing is sent to a server.
    with tempfile.TemporaryDirectory() as name, mock.patch.dict(os.environ, {"WANDB_MODE": "offline"}):
        for _ in range(2):
            before = _contents(Path(name))
            _train(loggers=[logger.build(Path(name))])
            after = _contents(Path(name))
            for path, content in before.items():
                assert after.get(path, b"").startswith(content), "a resumed run must keep the earlier log"


def check_callback(callback: Any) -> None:
    """Check the contract of a callback: training with it gives the same weights, and its state can be restored."""
    installed(callback)
    made = callback.build()
    assert torch.equal(_train((made,)), _train()), "a callback must not change the trained weights"
    other = callback.build()
    other.load_state_dict(copy.deepcopy(made.state_dict()))
    _train((other,))


def check_algorithm(algorithm: Any) -> None:
    """Check the contract of an algorithm: training with it gives finite weights, which are the same each time."""
    installed(algorithm)
    one, two = (_train(algorithms=[algorithm.build()]) for _ in range(2))
    assert bool(one.isfinite().all()), "the trained weights must be finite"
    assert torch.equal(one, two), "two training runs with the same seed must give the same weights"


def installed(part: Any) -> None:
    """Raise `unittest.SkipTest` if the optional package of a component is not installed."""
    package = getattr(part, "package", None)
    if package and find_spec(package[0]) is None:
        raise unittest.SkipTest(f"needs {package[1]}")


def _contents(folder: Path) -> dict[str, bytes]:
    # A link, for example to the newest of several logs, may change.
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def _train(callbacks: tuple[Any, ...] = (), **parts: Any) -> torch.Tensor:
    """Train a `Bowl` for 4 steps with Composer while logging metrics, and return its weights."""
    from composer import Callback, Trainer
    from composer.models import ComposerModel

    class TinyModel(ComposerModel):
        def __init__(self) -> None:
            super().__init__()
            self.bowl = Bowl()

        def forward(self, batch: Any) -> Any:
            return self.bowl()

        def loss(self, outputs: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
            return outputs

    class Tells(Callback):
        def batch_end(self, state: Any, logger: Any) -> None:
            logger.log_metrics({"train/loss": 0.5, "train/stage/easy": 1})

    model = TinyModel()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Composer warns about features that a CPU lacks
        trainer = Trainer(
            model=model,
            train_dataloader=DataLoader([torch.zeros(1)] * 8, batch_size=2),  # type: ignore[arg-type]
            optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
            max_duration="4ba",
            device="cpu",
            progress_bar=False,
            seed=1,
            callbacks=[Tells(), *callbacks],
            **parts,
        )
        trainer.fit()
        trainer.close()
    return torch.cat([p.detach().flatten() for p in model.parameters()])
