"""Cost and quality of every named sampler, and of adaptive settings compared with non-adaptive ones."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from benchmarks.baselines import machine, train

# Adaptive settings, and non-adaptive ones to compare with: even steps and the same temperature or nucleus.
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

How fast is each sampler, and how good is its text? Does an adaptive number of tokens per step save decoding steps?

{note}

"""

SAVES = """\
Adaptive samplers, and non-adaptive samplers with even steps and the same temperature. If a non-adaptive sampler is as
good at the same NFE, the saving does not come from adaptivity."""

METHOD = """\

## Method

`make samplers` writes this page. The MDLM baseline (`experiments/baselines/mdlm.toml`) generates, and the
autoregressive baseline is the judge model; {machine}, one thread, precision as trained, seed 0, ± one standard error
over texts. Generative perplexity depends on the temperature, so read it together with the unigram entropy (nats) and
NFE.

## Limits

- One small model and one seed; the judge model is as small as the generator.
{limits}"""


def main() -> None:
    """Print the tables, or write them as Markdown."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=Path, default=Path("runs/baselines"))
    parser.add_argument("--num-samples", type=int, default=192, help="number of texts per named sampler")
    parser.add_argument("--settings", type=int, default=1024, help="number of texts per setting")
    parser.add_argument("--markdown", type=Path, help="Markdown file to write")
    parser.add_argument("--note", default="", help="answer to the questions on the Markdown page")
    parser.add_argument("--limits", default="", help="list items on how the samplers were timed, for the Markdown page")
    given, _ = parser.parse_known_args(sys.argv[2:])
    run, judge = (train(name, given.runs / name) for name in ("mdlm", "autoregressive"))
    own = [word for text in SETTINGS for word in ("--sampler", text)]
    named = bench(run, judge, given.num_samples, capture=given.markdown is not None)
    chosen = bench(run, judge, given.settings, "--steps", "128", *own, capture=given.markdown is not None)
    if given.markdown is not None:
        method = METHOD.format(machine=machine(run), limits=given.limits)
        adaptive = f"## Adaptive and non-adaptive samplers\n\n{SAVES}\n\n{chosen}"
        text = f"{INTRODUCTION.format(note=given.note)}{named}\n{adaptive}{method}"
        given.markdown.write_text(text, encoding="utf-8")


def bench(run: Path, judge: Path, number: int, *words: str, capture: bool) -> str:
    """Run `atat bench samplers` in a separate process, as a user would."""
    command = [sys.executable, "-m", "atat_zoo", "bench", "samplers", str(run), "--judge", str(judge)]
    command += ["--num-samples", str(number), *(["--markdown"] if capture else []), *words]
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE if capture else None).stdout or ""


if __name__ == "__main__":
    main()
