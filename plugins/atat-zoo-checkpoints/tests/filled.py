"""Weights that are a function of their name and index, and the networks and texts for which logits are recorded."""

from __future__ import annotations

import hashlib
import zlib
from typing import Any

import torch

# Two shapes of each network: backbone, and the table of the zoo's part; the settings of the published code follow.
DDIT = {
    "small": {"layers": 2, "width": 32, "heads": 2, "condition": 16, "rows": 14},
    "odd": {"layers": 3, "width": 48, "heads": 4, "condition": 24, "rows": 23},
}
LLAMA = {
    "small": {"layers": 2, "width": 32, "heads": 4, "kv_heads": 2, "inner": 40, "rows": 14, "theta": 5e5},
    "odd": {"layers": 3, "width": 48, "heads": 4, "kv_heads": 4, "inner": 60, "rows": 23, "theta": 1e4},
}
LLADA2 = {
    shape: {**size, "head_width": 16, "experts": 8, "chosen": 2, "groups": 4, "chosen_groups": 2, "expert_inner": 24}
    for shape, size in LLAMA.items()
}
LENGTH = {"small": 8, "odd": 12}
BLOCK = 4
# The config.json of the published sizes, as far as weights depend on it.
FULL: dict[str, dict[str, Any]] = {
    "mdlm": {
        "model_type": "mdlm",
        "hidden_dim": 768,
        "cond_dim": 128,
        "n_blocks": 12,
        "n_heads": 12,
        "vocab_size": 50258,
    },
    "setdlm": {
        **{"model_type": "bd3lm", "architectures": ["SetDLM"], "length": 1024, "keep_clean_bos": True},
        "block_size": 1024,
        "backbone_config": {
            **{"_target_": "src.backbone.dit.DIT", "num_layers": 12, "hidden_size": 768, "n_heads": 12},
            **{"vocab_size": 50258, "adaln": False, "cond_dim": 128, "causal_attention": False},
        },
        "noise_config": {"_target_": "src.noise.StaggeredNoise", "desired_block_size": 8, "max_block_size": 16},
    },
    "llada": {
        **{"model_type": "llada", "d_model": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 32, "rope": True},
        **{"mlp_hidden_size": 12288, "vocab_size": 126464, "embedding_size": 126464, "mask_token_id": 126336},
        **{"block_type": "llama", "layer_norm_type": "rms", "activation_type": "silu", "weight_tying": False},
        **{"max_sequence_length": 4096, "rope_theta": 5e5, "rms_norm_eps": 1e-5, "include_qkv_bias": False},
    },
    "dream": {
        **{"model_type": "Dream", "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28},
        **{"num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064, "mask_token_id": 151666},
        **{"max_position_embeddings": 131072, "rope_theta": 1e6, "rms_norm_eps": 1e-6},
    },
    "llada2": {
        **{"model_type": "llada2_moe", "hidden_size": 2048, "num_hidden_layers": 20, "num_attention_heads": 16},
        **{"num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 5120, "vocab_size": 157184},
        **{"num_experts": 256, "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4, "num_shared_experts": 1},
        **{"moe_intermediate_size": 512, "first_k_dense_replace": 1, "use_bias": False, "partial_rotary_factor": 0.5},
        **{"routed_scaling_factor": 2.5, "max_position_embeddings": 32768, "rope_theta": 6e5, "rms_norm_eps": 1e-6},
    },
}
SIGMA = (0.3, 2.5)  # of the two rows, where a network reads the time


def fill(name: str, shape: Any) -> torch.Tensor:
    """Return a weight, float64: quasi-random numbers whose phase grows by squares, so that no matrix has a low rank."""
    size = torch.Size(shape)
    index = torch.arange(size.numel(), dtype=torch.float64)
    wave = torch.sin(zlib.crc32(name.encode()) % 10_007 + 0.6180339887 * index * (index + 1)).reshape(size)
    if "norm" in name or name.endswith("ln_f.weight"):
        return 1 + 0.3 * wave
    return wave * (1.5 / size[-1] ** 0.5 if len(size) > 1 else 0.2)


def filled(module: Any, prefix: str = "") -> Any:
    """Fill all weights of a module by their names."""
    with torch.no_grad():
        for name, weight in module.state_dict().items():
            if name.endswith("inv_freq"):
                continue
            weight.copy_(fill(name.removeprefix(prefix), weight.shape))
    return module.eval()


def text(shape: str, rows: int, mask: int | None = None) -> torch.Tensor:
    """Return two rows of published ids, in which every third token is the mask."""
    mask = rows - 1 if mask is None else mask
    index = torch.arange(2 * LENGTH[shape]).view(2, -1)
    return torch.where(index % 3 == 1, mask, (index * 7 + index**2) % (rows - 1))


def order(length: int) -> torch.Tensor:
    """Return positions in an order that begins with the first, int64 [length]."""
    return torch.cat([torch.zeros(1, dtype=torch.int64), 1 + torch.arange(length - 1) * 5 % (length - 1)])


def listed(weights: dict[str, Any]) -> dict[str, Any]:
    """Return how many weights and numbers there are, and the SHA-256 of their sorted names and shapes."""
    lines = sorted(f"{name} {list(weight.shape)}" for name, weight in weights.items())
    numbers = sum(weight.numel() for weight in weights.values())
    return {"weights": len(lines), "numbers": numbers, "sha256": hashlib.sha256("\n".join(lines).encode()).hexdigest()}


def some(logits: torch.Tensor) -> list[float]:
    """Return 48 of the logits of two rows, spread over all."""
    flat = logits.flatten()
    return [round(float(x), 6) for x in flat[torch.arange(48) * 101 % len(flat)]]
