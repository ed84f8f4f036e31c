"""Every objective on the default corpus at CPU size with the same number of steps: train missing runs, compare all."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

# The others are compared with the first one.
BASELINES = (
    "mdlm",
    "autoregressive",
    "strided",
    "block",
    "sedd",
    "d3pm",
    "mlm",
    "adaptive_position",
    "adaptive_importance",
)
# Other settings: run -> baseline and overrides. The seeds show how far two runs of one experiment differ.
SETTINGS = {
    "mdlm-seed18": ("mdlm", "seed=18"),
    "mdlm-no-local-heads": ("mdlm", "backbone.local_heads=0"),
    "mdlm-four-local-heads": ("mdlm", "backbone.local_heads=4"),
    "block_2": ("block", "objective.block_size=2"),
    "block_4": ("block_4",),
    "block_16": ("block", "objective.block_size=16"),
    "strided-8": ("strided", "objective.stride=8", "sampler.stride=8"),
    "strided-32": ("strided", "objective.stride=32", "sampler.stride=32"),
    "adaptive_position-bound": ("adaptive_position", "objective.weight=bound"),
    "adaptive_position-strength8": ("adaptive_position", "objective.strength=8.0"),
}

INTRODUCTION = """\
# Baselines

How do published objectives compare with the same network, data, optimizer and number of training steps?

{note}

"""

METHOD = """\

## Method

`make baselines` writes this page from `experiments/baselines/`: every objective with the same network, stream,
optimizer and {steps} steps ({tokens} tokens), seed 17, on the default corpus; {machine}, {threads}, {precision},
torch {torch}.

"Perplexity" is the any-order ELBO, an upper bound, for all objectives but two: for `autoregressive` it is left to right
and exact, and for `block` it is the ELBO of blocks from left to right. The bounds of SEDD, D3PM and `adaptive` under
their own processes have separate columns.

## Limits

- Each row is one training run; "Other settings" shows how much two seeds of the same experiment differ.
- The baselines follow their papers and have no n-gram prior (`backbone.ngram_prior = 0`): their perplexity is about
  twice that of [the study](study.md#which-perplexity-is-which), whose networks have one.
{limits}"""


def main() -> None:
    """Print the tables or write them as Markdown; finished runs are not trained again, and interrupted ones resume."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=Path, default=Path("runs/baselines"))
    parser.add_argument("--only", nargs="*", default=BASELINES, choices=BASELINES)
    parser.add_argument("--all", action="store_true", help="also train the other settings")
    parser.add_argument("--mask-samples", type=int, default=8)
    parser.add_argument("--markdown", type=Path, help="Markdown file to write")
    parser.add_argument("--note", default="", help="answer to the question on the Markdown page")
    parser.add_argument("--limits", default="", help="list item about the training runs, for the Markdown page")
    given, _ = parser.parse_known_args(sys.argv[2:])
    runs = [train(name, given.runs / name) for name in given.only]
    others = [train(name, given.runs / run, *overrides) for run, (name, *overrides) in SETTINGS.items() if given.all]
    tables = [runs, [runs[0], *others]] if others else [runs]
    wanted = [["compare", *map(str, table), "--mask-samples", str(given.mask_samples)] for table in tables]
    if given.markdown is None:
        for words in wanted:
            atat(*words)
        return
    text = "\n## Other settings\n\n".join(atat(*words, "--markdown", capture=True) for words in wanted)
    about = {"note": given.note, "limits": given.limits, **trained(runs[0])}
    given.markdown.write_text(INTRODUCTION.format(**about) + text + METHOD.format(**about), encoding="utf-8")


def trained(run: Path) -> dict[str, str]:
    """Return how long and on which machine a run was trained."""
    said = json.loads((run / "environment.json").read_text())
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    threads = said["machine"]["threads"]
    return {
        "steps": last["step"],
        "tokens": f"{last['tokens']:,}",
        "machine": machine(run),
        "threads": f"{threads} thread per training run" if threads else "all cores",
        "precision": said["computes"]["precision"],
        "torch": said["packages"]["torch"],
    }


def machine(run: Path) -> str:
    """Return a description of the machine on which a run was trained."""
    said = json.loads((run / "environment.json").read_text())["machine"]
    return f"{said['cores']} cores of {said['processor']}"


def train(name: str, run: Path, *overrides: str) -> Path:
    """Train a baseline or resume an interrupted one, and return its folder."""
    if (run / "model" / "model.json").is_file():
        return run
    begun = (run / "resolved.toml").is_file()
    atat("train", *(["--resume", str(run)] if begun else [f"baselines/{name}", *overrides, "--out", str(run)]))
    return run


def atat(*words: str, capture: bool = False) -> str:
    """Run `atat` in a separate process, as a user would."""
    done = subprocess.run(
        [sys.executable, "-m", "atat_zoo", *words], check=True, text=True, stdout=subprocess.PIPE if capture else None
    )
    return done.stdout or ""


def trained_model(run: Path, experiment: str, *settings: str) -> Any:
    """Return the model of a run, which is trained first if it does not exist or is not finished."""
    from atat_zoo.generation.model import Model

    if not (run / "model" / "model.json").is_file():
        begun = (run / "resolved.toml").is_file()
        atat("train", *(["--resume", str(run)] if begun else [experiment, *settings, "--out", str(run)]))
    return Model.from_run(run)


if __name__ == "__main__":
    main()
