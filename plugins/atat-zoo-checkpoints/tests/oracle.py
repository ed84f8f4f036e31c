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
from filled import BLOCK, DDIT, LENGTH, SIGMA, filled, some, text

WHERE = {
    "mdlm": "github.com/kuleshov-group/mdlm",
    "bd3lms": "github.com/kuleshov-group/bd3lms",
    "duo": "github.com/s-sahoo/duo",
    "sedd": "github.com/louaaron/Score-Entropy-Discrete-Diffusion",
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
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
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
        logits = recorded(root)
    record = {"script": "tests/oracle.py", "torch": torch.__version__, "code": commits, "logits": logits}
    lines = json.dumps(record, indent=1)
    for numbers in logits.values():  # each on a line
        lines = lines.replace(json.dumps(numbers, indent=1).replace("\n", "\n  "), json.dumps(numbers))
    Path(__file__).with_name("logits.json").write_text(lines + "\n")


if __name__ == "__main__":
    main()
