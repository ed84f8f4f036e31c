"""Estimated training cost from 125M on one GPU to 6.7B on 128 GPUs: memory, tokens/s, disk, hours, dollars."""

from __future__ import annotations

import argparse
import itertools
import sys
from typing import TYPE_CHECKING

import attrs

from atat_zoo.experiment import load
from atat_zoo.modeling.backbones.dit import DiTBackbone
from atat_zoo.training.cost import PEAKS, checkpoint_size, cost, memory

if TYPE_CHECKING:
    from collections.abc import Sequence

VOCABULARY, LENGTH, RECIPE = 50_257, 1024, "owt-small/mdlm"
# Vocabulary size at each size, and the experiments there.
SIZES = {
    "text8": 27,
    "lm1b": 30_522,
    "wikitext103": 50_257,
    "owt-8x256": 50_257,
    "owt-12x512": 50_257,
    "owt-small": 50_257,
}
REPORT = ("documented_short", "documented", "autoregressive", "block")
# Preset, number of GPUs, sequences at once on each GPU, whether weights and optimizer state are sharded.
PLANS = (
    ("small", 1, 32, False),
    ("small", 8, 32, False),
    ("medium", 8, 32, False),
    ("medium", 16, 32, False),
    ("large", 16, 16, False),
    ("large", 32, 16, False),
    ("xl", 32, 8, False),
    ("xl", 64, 8, False),
    ("2.7b", 64, 1, False),
    ("2.7b", 8, 8, True),
    ("2.7b", 64, 8, True),
    ("6.7b", 8, 4, True),
    ("6.7b", 64, 4, True),
    ("6.7b", 128, 4, True),
)


@attrs.frozen(kw_only=True)
class Plan:
    """The estimated cost of a training run.

    Attributes:
        gpus: Number of devices with `peak` FLOP/s, of which training uses the share `utilisation`, at `price` per hour.
        rows: Sequences per micro-batch on each GPU.
        sharded: Whether each GPU holds a share of weights, gradients, AdamW moments and EMA (FSDP), or all (DDP).
        tokens, corpus: Number of training tokens, and number of stored tokens.
    """

    backbone: DiTBackbone
    gpus: int
    rows: int
    sharded: bool
    utilisation: float
    peak: float
    price: float
    tokens: float
    corpus: float

    @property
    def weights(self) -> int:
        """Parameters of the network."""
        return self.backbone.weights(VOCABULARY)

    def memory(self, *, compiled: bool) -> int:
        """Bytes on each GPU."""
        shape = (self.backbone, VOCABULARY, self.rows, LENGTH, self.rows * LENGTH // 2)
        return memory(*shape, gpus=self.gpus, sharded=self.sharded, compiled=compiled)

    @property
    def speed(self) -> float:
        """Training tokens per second on all GPUs together, if half of the tokens are masked."""
        a_token = 3 * self.backbone.flops(VOCABULARY, 1, LENGTH, LENGTH / 2) / LENGTH
        return self.gpus * self.peak * self.utilisation / a_token

    @property
    def checkpoint(self) -> int:
        """Bytes of a checkpoint: weights, AdamW moments, EMA and the model."""
        return checkpoint_size(self.weights, ema=True)

    def row(self) -> str:
        """Return the plan's row of the table."""
        data = load(RECIPE).data
        shards = self.corpus / (LENGTH * data.sequences_per_shard) / self.gpus
        hours = self.tokens / self.speed / 3600
        cells = [
            f"`{self.backbone.preset}`, {self.weights / 1e6:,.0f}M",
            f"{self.gpus}",
            f"{self.rows}",
            "sharded" if self.sharded else "whole",
            *(f"{self.memory(compiled=compiled) / 1e9:.0f} GB" for compiled in (True, False)),
            f"{self.speed / 1e3:,.0f}k",
            f"{shards:,.0f}",
            f"{self.checkpoint / 1e9:.1f} GB",
            f"{self.tokens / 1e9:,.1f}G",
            f"{hours:,.1f}",
            f"${hours * self.gpus * self.price:,.0f}",
        ]
        return f"| {' | '.join(cells)} |"


def plans(given: argparse.Namespace) -> list[Plan]:
    """Return the plans of the table."""
    found = []
    for preset, gpus, rows, sharded in PLANS:
        backbone = DiTBackbone(preset=preset, tied=True, dropout=0.1)
        tokens = given.tokens or given.tokens_per_weight * backbone.weights(VOCABULARY)
        said = {key: getattr(given, key) for key in ("utilisation", "price", "corpus")}
        said |= {"gpus": gpus, "rows": rows, "sharded": sharded}
        found.append(Plan(backbone=backbone, peak=1e12 * PEAKS[given.gpu], tokens=tokens, **said))
    return found


def table(given: argparse.Namespace) -> str:
    """Return the table as Markdown."""
    titles = ["backbone", "GPUs", "sequences per GPU", "weights", "memory per GPU, compiled", "eager"]
    titles += ["tokens/s", "shards per rank", "checkpoint", "tokens", "hours", "cost"]
    lines = [f"| {' | '.join(titles)} |", "| --- " * len(titles) + "|", *(plan.row() for plan in plans(given))]
    return "\n".join(lines) + "\n"


def experiments(given: argparse.Namespace) -> str:
    """Return the cost of the ATAT report's system and its baselines at every size, on one GPU, as Markdown."""
    lines = [f"| {' | '.join(['size', 'parameters', 'memory, compiled', *(f'`{name}`' for name in REPORT)])} |"]
    lines.append("| --- " * (3 + len(REPORT)) + "|")
    for size, vocabulary in SIZES.items():
        how = {"gpu": given.gpu, "utilisation": given.utilisation, "price": given.price, "vocabulary": vocabulary}
        costs = [cost(load(f"{size}/{name}"), **how) for name in REPORT]
        cells = [f"`{size}`", f"{costs[0].weights / 1e6:,.0f}M", f"{costs[0].memory_compiled / 1e9:.0f} GB"]
        cells += [f"{of.tokens / 1e9:,.1f}G, {of.seconds / 3600:,.1f} h, ${of.dollars:,.0f}" for of in costs]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def assumptions(words: Sequence[str]) -> argparse.Namespace:
    """Return the assumptions from the command line."""
    parser = argparse.ArgumentParser(prog="scale")
    parser.add_argument(
        "--gpu", default="H100 80GB HBM3", choices=sorted(PEAKS), help="GPU name as the driver reports it"
    )
    parser.add_argument("--utilisation", type=float, default=0.4, help="share of the GPU's peak FLOP/s")
    parser.add_argument("--price", type=float, default=3.0, help="dollars per GPU-hour")
    parser.add_argument("--tokens-per-weight", type=float, default=20.0, help="number of training steps")
    parser.add_argument("--tokens", type=float, help="number of training tokens, instead of steps")
    parser.add_argument("--corpus", type=float, default=9e9, help="number of stored tokens; OpenWebText has 9e9")
    return parser.parse_args(words)


def main() -> None:
    """Print the tables."""
    # Words before them are names of benchmarks.
    given = assumptions(list(itertools.dropwhile(lambda word: not word.startswith("-"), sys.argv[1:])))
    print(table(given), experiments(given), sep="\n")
