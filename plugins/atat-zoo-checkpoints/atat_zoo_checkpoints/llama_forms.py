"""How the config.json of LLaDA 8B, Dream 7B and LLaDA 2 maps to the backbones `llama` and `llada2`, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from atat_zoo.system.errors import UserError, clip
from atat_zoo_checkpoints.published_tokenizer import text_of

if TYPE_CHECKING:
    from atat_zoo_checkpoints.published_model import Published

_DTYPE = {"dtype": ("torch_dtype", str)}
_USUAL = {
    "layers": ("num_hidden_layers", int),
    "width": ("hidden_size", int),
    "heads": ("num_attention_heads", int),
    "kv_heads": ("num_key_value_heads", int),
    "inner": ("intermediate_size", int),
    "theta": ("rope_theta", float),
    "eps": ("rms_norm_eps", float),
    "rows": ("vocab_size", int),
    "mask_id": ("mask_token_id", int),
    "max_length": ("max_position_embeddings", int),
    **_DTYPE,
}


@attrs.frozen
class Form:
    """Format of the config.json of one family of models.

    Attributes:
        backbone: name of the zoo's backbone, and the parameters that the format determines.
        keys: parameters of the backbone that config.json contains, each with its key and type there.
        fixed: supported values of other keys, None if a key may be absent; an export writes the first value.
        context: maximum length of a training sequence.
        ends: names of the BOS and EOS tokens.
        absent: default values of keys of config.json that may be absent.
        tokenizer: name on the hub of the tokenizer for a model without its own.
        block: default number of tokens per generated block; 0 to generate the whole text at once.
    """

    backbone: dict[str, Any]
    keys: dict[str, tuple[str, Any]]
    fixed: dict[str, tuple[Any, ...]]
    context: int
    ends: tuple[str, str]
    absent: dict[str, Any] = attrs.field(factory=dict)
    tokenizer: str | None = None
    block: int = 0


_LLADA = Form(
    # Trained on sequences of `max_sequence_length` tokens: GUIDELINES.md in ML-GSAI/LLaDA.
    backbone={"use": "llama", "form": "llada"},
    keys={
        "layers": ("n_layers", int),
        "width": ("d_model", int),
        "heads": ("n_heads", int),
        "kv_heads": ("n_kv_heads", int),
        "inner": ("mlp_hidden_size", int),
        "qkv_bias": ("include_qkv_bias", bool),
        "theta": ("rope_theta", float),
        "eps": ("rms_norm_eps", float),
        "rows": ("embedding_size", int),
        "mask_id": ("mask_token_id", int),
        "max_length": ("max_sequence_length", int),
        **_DTYPE,
    },
    fixed={
        "block_type": ("llama",),
        "layer_norm_type": ("rms",),
        "activation_type": ("silu",),
        "rope": (True,),
        "weight_tying": (False,),
        "alibi": (False, None),
        "attention_layer_norm": (False, None),
        "input_emb_norm": (False, None),
        "include_bias": (False, None),
        "bias_for_layer_norm": (False, None),
        "scale_logits": (False, None),
        "block_group_size": (1, None),
        "multi_query_attention": (False, None),
    },
    absent={"include_qkv_bias": False},
    context=2**31,
    ends=("<|startoftext|>", "<|endoftext|>"),
)
_DREAM = Form(
    # A context of 2,048 tokens: README in DreamLM/Dream. The tokenizer is Qwen2.5's with two additional tokens.
    backbone={"use": "llama", "form": "dream", "qkv_bias": True, "shift": True},
    keys=_USUAL,
    fixed={
        "hidden_act": ("silu", None),
        "rope_scaling": (None,),
        "use_sliding_window": (False, None),
        "tie_word_embeddings": (False, None),
    },
    context=2048,
    ends=("<|beginoftext|>", "<|endoftext|>"),
    tokenizer="Qwen/Qwen2.5-7B",
)
_LLADA2 = Form(
    backbone={"use": "llada2"},
    keys={
        **_USUAL,
        "head_width": ("head_dim", int),
        "qkv_bias": ("use_qkv_bias", bool),
        "out_bias": ("use_bias", bool),
        "qk_norm": ("use_qk_norm", bool),
        "rotated": ("partial_rotary_factor", float),
        "experts": ("num_experts", int),
        "chosen": ("num_experts_per_tok", int),
        "groups": ("n_group", int),
        "chosen_groups": ("topk_group", int),
        "scaling": ("routed_scaling_factor", float),
        "expert_inner": ("moe_intermediate_size", int),
        "shared_experts": ("num_shared_experts", int),
        "dense_layers": ("first_k_dense_replace", int),
    },
    fixed={
        "hidden_act": ("silu", None),
        "rope_scaling": (None,),
        "use_sliding_window": (False, None),
        "tie_word_embeddings": (False, None),
        "norm_head": (False, None),
    },
    # The mask and the block size are only in the code that is published with the weights.
    absent={"mask_token_id": 156895, "use_qkv_bias": False, "use_qk_norm": True, "num_shared_experts": 0},
    context=4096,
    ends=("<|startoftext|>", "<|endoftext|>"),
    block=32,
)
FORMS = {"llada": _LLADA, "Dream": _DREAM, "llada2_moe": _LLADA2, "llada21_moe": _LLADA2}


def table_of(published: Published, said: dict[str, Any], kinds: tuple[str, ...]) -> dict[str, Any]:
    """Return the tables of a model's experiment (see `Backbone`); a `UserError` if `model_type` is not in `kinds`."""
    config = published.config
    if (kind := str(config.get("model_type"))) not in kinds:
        raise UserError(f"the config.json of {published.model} describes a different network; leave backbone.use out")
    form = FORMS[kind]
    backbone = backbone_of(config, form, published.model)
    experts = (backbone["layers"] - backbone.get("dense_layers", 0)) * backbone.get("experts", 0)
    if max(backbone["layers"], experts) > len(published.weights):  # refuse before building them one by one
        raise UserError(
            f"{published.model} has {len(published.weights)} weights, too few for the layers and experts in its "
            "config.json; download the model again"
        )
    text = text_of(published, said, form.tokenizer, form.ends)
    # Trained on packed documents, apparently without BOS or EOS around a sequence.
    data = {"length": min(backbone["max_length"], form.context), "special_tokens": "none"}
    table = {"backbone": backbone, "tokenizer": text.table, "data": data}
    if not form.block:
        return table | {"objective": {"use": "mdlm"}}
    objective = {"use": "block", "block_size": int(config.get("block_size") or form.block)}
    return table | {"objective": objective, "sampler": {"use": "semi_autoregressive"}}


def backbone_of(config: dict[str, Any], form: Form, model: str) -> dict[str, Any]:
    """Return the experiment's table for the backbone, from the content of a config.json in a format.

    Raises:
        UserError: if a setting in `form.fixed` is not supported. A missing key of `form.keys` raises a `KeyError`.
    """
    for key, values in form.fixed.items():
        if config.get(key) not in values:
            raise UserError(
                f"{model}: config.json has {key} = {clip(repr(config.get(key)))}, but only {values[0]!r} is supported; "
                "choose a different model"
            )
    keys = {key for key, _ in form.keys.values()}
    known = form.absent | {key: value for key, value in config.items() if value is not None}
    heads = known.get("num_attention_heads", known.get("n_heads"))
    # The published code uses these defaults.
    known = {"torch_dtype": config.get("dtype", "float32"), "embedding_size": config.get("vocab_size")} | known
    known |= {key: known.get(key) or heads for key in keys & {"n_kv_heads", "num_key_value_heads"}}
    if "head_dim" in keys and not known.get("head_dim"):
        known["head_dim"] = known["hidden_size"] // heads
    return form.backbone | {name: of(known[key]) for name, (key, of) in form.keys.items()}


def config_of(spec: Any, network: Any, kind: str) -> dict[str, Any]:
    """Return the content of the config.json for a network, with `kind` as its `model_type`."""
    form = FORMS[kind]
    config = {key: values[0] for key, values in form.fixed.items()}
    config |= {key: getattr(spec, name) for name, (key, _) in form.keys.items()}
    own = {name: getattr(network, name) for name in ("rows", "mask_id")}
    config |= {form.keys[name][0]: value for name, value in own.items()} | {"vocab_size": network.rows}
    config[form.keys["kv_heads"][0]] = spec.kv_heads or spec.heads
    return {"model_type": kind, **config} | ({"block_size": form.block} if form.block else {})
