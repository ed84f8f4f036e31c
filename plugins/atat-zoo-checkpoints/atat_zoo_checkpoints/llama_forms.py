"""What published settings say of a `llama`: the config.json of LLaDA 8B and of Dream 7B."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atat_zoo.errors import UserError, clip
from atat_zoo_checkpoints.text import text_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from atat_zoo.model.published import Published

# What the networks here compute; a setting that is absent has the value of the published code, which is one of these.
_LLADA: dict[str, tuple[Any, ...]] = {
    "block_type": ("llama",),
    "layer_norm_type": ("rms",),
    "activation_type": ("silu",),
    "rope": (True,),
    "alibi": (False, None),
    "attention_layer_norm": (False, None),
    "input_emb_norm": (False, None),
    "include_bias": (False, None),
    "bias_for_layer_norm": (False, None),
    "scale_logits": (False, None),
    "weight_tying": (False,),
    "block_group_size": (1, None),
    "multi_query_attention": (False, None),
}
_DREAM: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", None),
    "rope_scaling": (None,),
    "use_sliding_window": (False, None),
    "tie_word_embeddings": (False, None),
}
_LLADA2: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", None),
    "rope_scaling": (None,),
    "use_sliding_window": (False, None),
    "tie_word_embeddings": (False, None),
    "norm_head": (False, None),
}


def refuse_others(config: dict[str, Any], known: dict[str, tuple[Any, ...]], model: str) -> None:
    """Refuse settings under which the published network is another function than ours."""
    for key, values in known.items():
        if config.get(key) not in values:
            raise UserError(
                f"{model}: {key} = {clip(repr(config.get(key)))} in its config.json makes it another network than is "
                f"read here, which has {values[0]!r}; name another model"
            )


def table_of(published: Published, said: dict[str, Any], kinds: tuple[str, ...]) -> dict[str, Any]:
    """Return the tables of a model's experiment, if it is of one of these kinds."""
    config = published.config
    if (kind := str(config.get("model_type"))) not in kinds:
        raise UserError(f"{published.model} has a config.json of another network; leave backbone.use out")
    try:
        backbone, length, named, ends = READ[kind](config, published.model)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{published.model} has settings of another form ({type(error).__name__}: {clip(error)}); get it again"
        ) from None
    text = text_of(published, said, named, ends)
    # Trained on running text, with no sign of BOS or EOS around a sequence.
    table = {"backbone": backbone, "tokenizer": text.table, "data": {"length": length, "special": "none"}}
    if kind not in _IN_BLOCKS:
        return table | {"objective": {"use": "mdlm"}}
    objective = {"use": "block", "size": int(config.get("block_size") or _BLOCK)}
    return table | {"objective": objective, "sampler": {"use": "semi_autoregressive"}}


_Read = tuple[dict[str, Any], int, str | None, tuple[str, str]]


def _llada(config: dict[str, Any], model: str) -> _Read:
    """Read LLaDA's config.json: trained on rows of `max_sequence_length` tokens (GUIDELINES.md of ML-GSAI/LLaDA)."""
    refuse_others(config, _LLADA, model)
    length = int(config["max_sequence_length"])
    backbone = {
        "use": "llama",
        "form": "llada",
        "layers": int(config["n_layers"]),
        "width": int(config["d_model"]),
        "heads": int(config["n_heads"]),
        "kv_heads": int(config.get("n_kv_heads") or config["n_heads"]),
        "inner": int(config["mlp_hidden_size"]),
        "qkv_bias": bool(config.get("include_qkv_bias")),
        "theta": float(config["rope_theta"]),
        "eps": float(config["rms_norm_eps"]),
        "rows": int(config.get("embedding_size") or config["vocab_size"]),
        "mask_id": int(config["mask_token_id"]),
        "max_length": length,
        "dtype": _dtype(config),
    }
    return backbone, length, None, ("<|startoftext|>", "<|endoftext|>")


def _dream(config: dict[str, Any], model: str) -> _Read:
    """Read Dream's config.json; its context is 2,048 tokens (README of DreamLM/Dream), its tokenizer Qwen2.5's."""
    refuse_others(config, _DREAM, model)
    longest = int(config["max_position_embeddings"])
    backbone = {
        "use": "llama",
        "form": "dream",
        "layers": int(config["num_hidden_layers"]),
        "width": int(config["hidden_size"]),
        "heads": int(config["num_attention_heads"]),
        "kv_heads": int(config["num_key_value_heads"]),
        "inner": int(config["intermediate_size"]),
        "qkv_bias": True,
        "theta": float(config["rope_theta"]),
        "eps": float(config["rms_norm_eps"]),
        "rows": int(config["vocab_size"]),
        "mask_id": int(config["mask_token_id"]),
        "shift": True,
        "max_length": longest,
        "dtype": _dtype(config),
    }
    return backbone, min(longest, 2048), "Qwen/Qwen2.5-7B", ("<|beginoftext|>", "<|endoftext|>")


def _dtype(config: dict[str, Any]) -> str:
    """Return the dtype of the published weights."""
    return str(config.get("dtype") or config.get("torch_dtype") or "float32")


def _llada2(config: dict[str, Any], model: str) -> _Read:
    """Read the config.json of LLaDA 2; its mask is in the code beside it alone."""
    refuse_others(config, _LLADA2, model)
    longest, heads = int(config["max_position_embeddings"]), int(config["num_attention_heads"])
    backbone = {
        "use": "llada2",
        "layers": int(config["num_hidden_layers"]),
        "width": int(config["hidden_size"]),
        "heads": heads,
        "kv_heads": int(config["num_key_value_heads"]) or heads,
        "head_width": int(config.get("head_dim") or int(config["hidden_size"]) // heads),
        "inner": int(config["intermediate_size"]),
        "qkv_bias": bool(config.get("use_qkv_bias")),
        "out_bias": bool(config["use_bias"]),
        "qk_norm": bool(config.get("use_qk_norm", True)),
        "rotated": float(config["partial_rotary_factor"]),
        "theta": float(config["rope_theta"]),
        "eps": float(config["rms_norm_eps"]),
        "rows": int(config["vocab_size"]),
        "mask_id": int(config.get("mask_token_id") or 156895),
        "experts": int(config["num_experts"]),
        "chosen": int(config["num_experts_per_tok"]),
        "groups": int(config["n_group"]),
        "chosen_groups": int(config["topk_group"]),
        "scaling": float(config["routed_scaling_factor"]),
        "expert_inner": int(config["moe_intermediate_size"]),
        "shared_experts": int(config["num_shared_experts"] or 0),
        "dense_layers": int(config["first_k_dense_replace"]),
        "max_length": longest,
        "dtype": _dtype(config),
    }
    return backbone, min(longest, 4096), None, ("<|startoftext|>", "<|endoftext|>")


READ: dict[str, Callable[[dict[str, Any], str], _Read]] = {
    "llada": _llada,
    "Dream": _dream,
    "llada2_moe": _llada2,
    "llada21_moe": _llada2,
}
_IN_BLOCKS, _BLOCK = ("llada2_moe", "llada21_moe"), 32  # as the code beside the weights writes
