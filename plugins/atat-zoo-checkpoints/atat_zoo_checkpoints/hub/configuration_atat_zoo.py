"""Configuration for a language model trained with atat_zoo."""

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PretrainedConfig


class AtatZooConfig(PretrainedConfig):
    """Configuration of the network: its sizes, and which tokens its predictions depend on.

    Args:
        vocab_size: S, the number of all tokens, including the mask and the padding token.
        predictable: V, the number of predicted tokens; token V is the mask, or the start token of a causal model.
        hidden_size: D, the width of the network.
        num_hidden_layers: number of layers.
        num_attention_heads: H, the number of attention heads.
        intermediate_size: width of the feed-forward layers.
        max_position_embeddings: maximum number of tokens in a text.
        length: number of tokens in a training sequence.
        form: `masked` predicts each masked token from all visible tokens; `turns` also reads the decoding step of each
            token; `causal` predicts each token from the tokens before it.
        times: diffusion times at equally spaced mask rates from 0 to 1; empty unless the network is time-conditioned.
        local_heads: whether learned vectors are added to queries and keys.
        tied_head: whether the head shares its weights with the embedding.
        head_bias: whether the head has a bias.
        ngram_prior: numbers of stored token pairs at the distances 1, 2, …; empty without an n-gram prior.
        has_eos: whether training texts end with EOS, so that generated texts also end at EOS.
        framed: whether every training sequence starts with BOS and ends with EOS.
        unmasking: default values for the arguments `sampler`, `steps` and `temperature` of `generate`.
        others: arguments of `PretrainedConfig`, such as `mask_token_id`.
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
        # The network itself handles a head that shares its weights with the embedding.
        super().__init__(**{**others, "tie_word_embeddings": False})
