"""What the counts of neighbours cost: step time of `mdlm` at CPU size with and without them."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from atat_zoo.experiment import load
from atat_zoo.modeling.backbones.neighbours import CountTable
from atat_zoo.registry import Context
from atat_zoo.training.memory import keep_freed_memory
from benchmarks.compiled import stepper
from benchmarks.pairs import interleave, report

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

VOCABULARY, SEQUENCES = 2048, 20_000


def step_with(reach: int, text: NDArray[np.int64]) -> Callable[[], None]:
    """Return one training step with counts of so many neighbours on either side."""
    experiment = load("mdlm", [f"backbone.neighbours={reach}"])
    count = partial(CountTable.count, [text], VOCABULARY)
    context = Context(vocabulary_size=VOCABULARY, length=experiment.data.length, count_table=count)
    return stepper(experiment, context, torch.from_numpy(text))[1]


def main() -> None:
    """Print the ratio of step times in interleaved pairs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=20)
    given, _ = parser.parse_known_args()
    keep_freed_memory()
    # Frequencies as in text; which words stand beside each other does not matter here.
    text = np.random.default_rng(0).zipf(1.2, (SEQUENCES, 64)) % VOCABULARY
    report("with counts", "without", interleave(step_with(2, text), step_with(0, text), given.pairs))


if __name__ == "__main__":
    main()
