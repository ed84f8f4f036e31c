"""A run of a published network in its published form, which `atat import` reads again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from atat_zoo.data.tokenizers import TokenizerModel
    from atat_zoo.experiment import Experiment


def write(
    spec: Any,
    module: Any,
    tokenizer: TokenizerModel,
    experiment: Experiment,
    folder: Path,
    *,
    dtype: str | None,
    max_shard_size: str,
) -> None:
    """Write config.json, the weights by their published names and the tokenizer; see `Backbone.export`."""
    import torch
    from huggingface_hub import save_torch_state_dict
    from transformers import PreTrainedTokenizerFast

    from atat_zoo.data.tokenizers.hub import padding_of

    own, constants = spec.published(module)
    kind = dtype and getattr(torch, dtype)
    weights = {
        name: weight.detach().to(kind or weight.dtype, copy=True) for name, weight in {**own, **constants}.items()
    }
    config = spec.published_config(module, experiment)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_torch_state_dict(weights, folder, max_shard_size=max_shard_size)
    library = tokenizer.library
    if library is not None:
        ids = {"bos": tokenizer.bos, "eos": tokenizer.eos, "mask": module.mask_id}
        roles = {f"{role}_token": None if i is None else library.id_to_token(i) for role, i in ids.items()}
        roles["pad_token"] = padding_of(library, roles["eos_token"])
        named = {role: name for role, name in roles.items() if name is not None}
        PreTrainedTokenizerFast(tokenizer_object=library, **named).save_pretrained(folder)
