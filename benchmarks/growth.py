"""What one long and many short training runs of the nano model leave behind: memory, open files, threads, processes."""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from composer import Callback

from atat_zoo.experiment import load
from atat_zoo.training import train
from benchmarks.pairs import alone, hold, note, resident

if TYPE_CHECKING:
    from collections.abc import Sequence

    from composer import Logger, State

GROWTH = 1.01  # limit for the memory of a training run


class Resident(Callback):
    """A callback that records the bytes in memory after certain steps."""

    def __init__(self, *steps: int) -> None:
        self.steps, self.seen = steps, list[int]()

    def batch_end(self, state: State, logger: Logger) -> None:
        """Record the bytes in memory; Composer has not counted this step yet."""
        if int(state.timestamp.batch) + 1 in self.steps:
            gc.collect()
            self.seen.append(resident())


def trained(steps: int, folder: Path, *callbacks: Callback) -> None:
    """Train a nano model for a number of steps with eight sequences each."""
    small = {"train.steps": steps, "train.batch_size": 8, "train.save_every": steps, "train.evaluate_every": 0}
    quiet = {"evaluation.sequences": 8, "evaluation.samples": 0, "backbone.ngram_prior": 0, "data.workers": 1}
    train(load("mdlm", [f"{key}={value}" for key, value in {**small, **quiet}.items()]), folder, callbacks=[*callbacks])


def left() -> dict[str, int]:
    """Return the numbers of open files, threads and processes."""
    return {
        "open files": len(list(Path("/proc/self/fd").iterdir())),
        "threads": threading.active_count(),
        "processes": len(multiprocessing.active_children()),
        "temporary files": len(list(Path(tempfile.gettempdir()).iterdir())),
    }


def between(steps: Sequence[int]) -> tuple[int, int]:
    """Return the bytes in memory after each of two numbers of steps in one training run."""
    memory = Resident(*steps)
    with tempfile.TemporaryDirectory() as out:
        trained(steps[1], Path(out) / "long", memory)
    early, late = memory.seen
    return early, late


def after(runs: int) -> tuple[dict[str, int], dict[str, int]]:
    """Return what is left after one training run of two steps, and after a number of further runs."""
    before: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as out:
        tempfile.tempdir = str(Path(out) / "tmp")
        Path(tempfile.tempdir).mkdir()
        # The first run opens what stays open: sockets of the process group, worker pools, lazily loaded libraries.
        for number in range(runs + 1):
            trained(2, Path(out) / str(number))
            before = before or left() | {"memory": resident()}
        gc.collect()
        return before, left() | {"memory": resident()}


def main() -> None:
    """Print the growth between two steps of a training run, and what many training runs of two steps leave behind."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, nargs=2, default=(500, 2500))
    parser.add_argument("--runs", type=int, default=50)
    given, _ = parser.parse_known_args()
    # Each runs in a separate process, because memory left by other benchmarks would hide the growth.
    early, late = alone(between, given.steps)
    print(f"  after {given.steps[0]} steps {early / 2**20:.1f} MiB, after {given.steps[1]} {late / 2**20:.1f} MiB")
    print(f"  growth: {100 * (late / early - 1):+.2f} %", flush=True)
    note(f"memory after {given.steps[1]} steps / after {given.steps[0]}", [late / early])
    one, more = alone(after, given.runs)
    for name, count in more.items():
        shown = [f"{each / 2**20:.0f} MiB" if name == "memory" else str(each) for each in (one[name], count)]
        print(f"  {name:16s} after one run {shown[0]}, after {given.runs} more {shown[1]}")
    note(f"memory after {given.runs} more runs / after one", [more["memory"] / one["memory"]])
    hold([(f"memory after {given.steps[1]} steps / after {given.steps[0]}", late / early, GROWTH)])


if __name__ == "__main__":
    main()
