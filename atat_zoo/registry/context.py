"""The information that components receive when they are built."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray


@attrs.frozen(kw_only=True)
class Context:
    """The sizes and counts that components need when they are built.

    Attributes:
        vocabulary_size: V, the number of predictable tokens; their ids are 0 … V−1.
        length: L, the number of tokens in a training sequence.
        width: D, the width of the backbone's token embedding; 0 before the backbone is built.
        width_read: the number of values that the importance estimator reads per token: D, and those of the n-gram
            prior, if it reads them; 0 before the backbone is built.
        batch_size: B, the number of sequences in a training step; set by `objectives.assemble`, and not saved.
        counts: the number of occurrences of each token in the training shards, int64 [V], or None.
        ngram_prior: a function that returns the `NGramPrior` of the training shards, which may take a minute; None
            without shards, for example for a saved model.
        steps: the number of optimizer steps in training, for components that follow the progress of training.
        seed: the experiment's seed, for initial values.
        device: the torch device for everything except the networks: the networks' device, or the CPU if that device
            does not support float64; see `atat_zoo.system.devices`.
        tokenizer: the `TokenizerModel` of the text, or None; not saved with a model.
        shifted: whether the objective reads the previous token at each position; set by `assemble`, and not saved.
        given_between: whether a training sequence has context between its answers, as dialogues do; set by `assemble`,
            and not saved.
        compiled: whether the network and the losses are compiled, as set by `train.compile`; not saved.
        sharded: whether the weights are sharded, so that all ranks need the same number of forward passes; not saved.
    """

    vocabulary_size: int
    length: int
    width: int = 0
    width_read: int = 0
    batch_size: int = 1
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
        """The id of the mask token m, which is always V, so the head's V outputs do not include the mask."""
        return self.vocabulary_size
