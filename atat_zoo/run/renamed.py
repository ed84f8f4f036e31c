"""The table of renamed keys of an experiment. Imports no torch.

A run of an older version is read under the new names; an old name in an experiment file is an error with the new name.
"""

from __future__ import annotations

import copy
from typing import Any

# old key path -> new key path; a part's `use` stands before its parameters
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

# A run of version 0.1 states these whatever its optimizer and schedule are: new key path -> the parts that take it.
_TAKEN_BY = {"optimizer.muon_learning_rate": ("muon",), "schedule.final_rate": ("cosine", "linear")}


def today(table: dict[str, Any]) -> dict[str, Any]:
    """Return a run's experiment, as a table, with every key under the name that it has now."""
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
