"""Backbones: the networks that read noisy tokens.

With a vocabulary of V tokens, the embedding has V + 1 rows, the last for the mask token. The head has V outputs,
because the mask token is an input but is never predicted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from atat_zoo.registry import Context, network_of

if TYPE_CHECKING:
    from torch import Tensor, nn

    from atat_zoo.diffusion.cache import Cache
    from atat_zoo.modeling.backbones.ngram_prior_module import NGramPriorModule


class BackboneModule(Protocol):
    """The `nn.Module` that `build` returns: maps tokens to hidden states, which its `head` maps to logits."""

    embedding: nn.Embedding  #: V + 1 rows of width D
    #: Maps hidden states [..., D] to logits [..., V]; applied only where logits are needed, some positions at a time.
    head: nn.Module
    reads_time: bool  #: whether `t` changes the result
    #: The n-gram prior. The objective adds its scores to the logits, since it knows what each position may read.
    prior: NGramPriorModule | None = None
    #: Whether the module takes `first`, the number of leading tokens whose hidden states are requested.
    returns_first: bool = False
    #: Whether it passes its mask to `diffusion.attention.attend`. In compiled training on a GPU, it gets a `BlockMask`.
    takes_block_masks: bool = False
    #: Whether it takes `cache`. Without a cache, a decoding step rereads the whole text: slower, with the same result.
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
        """Return the hidden states [B, L, D].

        Args:
            tokens: token ids 0 … V, int64 [B, L]; V is the mask token.
            t: diffusion time [B], read by a time-conditioned backbone.
            positions: the position of each token, int64 [L] or [B, L]; positions may repeat. The default is 0 … L−1.
            attention: None (full), `"causal"`, or a mask, true where attended: bool [L, C + L] or [B, 1, L, C + L].
            cache: a `Cache` of C earlier tokens (C = 0 without one), to which all tokens may also attend; passed only
                if the module `takes_cache`, together with `positions`, and never with `"causal"`.
        """


class Backbone(Protocol):
    """A component of kind `backbone`.

    A backbone may define `flops(vocabulary_size, rows, length, positions)`, which returns the FLOPs of the matrix
    products in a forward pass over [rows, length] tokens with logits at `positions` positions; a multiply-add counts
    as two. Without this method, a run reports no FLOPs. If the backbone `returns_first`, `flops` also takes `first`.

    The `atat export` command from the atat-zoo-checkpoints package calls `export(module, tokenizer, experiment, folder,
    *, dtype, max_shard_size)`, which writes a trained module from `build` and its tokenizer to an empty folder in the
    Hugging Face format: config.json, safetensors files of at most `max_shard_size` (such as "5GB"), and the tokenizer.
    `dtype` is the name of a torch dtype, or None to keep the module's own. Such a backbone also defines
    `no_export_because(experiment)`, which returns a clause that says why the network cannot be exported, or None. This
    method must not import torch.

    A backbone that the package's `atat import` command can load from a published model defines three more methods. Two
    are class methods: `reads(config)` returns whether the backbone recognises a model from its config.json or from the
    settings in a checkpoint; `import_table(published, said)` returns the tables of the model's experiment (backbone,
    tokenizer, objective, noise, data), which are overridden by the user's own tables, `said`. `imported(module,
    published)` copies the published weights into the `ObjectiveModule` of that experiment and returns the run's
    backbone. These methods raise a `UserError` for a model that does not fit.
    """

    name: str
    network: ClassVar[str]
    #: Whether the network always reads the whole text in both directions, as a recurrent one does. Its module takes no
    #: `attention` and no `cache`, and objectives that need these are refused.
    both_ways_only: ClassVar[bool] = False
    returns_first: ClassVar[bool] = False  #: whether the module `returns_first`
    built_with_weights: ClassVar[bool] = False  #: whether the network computes with its weights while it is built
    pretrained: ClassVar[bool] = False  #: whether it is built with pretrained weights
    #: Parameters on which no trained weight depends; only these may change when training continues from another run.
    adjustable: ClassVar[tuple[str, ...]] = ()

    @property
    def lora_rank(self) -> int:
        """The LoRA rank; 0, the default, trains the whole backbone."""
        return 0

    @property
    def ngram_prior(self) -> int:
        """The number of visible neighbours on each side that the n-gram prior reads; 0, the default, disables it."""
        return 0

    @property
    def reads_time(self) -> bool:
        """Whether the module reads the diffusion time t."""

    def build(self, context: Context) -> nn.Module:
        """Return a `BackboneModule` for `context.vocabulary_size` and `context.length`."""
        return network_of(self, context)
