"""What training takes from 125M on one GPU to 1.3B on 64, by formula: memory, tokens a second, disk, hours, cost."""

from __future__ import annotations

import argparse
import itertools
import sys
from typing import TYPE_CHECKING

import attrs
import torch

from atat_zoo.backbones.dit import DiTBackbone
from atat_zoo.experiment import load
from atat_zoo.objectives.chunks import rows_for
from atat_zoo.training.utilisation import PEAKS

if TYPE_CHECKING:
    from collections.abc import Sequence

VOCABULARY, LENGTH, RECIPE = 50_257, 1024, "owt-small/mdlm"
# Preset, GPUs, sequences at once on each.
PLANS = (
    ("small", 1, 32),
    ("small", 8, 32),
    ("medium", 8, 32),
    ("medium", 16, 32),
    ("large", 16, 16),
    ("large", 32, 16),
    ("xl", 32, 8),
    ("xl", 64, 8),
)


def state(weights: int) -> dict[str, int]:
    """Return the bytes that a training holds for so many weights, in float32: AdamW has two moments of each."""
    return {"weights": 4 * weights, "gradients": 4 * weights, "AdamW": 8 * weights, "moving average": 4 * weights}


def activations(backbone: DiTBackbone, rows: int, length: int, *, bf16: bool) -> int:
    """Return the bytes that the layers keep from the forward pass for the backward pass, [rows, length] tokens at once.

    Of each layer and token, in widths D: the residual stream before attention and before the feed-forward network, in
    float32; and in the precision of the products 1 norm, 3 queries, keys and values, 2 and 2 of queries and keys,
    normalised and rotated, 1 attention, 1 norm, and twice the width of the feed-forward network. Dropout adds a byte
    for each entry of both branches. Besides, statistics of norms and attention; and once, what the last norm has.
    """
    layers, width, heads = backbone.shape
    size = 2 if bf16 else 4
    hidden = max(1, int(width * backbone.mlp_ratio))
    token = 2 * 4 * width + size * (10 * width + 2 * hidden) + (2 * width if backbone.dropout else 0)
    statistics = 16 + (2 * size * 2 + 4) * heads
    return rows * length * (layers * (token + statistics) + 4 * width + 8)


def casts(backbone: DiTBackbone, vocabulary_size: int) -> int:
    """Return the bytes of the weights that autocast has cast to bf16 for a step: those of all matrix products."""
    return 2 * (backbone.matrices + vocabulary_size * backbone.shape[1])


def head(backbone: DiTBackbone, vocabulary_size: int, positions: int) -> int:
    """Return the bytes of a chunk's logits on a GPU, float32, four times; of the head's gradient, twice; and of what
    the head reads, with its gradient."""
    width, at_once = backbone.shape[1], min(positions, rows_for(vocabulary_size, torch.device("cuda")))
    return 4 * (4 * at_once * vocabulary_size + 2 * vocabulary_size * width) + 8 * positions * width


@attrs.frozen(kw_only=True)
class Plan:
    """A training by formula.

    Attributes:
        gpus: devices of `peak` FLOP/s, of which a training uses the share `utilisation`, each `price` an hour.
        rows: sequences at once on each.
        tokens: of the training.
        corpus: tokens that are stored.
    """

    backbone: DiTBackbone
    gpus: int
    rows: int
    utilisation: float
    peak: float
    price: float
    tokens: float
    corpus: float

    @property
    def weights(self) -> int:
        """Parameters of the network."""
        return self.backbone.weights(VOCABULARY)

    @property
    def memory(self) -> int:
        """Bytes on each GPU."""
        kept = sum(state(self.weights).values()) + casts(self.backbone, VOCABULARY)
        seen = activations(self.backbone, self.rows, LENGTH, bf16=True)
        return kept + seen + head(self.backbone, VOCABULARY, self.rows * LENGTH // 2)

    @property
    def speed(self) -> float:
        """Tokens a second on all GPUs, half of them masked."""
        a_token = 3 * self.backbone.flops(VOCABULARY, 1, LENGTH, LENGTH / 2) / LENGTH
        return self.gpus * self.peak * self.utilisation / a_token

    @property
    def checkpoint(self) -> int:
        """Bytes of a checkpoint: weights, AdamW, moving average; and beside it the model."""
        return (4 + 8 + 4 + 4) * self.weights

    def row(self) -> str:
        """Return its row of the table."""
        data = load(RECIPE).data
        shards = self.corpus / (LENGTH * data.sequences_per_shard) / self.gpus
        hours = self.tokens / self.speed / 3600
        cells = [
            f"`{self.backbone.preset}`, {self.weights / 1e6:,.0f}M",
            f"{self.gpus}",
            f"{self.rows}",
            f"{self.memory / 1e9:.0f} GB",
            f"{self.speed / 1e3:,.0f}k",
            f"{shards:,.0f}",
            f"{self.checkpoint / 1e9:.1f} GB",
            f"{self.tokens / 1e9:,.1f}G",
            f"{hours:,.1f}",
            f"${hours * self.gpus * self.price:,.0f}",
        ]
        return f"| {' | '.join(cells)} |"


def plans(given: argparse.Namespace) -> list[Plan]:
    """Return those of the table."""
    found = []
    for preset, gpus, rows in PLANS:
        backbone = DiTBackbone(preset=preset, tied=True, dropout=0.1)
        tokens = given.tokens or given.tokens_per_weight * backbone.weights(VOCABULARY)
        said = {key: getattr(given, key) for key in ("utilisation", "price", "corpus")}
        found.append(Plan(backbone=backbone, gpus=gpus, rows=rows, peak=1e12 * PEAKS[given.gpu], tokens=tokens, **said))
    return found


def table(given: argparse.Namespace) -> str:
    """Return the table as Markdown."""
    titles = ["backbone", "GPUs", "rows at once", "memory of each", "tokens a second", "shards a rank", "a checkpoint"]
    titles += ["tokens", "hours", "cost"]
    lines = [f"| {' | '.join(titles)} |", "| --- " * len(titles) + "|", *(plan.row() for plan in plans(given))]
    return "\n".join(lines) + "\n"


def assumptions(words: Sequence[str]) -> argparse.Namespace:
    """Return what is assumed."""
    parser = argparse.ArgumentParser(prog="scale")
    parser.add_argument("--gpu", default="H100 80GB HBM3", choices=sorted(PEAKS), help="the driver's name of a GPU")
    parser.add_argument("--utilisation", type=float, default=0.4, help="share of its peak")
    parser.add_argument("--price", type=float, default=3.0, help="dollars of a GPU an hour")
    parser.add_argument("--tokens-per-weight", type=float, default=20.0, help="length of a training")
    parser.add_argument("--tokens", type=float, help="length of a training in tokens, in place of that")
    parser.add_argument("--corpus", type=float, default=9e9, help="tokens that are stored; OpenWebText has 9e9")
    return parser.parse_args(words)


def main() -> None:
    """Print the table."""
    # Those before them are names of benchmarks.
    print(table(assumptions(list(itertools.dropwhile(lambda word: not word.startswith("-"), sys.argv[1:])))))
