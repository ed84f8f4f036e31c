"""The modules of the estimators. Shapes: B sequences, L tokens, the backbone's width D, the estimator's width E."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from atat_zoo.diffusion.attention import attend
from atat_zoo.diffusion.terms import Terms, biased
from atat_zoo.modeling.estimators import EstimatorModule, Reads
from atat_zoo.registry import Context


class TransformerModule(nn.Module, EstimatorModule):
    """The module of `transformer`: maps tokens to importance [B, L] in [0, 1], initially ½ everywhere."""

    def __init__(
        self,
        context: Context,
        *,
        reads: Reads,
        layers: int,
        width: int,
        heads: int,
        max_length: int,
        time_conditioning: bool,
        own_embedding: bool,
        ngram_scores: bool,
    ) -> None:
        super().__init__()
        self.reads, self.reads_time, self.own_embedding = reads, time_conditioning, own_embedding
        self.reads_ngram_scores = ngram_scores
        if self.own_embedding:
            self.embedding = nn.Embedding(context.vocabulary_size + 1, width)
            nn.init.normal_(self.embedding.weight, std=1.0)
        else:
            self.project = nn.Linear(context.width_read if ngram_scores else context.width, width, bias=False)
            # The backbone's embeddings have norm about 1; this scales the layers' input to entries of about 1. Scores
            # of the n-gram prior are several nats each.
            nn.init.normal_(self.project.weight, std=1.0)
            nn.init.normal_(self.project.weight[:, context.width :], std=0.1)
        self.positions = nn.Parameter(torch.randn(min(max_length, context.length), width) * 0.02)
        self.time = nn.Sequential(nn.Linear(64, width), nn.SiLU(), nn.Linear(width, width))
        if not self.reads_time:
            del self.time
        self.blocks = nn.ModuleList(EstimatorLayer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, 1)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    @override
    def forward(self, tokens: Tensor, embedded: Tensor, t: Tensor | None, maskable: Tensor) -> Tensor:
        h = self.embedding(tokens) if self.own_embedding else self.project(embedded)
        h = h + self.positions[: tokens.shape[1]]
        if self.reads_time:
            if t is None:
                raise ValueError("a time-conditioned estimator needs t")
            half = torch.arange(32, device=t.device, dtype=torch.float32)
            angles = 1000.0 * t.float()[:, None] * torch.exp(-math.log(10_000.0) * half / 32)
            h = h + self.time(torch.cat([angles.cos(), angles.sin()], dim=-1))[:, None].to(h.dtype)
        # Padding is not read. The check for padding runs on a CPU only: on a GPU it would cost a synchronisation.
        seen = None
        if maskable.device.type != "cpu" or not maskable.all():
            seen = (maskable | ~maskable.any(1, keepdim=True))[:, None, None, :]
        for layer in self.blocks:
            h = layer(h, seen)
        return torch.sigmoid(self.out(self.norm(h)).squeeze(-1).float())


class LossPredictionModule(nn.Module, EstimatorModule):
    """The module of `loss_prediction`: maps hidden states to importance [B, L] in [0, 1], initially ½ everywhere."""

    reads, reads_hidden = "z", True

    def __init__(self, context: Context, *, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(context.width, elementwise_affine=False)
        self.up, self.out = nn.Linear(context.width_read or context.width, width), nn.Linear(width, 1)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    @override
    def forward(self, tokens: Tensor, embedded: Tensor, t: Tensor | None, maskable: Tensor) -> Tensor:
        width = self.norm.normalized_shape[0]  # of the hidden state; what follows is not normalised
        read = torch.cat([self.norm(embedded[..., :width]), embedded[..., width:]], -1)
        h = F.gelu(self.up(read), approximate="tanh")
        return torch.sigmoid(self.out(h).squeeze(-1).float())


class EstimatorLayer(nn.Module):
    """Pre-norm attention and feed-forward layer of width E."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm_mlp = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, h: Tensor, seen: Tensor | None) -> Tensor:
        """Return the layer's output for h [B, L, E]; positions attend to those in `seen`, or to all without it."""
        B, L, E = h.shape
        q, k, v = self.qkv(self.norm_attention(h)).view(B, L, 3, self.heads, E // self.heads).permute(2, 0, 3, 1, 4)
        a = attend(q, k, v, seen)
        h = h + self.out(a.transpose(1, 2).reshape(B, L, E))
        return h + self.down(F.gelu(self.up(self.norm_mlp(h)), approximate="tanh"))


class ConstantModule(nn.Module, EstimatorModule):
    """The module of `uniform`: importance ½ for every token."""

    def __init__(self, context: Context) -> None:
        super().__init__()

    @override
    def forward(self, tokens: Tensor, embedded: Tensor, t: Tensor | None, maskable: Tensor) -> Tensor:
        return torch.full(tokens.shape, 0.5, device=tokens.device)


class SurprisalModule(nn.Module, EstimatorModule):
    """The module of `frequency`: the surprisal −log p(v) of a token, divided by the largest one; ½ without counts.

    The values [V + 1] are saved with the model, so the counts are needed only once.
    """

    values: Tensor

    def __init__(self, context: Context) -> None:
        super().__init__()
        values = torch.full((context.vocabulary_size + 1,), 0.5)
        if context.counts is not None:
            smoothed = torch.from_numpy(context.counts).double() + 1.0
            nats = -(smoothed / smoothed.sum()).log()
            # A single token is certain: 0 nats over 0.
            values[:-1] = (nats / nats.max().clamp(min=1e-300)).float()
        self.register_buffer("values", values)

    @override
    def forward(self, tokens: Tensor, embedded: Tensor, t: Tensor | None, maskable: Tensor) -> Tensor:
        return self.values[tokens]


class MixModule(nn.Module):
    """The module of `hybrid`: mix · learned + (1 − mix) · prior."""

    def __init__(self, context: Context, *, mix: float, learned: nn.Module, prior: nn.Module) -> None:
        super().__init__()
        self.a, self.b, self.mix = learned, prior, mix  # named as in saved weights
        self.reads, self.reads_time = learned.reads, bool(learned.reads_time or prior.reads_time)
        self.reads_hidden, self.reads_ngram_scores = bool(learned.reads_hidden), bool(learned.reads_ngram_scores)

    @override
    def forward(self, tokens: Tensor, embedded: Tensor, t: Tensor | None, maskable: Tensor) -> Tensor:
        a, b = (module(tokens, embedded, t, maskable) for module in (self.a, self.b))
        return self.mix * a + (1 - self.mix) * b


class BiasedModule(nn.Module):
    """The module of `term_bias`: the importance from `base`, moved towards 1 or 0 for the tokens of `words`."""

    def __init__(self, context: Context, *, words: tuple[str, ...], strength: float, base: nn.Module) -> None:
        super().__init__()
        if context.tokenizer is None:
            raise RuntimeError("the estimator term_bias needs a tokenizer; pass a context that has one")
        self.terms = Terms(context.tokenizer, words, longest=context.length, key="estimator.words")
        self.base, self.strength = base, strength
        self.reads, self.reads_time = base.reads, bool(base.reads_time)
        self.reads_hidden, self.reads_ngram_scores = bool(base.reads_hidden), bool(base.reads_ngram_scores)

    @override
    def forward(self, tokens: Tensor, embedded: Tensor, t: Tensor | None, maskable: Tensor) -> Tensor:
        importance = self.base(tokens, embedded, t, maskable)
        return biased(importance, self.terms.occurrences(tokens), self.strength)
