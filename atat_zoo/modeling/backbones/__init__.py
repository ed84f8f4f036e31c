"""Backbones: the network that reads noisy tokens.

The embedding has V + 1 rows (the last is the mask token), the head V columns, because the mask token is an input but
never predicted.
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
            tokens: int64 [B, L], ids 0 … V, where V is the mask.
            t: diffusion time [B], read by a time-conditioned backbone.
            positions: int64 [L] or [B, L], the position of each token, which may repeat; by default 0 … L−1.
            attention: None for full attention, `"causal"`, or a bool mask [L, L] or [B, 1, L, L], true where attended.
            cache: passed only if it `takes_cache`: a `Cache` of C earlier tokens, to which all tokens also attend;
                `attention` is then a bool mask [L, C + L], and `positions` are required.
        """


class Backbone(Protocol):
    """A component of the kind backbone.

    It may define `flops(vocabulary_size, rows, length, positions)`, the FLOPs of the matrix products of a forward pass
    over [rows, length] with logits at `positions` positions; a multiply-add counts as two. Without this method a run
    reports no FLOPs. If it `returns_first`, `flops` also takes `first`.

    `atat export` of the package atat-zoo-checkpoints calls `export(module, tokenizer, experiment, folder, *, dtype,
    max_shard_size)`, which writes a trained module from `build` and its tokenizer to an empty folder in the Hugging
    Face format: config.json, safetensors files of at most `max_shard_size` (such as "5GB"), and the tokenizer. `dtype`
    is the torch name of a dtype, or None for the module's own. Such a backbone also defines
    `no_export_because(experiment)`, which returns a clause that says why the network cannot be exported, or None; it
    does not import torch.

    A backbone that `atat import` of that package can load from a published model defines three more methods. Two are
    class methods: `reads(config)` returns whether it recognises a model by its config.json or by the settings in a
    checkpoint; `import_table(published, said)` returns the tables of the model's experiment (backbone, tokenizer,
    objective, noise, data), which the user's own tables, `said`, override. `imported(module, published)` copies the
    published weights into the `ObjectiveModule` of that experiment and returns the backbone of the run. They raise
    `UserError` for a model that does not fit.
    """

    name: str
    network: ClassVar[str]
    #: Whether its network always reads the whole text, both ways, as a recurrent one does, and its module takes no
    #: `attention` and no `cache`; objectives that need them are refused.
    both_ways_only: ClassVar[bool] = False
    returns_first: ClassVar[bool] = False  #: whether its module does
    built_with_weights: ClassVar[bool] = False  #: whether its network computes with its weights while it is built
    pretrained: ClassVar[bool] = False  #: whether it is built with pretrained weights
    #: Parameters on which no weight depends: only these may change in a training that continues from another run.
    adjustable: ClassVar[tuple[str, ...]] = ()

    @property
    def lora_rank(self) -> int:
        """The LoRA rank; 0, the default, trains the whole backbone."""
        return 0

    @property
    def ngram_prior(self) -> int:
        """The number of visible neighbours on each side that the n-gram prior reads; 0, the default, for no prior."""
        return 0

    @property
    def reads_time(self) -> bool:
        """Whether the module reads the diffusion time t."""

    def build(self, context: Context) -> nn.Module:
        """Return a `BackboneModule` for `context.vocabulary_size` and `context.length`."""
        module: nn.Module = network_of(self, context)
        return module
