"""The n-gram prior of an exported network. Shapes: N predictions, V predicted tokens, R the reach in tokens."""

import torch
from torch import Tensor, nn

from .configuration_atat_zoo import AtatZooConfig


class AtatZooNGramPrior(nn.Module):
    """N-gram prior: scores of each token given its visible neighbours, which are added to the logits.

    For a neighbour h at a certain distance, c(h, y) is the number of times that y occurs at this distance from h, N(h)
    the number of times that any token does, T(h) the number of distinct tokens that do, and p(y) the frequency of y.
    The score for each neighbour −1, 1, −2, 2, … is γ · [log(1 + c(h, y)/(T(h)·p(y))) − log(1 + N(h)/T(h))] with a
    learned γ. The buffer `apart_d` contains the counts at distance d.
    """

    def __init__(self, config: AtatZooConfig) -> None:
        super().__init__()
        self.V, self.reach = config.predictable, len(config.ngram_prior)
        self.gain = nn.Parameter(torch.ones(2 * self.reach))
        for distance, pairs in enumerate(config.ngram_prior, 1):
            self.register_buffer(f"apart_{distance}", torch.zeros(pairs, 3, dtype=torch.int32))
        self.register_buffer("tokens", torch.zeros(self.V, dtype=torch.int64))
        self.tokens: Tensor
        self._table: tuple[Tensor, ...] | None = None

    def forward(self, logits: Tensor, near: Tensor) -> Tensor:
        """Return logits [N, V] plus the scores, given the neighbours, int64 [N, 2R], with V where none is visible."""
        if self._table is None or self._table[0].device != logits.device:
            self._table = self.table()
        first, number, less, token, score = self._table
        row = near + (self.V + 1) * torch.arange(2 * self.reach, device=near.device)
        logits = logits - (self.gain.float() * less[row]).sum(1, keepdim=True)
        row, many = row.flatten(), number[row].flatten()
        which = torch.arange(len(row), device=row.device).repeat_interleave(many)
        at = first[row][which] + torch.arange(len(which), device=row.device) - (many.cumsum(0) - many)[which]
        gained = self.gain.float()[which % (2 * self.reach)] * score[at]
        return logits.index_put((which // (2 * self.reach), token[at]), gained, accumulate=True)

    def table(self) -> tuple[Tensor, ...]:
        """Return the scores as a sparse table, with an entry for each pair (h, y) that occurs at one of the 2R places.

        The first three tensors, [2R · (V + 1)], have for each place and h the index of its first entry, its number of
        entries, and log(1 + N(h)/T(h)). The last two have the token y of each entry, and log(1 + c(h, y)/(T(h)·p(y))).
        """
        device, tokens = self.tokens.device, self.tokens.cpu()  # float64, which not every device has
        apart = [getattr(self, f"apart_{distance}").cpu().long().unbind(1) for distance in range(1, self.reach + 1)]
        places = [each for one, other, times in apart for each in ((one, other, times), (other, one, times))]
        row = torch.cat([place * (self.V + 1) + h for place, (h, _, _) in enumerate(places)])
        token, times = (torch.cat(each) for each in list(zip(*places, strict=True))[1:])
        row, order = row.sort()
        token, times = token[order], times[order].double()
        none = torch.zeros(len(places) * (self.V + 1), dtype=torch.int64)
        number = none.index_add(0, row, torch.ones_like(row))
        types = number.clamp(min=1).double()
        less = (none.double().index_add(0, row, times) / types).log1p()
        p = (tokens.double() + 1) / (tokens.sum() + self.V)
        score = (times / (types[row] * p[token])).log1p()
        first = number.cumsum(0) - number
        return tuple(each.to(device) for each in (first, number, less.float(), token, score.float()))
