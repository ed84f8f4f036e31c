"""K-mer models, the baseline of `kmer_study`. Shapes: n sequences, L bases, V tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from atat_zoo.system.machine import require

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray


def kmer_nats(
    train: NDArray[np.int64], text: NDArray[np.int64], vocabulary_size: int, longest: int
) -> Iterator[NDArray[np.float64]]:
    """Yield, for k = 1 … `longest`, −log p(x_i | x_{i−k+1} … x_{i−1}) of each base in nats, float64 [n, L].

    Estimates are interpolated (Witten and Bell, IEEE Transactions on Information Theory 37, 1991): for a context h that
    occurs N times, c(h, x) times before x, and before T distinct bases, with p' the estimate without h's first base,

        p(x | h) = (c(h, x) + T · p'(x)) / (N + T),     p'(x) for an unseen h, and p' = 1/V for k = 1.

    The start of a sequence is part of the context, so a k-mer model has an exact left-to-right likelihood.

    Args:
        train: sequences to count, [m, L]; ids from 0 to V, where V marks positions to ignore.
        text: sequences to predict, [n, L], with 0 nats where an id is V.
        vocabulary_size: V.
        longest: largest k.

    Raises:
        UserError: if the tables do not fit in memory.
    """
    V, letters = vocabulary_size, vocabulary_size + 1
    require(16 * letters**longest, f"a {longest}-mer model", "its counts", "use a smaller k")
    p = np.full(text.shape, 1 / V)
    seen, asked = np.zeros_like(train), np.zeros_like(text)
    for k in range(1, longest + 1):
        contexts = letters ** (k - 1)
        whole = np.bincount((seen * letters + train).ravel(), minlength=contexts * letters)
        counts = whole.reshape(contexts, letters)[:, :V]
        total, different = counts.sum(1)[asked], (counts > 0).sum(1)[asked]
        known = counts[asked, np.minimum(text, V - 1)]
        p = np.where(total > 0, (known + different * p) / np.maximum(total + different, 1), p)
        yield np.where(text < V, -np.log(p), 0.0)
        seen, asked = (ids + contexts * _before(tokens, k, V) for ids, tokens in ((seen, train), (asked, text)))


def _before(tokens: NDArray[np.int64], by: int, absent: int) -> NDArray[np.int64]:
    """Return the token that is `by` positions before each position, or `absent` before the start."""
    return np.pad(tokens, ((0, 0), (by, 0)), constant_values=absent)[:, : tokens.shape[1]]
