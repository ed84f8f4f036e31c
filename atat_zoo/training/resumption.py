"""Resumption of a run: choose its checkpoint, check its experiment, and change its number of steps."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from composer.utils import dist

from atat_zoo.experiment import Experiment, from_overrides, from_run, from_table
from atat_zoo.experiment.runs import RunFolder, write_json, write_text
from atat_zoo.experiment.runs.changes import changes
from atat_zoo.experiment.runs.run_folder import Checkpoint
from atat_zoo.system import atomic_files, parsing
from atat_zoo.system.errors import UserError, clip


def resume_from(
    folder: RunFolder, overrides: Sequence[str], message: Callable[[str], object], step: int | None = None
) -> tuple[Experiment, Checkpoint | None]:
    """Return the experiment of a locked run after overrides, and its checkpoint at `step` or its newest one, if any.

    The run continues as if it had been started with the overrides; if it cannot, UserError is raised. A component that
    depends on training progress, such as a schedule, therefore has a method `extends(done, steps, more)`, which returns
    whether its first `done` + 1 rates are the same when training for `steps` and for `more` steps.
    """
    recorded = from_run(folder.path)
    experiment = from_overrides(folder.table(), overrides, str(folder.resolved))
    for change in changes(recorded.to_table(), experiment.to_table()):
        if not change.resumable:
            raise UserError(
                f"{change} on the command line: a resumed run can only change train.steps, and keys that change the "
                "weights at most by rounding, such as train.microbatch_size, train.sharding and data.workers; "
                f"remove it, or start another run with init_from={folder.path}"
            )
    steps, last = experiment.train.steps, folder.last_checkpoint(step)
    if last is None and step is not None:
        there = ", ".join(str(int(note.stem[5:])) for note in sorted(folder.checkpoints.glob("step-*.json")))
        choose = f"choose one of these steps: {there}" if there else "it has no checkpoint yet; omit --step"
        raise UserError(f"--step {step}: {folder.path} has no complete checkpoint at this step; {choose}")
    if last is None:
        if steps == recorded.train.steps:
            return experiment, None
        raise UserError(f"train.steps: {folder.path} has no checkpoint to resume from; train it again with --overwrite")
    trained = recorded
    if last.experiment is not None:
        trained = from_table(last.experiment, where=str(last.path.with_suffix(".json")))
    if steps != trained.train.steps:
        if steps <= last.step:
            raise UserError(
                f"train.steps = {steps}: {folder.path} has already been trained for {last.step} steps; "
                "choose a larger number"
            )
        _check_extends(experiment, folder, last.step, trained.train.steps)
    differences = list(changes(trained.to_table(), experiment.to_table()))
    if kept := [str(change) for change in differences if not (change.free or change.resumable)]:
        raise UserError(
            f"{folder.resolved} differs from the experiment of the checkpoint at step {last.step} "
            f"({clip(', '.join(kept))}); restore this file, or train from the beginning in another folder"
        )
    if differences:
        message(f"since step {last.step}: {clip(', '.join(map(str, differences)), 1000)}")
    return experiment, last


def _check_extends(experiment: Experiment, folder: RunFolder, done: int, old: int) -> None:
    """Raise a `UserError` if a component's first `done` of `old` steps depend on the total number of steps."""
    new = experiment.train.steps
    for kind in experiment.kinds:
        part: Any = experiment.parts[kind]
        extends = getattr(part, "extends", None)
        if not (extends(done, old, new) if extends else kind != "schedule"):
            raise UserError(
                f"train.steps = {new}: after {done} of {old} steps, {folder.path} differs from a run of {new} "
                f"steps, because {kind} {part.name!r} depends on the number of steps; start another run with "
                f"init_from={folder.path}"
            )


def record(folder: RunFolder, experiment: Experiment, done: int) -> None:
    """Record the changes of a run resumed after `done` steps; delete its final model if `train.steps` has changed."""
    recorded = from_run(folder.path)
    new = {change.key: [change.was, change.now] for change in changes(recorded.to_table(), experiment.to_table())}
    if not new:
        return
    before: Any = {}
    with suppress(OSError, ValueError, TypeError):
        before = dict(parsing.from_json(parsing.read(folder.environment)))
    change = {**new, "after_step": done, "when": datetime.now(UTC).isoformat("T", "seconds")}
    changed = [*before.get("changed", [])]
    if not changed or {**changed[-1], "when": ""} != {**change, "when": ""}:  # else it was killed after this line
        write_json(folder.environment, {**before, "changed": [*changed, change]})
    if "train.steps" in new:  # the final model is no longer final; the checkpoint's model is kept
        atomic_files.discard(folder.model)
    write_text(folder.resolved, experiment.to_toml())


def cut_back(
    folder: RunFolder, last: Checkpoint | None, computes: dict[str, Any], message: Callable[[str], object]
) -> Path | None:
    """Delete checkpoints and metrics after `last`, report changed device, precision or ranks, and return its path."""
    if dist.get_global_rank() == 0:
        if last and (later := folder.drop_later(last.step)):
            message(f"deleted the checkpoints after step {last.step}: {', '.join(map(str, later))}")
        if damaged := folder.cut_metrics(last.step if last else 0):
            message(damaged)
        began = folder.began_with()
        changed = [f"{key} from {began[key]} to {now}" for key, now in computes.items() if began.get(key, now) != now]
        if not began.keys() >= computes.keys():
            message(
                f"{folder.environment} does not record {', '.join(computes)} of the run; if any of these has changed, "
                "the final weights differ slightly"
            )
        if changed:
            message(f"the resumed run will not be bit-for-bit reproducible; changed: {', '.join(changed)}")
    return last.path if last else None
