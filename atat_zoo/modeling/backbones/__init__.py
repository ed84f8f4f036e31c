"""Backbones: the network that reads noisy tokens.

The embedding has V + 1 rows (the last is the mask token), the head V columns:
the mask is an input and never predicted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor, nn

    from atat_zoo.modeling.backbones.cache import Cache
    from atat_zoo.registry import Context


class BackboneModule(Protocol):
    """The result of `build`: an `nn.Module`.

    Attributes:
        embedding: `nn.Embedding` with V + 1 rows of width D.
        head: module from hidden states [..., D] to logits [..., V], applied only where logits are needed, some
            positions at a time.
        reads_time: whether `t` changes the result.

    It may have `prior`, a `NgramModel` (ngram.py) or None: then the objective, which knows what each position may read,
    adds the prior's scores to the head's logits.
    """

    embedding: nn.Embedding
    head: nn.Module
    reads_time: bool

    def __call__(
        self,
        tokens: Tensor,
        t: Tensor | None = None,
        *,
        positions: Tensor | None = None,
        attention: Any = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Return hidden states [B, L, D].

        Args:
            tokens: int64 [B, L], ids 0 … V, V is the mask.
            t: diffusion time [B], read by a time-conditioned backbone.
            positions: int64 [L] or [B, L], the position of each token, which may repeat; 0 … L−1 when None.
            attention: None for all to all, `"causal"`, or a bool mask [L, L] or [B, 1, L, L], true where attended.
            cache: a `Cache` (cache.py) of C earlier tokens that all tokens also attend to (a mask is then
                [L, C + L]; `"causal"` is refused). `positions` must be given.
        """


class Backbone(Protocol):
    """A component of the kind backbone.

    One whose network always reads the whole text, both ways, as a recurrent one does, says `both_ways_only = True`, and
    its module takes no `attention` and no `cache`; objectives that need them are refused.

    One that says `returns_first = True`, and whose module does, takes `first`, too: of how many tokens, from the start,
    hidden states are asked for, which spares the last layer the others; so does its `flops`.

    One whose network computes with its weights while it is built says `built_with_weights = True`.

    A module that says `takes_block_masks = True` hands its mask to `diffusion.attention.attend`, and is given a
    `BlockMask` where it is compiled on a GPU.

    It may have `adjustable`, the names of parameters on which no weight depends: only
    these may change in a training that continues from another run. It may have `flops(vocabulary_size, rows, length,
    positions)`, the FLOPs of the matrix products of a forward pass over [rows, length] with logits at so many
    positions, two for a multiplication and an addition; without it a run has no figures of them.

    For `atat export` of the package atat-zoo-checkpoints it may have `export(module, tokenizer, experiment, folder, *,
    dtype, max_shard_size)`: it writes a trained module, which `build` has returned, and its tokenizer into an empty
    folder, as the libraries of the Hugging Face hub read them: config.json, safetensors in files of at most that size,
    as "5GB", of torch's name of a dtype or its own if None, and the tokenizer. Then it has
    `no_export_because(experiment)`, too, which says in a clause why an experiment's network cannot be written so, or
    returns None, and imports no torch.

    One for which `atat import` of that package makes runs of models that others have published has three more methods.
    Two are of its class: `reads(config)`, whether it knows a model by the content of its config.json, or by the
    settings in a checkpoint; and `import_table(published, said)`, the tables of the model's experiment (backbone,
    tokenizer, objective, noise, data), where `said` has those that the user has given, which come after it.
    `imported(module, published)` gives the `ObjectiveModule` of that experiment the model's weights, and returns the
    backbone of the run. They raise `UserError` where something does not fit.
    """

    name: str

    @property
    def reads_time(self) -> bool:
        """Whether its module reads t."""

    def build(self, context: Context) -> nn.Module:
        """Return a `BackboneModule` for `context.vocabulary_size` and `context.length`."""
