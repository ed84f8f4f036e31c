"""Every named sampler, and settings that adapt beside some that do not: what they cost and what comes of them."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from benchmarks.baselines import machine, train

# What adapts, and what it must be held against: even steps, and a draw that is as cool without looking.
COOL = "draw = {use = 'categorical', temperature = 0.98}"
SETTINGS = (
    "{use = 'confidence_history', steps = 24}",
    f"{{use = 'combination', tokens_per_step = {{use = 'entropy_bounded', gamma = 12.0}}, {COOL}}}",
    f"{{use = 'combination', tokens_per_step = {{use = 'adaptive', min_steps = 8, max_steps = 32}}, {COOL}}}",
    "{use = 'remdm_conf', steps = 16}",
    f"{{use = 'combination', tokens_per_step = {{use = 'fixed', steps = 24}}, {COOL}}}",
    "{use = 'combination', tokens_per_step = {use = 'fixed', steps = 16}, token_sampling = {use = 'nucleus', top_p = "
    "0.9}}",
    "{use = 'ancestral', steps = 128, temperature = 0.98}",
)

INTRODUCTION = """\
# Samplers

Written by `make samplers`: the MDLM baseline (`experiments/baselines/mdlm.toml`) writes, the autoregressive one
judges; {machine}, one thread, precision as trained, seed 0, ± one standard error over texts.

{note}

"""

SAVES = """\
Adaptive samplers beside non-adaptive ones: even steps, and the same cooling at every step. Where the latter are as good
in as many evaluations, the saving does not come from adapting."""


def main() -> None:
    """Print the tables, or write them as Markdown."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=Path, default=Path("runs/baselines"))
    parser.add_argument("--num-samples", type=int, default=192, help="texts of every named sampler")
    parser.add_argument("--settings", type=int, default=1024, help="texts of every setting")
    parser.add_argument("--markdown", type=Path, help="a file to write the tables into")
    parser.add_argument("--note", default="", help="what is to be said of the numbers, for the file")
    given, _ = parser.parse_known_args(sys.argv[2:])
    run, judge = (train(name, given.runs / name) for name in ("mdlm", "autoregressive"))
    own = [word for text in SETTINGS for word in ("--sampler", text)]
    named = bench(run, judge, given.num_samples, capture=given.markdown is not None)
    chosen = bench(run, judge, given.settings, "--steps", "128", *own, capture=given.markdown is not None)
    if given.markdown is not None:
        introduction = INTRODUCTION.format(machine=machine(run), note=given.note)
        text = f"{introduction}{named}\n## What adapting saves\n\n{SAVES}\n\n{chosen}"
        given.markdown.write_text(text, encoding="utf-8")


def bench(run: Path, judge: Path, number: int, *words: str, capture: bool) -> str:
    """Run `atat bench samplers` in a process of its own, as a person would."""
    command = [sys.executable, "-m", "atat_zoo", "bench", "samplers", str(run), "--judge", str(judge)]
    command += ["--num-samples", str(number), *(["--markdown"] if capture else []), *words]
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE if capture else None).stdout or ""


if __name__ == "__main__":
    main()
