"""The files of a model: the weights, the tokenizer, and `model.json`, which describes both. Does not import torch."""

import hashlib
from pathlib import Path
from typing import Any

from atat_zoo.system import parsing
from atat_zoo.system.errors import UserError

DESCRIPTION, WEIGHTS, TOKENIZER = "model.json", "model.safetensors", "tokenizer.json"


def described(folder: Path) -> dict[str, Any]:
    """Return the content of model.json, or raise a `UserError` if a file of the model is missing or damaged.

    The tokenizer is checked against its hash. The weights, which may be large, are not: use `check` before reading
    them.
    """
    for name in (DESCRIPTION, WEIGHTS, TOKENIZER):
        if not (folder / name).is_file():
            raise UserError(f"{folder} has no {name}; {_AGAIN}")
    path = folder / DESCRIPTION
    try:
        content: dict[str, Any] = parsing.from_json(parsing.read(path))
        content = {**content, "experiment": dict(content["experiment"])}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:  # damaged, or not a description
        raise unreadable(path, error) from None
    check(folder, content, TOKENIZER)
    return content


def check(folder: Path, description: dict[str, Any], name: str) -> None:
    """Raise a `UserError` if a model file cannot be read, or if its hash differs from that in `description`."""
    try:
        same = sha256_of(folder / name) == description["sha256"][name]
    except (OSError, KeyError, TypeError) as error:
        raise unreadable(folder / DESCRIPTION, error) from None
    if not same:
        raise UserError(f"{folder / name} differs from {DESCRIPTION}, which records a different SHA-256; {_AGAIN}")


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with parsing.opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def unreadable(path: Path, error: Exception) -> UserError:
    """Return the error for a file of a model that cannot be read."""
    reason = " ".join(str(error).split())
    return UserError(f"{path} cannot be read: {type(error).__name__}: {reason}; {_AGAIN}")


_AGAIN = "copy the run again, or retrain the model"
