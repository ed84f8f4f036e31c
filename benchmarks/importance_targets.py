"""What an importance estimator learns from each target: two short trainings with uniform masking, default corpus.

`was_masked` has its optimum at E_r[p_i(r)], which uniform masking makes 1/2 for
every token: it can learn the mask rate and nothing else. `difficulty` learns
which tokens the denoiser finds hard.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import attrs

from atat_zoo.evaluation.importance import quality
from atat_zoo.evaluation.likelihood import measure
from atat_zoo.evaluation.text import held_out_text
from atat_zoo.experiment import load
from atat_zoo.training import train

TARGETS = ("was_masked", "difficulty")
# E_r[p_i(r)] with p = r, and r uniform on [0, 1].
OPTIMUM = 0.5


def main() -> None:
    """Print what each target taught: order, mean, spread, and the distance from 1/2."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100, help="of each training")
    parser.add_argument("--sequences", type=int, default=512, help="held-out, to measure on")
    parser.add_argument("--draws", type=int, default=4)
    given, _ = parser.parse_known_args(sys.argv[2:])
    rows = [learned(target, given.steps, given.sequences, given.draws) for target in TARGETS]
    width = max(len(name) for row in rows for name in row)
    print(f"  {'target'.ljust(width)}  {'  '.join(name.rjust(12) for name in TARGETS)}")
    for name in rows[0]:
        print(f"  {name.ljust(width)}  {'  '.join(f'{row[name]:12.3f}' for row in rows)}", flush=True)


def learned(target: str, steps: int, sequences: int, draws: int) -> dict[str, float]:
    """Train with a target, and say what the estimator says of held-out text."""
    began = time.perf_counter()
    changed = {
        "target.use": target,
        "masking.use": "uniform",
        "objective.correction": "none",
        "train.steps": steps,
        "schedule.warmup_steps": min(20, steps),
        "evaluation.sequences": 8,
        "evaluation.samples": 0,
    }
    experiment = load("importance_only", [f"{key}={value}" for key, value in changed.items()])
    with tempfile.TemporaryDirectory() as out:
        run = Path(out) / target
        result: Any = train(experiment, run)
        if not result.finished:
            sys.exit(f"the training with {target} was interrupted after step {result.step}")
        model = result.model
        seconds = time.perf_counter() - began
        own: Any = experiment.evaluation
        spec = attrs.evolve(own, sequences=sequences, draws=draws)
        text = held_out_text(model, run, spec.split, spec.sequences)
        counts, maskable = text.counts, text.maskable
    measured = measure(model.module, text.tokens, maskable, spec, seed=experiment.seed)
    found = quality(measured, counts)
    importance = measured.importance
    assert importance is not None
    bands = [band.importance_spearman for band in found.bands]
    return {
        "correlation with held-out loss, Spearman": found.importance_spearman,
        "the same within bands of frequency, mean": sum(bands) / len(bands),
        "correlation of frequency alone": found.frequency_spearman,
        "mean importance": found.mean,
        "spread: its standard deviation over tokens": found.deviation,
        "mean distance from 1/2, the optimum of was_masked": float((importance[maskable] - OPTIMUM).abs().mean()),
        "calibration error against the rank of the loss": found.calibration_error,
        "seconds of the training": seconds,
    }


if __name__ == "__main__":
    main()
