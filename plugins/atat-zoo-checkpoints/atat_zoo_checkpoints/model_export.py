"""Export a run to a folder in the Hugging Face format, and upload the folder to the hub.

The backbone's method `export` writes the network, except for the zoo's own `dit`, which the package `hub` writes. A
LoRA run can also be exported as a peft adapter, which only contains the LoRA matrices.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atat_zoo.experiment import Experiment, from_run
from atat_zoo.experiment.runs import RunFolder
from atat_zoo.modeling.backbones.dit import DiTBackbone
from atat_zoo.system.atomic_files import check_name, making_folder
from atat_zoo.system.errors import UserError, clip
from atat_zoo.system.machine import quiet_transformers
from atat_zoo_checkpoints.published_model import HUB_NAME, Base

if TYPE_CHECKING:
    from torch import Tensor

    from atat_zoo.data.tokenizers import TokenizerModel
    from atat_zoo.generation.model import Model

_SIZE = re.compile(r"(?!0+[A-Z])[0-9]{1,9}(?:[KMGT]i?B|B)", re.IGNORECASE)


def check_export(
    run: Path, folder: Path, *, max_shard_size: str = "5GB", adapter: bool = False, base: str | None = None
) -> Experiment:
    """Return the experiment of a run after checking, without importing torch, that the run can be exported to a folder.

    Raises:
        UserError: if the run does not exist, its network cannot be exported, `folder` exists and is not an empty
            folder, `max_shard_size` is not a size, `base` is passed without `adapter`, or `base_of` raises one.
    """
    experiment = from_run(run)
    backbone = experiment.parts["backbone"]
    if not _SIZE.fullmatch(max_shard_size):
        raise UserError(f"--max-shard-size {clip(max_shard_size)} is not a size; use a size like 5GB or 200MB")
    check_name(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{clip(folder)} already exists and is not an empty folder; choose a new folder")
    text_generator = _writer(backbone)
    if text_generator is None:
        raise UserError(
            f"{clip(run)}: backbone {backbone.name!r} cannot be exported, because it has no method `export`; "
            "docs/how-to/your-backbone.md describes that method"
        )
    if adapter:
        base_of(run, experiment, base)
    elif base is not None:
        raise UserError("--base only works with --adapter; add --adapter, or leave --base out")
    if why := text_generator.no_export_because(experiment):
        raise UserError(f"{clip(run)} cannot be exported: {why}; export a run with a different objective or backbone")
    return experiment


def _writer(backbone: Any) -> Any:
    """Return the object whose methods `export` and `no_export_because` apply to a backbone, or None."""
    from atat_zoo_checkpoints import hub

    if hasattr(backbone, "export"):
        return backbone
    return hub if isinstance(backbone, DiTBackbone) else None


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
    """Write a run's network, tokenizer and model card to a folder, with code if the network is a `dit`.

    Args:
        run: run folder.
        out: new or empty folder; if the export fails, nothing is written.
        step: training step of the checkpoint, `newest` or `best`; None for the final model.
        dtype: name of the weights' data type in torch; None to keep the run's.
        max_shard_size: maximum size of each weights file, such as "5GB".
        name: name of the model in the card; None for the name of the folder.
        adapter: whether to write only a peft adapter, the LoRA matrices of the run, and the model card.
        base: base model of the adapter; None for the published model that the run started from.

    Returns:
        The exported model.

    Raises:
        UserError: if the run cannot be exported (see `check_export`), or a weight is too large for `dtype`.
    """
    run, out = Path(run), Path(out)
    experiment = check_export(run, out, max_shard_size=max_shard_size, adapter=adapter, base=base)
    from atat_zoo.generation.model import Model
    from atat_zoo.modeling.backbones.lora import merge
    from atat_zoo_checkpoints.card import card_of

    model = Model.from_run(run, step=step)
    module: Any = model.module
    beside_base = base_of(run, experiment, base) if adapter else None
    if beside_base is None:
        merge(module)
    _refuse_overflow(module.backbone, dtype)
    with quiet_transformers(), making_folder(out) as beside:
        backbone: Any = experiment.parts["backbone"]
        if beside_base is not None:
            _write_adapter(module.backbone, backbone, beside_base, beside, dtype=dtype)
        else:
            how = {"dtype": dtype, "max_shard_size": max_shard_size}
            _writer(backbone).export(module.backbone, model.tokenizer, model.experiment, beside, **how)
        (beside / "experiment.toml").write_text(model.experiment.to_toml(), encoding="utf-8")
        card = card_of(model, run, beside, name or out.resolve().name, beside_base)
        (beside / "README.md").write_text(card, encoding="utf-8")
    return model


def _refuse_overflow(backbone: Any, dtype: str | None) -> None:
    """Raise a `UserError` if a weight is too large for the exported data type."""
    import torch

    most = torch.finfo(getattr(torch, dtype)).max if dtype else torch.inf
    for name, weight in backbone.named_parameters():
        if weight.numel() and (largest := float(weight.detach().abs().max())) > most:
            raise UserError(
                f"--dtype {dtype}: the largest weight in {name}, {largest:.3g}, exceeds the maximum {most:.3g}; pass "
                f"--dtype {'bfloat16' if dtype == 'float16' else 'float32'}"
            )


def write_as_published(
    spec: Any,
    module: Any,
    tokenizer: TokenizerModel,
    experiment: Experiment,
    folder: Path,
    *,
    dtype: str | None,
    max_shard_size: str,
) -> None:
    """Write a network of backbone `spec` in its published format: config.json, the weights and the tokenizer."""
    import torch
    from huggingface_hub import save_torch_state_dict
    from transformers import PreTrainedTokenizerFast

    from atat_zoo_checkpoints.hub.hub_tokenizer import padding_of

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


def base_of(run: Path, experiment: Experiment, named: str | None) -> Base:
    """Return the base model of a run's adapter: the one `named`, or the published model that the run started from.

    Raises:
        UserError: if the run has no LoRA matrices, peft cannot load them, or the base model is unknown.
    """
    backbone: Any = experiment.parts["backbone"]
    if not backbone.lora_rank:
        raise UserError(
            f"--adapter: {clip(run)} was not trained with LoRA (backbone.lora_rank is 0); leave --adapter out"
        )
    if backbone.prefix is None:
        raise UserError(
            f"--adapter: the layers of backbone {backbone.name!r} have different names in its published model; "
            "leave --adapter out to merge the matrices"
        )
    if named is not None:
        if not (Path(named) / "config.json").is_file() and (Path(named).exists() or not HUB_NAME.fullmatch(named)):
            raise UserError(
                f"--base {clip(named) or repr(named)} is neither a folder with config.json nor a name on the hub; "
                "use FOLDER or OWNER/NAME"
            )
        return Base(named)
    if experiment.init_from is None:  # LoRA on a pretrained model, which the backbone names
        return Base(backbone.model, backbone.revision)
    origin = RunFolder(Path(experiment.init_from)).imported()
    model = str(origin.get("model", ""))
    model = str(Path(model).resolve()) if Path(model).is_dir() and model else model
    if (Path(model) / "config.json").is_file() or (HUB_NAME.fullmatch(model) and not Path(model).exists()):
        return Base(model, origin.get("revision"))
    raise UserError(
        f"--adapter: the base model of {clip(run)} is the run {clip(experiment.init_from)}, which peft cannot read; "
        f"export that run to a folder, and pass --base FOLDER"
    )


def _write_adapter(module: Any, spec: Any, base: Base, folder: Path, *, dtype: str | None) -> None:
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


def check_push(name: str) -> None:
    """Check, without network access, that a model can be pushed under a name.

    Raises:
        UserError: if the name is invalid, or the access token is missing.
    """
    if not HUB_NAME.fullmatch(name):
        raise UserError(f"--push {clip(name) or repr(name)} is not a model name; use OWNER/NAME")
    import huggingface_hub

    if not huggingface_hub.get_token():
        raise UserError(
            "--push requires an access token; log in with `hf auth login`, or set HF_TOKEN in the environment"
        )


def push(folder: Path, name: str, *, public: bool = False) -> str:
    """Upload a folder as a model and return its URL; a new model is private unless `public` is set.

    If a model with this name exists, it gets a new commit and keeps its visibility.

    Raises:
        UserError: if the hub refuses the upload or cannot be reached.
    """
    import huggingface_hub

    try:
        address = huggingface_hub.create_repo(name, private=not public, exist_ok=True)
        huggingface_hub.upload_folder(repo_id=name, folder_path=folder, commit_message="Export by atat_zoo")
    except Exception as error:  # the library raises many types of exceptions
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(
            f"--push {name}: the upload failed: {clip(first)}; the export in {clip(folder)} is complete; check the "
            f"network and that your token has write access, and retry with `hf upload {name} {folder}`"
        ) from None
    return str(address)
