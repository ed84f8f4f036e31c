"""Run folders written by hand, with what the report reads."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from atat_zoo.evaluation.naming import NELBO
from atat_zoo.run import RunFolder

if TYPE_CHECKING:
    from pathlib import Path

RESOLVED = """\
name = "{name}"
seed = 17
[objective]
use = "{objective}"
[train]
steps = 30
[evaluation]
split = "validation"
sequences = 8
draws = 2
[evaluation.bound]
use = "exact_k"
"""


def write_run(path: Path, *, objective: str = "mdlm", steps: int = 30, finished: bool = False) -> RunFolder:
    """Write a run of 30 steps that has trained `steps` of them."""
    run = RunFolder(path)
    path.mkdir(parents=True)
    run.resolved.write_text(RESOLVED.format(name=path.name, objective=objective))
    for step in range(10, steps + 1, 10):
        line = {"step": step, "loss": 90 / step, "tokens": 512 * step, "tokens_per_second": 64.0, "seconds": 8.0 * step}
        run.append_metrics(line)
    if finished:
        run.model.mkdir()
        (run.model / "model.json").write_text("{}")
    return run


def write_evaluation(run: RunFolder, value: float, name: str = NELBO, **changed: Any) -> None:
    """Write an evaluation as the training records it, but for what is changed."""
    own = {"corpus": "", "split": "validation", "step": 30, "sequences": 8, "draws": 2, "seed": 17, "method": "exact_k"}
    counts = {"tokens": 512, "bytes": 1800, "characters": 1800, "words": 300, "padding": 0}
    table = {**own, **counts, "bounds": {name: {"value": value, "stderr": value / 50}}, **changed}
    run.evaluations.mkdir(exist_ok=True)
    (run.evaluations / f"{len(list(run.evaluations.iterdir()))}.json").write_text(json.dumps(table))
