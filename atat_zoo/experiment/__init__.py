"""Experiments, which `load` reads from TOML and validates without importing torch.

The subpackage `runs` reads and writes run folders.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atat_zoo.experiment.experiment_file import (
        conflicts,
        conflicts_with,
        find,
        from_overrides,
        from_run,
        from_table,
        load,
        names,
        read_toml,
        recipe,
        recipes,
        shipped,
    )
    from atat_zoo.experiment.schema import EvaluationSpec, Experiment, TrainSpec

__all__ = ["EvaluationSpec", "Experiment", "TrainSpec", "conflicts", "conflicts_with", "find", "from_overrides"]
__all__ += ["from_run", "from_table", "load", "names", "read_toml", "recipe", "recipes", "shipped"]


# Imported on first use: a command that only reads run folders validates no experiment.
def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "schema" if name[0].isupper() else "experiment_file"
    return getattr(import_module(f"{__name__}.{module}"), name)
