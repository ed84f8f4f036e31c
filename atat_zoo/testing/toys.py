"""Small models with known probabilities, which serve as references for bounds and samplers.

The joint distribution has S states, V tokens and L positions; the mask has the id V.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from atat_zoo.diffusion.contracts import Denoiser, PredictAhead
from atat_zoo.diffusion.loss_by_mask_rate import LossByMaskRate
from atat_zoo.diffusion.positions import Where, pairs
from atat_zoo.diffusion.randomness import fold, to_unit, uniform

# Entropy in nats of the toy in docs/explanation/mathematics.md, which every bound with exact weights must reach.
ENTROPY = 1.910914


class FunctionDenoiser(Denoiser):
    """A denoiser that calls a function of (tokens, t, where), with optional attributes and importance."""

    def __init__(self, function: Callable[..., Tensor], mask_id: int, *, importance: Any = None, **facts: Any) -> None:
        self.function, self.mask_id, self.weigh = function, mask_id, importance
        self.estimates_importance = importance is not None
        for name, fact in facts.items():
            assert hasattr(self, name), f"a denoiser has no {name}"
            setattr(self, name, fact)

    def __call__(self, tokens: Tensor, t: Tensor | None, where: Where) -> Tensor:
        """Return the function's result; see `Denoiser`."""
        return self.function(tokens, t, where)

    def importance(self, tokens: Tensor, masked: Tensor) -> Tensor | None:
        """Return the importance from the given function, or None without a function."""
        return self.weigh(tokens, masked) if self.weigh else None


class Joint:
    """A joint distribution over V^L sequences, its exact denoiser and its entropy."""

    states: Tensor  #: all sequences, int64 [S, L], in counting order
    p: Tensor  #: the probabilities of the sequences, float64 [S]
    denoiser: Denoiser  #: the exact p(x_i | z)

    def __init__(self, weights: Tensor | list[float], length: int, vocabulary_size: int) -> None:
        """Create a joint from unnormalised `weights` [S] of the sequences 0…00, 0…01, … in base V."""
        self.length, self.vocabulary_size, self.mask_id = length, vocabulary_size, vocabulary_size
        weights = torch.as_tensor(weights, dtype=torch.float64)
        self.states = torch.tensor(list(itertools.product(range(vocabulary_size), repeat=length)), dtype=torch.int64)
        if weights.shape != self.states.shape[:1]:
            raise ValueError(f"expected {len(self.states)} weights for V = {vocabulary_size}, L = {length}")
        self.p = weights / weights.sum()
        self.denoiser = FunctionDenoiser(self.log_probs, self.mask_id)

    @property
    def entropy(self) -> float:
        """The entropy −Σ P log P in nats."""
        return float(torch.special.entr(self.p).sum())

    def index(self, tokens: Tensor) -> Tensor:
        """Return the index, int64 [B], of each sequence in `tokens`, int64 [B, L], among the states."""
        place = torch.tensor([self.vocabulary_size**i for i in range(self.length - 1, -1, -1)])
        return (tokens.cpu() * place).sum(-1)

    def marginals(self, tokens: Tensor) -> Tensor:
        """Return p(x_i = v | the visible tokens of z), float64 [B, L, V], given z as `tokens`."""
        z = tokens.cpu().unsqueeze(1)
        agrees = ((z == self.states) | (z == self.mask_id)).all(-1)
        weight = agrees * self.p
        one_hot = torch.nn.functional.one_hot(self.states, self.vocabulary_size).double()
        joint = torch.einsum("bs,slv->blv", weight, one_hot)
        return joint / joint.sum(-1, keepdim=True)

    def log_probs(self, tokens: Tensor, t: Tensor | None, where: Where) -> Tensor:
        """Return the exact log p(x_i | z) at the N positions in `where`, float64 [N, V]."""
        return self.marginals(tokens).to(tokens.device)[where].log()


def toy() -> Joint:
    """Return the joint from docs/explanation/mathematics.md: L = 3, V = 2, P(000, …, 111) ∝ 4, 1, 2, 3, 1, 5, 2, 6."""
    return Joint([4, 1, 2, 3, 1, 5, 2, 6], length=3, vocabulary_size=2)


class ExactBackbone(nn.Module):
    """A backbone for a known joint, whose hidden states are log p(x_i | the tokens that position i attends to).

    The width is V, the head is the identity, and all tensors are float64. `shift` (default: log V) is added to the
    logits, because score-entropy objectives subtract it. With `shifted`, and always with causal attention, each
    position reads the previous token, and the first position reads a mask.
    """

    reads_time = False

    def __init__(self, joint: Joint, shift: float | None = None, *, shifted: bool = False) -> None:
        super().__init__()
        self.shifted, V = shifted, joint.vocabulary_size
        self.joint, self.shift, self.head = joint, math.log(V) if shift is None else shift, nn.Identity()
        self.embedding = nn.Embedding(V + 1, V, dtype=torch.float64)

    def forward(
        self, tokens: Tensor, t: Any = None, *, positions: Any = None, attention: Any = None, cache: Any = None
    ) -> Tensor:
        """Return hidden states [B, T, V] for tokens [B, T]."""
        m, L, shifted = self.joint.mask_id, self.joint.length, self.shifted or isinstance(attention, str)
        B, T = tokens.shape
        if attention is None or isinstance(attention, str):
            seen = torch.ones(T, T).bool()
            attention = seen if attention is None else seen.tril()
        seen = attention.expand(B, 1, T, T)[:, 0]
        place = (torch.arange(T) if positions is None else positions).expand(B, T)
        found, row = [], torch.arange(B)
        for i in range(T):
            z = torch.full((B, L), m)
            for j in range(T):
                k = place[:, j] - int(shifted)
                # Positions before or after the text carry no information.
                told = seen[:, i, j] & (tokens[:, j] != m) & (k >= 0) & (k < L)
                z[row, k.clamp(0, L - 1)] = torch.where(told, tokens[:, j], z[row, k.clamp(0, L - 1)])
            found.append(self.joint.marginals(z)[row, place[:, i].clamp(0, L - 1)].log() + self.shift)
        return torch.stack(found, 1)


class Hashed(FunctionDenoiser):
    """A denoiser whose log-probabilities are a hash of a row's z, the position and the token.

    Its output changes whenever z changes. It works for any V and L, and gives a row the same numbers in any batch, so
    that leaks between rows become visible. It counts its `calls`, the rows in them (`evaluated`) and the positions
    (`asked`).
    """

    gives_order_weights = scores_visible_tokens = predicts_ahead = supports_padding = True
    loss_by_mask_rate = LossByMaskRate(mask_rates=(0.2, 0.6, 1.0), nats=(0.5, 1.0, 4.0))

    def __init__(self, vocabulary_size: int, *, sharpness: float = 3.0, seed: int = 0, **facts: Any) -> None:
        """Create a denoiser with logits in [0, sharpness) and the attributes `facts` of a `FunctionDenoiser`."""
        super().__init__(self.hashed, vocabulary_size, **facts)
        self.sharpness, self.seed = sharpness, seed
        self.calls = self.evaluated = self.asked = 0

    def hashed(self, tokens: Tensor, t: Tensor | None, where: Where) -> Tensor:
        """Return log-probabilities, float64 [N, V]; raise a ValueError for a visible position."""
        if not bool((tokens == self.mask_id)[where].all()):
            raise ValueError("the denoiser must be called only at masked positions")
        self.calls += 1
        self.evaluated += len(tokens)
        self.asked += len(pairs(where)[0])
        return self._hashed(tokens, where)

    def with_padding(self) -> Denoiser:
        """Return the denoiser itself, which skips padding; see `Denoiser`."""
        return self

    def _hashed(self, tokens: Tensor, where: Where) -> Tensor:
        row, position = pairs(where)
        key = torch.full_like(tokens[:, 0], self.seed)
        for i in range(tokens.shape[1]):
            key = torch.where(tokens[:, i] > self.mask_id, key, fold(key, tokens[:, i]))
        logits = uniform(fold(key[row], position), self.mask_id, torch.float64) * self.sharpness
        return logits.log_softmax(-1)

    def predict_with_order(self, tokens: Tensor, t: Tensor | None, where: Where) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and, as log-weights of the order, −log p of token 0; see `Denoiser`."""
        log_probs = self(tokens, t, where)
        return log_probs, -log_probs[:, 0]

    def predict_ahead(self, tokens: Tensor, steps: Tensor, first: Tensor, length: int) -> PredictAhead:
        """Return log-probabilities that are a hash of all tokens of earlier steps; see `Denoiser`."""
        if bool((tokens == self.mask_id)[steps < first[:, None]].any()):
            raise ValueError("the denoiser must be called with all tokens of earlier steps")
        self.calls += 1
        self.evaluated += len(tokens)

        def predict(tokens: Tensor, row: Tensor, position: Tensor, before: Tensor) -> Tensor:
            ahead = steps[row, position] - before
            if not bool(((before >= first[row]) & (ahead >= 0) & (ahead <= length)).all()):
                raise ValueError("the denoiser must be called for the steps that it predicts")
            z = tokens[row].masked_fill(steps[row] >= before[:, None], self.mask_id)
            return self._hashed(z, (torch.arange(len(row)), position))

        return predict

    def score_visible(self, tokens: Tensor, t: Tensor | None, where: Where, visible: Where) -> tuple[Tensor, Tensor]:
        """Return log-probabilities, and log p of each visible token from the same hash; see `Denoiser`."""
        if bool((tokens == self.mask_id)[visible].any()):
            raise ValueError("the denoiser must not be called for the probability of a mask")
        log_probs = self(tokens, t, where)
        return log_probs, self._hashed(tokens, visible).gather(1, tokens[visible].unsqueeze(1)).squeeze(1)


def hashed_importance(tokens: Tensor, masked: Tensor) -> Tensor:
    """Return an arbitrary importance, float32 [B, L], which is a hash of token and position."""
    position = torch.arange(tokens.shape[1], device=tokens.device)
    return to_unit(fold(fold(tokens, 1), position))
