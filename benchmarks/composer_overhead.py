"""The time that Composer and our callbacks add to a step: an actual training run against a bare PyTorch loop."""

from __future__ import annotations

import copy
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from composer import Callback

from atat_zoo.data.build import build
from atat_zoo.data.stream import TokenStream, train_loader
from atat_zoo.experiment import load
from atat_zoo.modeling.objectives import Batch
from atat_zoo.training import train
from atat_zoo.training.memory import compiles
from atat_zoo.training.trainer import compile_objective
from benchmarks.pairs import report

if TYPE_CHECKING:
    from composer import Logger, State

PAIRS, WARMUP = 20, 3


class BareLoop(Callback):
    """A callback that repeats each of Composer's steps on the same batch with a copy of the model in a bare loop."""

    def __init__(self, experiment: Any) -> None:
        self.experiment = experiment
        self.timed: list[tuple[float, float]] = []
        self.resumed = 0.0

    def fit_start(self, state: State, logger: Logger) -> None:
        """Copy the model, and open a separate data loader."""
        spec = self.experiment.train
        zoo_model = state.model
        self.module = copy.deepcopy(zoo_model.objective).train()
        self.bf16 = zoo_model.bf16
        self.device = next(self.module.parameters()).device
        if compiles(spec.compile, self.device):
            compile_objective(self.module)
        self.optimizer = self.experiment.parts["optimizer"].build(self.module)
        self.scheduler = self.experiment.parts["schedule"].build(self.optimizer, spec.steps)
        data, shards = self.experiment.data, build(self.experiment)
        stream = TokenStream(shards, seed=self.experiment.seed, lanes=data.lanes, batch_size=spec.batch_size)
        self.batches = iter(train_loader(stream, workers=data.workers, device=str(self.device)))
        self.resumed = self.now()

    def batch_checkpoint(self, state: State, logger: Logger) -> None:
        """Record how long Composer's step took, and time the bare step."""
        start = self.now()
        composer = start - self.resumed
        self.step(int(state.timestamp.batch) - 1)
        self.resumed = self.now()
        self.timed.append((composer, self.resumed - start))

    def now(self) -> float:
        """Return the time once the device has finished all queued work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def step(self, number: int) -> None:
        """Take one step of a plain training loop: batch, loss, backward, clip, step."""
        spec = self.experiment.train
        batch = {name: each.to(self.device) for name, each in next(self.batches).items()}
        given = Batch(
            tokens=batch["tokens"],
            maskable=batch["maskable"],
            index=batch["index"],
            mean_maskable=batch["maskable"].sum(1).float().mean(),
            progress=number / spec.steps,
        )
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            loss = self.module.loss(given)["loss"]
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), spec.max_grad_norm)
        self.optimizer.step()
        self.scheduler.step()


def main() -> None:
    """Print the ratio of the time of Composer's steps to that of bare steps."""
    with tempfile.TemporaryDirectory() as out:
        experiment = load(
            "quickstart",
            [f"train.steps={PAIRS + WARMUP}", "evaluation.sequences=8", "evaluation.samples=0", "train.ema_decay=0.0"],
        )
        bare = BareLoop(experiment)
        train(experiment, Path(out) / "run", callbacks=[bare])
    report("Composer, our callbacks", "bare loop", bare.timed[WARMUP:])


if __name__ == "__main__":
    main()
