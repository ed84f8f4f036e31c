"""Keys of an experiment that have another name now: the one table of them. Imports no torch.

A run that an older version made is read by today's names; an experiment file that says an old one is told the new one.
"""

from __future__ import annotations

import copy
from typing import Any

# old key path -> new key path
RENAMED: dict[str, str] = {
    "drawing": "mask_drawing",
}


def today(table: dict[str, Any]) -> dict[str, Any]:
    """Return the experiment of a run, as a table, with every key under the name that it has now."""
    table = copy.deepcopy(table)
    for old, new in RENAMED.items():
        *outer, last = old.split(".")
        place: Any = table
        for key in outer:
            place = place.get(key) if isinstance(place, dict) else None
        if isinstance(place, dict) and last in place:
            value = place.pop(last)
            *outer, last = new.split(".")
            place = table
            for key in outer:
                place = place.setdefault(key, {})
            place.setdefault(last, value)
    return table
