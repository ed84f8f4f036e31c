"""The configuration of a language model that atat_zoo has trained."""

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PretrainedConfig


class AtatZooConfig(PretrainedConfig):
    """The sizes of the network, and how it is read.

    Args:
        vocab_size: of all tokens: those that are predicted, the mask, and a padding of its own.
        predictable: V, the tokens that are predicted; the token V is the mask, or of a causal model the start.
        hidden_size: D.
        num_hidden_layers: their number.
        num_attention_heads: H.
        intermediate_size: the width of the feed-forward layers.
        max_position_embeddings: tokens in the longest text.
        length: tokens in a text of the training.
        form: `masked` predicts any masked token from all visible ones; `turns` does, too, and can be told the turn in
            which each token came; `causal` predicts each token from those before it.
        times: for a network that reads the diffusion time: the times at which the shares 0 … 1 of the tokens are
            masked, equally spaced; empty for one that does not.
        local_heads: whether vectors are added to queries and keys.
        tied_head: whether the head is the embedding.
        head_bias: whether the head has a bias.
        ngram_prior: how many pairs of tokens were counted at a distance of 1, 2, …; empty without such counts.
        has_eos: whether a text of the training ends with EOS, so that one that is written ends there, too.
        framed: whether every text of the training stands between BOS and EOS.
        unmasking: the options `sampler`, `steps` and `temperature` of `generate` where none are given.
        others: as for any configuration, such as `mask_token_id`.
    """

    model_type = "atat_zoo"

    def __init__(
        self,
        vocab_size: int = 3,
        predictable: int = 1,
        hidden_size: int = 16,
        num_hidden_layers: int = 1,
        num_attention_heads: int = 1,
        intermediate_size: int = 64,
        max_position_embeddings: int = 1024,
        length: int = 1024,
        form: str = "masked",
        times: Sequence[float] = (),
        local_heads: bool = False,
        tied_head: bool = False,
        head_bias: bool = False,
        ngram_prior: Sequence[int] = (),
        has_eos: bool = False,
        framed: bool = False,
        unmasking: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> None:
        self.vocab_size, self.predictable = vocab_size, predictable
        self.hidden_size, self.intermediate_size = hidden_size, intermediate_size
        self.num_hidden_layers, self.num_attention_heads = num_hidden_layers, num_attention_heads
        self.max_position_embeddings, self.length = max_position_embeddings, length
        self.form, self.times, self.ngram_prior = form, list(times), list(ngram_prior)
        self.local_heads, self.tied_head, self.head_bias = local_heads, tied_head, head_bias
        self.has_eos, self.framed, self.unmasking = has_eos, framed, dict(unmasking or {})
        # The network itself knows whether its head is its embedding.
        super().__init__(**{**others, "tie_word_embeddings": False})
