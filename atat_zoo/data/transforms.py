"""Transforms of the training stream, applied between the shards and the batches.

`data.transforms` is a list of transforms, each of which is applied to the output of the previous one. Held-out text is
not transformed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from typing_extensions import override

from atat_zoo.data.sample_order import uniforms
from atat_zoo.registry import component, param
from atat_zoo.system.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from atat_zoo.experiment import Experiment
    from atat_zoo.registry import Context

_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that no token is lost


class Transform(Protocol):
    """The base class of transforms.

    The output must depend only on the arguments, so that a resumed training run has exactly the same samples with any
    number of workers and ranks. A sequence that a transform refuses is replaced with a different one from the shards
    that are shuffled together, chosen by the number of the sample. So the number of samples per epoch stays the same,
    but sequences that pass may occur several times.
    """

    name: str

    def apply(self, tokens: NDArray[np.int64], key: int, context: Context) -> NDArray[Any] | None:
        """Return the transformed sequence as integers [m], or None to refuse it.

        Args:
            tokens: ids, int64 [n ≥ 1], including special tokens but not padding; may be modified in place.
            key: 64 random bits for `uniforms(size, key)`, which differ for each sample, transform and replacement.
            context: sizes, token counts and the tokenizer; the output must have 1 ≤ m ≤ `context.length` and ids below
                `context.vocabulary_size`.
        """


@component
class RandomLengthTransform(Transform):
    """Truncates a fraction of the sequences to a uniformly sampled length; the rest is padding.

    A model trained only on full sequences cannot generate short ones. LLaDA uses a fraction of 0.01.
    """

    name = "random_length"
    summary = "truncates some sequences to a random length"
    refs = ("arXiv:2502.09992",)

    probability: float = param(0.01, help="fraction of the sequences that are truncated", gt=0, le=1)
    min_tokens: int = param(1, help="minimum length after truncation, in tokens", ge=1)

    @override
    def apply(self, tokens: NDArray[np.int64], key: int, context: Context) -> NDArray[Any]:
        cut, length = uniforms(2, key)
        least = min(self.min_tokens, len(tokens))
        return tokens[: least + int(length * (len(tokens) - least + 1))] if cut < self.probability else tokens


@component
class MinimumLengthTransform(Transform):
    """Filters out sequences of fewer than `min_tokens` tokens, such as short documents if each has a sequence."""

    name = "minimum_length"
    summary = "filters out short sequences"
    refs = ("arXiv:2112.11446",)

    min_tokens: int = param(help="minimum number of tokens, including special tokens", ge=1)

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield a problem if `min_tokens` exceeds the sequence length."""
        if self.min_tokens > experiment.data.length:
            asked = f"minimum_length.min_tokens = {self.min_tokens}"
            yield Problem("data.transforms", f"{asked} is more than data.length = {experiment.data.length}; lower it")

    @override
    def apply(self, tokens: NDArray[np.int64], key: int, context: Context) -> NDArray[Any] | None:
        return tokens if len(tokens) >= self.min_tokens else None


@component
class RepetitionTransform(Transform):
    """Filters out sequences with few distinct n-grams, such as lists, navigation text and web boilerplate.

    A sequence of at least n tokens is filtered out if its fraction of distinct n-grams is below `min_distinct`.
    """

    name = "repetition"
    summary = "filters out sequences with many repeated n-grams"
    refs = ("arXiv:2112.11446", "arXiv:1510.03055")

    n: int = param(4, help="n, tokens per n-gram", ge=1)
    min_distinct: float = param(0.5, help="minimum fraction of distinct n-grams", gt=0, le=1)

    @override
    def apply(self, tokens: NDArray[np.int64], key: int, context: Context) -> NDArray[Any] | None:
        if len(tokens) < self.n:
            return tokens
        grams: NDArray[np.uint64] = np.zeros(len(tokens) - self.n + 1, np.uint64)
        for first in range(self.n):  # 64-bit hashes of the n-grams, which are sorted far faster than rows of tokens
            grams = grams * _FACTOR + tokens[first : first + len(grams)].astype(np.uint64)
        return tokens if len(np.unique(grams)) >= self.min_distinct * len(grams) else None
