"""A run folder to a folder that `from_pretrained` reads."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atat_zoo.errors import UserError, clip
from atat_zoo.experiment import Experiment, from_table
from atat_zoo.experiment.runs import RunFolder
from atat_zoo.reports.export.adapter import base_of
from atat_zoo.reports.export.adapter import write as write_adapter
from atat_zoo.system.atomic import check_name, making_folder
from atat_zoo.system.machine import quiet_transformers

if TYPE_CHECKING:
    from atat_zoo.generation.model import Model

_SIZE = re.compile(r"(?!0+[A-Z])[0-9]{1,9}(?:[KMGT]i?B|B)", re.IGNORECASE)


def check_export(
    run: Path, folder: Path, *, max_shard_size: str = "5GB", adapter: bool = False, base: str | None = None
) -> Experiment:
    """Return the experiment of a run that can be exported to a folder; imports no torch.

    Raises:
        UserError: when the run does not exist, its network cannot be written in this form, the folder is not empty,
            `max_shard_size` is not a size, a package is missing, or the base of the adapter is unknown.
    """
    experiment = from_table(RunFolder(run).table(), where=str(run / "resolved.toml"))
    backbone = experiment.parts["backbone"]
    if find_spec("transformers") is None:
        raise UserError("atat export needs the package transformers; install it with `pip install 'atat-zoo[hub]'`")
    if not _SIZE.fullmatch(max_shard_size):
        raise UserError(f"--max-shard-size {clip(max_shard_size)}: is no size; write one like 5GB or 200MB")
    check_name(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{clip(folder)} is not empty; name a new folder")
    if not hasattr(backbone, "export"):
        raise UserError(
            f"{clip(run)}: backbone {backbone.name!r} does not write itself for the hub; it needs a method `export`, "
            "which docs/your-model.md describes"
        )
    if adapter:
        base_of(run, experiment, base)
    elif base is not None:
        raise UserError("--base only works with --adapter")
    if why := backbone.no_export_because(experiment):
        raise UserError(f"{clip(run)} cannot be exported: {why}; export a run of another objective")
    return experiment


def export_run(
    run: str | Path,
    out: str | Path,
    *,
    step: int | str | None = None,
    dtype: str | None = None,
    max_shard_size: str = "5GB",
    name: str | None = None,
    adapter: bool = False,
    base: str | None = None,
) -> Model:
    """Write the network of a run with its tokenizer, its code if the library has none for it, and a model card.

    Args:
        run: the run folder.
        out: a folder, which is new or empty; it is there when all is written, or not at all.
        step: the checkpoint whose weights to take; the final model if None.
        dtype: of the weights, in torch's name; that of the run if None.
        max_shard_size: of a file, as "5GB".
        name: by which the card calls it; that of the folder if None.
        adapter: whether only the matrices of a LoRA run are written, as an adapter of peft; else they are merged.
        base: the model for which the adapter is; the published one that the run began with if None.

    Returns:
        The model that was written.

    Raises:
        UserError: when it cannot be written; see `check_export`.
    """
    run, out = Path(run), Path(out)
    experiment = check_export(run, out, max_shard_size=max_shard_size, adapter=adapter, base=base)
    from atat_zoo.generation.model import Model
    from atat_zoo.modeling.backbones.lora import merge
    from atat_zoo.reports.export.card import Card

    model = Model.from_run(run, step=step)
    module: Any = model.module
    beside_base = base_of(run, experiment, base) if adapter else None
    if beside_base is None:
        merge(module)
    _refuse_overflow(module.backbone, dtype)
    with quiet_transformers(), making_folder(out) as beside:
        spec: Any = experiment.parts["backbone"]
        if beside_base is not None:
            write_adapter(module.backbone, spec, beside_base, beside, dtype=dtype)
        else:
            how: dict[str, Any] = {"dtype": dtype, "max_shard_size": max_shard_size}
            spec.export(module.backbone, model.tokenizer, model.experiment, beside, **how)
        (beside / "experiment.toml").write_text(model.experiment.to_toml(), encoding="utf-8")
        card = Card(model, run, beside, name or out.resolve().name, beside_base)
        (beside / "README.md").write_text(card.text(), encoding="utf-8")
    return model


def _refuse_overflow(backbone: Any, dtype: str | None) -> None:
    """Raise a `UserError` if a weight is larger than any number of the type in which it is to be written."""
    import torch

    most = torch.finfo(getattr(torch, dtype)).max if dtype else torch.inf
    for name, weight in backbone.named_parameters():
        if weight.numel() and (largest := float(weight.detach().abs().max())) > most:
            raise UserError(
                f"--dtype {dtype}: the weights {name} go up to {largest:.3g}, and {dtype} to {most:.3g}; export with "
                f"--dtype {'bfloat16' if dtype == 'float16' else 'float32'}"
            )
