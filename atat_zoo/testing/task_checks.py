"""Checks of tasks on an untrained model."""

import json
import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import torch

from atat_zoo.data.build import build
from atat_zoo.evaluation.results.task_results import Score
from atat_zoo.evaluation.tasks import Task, require, title
from atat_zoo.experiment import from_table
from atat_zoo.experiment.runs import RunFolder, write_text
from atat_zoo.generation.model import Model
from atat_zoo.modeling.objectives import assemble
from atat_zoo.registry import Context
from atat_zoo.registry.spec import evolve
from atat_zoo.testing.batches import close
from atat_zoo.testing.component_examples import written


def check_task(task: Any, run: Path | None = None) -> None:
    """Check the contract of a task whose files exist: the same scores for the same items with any batch size.

    `run` is the folder of the run to evaluate (default: a small run with random weights).
    """
    assert Task in task.__class__.__mro__, "a task must inherit from atat_zoo.evaluation.tasks.Task"
    with tempfile.TemporaryDirectory() as folder:
        _check(task, run or small_run(Path(folder), dialogues=task.reads_dialogues))


def small_run(folder: Path, *, dialogues: bool = False) -> Path:
    """Write the folder of a run with random weights and sequences of 32 bytes, and return the path of the folder."""
    shards = {"lanes": 2, "sequences_per_member": 8, "sequences_per_shard": 64}
    table: dict[str, Any] = {
        "name": "small",
        "corpus": {"use": "files", "train": [written(folder / "text.txt")], "document": "line"},
        "tokenizer": "bytes",
        "backbone": {"use": "dit", "layers": 1, "width": 16, "heads": 2},
        "sampler": {"use": "ancestral", "steps": 4},
        "data": {"root": str(folder / "shards"), "length": 32, **shards},
        "evaluation": {"batch_size": 4},
    }
    if dialogues:
        lines = (json.dumps({"prompt": f"{i}?", "response": f"{i}!"}) for i in range(100))
        (folder / "talk.jsonl").write_text("\n".join(lines), encoding="utf-8")
        table["corpus"] = {"use": "files", "train": [str(folder / "talk.jsonl")]}
        table["data"] |= {"format": "chat", "packing": "document"}
    experiment = from_table(table)
    tokenizer = experiment.parts["tokenizer"].load(build(experiment))
    context = Context(vocabulary_size=tokenizer.vocabulary_size, length=32)
    module = assemble(experiment, context)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    run = RunFolder(folder / "small")
    run.path.mkdir(parents=True)
    write_text(run.resolved, experiment.to_toml())
    Model(experiment=experiment, context=context, tokenizer=tokenizer, module=module.eval(), step=1).save(run.model)
    return run.path


def _check(task: Any, run: Path) -> None:
    model = Model.from_run(run)
    require([task], model.experiment)
    assert title(task).startswith(task.name), "a title must begin with the task's name"
    inputs = json.dumps(task.inputs(model.experiment), sort_keys=True)
    before = {name: tensor.clone() for name, tensor in model.module.state_dict().items()}
    told: list[tuple[int, int]] = []
    torch.manual_seed(1)
    scores = task.measure(model, run, seed=3, progress=lambda done, total: told.append((done, total)))
    assert isinstance(scores, Mapping), "measure() must return a dict of scores by name"
    scores = {name: score for name, score in scores.items() if not isinstance(score, str)}
    assert scores, "measure() must return at least one score"
    for name, score in scores.items():
        _check_score(name, score)
    assert all(isinstance(note, str) for note in task.notes(model)), "notes() must return strings"
    assert told == sorted(told), f"progress must not decrease: {told}"
    assert all(0 <= done <= total for done, total in told), f"progress must not exceed its total: {told}"
    assert not told or told[-1][0] == told[-1][1], f"progress must end at its total: {told[-1]}"
    after = model.module.state_dict()
    assert all(torch.equal(before[name], tensor) for name, tensor in after.items()), (
        "measure() must not change the weights"
    )
    assert not model.module.training, "measure() must leave the model in evaluation mode"
    assert json.dumps(task.inputs(model.experiment), sort_keys=True) == inputs, (
        "inputs() must return the same value each time"
    )
    experiment = attrs.evolve(model.experiment, evaluation=evolve(model.experiment.evaluation, batch_size=3))
    torch.manual_seed(2)
    for promise, other in (
        ("the same seed must give the same scores", model),
        ("a different batch size must give the same scores", attrs.evolve(model, experiment=experiment)),
    ):
        again = task.measure(other, run, seed=3)
        assert [name for name, score in again.items() if not isinstance(score, str)] == list(scores), promise
        for name, score in scores.items():
            if score.of:  # a time, for example, does not belong to items
                assert again[name].of == score.of, promise
                close(
                    torch.tensor(again[name].value), torch.tensor(score.value), 1e-4 * abs(score.value) + 1e-6, promise
                )


def _check_score(name: Any, score: Any) -> None:
    assert isinstance(name, str), f"the name of a score must be a str, not {name!r}"
    assert name, "the name of a score must not be empty"
    assert isinstance(score, Score), (
        f"{name}: a score must be an atat_zoo.evaluation.results.task_results.Score, such as `Score.over` returns"
    )
    assert score.quantity, f"{name}: a score must name its quantity"
    assert math.isfinite(score.value), f"{name}: a score must be finite, not {score.value}"
    assert score.stderr is None or score.stderr >= 0, f"{name}: a standard error must not be negative: {score.stderr}"
    assert score.items > 0, f"{name}: a score must have at least one item"
    if score.of:
        assert len(score.sums) == len(score.weights) == score.items, f"{name}: each item must have a sum and a weight"
