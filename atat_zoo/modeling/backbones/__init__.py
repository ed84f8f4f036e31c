"""Backbones: the network that reads noisy tokens.

The embedding has V + 1 rows (the last is the mask token), the head V columns:
the mask is an input and never predicted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from atat_zoo.registry import Context, network_of

if TYPE_CHECKING:
    from torch import Tensor, nn

    from atat_zoo.modeling.backbones.cache import Cache
    from atat_zoo.modeling.backbones.ngram_prior_module import NGramPriorModule


class BackboneModule(Protocol):
    """The result of `build`: an `nn.Module`."""

    embedding: nn.Embedding  #: V + 1 rows of width D
    #: From hidden states [..., D] to logits [..., V], applied only where logits are needed, some positions at a time.
    head: nn.Module
    reads_time: bool  #: whether `t` changes the result
    #: Its scores are added to the logits by the objective, which knows what each position may read.
    prior: NGramPriorModule | None = None
    #: Whether it takes `first`: of how many tokens, from the start, hidden states are asked for.
    returns_first: bool = False
    #: Whether it hands its mask to `diffusion.attention.attend`, and is given a `BlockMask` if compiled on a GPU.
    takes_block_masks: bool = False
    #: Whether it takes `cache`. Without it a decoding step reads the whole text again: slower, with the same result.
    takes_cache: bool = False

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
            cache: only given if it `takes_cache`, a `Cache` (cache.py) of C earlier tokens that all tokens also
                attend to (a mask is then [L, C + L]; `"causal"` is refused). `positions` must be given.
        """


class Backbone(Protocol):
    """A component of the kind backbone.

    It may have `flops(vocabulary_size, rows, length, positions)`, the FLOPs of the matrix products of a forward pass
    over [rows, length] with logits at so many positions, two for a multiplication and an addition; without it a run has
    no figures of them. If it `returns_first`, that takes `first`, too.

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
    network: ClassVar[str]
    #: Whether its network always reads the whole text, both ways, as a recurrent one does, and its module takes no
    #: `attention` and no `cache`; objectives that need them are refused.
    both_ways_only: ClassVar[bool] = False
    returns_first: ClassVar[bool] = False  #: whether its module does
    built_with_weights: ClassVar[bool] = False  #: whether its network computes with its weights while it is built
    pretrained: ClassVar[bool] = False  #: whether it is built with weights that are no random ones
    #: Parameters on which no weight depends: only these may change in a training that continues from another run.
    adjustable: ClassVar[tuple[str, ...]] = ()

    @property
    def lora_rank(self) -> int:
        """The rank of LoRA's matrices; 0, by default, where all is trained."""
        return 0

    @property
    def ngram_prior(self) -> int:
        """How many visible neighbours on either side the n-gram prior reads; 0, the default, for no prior."""
        return 0

    @property
    def reads_time(self) -> bool:
        """Whether its module reads t."""

    def build(self, context: Context) -> nn.Module:
        """Return a `BackboneModule` for `context.vocabulary_size` and `context.length`."""
        module: nn.Module = network_of(self, context)
        return module
