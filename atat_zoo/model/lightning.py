"""Checkpoints of Lightning: weights, their moving average and the settings of a training, without running any code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atat_zoo import parsing
from atat_zoo.errors import UserError, clip

# Settings are stored as objects of these; nothing of them is imported, and an `_Inert` takes the place of each.
_PACKAGES = frozenset(
    [
        "collections",
        "copyreg",
        "dataloader",
        "lightning",
        "lightning_fabric",
        "numpy",
        "omegaconf",
        "pathlib",
        "pytorch_lightning",
        "tokenizers",
        "torchmetrics",
        "transformers",
        "typing",
    ]
)
_TYPES = frozenset(f"builtins.{name}" for name in ("bool", "dict", "float", "int", "list", "object", "str", "tuple"))


class _Inert:
    """What a pickle would have made: it keeps what it is given, and does nothing."""

    state: Any = None

    def __new__(cls, *args: Any) -> _Inert:
        return object.__new__(cls)

    def __init__(self, *args: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        pass


def read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the settings of a Lightning checkpoint, plain, and its weights, with the moving average where it has one.

    The average is a list in the order of the network's parameters, `backbone.` in the state, whose buffers it lacks.

    Raises:
        UserError: when it is no checkpoint, holds code, or its average is of another network.
    """
    found = _loaded(path)
    try:
        state = {str(name): weight for name, weight in found["state_dict"].items() if isinstance(weight, Tensor)}
        settings = _plain(found.get("hyper_parameters") or {})
        average = list((found.get("ema") or {}).get("shadow_params") or [])
    except (KeyError, TypeError, AttributeError):
        raise UserError(f"{path} has no state_dict, so it is no checkpoint of Lightning; name the .ckpt file") from None
    if average:
        # What is in the state of the network and no parameter is the table of angles.
        names = [name for name in state if name.startswith("backbone.") and not name.endswith(".inv_freq")]
        if len(average) < len(names) or any(a.shape != state[n].shape for n, a in zip(names, average, strict=False)):
            raise UserError(
                f"{path}: its moving average has {len(average)} weights of other shapes than its {len(names)} "
                "parameters, so it cannot be told which is which; name a checkpoint as the training saved it"
            )
        state |= dict(zip(names, average, strict=False))
    return settings, state


def _loaded(path: Path) -> dict[str, Any]:
    try:
        parsing.opened(path).close()
        asked = torch.serialization.get_unsafe_globals_in_checkpoint(str(path))
    except (OSError, ValueError, RuntimeError) as error:
        raise _unreadable(path, error) from None
    if foreign := sorted(name for name in asked if name.split(".")[0] not in _PACKAGES and name not in _TYPES):
        raise UserError(f"{path} holds code, {clip(foreign[0], 80)}, which is not run; have the model as safetensors")
    # A class of its own for each name, or torch knows only the last.
    stand_ins: list[Any] = [(type("_Inert", (_Inert,), {}), name) for name in asked]
    try:
        with torch.serialization.safe_globals(stand_ins):
            found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # torch's unpickler raises many kinds
        raise _unreadable(path, error) from None
    if not isinstance(found, dict):
        raise UserError(f"{path} has no state_dict, so it is no checkpoint of Lightning; name the .ckpt file")
    return found


def _unreadable(path: Path, error: Exception) -> UserError:
    reason = (str(getattr(error, "strerror", "") or error) or type(error).__name__).splitlines()[0]
    return UserError(f"{path} cannot be read: {clip(reason)}; copy it again")


def _plain(value: Any) -> Any:
    """Return settings as plain values: OmegaConf keeps a container's under `_content`, and a leaf's under `_val`."""
    if isinstance(value, _Inert):
        kept = value.state if isinstance(value.state, dict) else {}
        return _plain(kept.get("_content", kept.get("_val")))
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if isinstance(value, bool | int | float | str) else None
