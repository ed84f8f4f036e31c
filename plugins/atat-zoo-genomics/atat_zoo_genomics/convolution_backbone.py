"""The backbone `gated_convolution`, which consists of gated dilated convolutions."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from atat_zoo.registry import component, param, values_of
from atat_zoo.system.errors import Problem
from atat_zoo.system.machine import require

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from atat_zoo.experiment import Experiment
    from atat_zoo.registry import Context


@component
class ConvolutionBackbone:
    """Gated convolutions over both sides of each position, with dilations that double from layer to layer.

    A layer adds W (a · silu(g)) to its input, with a learned matrix W and convolutions a and g of the normalised input
    (Dauphin et al., ICML 2017). The dilations 1, 2, 4, … restart after every `cycle` layers (van den Oord et al.,
    2016). The network has no position embeddings, so sequences may have any length. Memory and time are linear in it.
    To read the whole sequence at each position, set `kernel = 3`, and `layers` and `cycle` to log₂ of its length.

    If `reverse_complement` is set, p(x | z) is exactly equivariant to the reverse complement: half of the channels
    belong to each strand, and each layer has the same weights for both strands, mirrored (Shrikumar et al., 2017). The
    network has half as many weights, but takes the same FLOPs. Equivariance holds without an attention mask, but not
    with one.

    Attention masks, positions and cached tokens work as in attention: each kernel position reads the token at that
    position if the mask allows it. This path is slower and is used only if a caller passes one of these arguments.
    """

    name = "gated_convolution"
    summary = "gated dilated convolutions, optionally equivariant to the reverse complement"
    refs = ("arXiv:1612.08083", "arXiv:1609.03499", "doi:10.1101/103663")
    reads_time: ClassVar[bool] = False

    layers: int = param(6, help="number of layers", ge=1, le=10_000)
    width: int = param(128, help="number of channels", ge=2)
    kernel: int = param(5, help="kernel width, an odd number", ge=1)
    cycle: int = param(
        4,
        help="layers per dilation cycle, in which the dilation starts at 1 and doubles from layer to layer",
        ge=1,
        le=30,
    )
    reverse_complement: bool = param(
        False, help="make the network equivariant to the reverse complement, which requires the tokenizer dna"
    )

    def __attrs_post_init__(self) -> None:
        if self.kernel % 2 == 0:
            raise ValueError(f"kernel = {self.kernel} is even; use an odd number")
        if self.reverse_complement and self.width % 2:
            raise ValueError(f"width = {self.width} cannot be halved for two strands; use an even number")

    @property
    def reach(self) -> int:
        """Number of tokens on each side that a position reads through all layers, without an attention mask."""
        return self.kernel // 2 * sum(2 ** (i % self.cycle) for i in range(self.layers))

    @property
    def matrices(self) -> int:
        """Number of weights in matrices that multiply every token, summed over the layers."""
        return self.layers * self.width**2 * (2 * self.kernel + 1)

    def flops(self, vocabulary_size: int, rows: int, length: int, positions: float) -> float:
        """Return the FLOPs of a forward pass; see `Backbone`."""
        return 2 * rows * length * self.matrices + 2 * positions * vocabulary_size * self.width

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield a problem if `reverse_complement` is set but the tokenizer is not `dna`."""
        from atat_zoo_genomics.alphabet import DNATokenizer

        tokenizer = experiment.parts["tokenizer"]
        if self.reverse_complement and not isinstance(tokenizer.like or tokenizer, DNATokenizer):
            yield Problem(
                "backbone.reverse_complement",
                'requires the bases A, C, G and T; set tokenizer.use = "dna", or leave reverse_complement out',
            )

    def build(self, context: Context) -> nn.Module:
        """Return a `ConvolutionModule`, or raise a `UserError` if its weights do not fit in memory."""
        from atat_zoo_genomics.genomic_networks import ConvolutionModule

        asked = f"a backbone of {self.layers} layers, width {self.width} and kernel {self.kernel}"
        require(4 * (self.matrices + 2 * context.vocabulary_size * self.width), asked, "its weights", "reduce width")
        return ConvolutionModule(context.vocabulary_size, **values_of(self))
