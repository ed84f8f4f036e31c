"""What a run goes on from, and with: its checkpoint, whose experiment must be its own, and another number of steps."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from atat_zoo import parsing
from atat_zoo.errors import UserError, clip
from atat_zoo.experiment import from_overrides, from_table
from atat_zoo.run import atomic, write_json, write_text
from atat_zoo.run.changes import changes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from atat_zoo.experiment import Experiment
    from atat_zoo.run import RunFolder
    from atat_zoo.run.folder import Checkpoint

# What a run may change when it goes on.
CHANGEABLE = ("train.steps",)


def continued(
    folder: RunFolder, overrides: Sequence[str], message: Callable[[str], object]
) -> tuple[Experiment, Checkpoint | None]:
    """Return the experiment of a locked run with overrides, and the checkpoint from which it goes on.

    With the overrides it goes on as if it had been begun with them: a schedule says by `extends(done, steps, more)`
    whether its first `done` rates of a training of `steps`, and the next, are those of a training of `more`; so does
    any other part that follows the progress of the training.

    Raises:
        UserError: when another key is overridden, a part has gone by the end of the training, or the checkpoint is that
            of another experiment.
    """
    for text in overrides:
        if text.partition("=")[0].strip() not in CHANGEABLE:
            raise UserError(
                f"{clip(repr(text))} on the command line: a run goes on as it was begun, but for "
                f"{', '.join(CHANGEABLE)}; leave it out, or begin another run with init_from={folder.path}"
            )
    recorded = from_table(folder.table(), where=str(folder.resolved))
    experiment = from_overrides(folder.table(), overrides, str(folder.resolved))
    steps, last = experiment.train.steps, folder.last_checkpoint()
    if last is None:
        if steps == recorded.train.steps:
            return experiment, None
        raise UserError(f"train.steps: {folder.path} has no checkpoint to go on from; train it again with --overwrite")
    trained = recorded
    if last.experiment is not None:
        trained = from_table(last.experiment, where=str(last.path.with_suffix(".json")))
    if steps != trained.train.steps:
        if steps <= last.step:
            raise UserError(f"train.steps = {steps}: {folder.path} has made {last.step} steps already; choose more")
        _check_extends(experiment, folder, last.step, trained.train.steps)
    differences = list(changes(trained.to_table(), experiment.to_table()))
    if refused := [str(change) for change in differences if not change.free and change.key not in CHANGEABLE]:
        raise UserError(
            f"{folder.resolved} is not what the checkpoint of step {last.step} was trained with "
            f"({clip(', '.join(refused))}); put that back, or train it from the beginning in another folder"
        )
    if differences:
        message(f"changed since step {last.step}: {clip(', '.join(map(str, differences)))}")
    return experiment, last


def _check_extends(experiment: Experiment, folder: RunFolder, done: int, old: int) -> None:
    """Refuse another number of steps after `done` of `old` if a part has gone by the end of the training."""
    new = experiment.train.steps
    for kind in experiment.kinds:
        part: Any = experiment.parts[kind]
        extends = getattr(part, "extends", None)
        if not (extends(done, old, new) if extends else kind != "schedule"):
            raise UserError(
                f"train.steps = {new}: after {done} of {old} steps, {folder.path} is not what a training of {new} "
                f"would have been: {kind} {part.name!r} follows the number of steps; begin another run with "
                f"init_from={folder.path}"
            )


def record(folder: RunFolder, experiment: Experiment, done: int) -> None:
    """Write down with how many steps a run goes on after `done`, if they have changed."""
    old, new = from_table(folder.table(), where=str(folder.resolved)).train.steps, experiment.train.steps
    if new == old:
        return
    before: Any = {}
    with suppress(OSError, ValueError, TypeError):
        before = dict(parsing.from_json(parsing.read(folder.environment)))
    change = {"train.steps": [old, new], "after_step": done, "when": datetime.now(UTC).isoformat("T", "seconds")}
    changed = [*before.get("changed", [])]
    if not changed or {**changed[-1], "when": ""} != {**change, "when": ""}:  # else it was killed after this line
        write_json(folder.environment, {**before, "changed": [*changed, change]})
    # The final model is final no longer; that of the checkpoint stays.
    atomic.discard(folder.model)
    write_text(folder.resolved, experiment.to_toml())
