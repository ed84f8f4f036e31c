"""The table of renamed keys of an experiment. Imports no torch.

Runs of older versions are read with the new names. An old name in an experiment file is an error with the new one.
"""

from __future__ import annotations

import copy
from typing import Any

# old key path -> new key path; a part's `use` comes before its parameters
RENAMED: dict[str, str] = {
    "drawing": "mask_drawing",
    "data.block": "data.sequences_per_member",
    "data.shard": "data.sequences_per_shard",
    "train.keep": "train.checkpoints_kept",
    "train.optimizer": "optimizer.use",
    "train.learning_rate": "optimizer.learning_rate",
    "train.muon_learning_rate": "optimizer.muon_learning_rate",
    "train.betas": "optimizer.betas",
    "train.weight_decay": "optimizer.weight_decay",
    "train.schedule": "schedule.use",
    "train.warmup_steps": "schedule.warmup_steps",
    "train.final_rate": "schedule.final_rate",
}

# Runs of version 0.1 set these for every optimizer and schedule: new key path -> the parts that have the parameter.
_TAKEN_BY = {"optimizer.muon_learning_rate": ("muon",), "schedule.final_rate": ("cosine", "linear")}


def today(table: dict[str, Any]) -> dict[str, Any]:
    """Return a run's experiment, as a table, with the current names of all keys."""
    table = copy.deepcopy(table)
    for old, new in RENAMED.items():
        value = take(table, old)
        section, _, key = new.rpartition(".")
        place = table.setdefault(section, {}) if section and value is not None else table
        if value is not None and place.get("use") in _TAKEN_BY.get(new, (place.get("use"),)):
            place.setdefault(key, value)
    return table


def take(table: dict[str, Any], path: str) -> Any:
    """Remove a key path from a table and return its value; None where it is absent."""
    section, _, key = path.rpartition(".")
    place = table.get(section) if section else table
    return place.pop(key, None) if isinstance(place, dict) else None
