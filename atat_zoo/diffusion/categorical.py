"""Categorical sampling of tokens from log-probabilities, in float64.

Sampling in float32 truncates the tail: uniform numbers are multiples of 2^-24, so tokens less probable than this are
sampled never or too often, as at a lower temperature (Zheng et al., arXiv:2409.02908). The cumulative sum and uniforms
are therefore float64. One uniform number per position suffices: inverting the cumulative distribution is as exact as
Gumbel-max in float64, which needs one random number for each of the V tokens.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from atat_zoo.diffusion.randomness import to_unit

# Number of elements that are sorted, or summed in float64, at once: a few copies of 128 MiB.
_AT_ONCE = 1 << 24


def draw(log_probs: Tensor, keys: Tensor, temperature: float | Tensor = 1.0) -> Tensor:
    """Return one token per distribution, int64 [N], in 0 … V−1, drawn with one random-number key each, int64 [N].

    The log-probabilities [N, V] need not be normalised, and −∞ is never drawn. The temperature is a number, or [N]; at
    0, the most probable token is taken.
    """
    if isinstance(temperature, float | int) and temperature == 0:
        return log_probs.argmax(-1)
    return torch.cat([_draw(log_probs[cut], keys[cut], scale) for cut, scale in _pieces(log_probs, temperature)])


def log_prob(log_probs: Tensor, tokens: Tensor, temperature: float | Tensor = 1.0) -> Tensor:
    """Return the log-probability, in nats, float64 [N], that `draw` draws each token, int64 [N]; −∞ if it never does.

    The other arguments are as in `draw`.
    """
    if isinstance(temperature, float | int) and temperature == 0:
        return torch.where(log_probs.argmax(-1) == tokens, 0.0, -torch.inf).double()
    pieces = []
    for cut, scale in _pieces(log_probs, temperature):
        logits = _tempered(log_probs[cut], scale)
        pieces.append(logits.gather(-1, tokens[cut, None]).squeeze(-1) - logits.logsumexp(-1))
    return torch.cat(pieces)


def probabilities(log_probs: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the probabilities with which `draw` draws the tokens, float64 [N, V]."""
    if temperature == 0:
        return torch.zeros_like(log_probs, dtype=torch.float64).scatter_(-1, log_probs.argmax(-1, keepdim=True), 1.0)
    return _tempered(log_probs, temperature).softmax(-1)


def _pieces(log_probs: Tensor, temperature: float | Tensor) -> Iterator[tuple[slice, float | Tensor]]:
    """Yield slices of the N rows, each of at least one row and about `_AT_ONCE` elements, and their temperatures."""
    n, v = log_probs.shape
    size = max(1, _AT_ONCE // max(v, 1))
    for start in range(0, max(n, 1), size):
        cut = slice(start, start + size)
        yield cut, temperature[cut] if isinstance(temperature, Tensor) else temperature


def _tempered(log_probs: Tensor, temperature: float | Tensor) -> Tensor:
    """Return log-probabilities divided by a temperature, float64 [N, V], without normalising them."""
    logits = log_probs.double()
    if not isinstance(temperature, Tensor) and temperature == 1.0:
        return logits
    # A computed temperature may be 0, for which the most probable token would be 0/0.
    least = torch.finfo(torch.float64).tiny
    scale = temperature.double().clamp(min=least).unsqueeze(-1) if isinstance(temperature, Tensor) else temperature
    # Centred first: at a low temperature all of exp(log p / T) would underflow.
    return (logits - logits.amax(-1, keepdim=True)) / scale


def _draw(log_probs: Tensor, keys: Tensor, temperature: float | Tensor) -> Tensor:
    return draw_by_weight(_tempered(log_probs, temperature).exp(), keys)


def draw_by_weight(p: Tensor, keys: Tensor) -> Tensor:
    """Return one token per row, int64 [N], in proportion to weights, float64 [N, V]; one with weight 0 is never drawn.

    Each row has a random-number key, int64 [N].
    """
    cumulative = p.cumsum(-1)
    total = cumulative[:, -1:]
    u = to_unit(keys, torch.float64).unsqueeze(-1)
    # u·total may round up to the total, which would select past the last token with a nonzero probability.
    target = torch.minimum(u * total, torch.nextafter(total, torch.zeros_like(total)))
    # right=True selects the first sum above the target, so never a token of probability zero, whose sum equals the
    # previous one.
    chosen = torch.searchsorted(cumulative, target, right=True)
    if p.device.type != "cpu":
        # A parallel sum adds in a different order at each token, and a token of probability zero may gain 1e-16.
        chosen = torch.where(p.gather(-1, chosen.clamp_(max=p.shape[-1] - 1)) > 0, chosen, p.argmax(-1, keepdim=True))
    return chosen.squeeze(-1)


def top_k(log_probs: Tensor, k: int) -> Tensor:
    """Return log-probabilities [N, V] that are −∞ at all but the k most probable tokens; ties with the k-th stay."""
    if k >= log_probs.shape[-1]:
        return log_probs
    least = log_probs.topk(k, dim=-1).values[:, -1:]
    return log_probs.masked_fill(log_probs < least, -torch.inf)


def nucleus(log_probs: Tensor, p: float, temperature: float = 1.0) -> Tensor:
    """Return log-probabilities [N, V] that are −∞ outside the nucleus, the smallest set with probability at least p.

    The nucleus is that of softmax(log_probs / temperature), for a temperature above 0, and includes ties. Values inside
    the nucleus do not change. p is in (0, 1]; 1 excludes no token.
    """
    if p >= 1:
        return log_probs
    least = torch.cat([_least(log_probs[cut], p, temperature) for cut, _ in _pieces(log_probs, temperature)])
    return log_probs.masked_fill(log_probs < least, -torch.inf)


def _least(log_probs: Tensor, p: float, temperature: float) -> Tensor:
    """Return the log-probability of the last token of each nucleus, [N, 1]."""
    ranked = log_probs.sort(dim=-1, descending=True).values
    # Centred first: at a low temperature all of exp(log p / T) would underflow.
    probs = ((ranked - ranked[:, :1]).double() / temperature).softmax(-1)
    # A token stays if the tokens before it do not reach p; the first always stays.
    stays = (probs.cumsum(-1) - probs) < p
    stays[:, 0] = True
    return ranked.gather(-1, stays.sum(-1, keepdim=True) - 1)
