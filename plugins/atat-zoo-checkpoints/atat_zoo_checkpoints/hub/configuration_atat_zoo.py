"""Configuration of a language model trained with atat_zoo."""

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PretrainedConfig


class AtatZooConfig(PretrainedConfig):
    """Configuration of the network: its sizes and the form of its predictions.

    Args:
        vocab_size: S, all tokens: the predicted ones, the mask, and a padding token of its own.
        predictable: V, the number of predicted tokens; token V is the mask, or the start token of a causal model.
        hidden_size: D, width.
        num_hidden_layers: number of layers.
        num_attention_heads: H, number of attention heads.
        intermediate_size: width of the feed-forward layers.
        max_position_embeddings: maximum number of tokens in a text.
        length: number of tokens in a training sequence.
        form: `masked` predicts any masked token from all visible ones; `turns` also reads the decoding step of each
            token; `causal` predicts each token from those before it.
        times: for a time-conditioned network: the diffusion times of equally spaced mask rates from 0 to 1; otherwise
            empty.
        local_heads: whether vectors are added to queries and keys.
        tied_head: whether the head shares the weights of the embedding.
        head_bias: whether the head has a bias.
        ngram_prior: number of counted token pairs at distance 1, 2, …; empty without an n-gram prior.
        has_eos: whether training sequences end with EOS, so that generated texts end there, too.
        framed: whether every training sequence has BOS at its start and EOS at its end.
        unmasking: default values of the options `sampler`, `steps` and `temperature` of `generate`.
        others: options of any configuration, such as `mask_token_id`.
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
