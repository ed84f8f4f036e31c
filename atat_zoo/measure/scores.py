"""Scores of the predictions at masked tokens, which `atat compare` shows beside the bounds.

A score is the mean of a function of each prediction over the masked tokens of all sequences: Σ weight · score over
Σ weight, with the weights of the bound. With `exact_k` every number of masks k = 1 … n counts alike. Where the
likelihood is exact it is the mean over all tokens. Legend: N masked tokens, V predictable ones.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from atat_zoo.objectives import Score


def brier(logits: Tensor, x: Tensor) -> Tensor:
    """Return Σ_v (p_v − 1[v = x])², in [0, 2], lower is better (Brier, 1950); logits are [N, V], x and result [N]."""
    p = logits.softmax(-1)
    return p.square().sum(-1) - 2 * p.gather(-1, x[:, None])[:, 0] + 1


def top_1_accuracy(logits: Tensor, x: Tensor) -> Tensor:
    """Return whether the most probable token is the true one, [N] of 0 and 1; logits are [N, V], x [N]."""
    return (logits.argmax(-1) == x).double()


# By name in the JSON; tables write it with spaces.
SCORES: Mapping[str, Score] = {"brier_score": brier, "top_1_accuracy": top_1_accuracy}
