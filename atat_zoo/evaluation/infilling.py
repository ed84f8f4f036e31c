"""The likelihood of the true words of a gap given both sides, or only the left. n texts of L tokens, a gap of G."""

import torch
from torch import Tensor

from atat_zoo.modeling.diffusion.contracts import Denoiser
from atat_zoo.modeling.diffusion.randomness import row_keys, to_unit


def place_gaps(tokens: Tensor, maskable: Tensor, special: list[int], gap: int, seed: int) -> Tensor:
    """Return the start of each text's gap, int64 [n], drawn by (seed, row); −1 if there is no room. Texts are [n, L].

    A gap contains no padding and none of the ids `special`, and has a token on each side.
    """
    plain = maskable & ~torch.isin(tokens, torch.tensor(special, dtype=tokens.dtype))
    free = plain.unfold(1, gap, 1).all(2)  # windows of G tokens, by their start
    free[:, 0] = False
    # The token after the gap exists and is not padding.
    free = free[:, :-1] & maskable[:, gap:]
    count = free.sum(1)
    unit = to_unit(row_keys(seed, "gaps", torch.arange(len(tokens))), torch.float64)
    nth = (unit * count).floor().long() + 1
    return torch.where(count > 0, (free.cumsum(1) >= nth[:, None]).int().argmax(1), -1)


@torch.no_grad()
def log_likelihood(
    denoiser: Denoiser, tokens: Tensor, starts: Tensor, gap: int, *, mask_id: int, right: bool
) -> Tensor:
    """Return log p_θ of the true tokens of gaps by the chain rule, in nats, float64 [n, G].

    Token by token from the left, with the gap's earlier tokens shown and its later ones masked: the exact likelihood of
    filling it in this order, which also suits models that only write from left to right. Tokens are int64 [n, L],
    starts int64 [n]; `right`: whether the text right of the gap is shown.
    """
    position = torch.arange(tokens.shape[1], device=tokens.device)
    begin = starts[:, None]
    end = begin + gap if right else torch.full_like(begin, tokens.shape[1])
    log_p = []
    for j in range(gap):
        where = position == begin + j
        z = tokens.masked_fill((position >= begin + j) & (position < end), mask_id)
        log_p.append(denoiser(z, None, where).gather(1, tokens[where][:, None])[:, 0].double())
    return torch.stack(log_p, dim=1)
