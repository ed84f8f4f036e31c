"""Fine-tuning on 1,000 sequences: masks from learned importance against uniform masks.

The sequences are from a later period than the source model's; `--small` selects another corpus.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from pathlib import Path
from typing import Any

import attrs
import torch

from atat_zoo.evaluation.held_out_text import held_out_text
from atat_zoo.evaluation.likelihood import measure as measure_likelihood
from atat_zoo.evaluation.results.format import change
from atat_zoo.evaluation.results.intervals import paired
from atat_zoo.generation.model import Model
from benchmarks.baselines import atat

SEEDS = (17, 18, 19)
# Training runs on the small corpus: name -> experiment, and whether the run starts from the source's weights.
METHODS = {"uniform": ("mdlm", True), "importance": ("importance", True), "scratch": ("mdlm", False)}
WORDS = {
    "source": "the source, not fine-tuned",
    "scratch": "from scratch, uniform masking",
    "uniform": "fine-tuned, uniform masking",
    "importance": "fine-tuned, learned importance",
}


@attrs.frozen(kw_only=True)
class Measurement:
    """The evaluation of a model on the test split of the small corpus.

    Attributes:
        nats: NLL of each sequence, float64 [n].
        count: Number of tokens in each sequence, int64 [n].
    """

    nats: torch.Tensor
    count: torch.Tensor

    @property
    def perplexity(self) -> float:
        return math.exp(float(self.nats.sum() / self.count.sum()))


def main() -> None:
    """Print the table.

    Finished runs are not trained again, and interrupted runs resume.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=Path, default=Path("runs/finetuning"))
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--sequences", type=int, default=1024, help="number of test sequences")
    parser.add_argument("--mask-samples", type=int, default=4)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="overrides for every training run")
    parser.add_argument(
        "--small", nargs="*", default=[], metavar="KEY=VALUE", help="overrides for the runs on the small corpus"
    )
    given, _ = parser.parse_known_args(sys.argv[2:])
    source = train("source", given.runs / "source", *given.set)
    runs = {
        method: [
            tuned(
                source, experiment, continues, given.runs / f"{method}-{seed}", f"seed={seed}", *given.set, *given.small
            )
            for seed in given.seeds
        ]
        for method, (experiment, continues) in METHODS.items()
    }
    measured = measure(source, runs, given.sequences, given.mask_samples)
    print("\n".join([*table(measured, given.seeds), *differences(measured)]), flush=True)


def tuned(source: Path, experiment: str, continues: bool, run: Path, *overrides: str) -> Path:
    """Train on the small corpus with the source's tokenizer and, if `continues`, from the source's weights."""
    if continues:
        return train(experiment, run, f"init_from={source}", *overrides)
    return train(experiment, run, "tokenizer.use=run", f"tokenizer.path={source}", *overrides)


def train(name: str, run: Path, *overrides: str) -> Path:
    """Train an experiment or resume an interrupted run, and return the run's folder."""
    if (run / "model" / "model.json").is_file():
        return run
    begun = (run / "resolved.toml").is_file()
    atat("train", *(["--resume", str(run)] if begun else [f"finetuning/{name}", *overrides, "--out", str(run)]))
    return run


def measure(source: Path, runs: dict[str, list[Path]], sequences: int, draws: int) -> dict[str, list[Measurement]]:
    """Evaluate the source and every run on the small corpus's test split with the same masks."""
    first = runs["uniform"][0]
    model = Model.from_run(first)
    own: Any = model.experiment.evaluation
    spec = attrs.evolve(own, split="test", sequences=sequences, mask_samples=draws)
    text = held_out_text(model, first, "test", sequences)
    tokens, maskable = text.tokens, text.maskable

    def of(run: Path) -> Measurement:
        found = measure_likelihood(Model.from_run(run).module, tokens, maskable, spec, seed=0)
        (nats,) = found.contribution.values()
        return Measurement(nats=nats.sum(1), count=text.counted.sum(1))

    return {"source": [of(source)], **{method: [of(run) for run in each] for method, each in runs.items()}}


def table(measured: dict[str, list[Measurement]], seeds: list[int]) -> list[str]:
    """Return table rows with each method's perplexities, their mean and their standard deviation over seeds."""
    lines = [
        f"| perplexity (any-order ELBO) | {' | '.join(f'seed {seed}' for seed in seeds)} | mean | standard deviation |",
        "|---|" + "--:|" * (len(seeds) + 2),
    ]
    for name, words in WORDS.items():
        found = [one.perplexity for one in measured[name]]
        if name == "source":
            cells = [*["" for _ in seeds], f"{found[0]:.2f}", ""]
        else:
            spread = f"{statistics.stdev(found):.2f}" if len(found) > 1 else ""
            cells = [*(f"{value:.2f}" for value in found), f"{statistics.mean(found):.2f}", spread]
        lines.append(f"| {words} | {' | '.join(cells)} |")
    return lines


def differences(measured: dict[str, list[Measurement]]) -> list[str]:
    """Return two rows with the difference between importance-based and uniform masks: per seed and over all seeds."""
    pairs = list(zip(measured["importance"], measured["uniform"], strict=True))
    rows = [(one.nats, other.nats) for one, other in pairs]
    means = [torch.stack([one.nats for one in measured[name]]).mean(0) for name in ("importance", "uniform")]
    found = [paired(a, b, pairs[0][0].count) for a, b in [*rows, (means[0], means[1])]]
    nats = [f"{each.value:+.4f} [{each.low:+.4f}, {each.high:+.4f}]" for each in found]
    shares = [change(each.to_table()) for each in found]
    spread = f"{statistics.stdev(each.value for each in found[:-1]):.4f}" if len(rows) > 1 else ""
    against = "learned importance against uniform masking"
    return [
        f"| {against}, nats per token | {' | '.join([*nats, spread])} |",
        f"| {against}, perplexity | {' | '.join([*shares, ''])} |",
    ]


if __name__ == "__main__":
    main()
