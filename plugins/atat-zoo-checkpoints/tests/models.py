"""Small models in published forms: config.json, safetensors and tokenizer.json, or a checkpoint."""

from __future__ import annotations

import json
import sys
import types
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from filled import fill
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from atat_zoo import Zoo
from atat_zoo.registry import Context

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

END = "<|endoftext|>"
V = 257  # the bytes, and the end
SIZE = {"n_blocks": 2, "n_heads": 2, "cond_dim": 16}
HYDRA = {**SIZE, "type": "ddit", "hidden_size": 32, "length": 32, "scale_by_sigma": True, "dropout": 0.1}
HUB = {**SIZE, "hidden_dim": 32, "model_length": 32, "vocab_size": V + 1, "time_conditioning": False}
CONFIGS: dict[str, dict[str, Any]] = {
    "mdlm": {"model_type": "mdlm", **HUB},
    "bd3lm": {"model_type": "bd3lm", **HUB, "block_size": 8, "cross_attn": True, "var_min": True},
    "sedd": {"tokens": V, "graph": {"type": "absorb"}, "noise": {"type": "loglinear"}, "model": HYDRA},
}
CONFIGS["setdlm"] = {
    **{"model_type": "bd3lm", "architectures": ["SetDLM"], "length": 33, "block_size": 33, "keep_clean_bos": True},
    **{"mask_token_id": V, "bos_token_id": V - 1},
    "backbone_config": {
        **{"_target_": "src.backbone.dit.DIT", "num_layers": 2, "hidden_size": 32, "n_heads": 2, "vocab_size": V + 1},
        **{"adaln": False, "cond_dim": 128, "causal_attention": False},
    },
    "noise_config": {"_target_": "src.noise.StaggeredNoise", "desired_block_size": 4, "max_block_size": 8},
}
CONFIGS |= {
    "llada": {
        **{"model_type": "llada", "d_model": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "mlp_hidden_size": 40},
        **{"vocab_size": V + 3, "embedding_size": V + 3, "mask_token_id": V + 1, "rope": True, "rope_theta": 5e5},
        **{"block_type": "llama", "layer_norm_type": "rms", "activation_type": "silu", "weight_tying": False},
        **{"max_sequence_length": 32, "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16"},
    },
    "dream": {
        **{"model_type": "Dream", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
        **{"num_key_value_heads": 2, "intermediate_size": 40, "vocab_size": V + 3, "mask_token_id": V + 1},
        **{"max_position_embeddings": 32, "rope_theta": 1e6, "rms_norm_eps": 1e-6},
    },
    "llada2": {
        **{"model_type": "llada2_moe", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
        **{"num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 40, "vocab_size": V + 3},
        **{"num_experts": 8, "num_experts_per_tok": 2, "n_group": 4, "topk_group": 2, "num_shared_experts": 1},
        **{"moe_intermediate_size": 24, "first_k_dense_replace": 1, "use_bias": False, "partial_rotary_factor": 0.5},
        **{"routed_scaling_factor": 2.5, "max_position_embeddings": 32, "rope_theta": 6e5, "rms_norm_eps": 1e-6},
        **{"mask_token_id": V + 1},
    },
}
# What the network of each is, in the zoo's words.
NETWORKS: dict[str, dict[str, Any]] = {
    "mdlm": {"use": "ddit", "form": "mdlm"},
    "bd3lm": {"use": "ddit", "form": "bd3lm", "clipped": True},
    "sedd": {"use": "ddit", "form": "sedd", "time_conditioning": True},
    "setdlm": {"use": "ddit", "form": "setdlm", "condition": 0, "max_length": 33},
    "llada": {"use": "llama", "form": "llada"},
    "dream": {"use": "llama", "form": "dream", "qkv_bias": True},
    "llada2": {"use": "llada2", "experts": 8, "chosen": 2, "groups": 4, "chosen_groups": 2, "expert_inner": 24},
}
_DDIT = {"layers": 2, "heads": 2, "width": 32, "condition": 16}
_LLAMA = {"layers": 2, "heads": 4, "kv_heads": 2, "width": 32, "inner": 40, "rows": V + 3}
_SIZES = {"ddit": _DDIT, "llama": _LLAMA, "llada2": {**_LLAMA, "head_width": 16}}


def tokenizer(folder: Path) -> None:
    """Write a tokenizer of the bytes, with one special token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({token: i for i, token in enumerate([*alphabet, END])}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([END])
    folder.mkdir(parents=True, exist_ok=True)
    made.save(str(folder / "tokenizer.json"))


def weights_of(form: str, **more: Any) -> dict[str, torch.Tensor]:
    """Return the weights of a small model by their published names, constants among them."""
    table = NETWORKS[form]
    spec = Zoo.load().spec("backbone", {**_SIZES[table["use"]], **table, **more})
    own, constants = spec.published(spec.build(Context(vocabulary_size=V, length=32)))
    dtype = torch.bfloat16 if CONFIGS[form].get("torch_dtype") else torch.float32
    return {name: fill(name, weight.shape).to(dtype) for name, weight in own.items()} | constants


def small(form: str, folder: Path, shards: int = 1) -> dict[str, torch.Tensor]:
    """Write a model as it is published, in one file or several; returns its weights."""
    tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(CONFIGS[form]))
    weights = {name: weight.clone() for name, weight in weights_of(form).items()}
    if shards == 1:
        save_file(weights, folder / "model.safetensors")
        return weights
    names = list(weights)
    where = {name: f"model-{i % shards + 1:05}-of-{shards:05}.safetensors" for i, name in enumerate(names)}
    for file in sorted(set(where.values())):
        save_file({name: weights[name] for name in names if where[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return weights


def checkpoint(folder: Path, settings: dict[str, Any], shadow: int | None = None) -> dict[str, torch.Tensor]:
    """Write `last.ckpt` as Lightning does, with settings of OmegaConf; returns the moving average by published names.

    The weights beside it are all one. `shadow` cuts the average.
    """
    tokenizer(folder)
    algorithm = settings.get("algo", settings)
    of = {"clipped": bool(algorithm.get("var_min"))}
    of["condition"] = 0 if algorithm["parameterization"] == "ar" else 16
    weights = {name: weight.clone() for name, weight in weights_of("mdlm", **of).items()}
    average = {
        name: weight for name, weight in weights.items() if not name.endswith(("inv_freq", "eps_min", "eps_max"))
    }
    # A module's own buffers come before those of the modules in it.
    state = {name: weight for name, weight in weights.items() if not name.startswith("backbone.")}
    state |= {name: torch.ones_like(weight) if name in average else weight for name, weight in weights.items()}
    config = {"backbone": "dit", "model": HYDRA, "noise": {"type": "loglinear"}, "training": {"ema": 0.9999}}
    config |= {"data": {"tokenizer_name_or_path": "gpt2", "wrap": True}, "block_size": 8, **settings}
    saved = {"state_dict": state, "ema": {"decay": 0.9999, "shadow_params": list(average.values())[:shadow]}}
    with omegaconf() as make:
        torch.save({**saved, "hyper_parameters": {"config": make(config)}}, folder / "last.ckpt")
    return average


@contextmanager
def omegaconf() -> Iterator[Any]:
    """Return a function from plain settings to objects that are pickled as OmegaConf's are, which need not be here."""
    module: Any = types.ModuleType("omegaconf")
    for name in ("DictConfig", "ListConfig", "AnyNode"):
        setattr(module, name, type(name, (), {"__module__": "omegaconf"}))

    def make(value: Any) -> Any:
        of = {dict: module.DictConfig, list: module.ListConfig}.get(type(value), module.AnyNode)
        made = of()
        if isinstance(value, dict):
            made._content = {key: make(each) for key, each in value.items()}
        elif isinstance(value, list):
            made._content = [make(each) for each in value]
        else:
            made._val = value
        return made

    sys.modules["omegaconf"] = module
    try:
        yield make
    finally:
        del sys.modules["omegaconf"]
