"""The module of `dit`. Shapes: B sequences, L tokens, width D, H heads, V predictable tokens."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from typing_extensions import override

from atat_zoo.diffusion.attention import attend
from atat_zoo.diffusion.cache import Cache
from atat_zoo.diffusion.dropout import Dropout
from atat_zoo.modeling.backbones.ngram_prior_module import NGramPriorModule
from atat_zoo.registry import Context
from atat_zoo.system.errors import UserError


class DiTModule(nn.Module):
    """The module of `dit`: maps tokens [B, L] to hidden states [B, L, D]; `head` maps these to logits [..., V]."""

    returns_first = takes_cache = True

    def __init__(
        self,
        context: Context,
        *,
        layers: int,
        width: int,
        heads: int,
        local_heads: int,
        mlp_ratio: float,
        max_length: int,
        time_conditioning: bool,
        dropout: float,
        tied: bool,
        output_bias: Literal["none", "zero", "unigram"],
        checkpoint_activations: bool,
        ngram_prior: int,
        **others: Any,  # parameters that only `DiTBackbone` reads
    ) -> None:
        super().__init__()
        self.takes_block_masks = width // heads >= 16  # FlexAttention's kernel refuses narrower heads
        self.prior = prior_of(context, ngram_prior) if ngram_prior else None
        self.reads_time, self.max_length = time_conditioning, max_length
        self.checkpoint_activations = checkpoint_activations
        self.embedding = nn.Embedding(context.vocabulary_size + 1, width)
        self.time = TimeEmbedding(width) if time_conditioning else None
        inner = max(1, int(width * mlp_ratio))
        self.blocks = nn.ModuleList(
            Layer(width, heads, inner, local_heads, dropout, conditioned=time_conditioning) for _ in range(layers)
        )
        self.norm = Norm(width, time_conditioning)
        self.head = Head(self.embedding, tied, output_bias, context.counts)
        self.rotary: nn.Module = Rotary(width // heads)  # a plugin's network may have different positions
        nn.init.normal_(self.embedding.weight, std=0.02 if tied else 1.0 / math.sqrt(width))

    @override
    def forward(
        self,
        tokens: Tensor,
        t: Tensor | None = None,
        *,
        positions: Tensor | None = None,
        attention: Any = None,
        cache: Cache | None = None,
        first: int | None = None,
    ) -> Tensor:
        if cache is not None and (positions is None or isinstance(attention, str)):
            raise ValueError("with a cache, pass positions, and attention as a mask or None")
        length = tokens.shape[1]
        # Positions may repeat, so that a text and its noisy copy fit side by side.
        if positions is None:
            if length > self.max_length:
                raise ValueError(f"{length} tokens are more than this backbone's maximum, {self.max_length}")
            positions = torch.arange(length, device=tokens.device)
        h = self.embedding(tokens)
        c = None
        if self.time is not None:
            if t is None:
                raise ValueError("a time-conditioned backbone needs t")
            c = self.time(t).to(h.dtype)
        rotation = self.rotary(positions, h.dtype)
        recomputed = self.checkpoint_activations and self.training and torch.is_grad_enabled()
        if recomputed:
            from torch.utils.checkpoint import checkpoint  # takes half a second, and only training needs it
        for number, layer in enumerate(self.blocks):
            join = None if cache is None else partial(cache.join, number)
            asked = first if number == len(self.blocks) - 1 else None
            inputs = (h, c, rotation, attention, join, layer.dropout.number(2), layer.dropout.keys, asked)
            if recomputed:
                # Dropout draws from its keys and call numbers, never from torch's own generator.
                h = checkpoint(layer, *inputs, use_reentrant=False, preserve_rng_state=False)
            else:
                h = layer(*inputs)
        return self.norm(h, c)


def prior_of(context: Context, neighbours: int) -> NGramPriorModule:
    """Return the n-gram prior for `neighbours` tokens on each side; its counts are empty if the context has none."""
    try:
        table = context.ngram_prior() if context.ngram_prior else None
    except UserError as error:
        raise UserError(f"backbone.ngram_prior = {neighbours}: {error}; set it to 0") from None
    return NGramPriorModule(context.vocabulary_size, neighbours, table)


class Layer(nn.Module):
    """Attention and a feed-forward network, each added to the residual stream."""

    def __init__(self, width: int, heads: int, inner: int, local: int, dropout: float, *, conditioned: bool) -> None:
        super().__init__()
        self.heads, head_width = heads, width // heads
        self.norm_attention = Norm(width, conditioned)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        # Gains of queries and keys; a vector, so that no optimizer takes them for a matrix to decay.
        self.scale = nn.Parameter(torch.ones(2 * head_width))
        self.offset = nn.Parameter(local_offset(self.heads, head_width, local)) if local else None
        self.out = nn.Linear(width, width, bias=False)
        self.norm_mlp = Norm(width, conditioned)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)
        self.dropout = Dropout(dropout)
        self.gates = nn.Linear(width, 2 * width) if conditioned else None
        for linear in (self.qkv, self.up):
            nn.init.normal_(linear.weight, std=1.0 / math.sqrt(width))
        # Each branch starts at zero, through its gate if it has one, otherwise through its last layer.
        if self.gates is None:
            nn.init.zeros_(self.out.weight)
            nn.init.zeros_(self.down.weight)
        else:
            nn.init.zeros_(self.gates.weight)
            nn.init.zeros_(self.gates.bias)
            nn.init.normal_(self.out.weight, std=1.0 / math.sqrt(width))
            nn.init.normal_(self.down.weight, std=1.0 / math.sqrt(inner))

    def forward(
        self,
        h: Tensor,
        c: Tensor | None,
        rotation: tuple[Tensor, Tensor],
        attention: Any,
        join: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None,
        call: int,
        keys: Tensor | None,
        first: int | None = None,
    ) -> Tensor:
        """Return the layer's output for h [B, L, D], or only [B, first, D]; `join` prepends cached keys and values.

        The two dropouts draw from `keys` [B] and the call numbers `call` and `call` + 1.
        """
        B, L, D = h.shape
        qkv = self.qkv(self.norm_attention(h, c)).view(B, L, 3, self.heads, D // self.heads)
        # Queries and keys share every operation: on a CPU, a few large operations are faster than many small ones.
        qk = F.layer_norm(qkv[:, :, :2], (D // self.heads,)) * self.scale.view(2, 1, -1)
        if self.offset is not None:
            qk = qk + self.offset.view(2, self.heads, -1)
        q, k = rotate(qk, rotation).to(qkv.dtype).permute(2, 0, 3, 1, 4)
        v = qkv[:, :, 2].transpose(1, 2)
        if join is not None:
            k, v = join(k, v)
        # Even a full slice costs a copy in the backward pass.
        if first is not None and isinstance(attention, Tensor):
            q, attention = q[:, :, :first], attention[..., :first, :]
        causal = isinstance(attention, str) and attention == "causal"
        a = attend(q, k, v, None if causal else attention, causal=causal)
        if first is not None:
            h, a = h[:, :first], a[:, :, :first]
        a = self.out(a.transpose(1, 2).reshape(h.shape))
        if self.gates is None:
            h = h + self.dropout(a, call, keys)
            return h + self.dropout(self.mlp(h, c), call + 1, keys)
        assert c is not None
        gate_attention, gate_mlp = self.gates(F.silu(c)).unsqueeze(1).chunk(2, dim=-1)
        h = h + gate_attention * self.dropout(a, call, keys)
        return h + gate_mlp * self.dropout(self.mlp(h, c), call + 1, keys)

    def mlp(self, h: Tensor, c: Tensor | None) -> Tensor:
        """Return the output of the feed-forward network, [B, L, D]."""
        return self.down(F.gelu(self.up(self.norm_mlp(h, c)), approximate="tanh"))


def local_offset(heads: int, width: int, local: int, contrast: float = 5.0) -> Tensor:
    """Return offsets of queries and keys, [2·H·width], with which the first heads attend to a neighbour.

    With rotary angles ω per position, the constant vectors q = (a, 0) and k = a·(cos ωδ, sin ωδ) give the logit
    Σ a² cos ω(i − j − δ), which peaks at j = i − δ. The first `local` heads get δ = 1, −1, 2, −2, …; the logit at the
    peak exceeds those next to it by `contrast`. The result is a vector: optimizers apply weight decay to matrices.
    """
    rates = _rates(width)
    # Fast angles tell neighbours apart; the slow ones would only add a constant.
    energy = rates * contrast * math.sqrt(width) / (rates * (1 - rates.cos())).sum()
    offset = torch.zeros(2, heads, width)
    for head in range(local):
        delta = (head // 2 + 1) * (1 if head % 2 == 0 else -1)
        offset[0, head] = torch.cat([energy.sqrt(), torch.zeros_like(energy)])
        offset[1, head] = torch.cat([energy.sqrt() * (rates * delta).cos(), energy.sqrt() * (rates * delta).sin()])
    return offset.flatten()


def _rates(width: int) -> Tensor:
    """Return the rotation angle per position for each pair of a head's dimensions, float32 [width/2]."""
    return 10_000.0 ** -(torch.arange(0, width, 2, dtype=torch.float32) / width)


class Norm(nn.Module):
    """Layer normalisation with a learned gain, or with a scale and shift computed from the time embedding."""

    def __init__(self, width: int, conditioned: bool) -> None:
        super().__init__()
        self.layer = nn.LayerNorm(width, elementwise_affine=not conditioned, bias=False)
        self.modulation = nn.Linear(width, 2 * width) if conditioned else None
        if self.modulation is not None:
            nn.init.zeros_(self.modulation.weight)
            nn.init.zeros_(self.modulation.bias)

    def forward(self, h: Tensor, c: Tensor | None) -> Tensor:
        """Return h [B, L, D], normalised over D."""
        normed = self.layer(h)
        if self.modulation is None:
            return normed
        assert c is not None
        scale, shift = self.modulation(F.silu(c)).unsqueeze(1).chunk(2, dim=-1)
        return normed * (1 + scale) + shift


class Head(nn.Module):
    """The output head: maps hidden states [..., D] to logits [..., V], without a column for the mask token."""

    def __init__(self, embedding: nn.Embedding, tied: bool, bias: str, counts: NDArray[np.int64] | None) -> None:
        super().__init__()
        self.vocabulary_size = V = embedding.num_embeddings - 1
        self.weight = None if tied else nn.Parameter(torch.zeros(V, embedding.embedding_dim))
        # In a list, so that the shared weight is not also a parameter of this module.
        self._tied = [embedding] if tied else []
        self.bias = None if bias == "none" else nn.Parameter(torch.zeros(V))
        if self.bias is not None and bias == "unigram" and counts is not None:
            smoothed = torch.from_numpy(counts).double() + 1.0
            self.bias.data = (smoothed / smoothed.sum()).log().float()

    def forward(self, hidden: Tensor) -> Tensor:
        """Return logits [..., V]."""
        weight = self._tied[0].weight[: self.vocabulary_size] if self.weight is None else self.weight
        return F.linear(hidden, weight, self.bias)


class TimeEmbedding(nn.Module):
    """The time embedding: maps t in (0, 1] to [B, D] with sinusoids of 1,000·t and two linear layers."""

    def __init__(self, width: int, frequencies: int = 256) -> None:
        super().__init__()
        self.frequencies = frequencies
        self.layers = nn.Sequential(nn.Linear(frequencies, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, t: Tensor) -> Tensor:
        """Return the embedding [B, D] of t [B]."""
        half = self.frequencies // 2
        rates = torch.exp(-math.log(10_000.0) * torch.arange(half, device=t.device, dtype=torch.float32) / half)
        angles = 1000.0 * t.float()[:, None] * rates
        features = torch.cat([angles.cos(), angles.sin()], dim=-1)
        return self.layers(features)


class Rotary(nn.Module):
    """Rotary position embedding (Su et al., 2021), with angles in float32."""

    def __init__(self, head_width: int) -> None:
        super().__init__()
        self.register_buffer("rates", _rates(head_width), persistent=False)
        self.rates: Tensor

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the cosines and sines, each [L, 1, 1, D/(2H)], or [B, L, …] for positions [B, L]."""
        angles = (positions.float()[..., None] * self.rates)[..., None, None, :]
        return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Return x [B, L, 2, H, D/H] with pairs of numbers, one from each half of a head, rotated by their angles."""
    cos, sin = rotation
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)
