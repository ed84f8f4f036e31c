"""The gain from a second process: seconds of the same training run with Composer's launcher on 2 ranks against 1."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.pairs import options, report


def seconds_of_a_step(ranks: int, steps: int, run: Path) -> float:
    """Train the quickstart with one thread per rank, and return the seconds per step in the last half of the steps."""
    settings = [
        f"train.steps={steps}",
        f"train.log_every={steps // 2}",
        "evaluation.sequences=8",
        "evaluation.samples=0",
    ]
    words = ["-n", str(ranks), "-m", "atat_zoo.train", "quickstart", "--out", str(run), *settings]
    subprocess.run(
        [sys.executable, "-m", "composer.cli.launcher", *words],
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return (lines[-1]["tokens"] - lines[-2]["tokens"]) / (steps // 2) / lines[-1]["tokens_per_second"]


def main() -> None:
    """Print the ratio; one half is the best ratio that two cores with one thread each can reach."""
    given = options(pairs=3, steps=20)
    with tempfile.TemporaryDirectory() as out:

        def measured(ranks: int, number: int) -> float:
            return seconds_of_a_step(ranks, given.steps, Path(out) / f"{ranks}-{number}")

        report("2 ranks", "1 rank", [(measured(2, i), measured(1, i)) for i in range(given.pairs)])
