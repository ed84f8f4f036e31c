"""Reads the keys of an old record's experiments by the names that they have now."""

from __future__ import annotations

from typing import Any

from atat_zoo.run.renamed import RENAMED


def renamed(resolved: dict[str, Any]) -> dict[str, Any]:
    """Return the resolved experiments of a record, which are key paths and values, under today's names."""
    return {
        "common": _paths(resolved.get("common", {})),
        "each": {name: _paths(paths) for name, paths in resolved.get("each", {}).items()},
    }


def _paths(paths: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for path, value in paths.items():
        old = next((old for old in RENAMED if path == old or path.startswith(f"{old}.")), None)
        found[RENAMED[old] + path[len(old) :] if old else path] = value
    return found
