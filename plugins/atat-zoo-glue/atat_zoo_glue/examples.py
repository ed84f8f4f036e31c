"""A miniature GLUE for the conformance tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from atat_zoo_glue.miniature import write


def _glue(folder: Path) -> dict[str, Any]:
    return {"path": str(write(folder / "glue", train=8, held_out=6)), "tasks": ["mnli", "stsb"], "epochs": 1}


EXAMPLES = {("task", "glue"): _glue}
