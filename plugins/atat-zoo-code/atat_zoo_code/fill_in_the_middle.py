"""The transform `fill_in_the_middle`, with which an autoregressive model learns to read the text after a gap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import override

from atat_zoo.data.sample_order import uniforms
from atat_zoo.data.transforms import Transform
from atat_zoo.registry import component, param
from atat_zoo.system.errors import Problem, UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from atat_zoo.data.tokenizers import TokenizerModel
    from atat_zoo.experiment import Experiment
    from atat_zoo.registry import Context


@component
class FillInTheMiddleTransform(Transform):
    """Moves the middle of a fraction of the sequences to the end: prefix BOS suffix EOS middle (Bavarian et al., 2022).

    The middle is between two uniformly random positions. BOS and EOS only mark the beginning of the suffix and that of
    the middle, so `data.special_tokens` must be "none". The last two tokens of a sequence are left out, so that its
    length stays the same. The other sequences do not change, so the model also learns to predict text from left to
    right.
    """

    name = "fill_in_the_middle"
    summary = "moves the middle of some sequences to the end, for autoregressive infilling"
    refs = ("arXiv:2207.14255",)

    probability: float = param(0.5, help="fraction of the sequences whose middle is moved", gt=0, le=1)

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield a problem if the text has BOS or EOS."""
        if experiment.data.special_tokens != "none":
            problem = "transform 'fill_in_the_middle' marks the suffix with BOS and the middle with EOS"
            yield Problem("data.special_tokens", f'{problem}; set it to "none", or leave the transform out')

    @override
    def apply(self, tokens: NDArray[np.int64], key: int, context: Context) -> NDArray[Any]:
        chosen, *cuts = uniforms(3, key)
        if chosen >= self.probability or len(tokens) < 3:
            return tokens
        kept = tokens[:-2]
        first, last = sorted(int(cut * (len(kept) + 1)) for cut in cuts)
        prefix, suffix, middle = (part.tolist() for part in (kept[:first], kept[last:], kept[first:last]))
        return np.array(middle_last(prefix, suffix, middle, context.tokenizer), np.int64)


def middle_last(
    prefix: Sequence[int], suffix: Sequence[int], middle: Sequence[int], tokenizer: TokenizerModel
) -> list[int]:
    """Return the tokens prefix BOS suffix EOS middle; raise a `UserError` if the tokenizer lacks BOS or EOS."""
    if tokenizer.bos is None or tokenizer.eos is None or tokenizer.bos == tokenizer.eos:
        raise UserError(
            "transform 'fill_in_the_middle' needs a tokenizer with BOS and EOS, which differ; use the tokenizer \"bpe\""
        )
    return [*prefix, tokenizer.bos, *suffix, tokenizer.eos, *middle]
