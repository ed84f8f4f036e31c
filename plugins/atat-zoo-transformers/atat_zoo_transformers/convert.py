"""From a run back to a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from atat_zoo.errors import UserError
from atat_zoo.model import Model
from atat_zoo_transformers.backbone import TransformersBackbone
from atat_zoo_transformers.source import SPECIAL

if TYPE_CHECKING:
    from pathlib import Path


def export_run(
    run: Path, out: Path, *, step: int | None = None, dtype: str | None = None, max_shard_size: str = "5GB"
) -> None:
    """Write a run's network as a model of the `transformers` library: config.json, safetensors, and the tokenizer.

    Args:
        run: a run with the backbone `transformers`.
        out: a folder, which is new or empty.
        step: the checkpoint whose weights to take; the final model if None.
        dtype: of the weights, in torch's name; that of the run if None.
        max_shard_size: of a file, as "5GB".

    Raises:
        UserError: when there is no such run, it has another backbone, or there is something in the folder.
    """
    import torch
    from transformers import PreTrainedTokenizerFast

    from atat_zoo_transformers.module import restored
    from atat_zoo_transformers.source import reading

    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is not empty; name a new folder")
    made = Model.from_run(run, step=step)
    spec, tokenizer, module = made.experiment.parts["backbone"], made.tokenizer, cast("Any", made.module)
    if not isinstance(spec, TransformersBackbone):
        raise UserError(f"{run} has the backbone {spec.name!r}, which is no model of transformers; name another run")
    network = restored(module.backbone, spec)
    with reading(str(out)):
        network.to(dtype and getattr(torch, dtype)).save_pretrained(out, max_shard_size=max_shard_size)
        if (library := getattr(tokenizer, "library", None)) is not None:
            spec = made.experiment.parts["tokenizer"]
            special = getattr(spec.like or spec, "special", None) or {}  # of a run that began with another
            names = {key: name for key, name in special.items() if key in SPECIAL}
            PreTrainedTokenizerFast(tokenizer_object=library, **names).save_pretrained(out)
