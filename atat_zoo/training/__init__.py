"""Training of an assembled model on the data stream with Composer's Trainer.

Only this package, `atat_zoo.testing` and plugins import composer.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atat_zoo.training.trainer import Reporter, Result, resume, train

__all__ = ["Reporter", "Result", "resume", "train"]


# Imported on first use, so that the components in this package can be listed without composer.
def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("atat_zoo.training.trainer"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
