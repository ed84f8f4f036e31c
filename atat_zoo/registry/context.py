"""What parts need to know when they are built."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray


@attrs.frozen(kw_only=True)
class Context:
    """The sizes and counts that parts need when they are built.

    Attributes:
        vocabulary_size: V, the predictable tokens; ids 0 … V−1.
        length: L, tokens in a training sequence.
        width: D, the width of the backbone's token embedding; 0 before there is a backbone.
        counts: how often each token occurs in the training shards, int64 [V], or None.
        ngram_prior: returns the `NGramPrior` of the training shards, which may take a minute; None without shards, as
            when a saved model is built again.
        steps: optimizer steps of the training, for parts that follow its progress.
        seed: the experiment's seed, for initial values.
        device: where everything but the networks is computed, in torch's notation: on their device, or on the CPU if
            that has no float64; see `atat_zoo.system.devices`.
        tokenizer: the `TokenizerModel` of the text, or None where there is none; not saved with a model.
        shifted: whether the objective reads at each place the token before it; `assemble` says so, and it is not saved.
        given_between: whether tokens are given between others in a training, as what is asked in dialogues; likewise.
        compiled: whether the network and the losses are compiled, as in a training by `train.compile`; not saved.
        sharded: whether ranks share the weights, so that all read a batch in as many passes; not saved.
    """

    vocabulary_size: int
    length: int
    width: int = 0
    counts: NDArray[np.int64] | None = None
    ngram_prior: Callable[[], Any] | None = attrs.field(default=None, eq=False, repr=False)
    steps: int = 1
    seed: int = 17
    device: str = "cpu"
    tokenizer: Any = attrs.field(default=None, eq=False, repr=False)
    shifted: bool = False
    given_between: bool = False
    compiled: bool = False
    sharded: bool = False

    @property
    def mask_id(self) -> int:
        """m: always V, one past the predictable tokens, so that no head has a column for it."""
        return self.vocabulary_size
