"""Gated dilated convolutions as the network."""

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
    """Layers of gated convolutions, whose reach doubles from one to the next, on both sides of a position.

    A layer adds W (a · silu(g)) to its input, with a and g two convolutions of the normalised input (Dauphin et al.,
    ICML 2017); dilations 1, 2, 4, … begin anew after every `cycle` layers (van den Oord et al., 2016). Nothing tells a
    position but the ends of the text, so any length can be read.

    With `reverse_complement`, p(x | z) of the other strand is the other strand of p(x | z), exactly: half of the
    channels are those of this strand, half those of the other, and each layer has the same weights for both, mirrored
    (Shrikumar et al., 2017). It costs as much as without, with half the weights. It holds for all tokens at once, not
    under an attention mask.

    An attention mask, given positions and cached tokens are those of attention: a convolution reads, at each of its
    positions, the tokens of that position which the mask shows. This is slower, so it is used only where it is asked
    for.
    """

    name = "gated_convolution"
    summary = "gated dilated convolutions, optionally equivariant to the reverse complement"
    refs = ("arXiv:1612.08083", "arXiv:1609.03499", "doi:10.1101/103663")
    reads_time: ClassVar[bool] = False

    layers: int = param(6, help="number of layers", ge=1, le=10_000)
    width: int = param(128, help="D, number of channels", ge=2)
    kernel: int = param(5, help="kernel width, an odd number", ge=1)
    cycle: int = param(
        4, help="layers per dilation cycle; the dilation doubles from layer to layer, then restarts at 1", ge=1, le=30
    )
    reverse_complement: bool = param(False, help="reverse-complement equivariance; requires the tokenizer dna")

    def __attrs_post_init__(self) -> None:
        if self.kernel % 2 == 0:
            raise ValueError(f"kernel = {self.kernel} has no middle; make it odd")
        if self.reverse_complement and self.width % 2:
            raise ValueError(f"width = {self.width} cannot be halved for two strands; make it even")

    @property
    def matrices(self) -> int:
        """Weights of all layers that multiply every token."""
        return self.layers * self.width**2 * (2 * self.kernel + 1)

    def flops(self, vocabulary_size: int, rows: int, length: int, positions: float) -> float:
        """See `Backbone`."""
        return 2 * rows * length * self.matrices + 2 * positions * vocabulary_size * self.width

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield a sentence if both strands are to be alike, and the tokens are no bases."""
        from atat_zoo_genomics.alphabet import DNATokenizer

        tokenizer = experiment.parts["tokenizer"]
        if self.reverse_complement and not isinstance(tokenizer.like or tokenizer, DNATokenizer):
            yield Problem(
                "backbone.reverse_complement",
                'knows the other strand of A, C, G and T alone; set tokenizer.use = "dna", or leave it out',
            )

    def build(self, context: Context) -> nn.Module:
        """See `Backbone`."""
        from atat_zoo_genomics.genomic_networks import ConvolutionModule

        asked = f"a backbone of {self.layers} layers, width {self.width} and kernel {self.kernel}"
        require(4 * (self.matrices + 2 * context.vocabulary_size * self.width), asked, "its weights", "make it smaller")
        return ConvolutionModule(context.vocabulary_size, **values_of(self))
