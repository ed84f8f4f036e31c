"""All checks that need a GPU, written to a page: correctness first, then speed, memory, sampling, tests and training.

The networks are those of owt-small (12 × 768, length 1024, 50,257 tokens, bf16, compiled), on randomly drawn words, so
nothing is downloaded. Each row is written to docs/results/gpu.md and a JSON file once it is measured; another call
measures the parts that are missing or failed. `--small` runs the same checks with a tiny network on a CPU.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from benchmarks.gpu import correct, sampling, steps, trainings
from benchmarks.gpu.measured import Part, Report
from benchmarks.gpu.setting import SMALL, Setting, Size, heading, revision
from benchmarks.pairs import RATIOS

if TYPE_CHECKING:
    from collections.abc import Sequence

# In order of importance.
PARTS = (
    Part("correct", "Losses, random numbers and texts equal those of a CPU", 70, correct.measure),
    Part("resumed", "A killed training run resumes with the same losses", 80, correct.resumed),
    Part("steps", "Time of a training step", 140, steps.measure),
    Part("trainings", "Training speed: bare loop, utilisation, cost of ATAT", 180, trainings.measure),
    Part("memory", "Memory", 40, steps.memory),
    Part("sampling", "Sampling", 60, sampling.measure),
    Part("blocks", "FlexAttention equals dense masks", 80, correct.blocks),
    Part("objectives", "Training step of objectives with an attention mask", 120, steps.objectives),
    Part("tests", "Tests that need a GPU", 30, trainings.waiting_tests),
    Part("long", "Training for the remaining time", 40, trainings.long),
)


def main(words: Sequence[str] | None = None) -> None:
    """Measure the missing parts within the time limit; on a GPU, fail if a requirement or a part is missed."""
    parser = argparse.ArgumentParser(prog="gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=9.0, help="time limit; a part that does not fit is left out")
    parser.add_argument("--fresh", action="store_true", help="measure everything again")
    parser.add_argument("--small", action="store_true", help="run a tiny network on a CPU; its numbers mean nothing")
    parser.add_argument("--markdown", type=Path, help="page to write (default: docs/results/gpu.md, none with --small)")
    parser.add_argument("--tests", nargs="*", default=[], help="files of GPU tests to run (default: all)")
    parser.add_argument(
        "--text", nargs="*", default=[], metavar="KEY=VALUE", help="corpus and tokenizer for the final training run"
    )
    given = parser.parse_args(sys.argv[2:] if words is None else words)
    if not given.small and not torch.cuda.is_available():
        parser.error("torch finds no GPU; pass --small to run the same checks on a CPU")
    path = given.markdown or (None if given.small else trainings.ROOT / "docs" / "results" / "gpu.md")
    size, device = (SMALL, "cpu") if given.small else (Size(), "cuda:0")
    # Of which cuBLAS asks where a GPU has to sum in a certain order; on an H100 it is the default.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # What stops it, stops it as Ctrl-C does: the rows of a part that runs are kept, and the folder is removed.
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with tempfile.TemporaryDirectory() as folder:
            setting = Setting(size, Path(folder), device, tests=given.tests, text=given.text)
            report = Report(heading(setting), revision(), path)
            if not given.fresh:
                try:
                    report.go_on()
                except ValueError as error:
                    parser.error(str(error))
            report.measure(PARTS, setting, 60 * given.minutes)
    finally:
        signal.signal(signal.SIGTERM, before)
    if given.small:
        RATIOS.clear()  # no ratio to record
    elif missed := report.missed(PARTS):
        sys.exit("; ".join(missed))
