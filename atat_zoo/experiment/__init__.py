"""TOML to a validated experiment, without torch; begin with `load`."""

from atat_zoo.experiment.experiment_file import (
    conflicts,
    conflicts_with,
    find,
    from_overrides,
    from_table,
    load,
    names,
    read_toml,
    recipe,
    recipes,
    shipped,
)
from atat_zoo.experiment.schema import EvaluationSpec, Experiment, TrainSpec

__all__ = [
    "EvaluationSpec",
    "Experiment",
    "TrainSpec",
    "conflicts",
    "conflicts_with",
    "find",
    "from_overrides",
    "from_table",
    "load",
    "names",
    "read_toml",
    "recipe",
    "recipes",
    "shipped",
]
