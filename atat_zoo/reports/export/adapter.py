"""The matrices of a LoRA run as an adapter of peft, for a model that is loaded from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from atat_zoo.errors import UserError, clip
from atat_zoo.experiment.runs import RunFolder
from atat_zoo.reports.export.pushing import HUB_NAME

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.experiment import Experiment


class Base(NamedTuple):
    """The model beside whose weights the matrices are: a name on the hub or a folder, and its revision."""

    name: str
    revision: str | None = None


def base_of(run: Path, experiment: Experiment, named: str | None) -> Base:
    """Return the model for which the adapter of a run is: the named one, or the published one that it began with.

    Raises:
        UserError: when the run has no adapter, or the model is not known.
    """
    backbone: Any = experiment.parts["backbone"]
    if not getattr(backbone, "lora_rank", 0):
        raise UserError(f"--adapter: {clip(run)} was not trained by LoRA (backbone.lora_rank is 0); leave it out")
    if backbone.prefix is None:
        raise UserError(
            f"--adapter: the layers of backbone {backbone.name!r} have other names where its model is published; "
            "leave --adapter out, and the matrices are merged"
        )
    if named is not None:
        if not (Path(named) / "config.json").is_file() and (Path(named).exists() or not HUB_NAME.fullmatch(named)):
            raise UserError(
                f"--base {clip(named) or repr(named)}: neither a model folder with config.json nor a name on the hub; "
                "write FOLDER or OWNER/NAME"
            )
        return Base(named)
    if experiment.init_from is None:  # LoRA of a pretrained model, which the backbone names
        return Base(backbone.model, backbone.revision)
    origin = RunFolder(Path(experiment.init_from)).imported()
    model = str(origin.get("model", ""))
    model = str(Path(model).resolve()) if Path(model).is_dir() and model else model
    if (Path(model) / "config.json").is_file() or (HUB_NAME.fullmatch(model) and not Path(model).exists()):
        return Base(model, origin.get("revision"))
    raise UserError(
        f"--adapter: the base of {clip(run)} is the run {clip(experiment.init_from)}, which peft does not read; export "
        f"that run to a folder, and name it by --base FOLDER"
    )


def write(module: Any, spec: Any, base: Base, folder: Path, *, dtype: str | None) -> None:
    """Write adapter_config.json and adapter_model.safetensors for a backbone's module."""
    import peft
    import torch
    from safetensors.torch import save_file

    from atat_zoo.modeling.backbones.lora import settings_of

    matrices: dict[str, Tensor] = {
        name.removeprefix(spec.prefix): weight.detach().to(dtype and getattr(torch, dtype), copy=True)
        for name, weight in peft.get_peft_model_state_dict(module).items()
    }
    layers = sorted({name.partition(".lora_")[0] for name in matrices})
    settings = settings_of(spec, layers, inference_mode=True, base_model_name_or_path=base.name, revision=base.revision)
    settings.save_pretrained(str(folder))
    named = {f"base_model.model.{name}": weight.contiguous() for name, weight in matrices.items()}
    save_file(named, folder / peft.utils.SAFETENSORS_WEIGHTS_NAME, metadata={"format": "pt"})
