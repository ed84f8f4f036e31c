"""Read the weights, the EMA and the training settings of Lightning checkpoints, without running any code."""

from __future__ import annotations

import itertools
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atat_zoo.system import parsing
from atat_zoo.system.errors import UserError, clip

# Settings may contain objects from these packages, which are not imported; an `_Inert` replaces each object.
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
_DEEPEST, _MOST = 128, 100_000  # maximum nesting depth and number of values in the settings


class _Inert:
    """Placeholder for an object in a pickle, which keeps the object's state and runs no code."""

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
    """Return the settings of a Lightning checkpoint as plain values, and its weights.

    If the checkpoint has an EMA, the EMA weights replace the trained ones. The EMA is stored as a list in the order of
    the network's parameters (`backbone.` in the state), without buffers.

    Raises:
        UserError: if the file is damaged or not a Lightning checkpoint, contains code, or has unsupported weights.
    """
    found = _loaded(path)
    state, ema = found.get("state_dict"), found.get("ema")
    average = ema.get("shadow_params") if isinstance(ema, dict) else ema
    average = [] if average is None else average
    if not isinstance(state, dict):
        raise UserError(f"{path} has no state_dict and is not a Lightning checkpoint; pass the .ckpt file")
    if not isinstance(average, list | tuple) or not all(isinstance(weight, Tensor) for weight in average):
        raise UserError(f"{path}: the EMA is not a list of weights; pass an unmodified checkpoint from training")
    state = {str(name): weight for name, weight in state.items() if isinstance(weight, Tensor)}
    if not all(_is_plain(weight) for weight in (*state.values(), *average)):
        raise UserError(f"{path} has a weight that is sparse, quantized or without values; use safetensors instead")
    if average:
        # The only tensor in the state that is not a parameter is the table of rotary frequencies.
        names = [name for name in state if name.startswith("backbone.") and not name.endswith(".inv_freq")]
        if len(average) < len(names) or any(a.shape != state[n].shape for n, a in zip(names, average, strict=False)):
            raise UserError(
                f"{path}: the shapes of the {len(average)} EMA weights do not match the {len(names)} parameters; "
                "pass an unmodified checkpoint from training"
            )
        state |= dict(zip(names, average, strict=False))
    try:
        settings = _plain(found.get("hyper_parameters"), itertools.count())
    except ValueError as error:
        raise UserError(f"{path}: the settings {error}; pass an unmodified checkpoint from training") from None
    return settings if isinstance(settings, dict) else {}, state


def _loaded(path: Path) -> dict[Any, Any]:
    try:
        parsing.opened(path).close()
        if zipfile.is_zipfile(path) and _is_compressed(path):  # a small compressed file could fill the memory
            raise RuntimeError("the file is compressed, which torch.save does not do")
        with warnings.catch_warnings(action="ignore"):  # torch warns about pickle protocol 3
            asked = torch.serialization.get_unsafe_globals_in_checkpoint(str(path))
    except Exception as error:  # torch and its unpickler raise many types of exceptions
        raise _unreadable(path, error) from None
    if foreign := sorted(name for name in asked if name.split(".")[0] not in _PACKAGES and name not in _TYPES):
        raise UserError(
            f"{path} contains code, {clip(foreign[0], 80)}, which atat does not run; use safetensors instead"
        )
    # Each name needs a separate class, because torch keeps only the last name of a class.
    stand_ins: list[Any] = [(type("_Inert", (_Inert,), {}), name) for name in asked]
    try:
        with torch.serialization.safe_globals(stand_ins), warnings.catch_warnings(action="ignore"):
            found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        raise _unreadable(path, error) from None
    if not isinstance(found, dict):
        raise UserError(f"{path} has no state_dict and is not a Lightning checkpoint; pass the .ckpt file")
    return found


def _unreadable(path: Path, error: Exception) -> UserError:
    reason = (str(getattr(error, "strerror", "") or error) or type(error).__name__).splitlines()[0]
    if isinstance(error, OSError | RuntimeError):
        return UserError(f"{path} cannot be read: {clip(reason)}; check the path, or copy the file again")
    # Do not show torch's message, which advises programmers to allow the code to run.
    return UserError(
        f"{path} cannot be read: the pickle is damaged, or uses protocol 4 or 5, which torch cannot read without "
        "running code; copy the file again, or use safetensors instead"
    )


def _is_compressed(path: Path) -> bool:
    with zipfile.ZipFile(path) as archive:
        return any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist())


def _is_plain(weight: Tensor) -> bool:
    return weight.layout is torch.strided and not weight.is_quantized and weight.device.type == "cpu"


def _plain(value: Any, count: Iterator[int], depth: int = 0) -> Any:
    """Return settings as plain values; OmegaConf stores a container's values in `_content` and a leaf's in `_val`.

    Raises:
        ValueError: if the settings are nested too deeply, contain themselves, or have too many values.
    """
    if depth > _DEEPEST:
        raise ValueError(f"are nested more than {_DEEPEST} levels deep")
    if next(count) > _MOST:
        raise ValueError(f"have more than {_MOST:,} values")
    if isinstance(value, _Inert):
        kept = value.state if isinstance(value.state, dict) else {}
        return _plain(kept.get("_content", kept.get("_val")), count, depth + 1)
    if isinstance(value, dict):
        return {str(key): _plain(each, count, depth + 1) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each, count, depth + 1) for each in value]
    return value if isinstance(value, bool | int | float | str) else None
