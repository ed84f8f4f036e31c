"""What training takes from 125M on one GPU to 6.7B on 128, by formula: memory, tokens a second, disk, hours, cost."""

from __future__ import annotations

import argparse
import itertools
import sys
from typing import TYPE_CHECKING

import attrs

from atat_zoo.backbones.dit import DiTBackbone
from atat_zoo.experiment import load
from atat_zoo.objectives import chunks
from atat_zoo.training.utilisation import PEAKS

if TYPE_CHECKING:
    from collections.abc import Sequence

VOCABULARY, LENGTH, RECIPE = 50_257, 1024, "owt-small/mdlm"
# Preset, GPUs, sequences at once on each, whether weights and what belongs to them are sharded over the GPUs.
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


def state(weights: int) -> dict[str, int]:
    """Return the bytes that a training holds for so many weights, in float32: AdamW has two moments of each."""
    return {"weights": 4 * weights, "gradients": 4 * weights, "AdamW": 8 * weights, "moving average": 4 * weights}


def buckets(weights: int, gpus: int) -> int:
    """Return the bytes of the buckets in which DDP sums gradients over GPUs: as Composer has it, a copy of them all."""
    return 4 * weights if gpus > 1 else 0


def activations(backbone: DiTBackbone, rows: int, length: int, *, compiled: bool) -> int:
    """Return the bytes that the layers keep from the forward pass for the backward pass, [rows, length] tokens at once.

    Under CUDA's autocast to bf16, of each layer and token, in widths D: in float32 what two norms read, compiled
    normalised; in bf16 2 norms, 3 queries, keys and values, 2 queries and keys that are normalised and rotated, 1
    attention, and twice the width of the feed-forward network. Eager, the norm of queries and keys besides has them in
    float32, as it reads and as it returns them, and dropout a byte for each entry of both branches; compiled they are
    computed and drawn again. Besides, statistics of norms and attention; and once, what the last norm has.
    """
    layers, width, heads = backbone.shape
    hidden = max(1, int(width * backbone.mlp_ratio))
    token = 4 * 2 * width + 2 * (8 * width + 2 * hidden)
    token += 0 if compiled else (4 * 4 + (2 if backbone.dropout else 0)) * width
    statistics = 4 * (4 + 4 * heads + heads)
    return rows * length * (layers * (token + statistics) + 4 * width + 8)


def casts(backbone: DiTBackbone, vocabulary_size: int) -> int:
    """Return the bytes of the weights that autocast has cast to bf16 for a step: those of all matrix products."""
    return 2 * (backbone.matrices + vocabulary_size * backbone.shape[1])


def gathered(backbone: DiTBackbone, vocabulary_size: int) -> int:
    """Return the bytes that a GPU has of weights which are sharded, besides its share of them.

    In float32, with their gradients, a layer, and what belongs to no layer, the head; in bf16 what autocast has cast of
    each layer, which autograd keeps for the backward pass.
    """
    layers, width, _ = backbone.shape
    return casts(backbone, vocabulary_size) + 8 * (vocabulary_size * width + backbone.matrices // layers)


def head(backbone: DiTBackbone, vocabulary_size: int, positions: int, *, compiled: bool) -> int:
    """Return the bytes of a chunk of logits on a GPU, of the head's gradient, and of what it reads, with its gradient.

    A chunk has three tensors of float32: log-probabilities, and the gradients of these and of the logits. Compiled it
    has two of bf16: the logits and their gradient.
    """
    width = backbone.shape[1]
    cut = chunks.cuts(positions, chunks.ON_ACCELERATOR // vocabulary_size)[0]
    logits = (2 * 2 if compiled else 3 * 4) * (cut.stop - cut.start) * vocabulary_size
    return logits + 4 * vocabulary_size * width + 8 * positions * width


@attrs.frozen(kw_only=True)
class Plan:
    """A training by formula.

    Attributes:
        gpus: devices of `peak` FLOP/s, of which a training uses the share `utilisation`, each `price` an hour.
        rows: sequences at once on each.
        sharded: whether each has its share of weights, gradients, AdamW and moving average, and gathers a layer at a
            time (FSDP), in place of all of them (DDP).
        tokens: of the training.
        corpus: tokens that are stored.
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
        kept = sum(state(self.weights).values())
        if self.sharded:
            kept = kept // self.gpus + gathered(self.backbone, VOCABULARY)
        else:
            kept += buckets(self.weights, self.gpus) + casts(self.backbone, VOCABULARY)
        seen = activations(self.backbone, self.rows, LENGTH, compiled=compiled)
        return kept + seen + head(self.backbone, VOCABULARY, self.rows * LENGTH // 2, compiled=compiled)

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
    """Return those of the table."""
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
    titles = ["backbone", "GPUs", "rows at once", "weights on each", "memory of each, compiled", "eager"]
    titles += ["tokens a second", "shards a rank", "a checkpoint", "tokens", "hours", "cost"]
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
