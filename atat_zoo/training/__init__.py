"""Training: Composer's Trainer with an assembled model and the data stream.

This is the only package that imports composer.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atat_zoo.training.trainer import Reporter, Result, resume, train

__all__ = ["Reporter", "Result", "resume", "train"]


# Imported on first use: the parts in this package are listed without composer.
def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("atat_zoo.training.trainer"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
