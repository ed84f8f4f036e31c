"""The backbone `llama`: a bidirectional Llama network for the published weights of LLaDA 8B and Dream 7B."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from typing_extensions import override

from atat_zoo.modeling.backbones.lora import LoRABackbone
from atat_zoo.registry import component, param, values_of
from atat_zoo.system.errors import Problem
from atat_zoo.system.machine import require

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from torch import Tensor, nn

    from atat_zoo.experiment import Experiment
    from atat_zoo.registry import Context

# The names of weights in published files, by their names in the network.
FORMS: dict[str, dict[str, str]] = {
    "llada": {
        "table": "model.transformer.wte",
        "layer": "model.transformer.blocks",
        "norm": "model.transformer.ln_f",
        "head": "model.transformer.ff_out",
        "norm_attention": "attn_norm",
        "norm_mlp": "ff_norm",
        "q": "q_proj",
        "k": "k_proj",
        "v": "v_proj",
        "out": "attn_out",
        "mlp.gate": "ff_proj",
        "mlp.up": "up_proj",
        "mlp.down": "ff_out",
    },
    "dream": {
        "table": "model.embed_tokens",
        "layer": "model.layers",
        "norm": "model.norm",
        "head": "lm_head",
        "norm_attention": "input_layernorm",
        "norm_mlp": "post_attention_layernorm",
        "q": "self_attn.q_proj",
        "k": "self_attn.k_proj",
        "v": "self_attn.v_proj",
        "out": "self_attn.o_proj",
        "mlp.gate": "mlp.gate_proj",
        "mlp.up": "mlp.up_proj",
        "mlp.down": "mlp.down_proj",
    },
    "llada2": {
        "table": "model.word_embeddings",
        "layer": "model.layers",
        "norm": "model.norm",
        "head": "lm_head",
        "norm_attention": "input_layernorm",
        "norm_mlp": "post_attention_layernorm",
        "qkv": "attention.query_key_value",
        "norm_q": "attention.query_layernorm",
        "norm_k": "attention.key_layernorm",
        "out": "attention.dense",
        "mlp.gate": "mlp.gate_proj",
        "mlp.up": "mlp.up_proj",
        "mlp.down": "mlp.down_proj",
        "mlp.router": "mlp.gate",
    },
}


@component
class LlamaBackbone(LoRABackbone):
    """Transformer with RMS norms, rotary positions, grouped-query attention and a gated feed-forward network.

    The network is Llama's, or Qwen2's if `qkv_bias` is set, without time conditioning. Its attention is bidirectional
    unless the objective restricts it. If `shift` is set, the logits for a position are computed at the position before
    it, as in Dream, which was initialised from a causal model. `atat import` reads the base and instruct models of
    LLaDA 8B and Dream 7B, and models fine-tuned from them. Dropout is not supported.
    """

    name = "llama"
    summary = "Llama network with bidirectional attention for the published weights of LLaDA and Dream"
    refs = ("arXiv:2502.09992", "arXiv:2508.15487", "arXiv:2302.13971", "arXiv:2305.13245")

    layers: int = param(32, help="number of layers", ge=1, le=10_000)
    width: int = param(4096, help="width of the hidden states", ge=2)
    heads: int = param(32, help="number of query heads", ge=1)
    kv_heads: int | None = param(
        None, help="number of key/value heads (grouped-query attention); default: as many as query heads", ge=1
    )
    inner: int = param(12288, help="width of the feed-forward layer", ge=1)
    qkv_bias: bool = param(False, help="whether the query, key and value projections have biases")
    theta: float = param(500_000.0, help="RoPE base θ", gt=1)
    eps: float = param(1e-5, help="ε of RMSNorm", gt=0, lt=1)
    rows: int | None = param(None, help="number of embedding rows, with the mask; default: vocabulary size + 1", ge=1)
    mask_id: int | None = param(
        None,
        help="row of the embedding for the mask or, in an autoregressive model, for BOS; default: the last row",
        ge=0,
    )
    shift: bool = param(False, help="whether to compute the logits for a position at the previous position")
    max_length: int = param(4096, help="maximum sequence length", ge=1)
    dtype: Literal["float32", "bfloat16", "float16"] = param("float32", help="data type of the weights")
    form: Literal["llada", "dream"] = param("llada", help="naming scheme of the published weights")

    kinds: ClassVar[tuple[str, ...]] = ("llada", "Dream")  # supported values of model_type in config.json
    # Constants, without annotations; `llada2` has parameters with these names.
    rotated = 1.0
    qk_norm = False
    out_bias = False
    reads_time: ClassVar[bool] = False

    def __attrs_post_init__(self) -> None:
        if self.width % self.heads or self.heads % (self.kv_heads or 1) or int(self.head_size * self.rotated) % 2:
            raise ValueError(
                f"width = {self.width} cannot be split into heads = {self.heads} of even width with kv_heads = "
                f"{self.kv_heads}; change these values"
            )

    @property
    def head_size(self) -> int:
        """Width of an attention head."""
        return self.width // self.heads

    @property
    def matrices(self) -> int:
        """Number of weights in matrices that multiply every token, summed over the layers."""
        attention = 2 * self.width * self.head_size * (self.heads + (self.kv_heads or self.heads))
        return self.layers * (attention + 3 * self.width * self.inner)

    @property
    def stored(self) -> int:
        """Number of weights in all layers."""
        return self.matrices

    def feed_forward(self, number: int, dtype: torch.dtype) -> nn.Module:
        """Return a gated feed-forward network (SwiGLU) for layer `number`; all layers have the same sizes."""
        from atat_zoo_checkpoints.llama_module import SwiGLU

        return SwiGLU(self.width, self.inner, dtype)

    def flops(self, vocabulary_size: int, rows: int, length: int, positions: float) -> float:
        """Return the FLOPs of a forward pass; masked attention is counted as full."""
        of_attention = 2 * self.layers * length * self.heads * self.head_size
        return 2 * rows * length * (self.matrices + of_attention) + 2 * positions * vocabulary_size * self.width

    def check(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield a problem if sequences are too long, or if `shift` is set with an objective that masks attention."""
        yield from LoRABackbone.check(self, experiment)
        objective = experiment.parts["objective"]
        if self.shift and objective.masks_attention:
            yield Problem(
                "backbone.shift",
                f"objective {objective.name!r} does not denoise a text as a whole, so the previous position cannot "
                "predict a token; set shift = false",
            )
        if experiment.data.length > self.max_length:
            yield Problem(
                "data.length",
                f"{experiment.data.length} is longer than backbone.max_length = {self.max_length}; lower data.length",
            )

    @override
    def build(self, context: Context) -> nn.Module:
        from atat_zoo_checkpoints.llama_module import LlamaModule

        weights = self.stored + 2 * self.width * (self.rows or context.vocabulary_size)
        size = weights * (4 if self.dtype == "float32" else 2)
        asked = f"a backbone of {self.layers} layers and width {self.width} in {self.dtype}"
        require(size, asked, "its weights", 'set backbone.dtype to "bfloat16", or reduce layers or width')
        derived = ("name", "head_size", "feed_forward", "rotated", "qk_norm", "out_bias")
        return LlamaModule(context, **values_of(self) | {key: getattr(self, key) for key in derived})

    def published(self, module: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return a dict from published name to a view of the network's weight, and an empty dict for the constants."""
        from atat_zoo_checkpoints.llama_module import published_weights

        return published_weights(module, FORMS[self.form]), {}

    def published_config(self, module: Any, experiment: Experiment) -> dict[str, Any]:
        """Return the content of the config.json that `atat import` needs to read a network's published weights."""
        from atat_zoo_checkpoints.llama_forms import config_of

        return config_of(self, module, next(kind for kind in self.kinds if kind.lower().startswith(self.form)))

    def no_export_because(self, experiment: Experiment) -> str | None:
        """Return None, because every such network can be exported; see `Backbone`."""
        return None

    def export(self, *of: Any, **how: Any) -> None:
        """Write a network and its tokenizer to a folder in the published format; `Backbone` lists the arguments."""
        from atat_zoo_checkpoints.model_export import write_as_published

        write_as_published(self, *of, **how)

    @classmethod
    def reads(cls, config: dict[str, Any]) -> bool:
        """Return whether the `model_type` of `config`, a config.json, is one of this backbone's `kinds`."""
        return config.get("model_type") in cls.kinds

    @classmethod
    def import_table(cls, published: Any, said: dict[str, Any]) -> dict[str, Any]:
        """Return the tables of a model's experiment; see `Backbone`."""
        from atat_zoo_checkpoints.llama_forms import table_of

        return table_of(published, said, cls.kinds)

    def imported(self, module: Any, published: Any) -> LlamaBackbone:
        """Copy a model's weights into an `ObjectiveModule`, or raise a `UserError`, and return this backbone."""
        from atat_zoo_checkpoints.model_import import fill

        fill(*self.published(module.backbone), published)
        return self
