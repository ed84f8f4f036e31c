"""A run of a published network in its published form, which `atat import` reads again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from atat_zoo_checkpoints.text import FILE

if TYPE_CHECKING:
    from pathlib import Path

    from atat_zoo.experiment import Experiment
    from atat_zoo.tokenizers import TokenizerModel


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

    own, constants = spec.published(module)
    kind = dtype and getattr(torch, dtype)
    weights = {
        name: weight.detach().to(kind or weight.dtype, copy=True) for name, weight in {**own, **constants}.items()
    }
    config = spec.published_config(module, experiment)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_torch_state_dict(weights, folder, max_shard_size=max_shard_size)
    if tokenizer.library is not None:
        tokenizer.library.save(str(folder / FILE))
