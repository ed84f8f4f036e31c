"""Record logits of published networks on the weights of `filled`: `python oracle.py FOLDER` writes logits.json.

FOLDER holds checkouts of the repositories of `WHERE`. Their code runs here, on the CPU, and nothing of it is kept but
numbers and the commit. PyTorch's attention takes the place of that of flash_attn; einops and omegaconf are needed.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from filled import BLOCK, DDIT, FULL, LENGTH, LLADA2, LLAMA, SIGMA, filled, listed, order, some, text

WHERE = {
    "mdlm": "github.com/kuleshov-group/mdlm",
    "bd3lms": "github.com/kuleshov-group/bd3lms",
    "duo": "github.com/s-sahoo/duo",
    "setdlms": "github.com/kuleshov-group/setdlms",
    "sedd": "github.com/louaaron/Score-Entropy-Discrete-Diffusion",
    # It has copies of the code that the authors of LLaDA, Dream and LLaDA 2 publish beside their weights.
    "dllm": "github.com/ZHZisZZ/dllm",
}


def attend(qkv: Any, cumulated: Any, length: int, dropout: float, causal: bool = False) -> Any:
    q, k, v = qkv.unflatten(0, (-1, length)).transpose(1, 3).unbind(2)
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(0, 1)


def turned(x: Any, cos: Any, sin: Any) -> Any:
    a, b = x.chunk(2, -1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def turned_qkv(qkv: Any, cos: Any, sin: Any) -> Any:
    q, k, v = qkv.unbind(2)
    return torch.stack([turned(q, cos, sin), turned(k, cos, sin), v], 2)


def stub() -> None:
    import transformers.modeling_utils  # noqa: F401, before it can ask for flash_attn

    names = ("flash_attn", "flash_attn.layers", "flash_attn.layers.rotary", "flash_attn.flash_attn_interface")
    made: dict[str, Any] = {name: types.ModuleType(name) for name in names}
    made["flash_attn"].layers, made["flash_attn"].flash_attn_interface = made[names[1]], made[names[3]]
    made[names[1]].rotary = made[names[2]]
    made[names[2]].apply_rotary_emb_qkv_, made[names[2]].apply_rotary_emb_torch = turned_qkv, turned
    made[names[3]].flash_attn_varlen_qkvpacked_func = attend
    sys.modules.update(made)


def load(folder: Path, path: str, package: str = "") -> Any:
    """Import a file of a checkout, within its package where it imports others beside it."""
    file = folder / path
    name = f"{package}.{file.stem}" if package else f"_{folder.name}_{file.stem}"
    if package and package not in sys.modules:
        sys.modules[package] = types.ModuleType(package)
        sys.modules[package].__path__ = [str(file.parent)]
    spec: Any = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def settings(size: dict[str, int], length: int, **more: Any) -> Any:
    from omegaconf import OmegaConf

    model = {"hidden_size": size["width"], "cond_dim": size["condition"], "length": length, "n_blocks": size["layers"]}
    model |= {"n_heads": size["heads"], "scale_by_sigma": True, "dropout": 0.0, "tie_word_embeddings": False}
    model |= more.pop("model", {})
    return OmegaConf.create({"model": model, **more})


def recorded(root: Path) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    mdlm, ar = load(root / "mdlm", "models/dit.py"), load(root / "mdlm", "models/autoregressive.py")
    sedd = load(root / "sedd", "model/transformer.py", "_sedd")
    duo = load(root / "duo", "models/dit.py")
    load(root / "bd3lms", "models/hf/configuration_bd3lm.py", "_bd3lm")
    bd3lm = load(root / "bd3lms", "models/hf/modeling_bd3lm.py", "_bd3lm")
    setdlm = load(root / "setdlms", "src/backbone/dit.py", "_setdlm")
    for shape, size in DDIT.items():
        rows, length, ids = size["rows"], LENGTH[shape], text(shape, size["rows"])
        timed, still = torch.tensor(SIGMA), torch.zeros(2)
        config = settings(size, length)
        for name, sigma in (("mdlm", still), ("mdlm, timed", timed)):
            found[f"{name}, {shape}"] = some(filled(mdlm.DIT(config, rows))(ids, sigma))
        causal = filled(ar.AR(settings(size, length, model={"causal": True}), rows, rows - 1))
        # The log-probabilities have no column of the mask.
        found[f"autoregressive, {shape}"] = some(causal(ids, None)[..., : rows - 1])
        scores = filled(sedd.SEDD(settings(size, length, graph={"type": "absorb"}, tokens=rows - 1)))(ids, timed)
        found[f"sedd, {shape}"] = some(scores)
        uniform = filled(duo.DIT(settings(size, length, algo={"causal_attention": False}), rows))
        found[f"duo, {shape}"] = some(uniform(ids, timed))
        sizes = {"hidden_dim": size["width"], "cond_dim": size["condition"], "n_blocks": size["layers"]}
        sizes |= {"n_heads": size["heads"], "vocab_size": rows, "model_length": length, "block_size": BLOCK}
        blocks = filled(bd3lm.BD3LM(bd3lm.BD3LMConfig(**sizes, attn_backend="sdpa", dropout=0.0)), "backbone.")
        clean = text(shape, rows, 2)
        both = torch.cat([ids, clean], 1)
        found[f"bd3lm, {shape}"] = some(blocks(both, still, return_dict=True).logits)
        found |= in_sets(setdlm, shape, size)
    return found


def network_of(setdlm: Any, size: dict[str, int], rows: int, length: int, *, adaln: bool) -> Any:
    return setdlm.DIT(
        length=length, causal_attention=False, adaln=adaln, hidden_size=size["width"], cond_dim=size["condition"],
        n_heads=size["heads"], num_layers=size["layers"], dropout=0.0, tie_word_embeddings=True, vocab_size=rows,
        block_size=length, attn_backend="sdpa", pretrained_model_name_or_path=None,
    )  # fmt: skip


def in_sets(setdlm: Any, shape: str, size: dict[str, int]) -> dict[str, list[float]]:
    """Return what masks predict along `order`, by SetDLM's network with and without adaLN, under its static mask."""
    rows, length, clean = size["rows"], LENGTH[shape], text(shape, size["rows"], 2)
    place = order(length).expand(2, -1)
    both = torch.cat([clean.gather(1, place), torch.full_like(clean, rows - 1)], 1)
    query, key = torch.arange(2 * length)[:, None], torch.arange(2 * length)
    # Tokens, and then masks, both along the order: `SetDLM._block_mask`.
    of_mask, at_mask, q, k = query >= length, key >= length, query % length, key % length
    seen = ((q == k) & (of_mask == at_mask)) | ((q > k) & of_mask & ~at_mask) | ((q >= k) & ~of_mask & ~at_mask)
    found = {}
    for name, adaln in (("setdlm", False), ("setdlm, adaln", True)):
        network = network_of(setdlm, size, rows, length, adaln=adaln)
        logits = filled(network)(both, attention_mask=seen[None, None], position_ids=place.repeat(1, 2)).logits
        found[f"{name}, {shape}"] = some(logits[:, length + 1 :])  # nobody asks for the first, which is given
    return found


def angles(config: Any, device: Any = None, **_: Any) -> Any:
    """Return what transformers 4 calls the default of the rotary angles, which version 5 has no longer."""
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    turned = int(size * getattr(config, "partial_rotary_factor", 1.0))
    return 1.0 / config.rope_theta ** (torch.arange(0, turned, 2).float() / turned), 1.0


def classes(root: Path) -> dict[str, Any]:
    """Return the classes of LLaDA, Dream and LLaDA 2."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    ROPE_INIT_FUNCTIONS["default"] = angles
    of: dict[str, Any] = {}
    for name, files in {
        "llada": ("configuration_llada", "modeling_llada"),
        "dream": ("configuration_dream", "generation_utils", "modeling_dream"),
        "llada21": ("configuration_llada21_moe", "modeling_llada21_moe"),
    }.items():
        for file in files:
            module = load(root / "dllm", f"dllm/pipelines/{name}/models/{file}.py", f"_{name}")
            of |= {key: getattr(module, key) for key in vars(module) if key.startswith(("LLaDA", "Dream", "create"))}
    return of


def keys(of: dict[str, Any], mdlm: Any, setdlm: Any) -> dict[str, Any]:
    """Return the weights of the published sizes: how many there are, and a hash of their names and shapes."""
    config = {name: {key: value for key, value in each.items() if key != "model_type"} for name, each in FULL.items()}
    small = FULL["mdlm"]
    size = {"width": small["hidden_dim"], "condition": small["cond_dim"], "layers": 12, "heads": 12}
    with torch.device("meta"):
        dit = mdlm.DIT(settings(size, 1024), small["vocab_size"]).state_dict()
        llada = of["create_model_config_from_pretrained_config"](
            of["LLaDAConfig"](**config["llada"], init_device="meta")
        )
        sets = network_of(setdlm, size, small["vocab_size"], 1024, adaln=False).state_dict()
        found = {
            "setdlm": {
                "static_attention_mask": torch.empty(2048, 2048),  # of the class around it
                **{f"backbone.{name}": weight for name, weight in sets.items()},
            },
            "mdlm": {f"backbone.{name}": weight for name, weight in dit.items()},
            "llada": {
                f"model.{name}": w for name, w in of["LLaDAModel"](llada, init_params=False).state_dict().items()
            },
            "dream": of["DreamModel"](of["DreamConfig"](**config["dream"])).state_dict(),
            "llada2": of["LLaDA2MoeModelLM"](of["LLaDA2MoeConfig"](**config["llada2"])).state_dict(),
        }
    return {name: listed(weights) for name, weights in found.items()}


def recorded_llamas(of: dict[str, Any]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for shape, size in LLAMA.items():
        rows, length, ids = size["rows"], LENGTH[shape], text(shape, size["rows"])
        usual = {"num_hidden_layers": size["layers"], "hidden_size": size["width"], "vocab_size": rows}
        usual |= {"num_attention_heads": size["heads"], "num_key_value_heads": size["kv_heads"]}
        usual |= {"intermediate_size": size["inner"], "rope_theta": size["theta"], "pad_token_id": 0}
        off = dict.fromkeys(("attention_dropout", "residual_dropout", "embedding_dropout", "output_dropout"), 0.0)
        own = {"n_layers": size["layers"], "d_model": size["width"], "n_heads": size["heads"], "vocab_size": rows}
        own |= {"n_kv_heads": size["kv_heads"], "mlp_hidden_size": size["inner"], "rope_theta": size["theta"]}
        own |= {"embedding_size": rows, "block_type": "llama", "layer_norm_type": "rms", "activation_type": "silu"}
        own |= {"rope": True, "weight_tying": False, "max_sequence_length": length, "init_device": "cpu"}
        config = of["LLaDAConfig"](**own, **off)
        llada = of["LLaDAModel"](of["create_model_config_from_pretrained_config"](config), init_params=False)
        found[f"llada, {shape}"] = some(filled(llada, "model.")(ids).logits)
        dream = filled(of["DreamModel"](of["DreamConfig"](**usual)))
        logits = dream(ids).logits
        # As its own sampler reads them.
        found[f"dream, {shape}"] = some(torch.cat([logits[:, :1], logits[:, :-1]], 1))
        experts = LLADA2[shape]
        mixed = {"head_dim": experts["head_width"], "num_experts": experts["experts"], "use_bias": False}
        mixed |= {"num_experts_per_tok": experts["chosen"], "n_group": experts["groups"], "num_shared_experts": 1}
        mixed |= {"topk_group": experts["chosen_groups"], "moe_intermediate_size": experts["expert_inner"]}
        mixed |= {"first_k_dense_replace": 1, "partial_rotary_factor": 0.5}
        llada2 = filled(of["LLaDA2MoeModelLM"](of["LLaDA2MoeConfig"](**usual, **off, **mixed)))
        block = torch.arange(length) // BLOCK
        seen = (block[:, None] >= block)[None, None].expand(2, 1, length, length)
        position = torch.arange(length).expand(2, length)
        found[f"llada2, {shape}"] = some(llada2(ids, attention_mask=seen, position_ids=position).logits)
    return found


def main() -> None:
    root = Path(sys.argv[1])
    stub()
    commits = {}
    for name, address in WHERE.items():
        command = ["git", "-C", str(root / name), "rev-parse", "HEAD"]
        commit = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        commits[name] = f"{address}@{commit}"
    with torch.no_grad():
        of = classes(root)
        logits = recorded(root) | recorded_llamas(of)
        networks = load(root / "mdlm", "models/dit.py"), load(root / "setdlms", "src/backbone/dit.py", "_setdlm")
        full = keys(of, *networks)
    record = {"script": "tests/oracle.py", "torch": torch.__version__, "code": commits, "keys": full, "logits": logits}
    lines = json.dumps(record, indent=1)
    for numbers in logits.values():  # each on a line
        lines = lines.replace(json.dumps(numbers, indent=1).replace("\n", "\n  "), json.dumps(numbers))
    Path(__file__).with_name("logits.json").write_text(lines + "\n")


if __name__ == "__main__":
    main()
