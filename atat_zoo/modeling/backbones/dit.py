"""A diffusion transformer (DiT) like that of MDLM, in plain PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from typing_extensions import override

from atat_zoo.modeling.backbones.lora import LoRABackbone
from atat_zoo.registry import component, network_of, param
from atat_zoo.registry.spec import evolve
from atat_zoo.system.errors import Problem
from atat_zoo.system.machine import require

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from atat_zoo.experiment import Experiment
    from atat_zoo.registry import Context

# Layers, width, heads. `tiny` is MDLM's; ATAT's documents call `mini` tiny, and `documented` is their 12 × 512. `small`
# and up follow GPT-3's table of sizes (arXiv:2005.14165, table 2.1), whose 24 heads of 128 do not divide xl's width.
PRESETS: dict[str, tuple[int, int, int]] = {
    "nano": (4, 256, 4),
    "mini": (8, 256, 4),
    "tiny": (8, 512, 8),
    "documented": (12, 512, 8),
    "small": (12, 768, 12),
    "medium": (24, 1024, 16),
    "large": (24, 1536, 16),
    "xl": (24, 2048, 16),
    "2.7b": (32, 2560, 32),
    "6.7b": (32, 4096, 32),
}


@component
class DiTBackbone(LoRABackbone):
    """A bidirectional transformer with rotary positions and normalised queries and keys.

    Residual branches and an untied head start at zero, so an untrained model with such a head predicts its output bias.
    With time conditioning, t scales, shifts and gates every branch (adaLN-zero, Peebles and Xie, ICCV 2023). Attention
    uses PyTorch's own kernels, so no extension has to be compiled.

    A masked model must first learn to attend to the neighbours of a masked token, whereas an autoregressive model reads
    the preceding token directly. The first `local_heads` heads of a layer start with this attention: one learned vector
    is added to the queries at all positions and another to the keys, and with rotary positions, the product of the two
    depends only on the distance. The attention mask still applies.

    With `ngram_prior` > 0, the n-gram prior of the training text is added to the logits (ngram_prior_module.py).
    """

    name = "dit"
    summary = "DiT: bidirectional transformer with RoPE, QK-norm and optional adaLN time conditioning"
    refs = ("arXiv:2212.09748", "arXiv:2104.09864", "arXiv:2406.07524", "arXiv:2010.04245")
    adjustable = (*LoRABackbone.adjustable, "dropout", "checkpoint_activations")
    returns_first = True
    network = "atat_zoo.modeling.backbones.dit_module:DiTModule"
    preset: Literal["nano", "mini", "tiny", "documented", "small", "medium", "large", "xl", "2.7b", "6.7b"] = param(
        "small",
        help="layers × width: nano 4×256, mini 8×256, tiny 8×512, documented 12×512, small 12×768, medium 24×1024, "
        "large 24×1536, xl 24×2048, 2.7b 32×2560, 6.7b 32×4096",
    )
    layers: int | None = param(None, help="number of layers; default: the preset's", ge=1, le=10_000)
    width: int | None = param(None, help="width D; default: the preset's", ge=2)
    heads: int | None = param(None, help="number of attention heads; default: the preset's", ge=1)
    local_heads: int = param(
        0,
        help="number of heads per layer that initially attend to a neighbouring position: the previous, the next, …",
        ge=0,
    )
    mlp_ratio: float = param(4.0, help="width of the feed-forward layer, as a multiple of D", gt=0)
    ngram_prior: int = param(
        0,
        help="number of neighbours on each side that the n-gram prior reads; the scores of the visible ones, from "
        "counts of the training text, are added to the logits; 0 disables the prior",
        ge=0,
        le=2,
    )
    max_length: int = param(1024, help="maximum sequence length", ge=1)
    time_conditioning: bool = param(False, help="condition the network on t with adaLN")
    dropout: float = param(0.0, help="dropout on the outputs of the residual branches", ge=0, lt=1)
    tied: bool = param(False, help="tie the output head to the token embedding")
    output_bias: Literal["none", "zero", "unigram"] = param(
        "none", help="output bias: none, or initialised to zero or to the log frequencies of the training tokens"
    )
    checkpoint_activations: bool = param(
        False, help="activation checkpointing: recompute each layer in the backward pass to save memory"
    )

    @property
    @override
    def reads_time(self) -> bool:
        return self.time_conditioning

    @property
    def shape(self) -> tuple[int, int, int]:
        """The number of layers, the width and the number of heads; the preset supplies those that are not set."""
        layers, width, heads = PRESETS[self.preset]
        return self.layers or layers, self.width or width, self.heads or heads

    @property
    def matrices(self) -> int:
        """The number of weights in the matrices of all layers, which multiply every token."""
        layers, width, _ = self.shape
        return layers * width * (4 * width + 2 * max(1, int(width * self.mlp_ratio)))

    def weights(self, vocabulary_size: int) -> int:
        """Return the number of parameters of the module for a vocabulary of `vocabulary_size` tokens."""
        layers, width, heads = self.shape
        outside = (vocabulary_size + 1) * width + (self.output_bias != "none") * vocabulary_size + 2 * self.ngram_prior
        outside += 0 if self.tied else vocabulary_size * width
        norms, of_layer = width * (2 * layers + 1), 2 * (width // heads) + 2 * width * bool(self.local_heads)
        if self.time_conditioning:  # scale and shift of each norm, two gates a layer, and the embedding of t
            norms, of_layer = 2 * norms * (width + 1), of_layer + 2 * width * (width + 1)
            outside += width * (256 + 1) + width * (width + 1)
        return outside + self.matrices + norms + layers * of_layer

    def flops(self, vocabulary_size: int, rows: int, length: int, positions: float, first: int | None = None) -> float:
        """Return the FLOPs of a forward pass, excluding the time embedding; masked attention is counted as full.

        If only the `first` tokens are needed, the last layer computes only queries, keys and values for the others.
        """
        layers, width, _ = self.shape
        of_layers = rows * length * (self.matrices + 2 * layers * length * width)
        others = rows * (length - (length if first is None else first))
        of_layers -= others * (self.matrices // layers - 3 * width**2 + 2 * length * width)
        return 2 * of_layers + 2 * positions * vocabulary_size * width

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield a problem for a length, number of heads, n-gram prior or LoRA rank that does not fit."""
        yield from LoRABackbone.check(self, experiment)
        if experiment.data.length > self.max_length:
            yield Problem(
                "data.length",
                f"{experiment.data.length} is longer than backbone.max_length = {self.max_length}; "
                "lower data.length or raise backbone.max_length",
            )
        _, width, heads = self.shape
        if self.local_heads > heads:
            yield Problem(
                "backbone.local_heads", f"{self.local_heads} is more than the {heads} heads of a layer; lower it"
            )
        if width % (2 * heads):
            problem = f"{width} must be a multiple of 2 × heads = {2 * heads}, because the head dimension must be even"
            yield Problem("backbone.width", f"{problem}; change backbone.width or backbone.heads")
        if self.ngram_prior and experiment.data.on_corrupt == "skip":
            yield Problem(
                "data.on_corrupt",
                '"skip" drops damaged shards, but backbone.ngram_prior needs the counts of every '
                'training shard; set backbone.ngram_prior = 0, or this key to "error"',
            )

    prefix: ClassVar[str | None] = ""

    @override
    def build(self, context: Context) -> nn.Module:
        layers, width, heads = self.shape
        asked = f"a backbone of {layers} layers, width {width} and mlp_ratio {self.mlp_ratio:g}"
        # Not from `weights`: there, a product may be infinite.
        roughly = width * (context.vocabulary_size * (2 - self.tied) + layers * width * (4 + 2 * self.mlp_ratio))
        require(4 * roughly, asked, "its weights", "reduce `layers`, `width` or `mlp_ratio`")
        return network_of(evolve(self, layers=layers, width=width, heads=heads), context)
