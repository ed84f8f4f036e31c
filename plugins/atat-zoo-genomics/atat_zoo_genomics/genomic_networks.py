"""The networks of `gated_convolution` and `kmer`.

Shapes: B sequences, L tokens, C cached tokens, D channels, K kernel positions, V predictable tokens, S strands.

With S = 2, the first half of the channels belongs to this strand, and the second half to the other strand. To treat
both strands alike, a layer computes the outputs for the other strand with this strand's weights, after exchanging the
halves of the input channels and mirroring the kernel positions.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atat_zoo.modeling.backbones.ngram_prior_module import neighbours_of
from atat_zoo_genomics.alphabet import COMPLEMENT

if TYPE_CHECKING:
    from collections.abc import Callable

    from atat_zoo.diffusion.cache import Cache
    from atat_zoo.modeling.estimators import Reads


class ConvolutionModule(nn.Module):
    """Network that maps tokens [B, L] to hidden states [B, L, D], which `head` maps to logits [..., V]."""

    reads_time = False
    takes_cache = True

    def __init__(
        self, vocabulary_size: int, *, layers: int, width: int, kernel: int, cycle: int, reverse_complement: bool
    ) -> None:
        super().__init__()
        strands = 2 if reverse_complement else 1
        self.embedding = Embedding(vocabulary_size, width, strands)
        self.layers = nn.ModuleList(Layer(width, kernel, 2 ** (i % cycle), strands) for i in range(layers))
        self.head = Head(vocabulary_size, width, strands)

    def forward(
        self,
        tokens: Tensor,
        t: Tensor | None = None,
        *,
        positions: Tensor | None = None,
        attention: Any = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Return the hidden states [B, L, D]; see `BackboneModule`."""
        if cache is not None and (positions is None or isinstance(attention, str)):
            raise ValueError("with a cache, pass positions, and attention as a mask")
        h = self.embedding(tokens)
        read: Read | None = None
        if positions is not None or attention is not None:
            length = tokens.shape[1]
            if positions is None:
                positions = torch.arange(length, device=tokens.device)
            if isinstance(attention, str):
                attention = torch.ones(length, length, dtype=torch.bool, device=tokens.device).tril()
            read = Read(positions, attention, cache)
        for number, layer in enumerate(self.layers):
            h = h + layer(h, None if read is None else read.of(number))
        return F.layer_norm(h, h.shape[-1:])


class Read:
    """Inputs for convolutions with explicit positions, an attention mask or a cache of earlier tokens."""

    def __init__(self, positions: Tensor, attention: Tensor | None, cache: Cache | None) -> None:
        self.positions, self.cache = positions if positions.ndim == 2 else positions[None], cache
        self.attention = attention if attention is None or attention.ndim == 2 else attention[:, 0]
        self.known: dict[int, Tensor] = {}

    def of(self, number: int) -> Callable[[Tensor], tuple[Tensor, Callable[[int], Tensor]]]:
        """Return a function that maps the input of layer `number`, [B, L, D], to the hidden states that it reads.

        It returns the states, [B, C + L, D], cached ones first, and a function: `at(offset)` is a matrix, [1 or B, L,
        C + L], with 1 where the column's token is visible and `offset` positions after the row's position.
        """

        def read(h: Tensor) -> tuple[Tensor, Callable[[int], Tensor]]:
            positions = self.positions
            if self.cache is not None:
                own = positions[:, None, :, None].expand(len(h), 1, -1, 1)
                keys, values = self.cache.join(number, h[:, None], own)
                h, positions = keys[:, 0], values[:, 0, :, 0]
            return h, lambda offset: self.at(offset, positions).to(h)

        return read

    def at(self, offset: int, positions: Tensor) -> Tensor:
        """Return a mask, bool [1 or B, L, C + L], True where a visible token is `offset` after the row's position."""
        if offset not in self.known:
            there = positions[:, None] == self.positions[:, :, None] + offset
            self.known[offset] = there if self.attention is None else there & self.attention
        return self.known[offset]


class Layer(nn.Module):
    """Gated convolution, whose output is added to its input h [B, L, D]."""

    def __init__(self, width: int, kernel: int, dilation: int, strands: int) -> None:
        super().__init__()
        self.strands, self.dilation = strands, dilation
        self.reads = Convolution(width, 2 * width, kernel, strands)
        self.bias = nn.Parameter(torch.zeros(2 * width // strands))
        self.out = Convolution(width, width, 1, strands)
        nn.init.zeros_(self.out.weight)

    def forward(self, h: Tensor, read: Callable[[Tensor], tuple[Tensor, Callable[[int], Tensor]]] | None) -> Tensor:
        """Return the output [B, L, D] for h [B, L, D]; `read` comes from `Read.of`, and None reads whole sequences."""
        h, weight = F.layer_norm(h, h.shape[-1:]), self.reads.both()
        bias, middle = self.bias.repeat(self.strands), weight.shape[2] // 2
        if read is None:
            both = F.conv1d(h.transpose(1, 2), weight, bias, padding=middle * self.dilation, dilation=self.dilation)
            both = both.transpose(1, 2)
        else:
            h, at = read(h)
            positions = range(weight.shape[2])
            both = bias + sum(at((k - middle) * self.dilation) @ F.linear(h, weight[:, :, k]) for k in positions)
        a, g = both.view(*both.shape[:2], self.strands, 2, -1).unbind(-2)
        return F.linear((a * F.silu(g)).flatten(-2), self.out.both()[:, :, 0])


class Convolution(nn.Module):
    """Weights of a convolution, stored for one strand; `both` returns those of all strands."""

    def __init__(self, inputs: int, outputs: int, kernel: int, strands: int) -> None:
        super().__init__()
        self.strands = strands
        self.weight = nn.Parameter(torch.randn(outputs // strands, inputs, kernel) / math.sqrt(inputs * kernel))

    def both(self) -> Tensor:
        """Return the weights for all strands as [outputs, inputs, K]."""
        weight: Tensor = self.weight
        if self.strands == 1:
            return weight
        return torch.cat([weight, weight.roll(weight.shape[1] // 2, 1).flip(2)])


class Embedding(nn.Embedding):
    """Embedding that maps tokens [...] to channels [..., D]; with S = 2, the second half embeds the complements."""

    def __init__(self, vocabulary_size: int, width: int, strands: int) -> None:
        super().__init__(vocabulary_size + 1, width // strands)
        self.embedding_dim = width
        self.register_buffer("complement", complement_of(vocabulary_size), persistent=False)
        self.complement: Tensor
        self.strands = strands

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the channels [..., D] for tokens [...]."""
        here = super().forward(tokens)
        return here if self.strands == 1 else torch.cat([here, super().forward(self.complement[tokens])], dim=-1)


class Head(nn.Module):
    """Head that maps hidden states [..., D] to logits [..., V], initialised to zero."""

    def __init__(self, vocabulary_size: int, width: int, strands: int) -> None:
        super().__init__()
        self.strands = strands
        self.weight = nn.Parameter(torch.zeros(vocabulary_size, width // strands))
        self.bias = nn.Parameter(torch.zeros(vocabulary_size))
        self.register_buffer("complement", complement_of(vocabulary_size)[:-1], persistent=False)
        self.complement: Tensor

    def forward(self, hidden: Tensor) -> Tensor:
        """Return logits [..., V]."""
        if self.strands == 1:
            return F.linear(hidden, self.weight, self.bias)
        other = self.complement
        weight = torch.cat([self.weight, self.weight[other]], dim=1)
        return F.linear(hidden, weight, self.bias + self.bias[other])


def complement_of(vocabulary_size: int) -> Tensor:
    """Return the id of each token's complement, int64 [V + 1], from `alphabet.COMPLEMENT`; others keep their id."""
    known = COMPLEMENT if vocabulary_size >= len(COMPLEMENT) else ()
    return torch.tensor([*known, *range(len(known), vocabulary_size + 1)])


class KmerModule(nn.Module):
    """Module that maps tokens [B, L] to importance [B, L] in [0, 1], which is initially ½ for every k-mer."""

    reads: Reads = "z"
    reads_time = False

    def __init__(self, vocabulary_size: int, reach: int) -> None:
        super().__init__()
        self.mask_id, self.reach = vocabulary_size, reach
        self.register_buffer("digit", (vocabulary_size + 1) ** torch.arange(2 * reach), persistent=False)
        self.digit: Tensor
        self.table = nn.Embedding((vocabulary_size + 1) ** (2 * reach), 1)
        nn.init.zeros_(self.table.weight)

    def forward(self, tokens: Tensor, embedded: Tensor, t: Tensor | None, maskable: Tensor) -> Tensor:
        """Return importance, float32 [B, L], from the neighbours of each token; beyond the ends, these are masks."""
        kmer = (neighbours_of(tokens, self.reach, self.mask_id) * self.digit).sum(-1)
        return torch.sigmoid(self.table(kmer).squeeze(-1).float())
