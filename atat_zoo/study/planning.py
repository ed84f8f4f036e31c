"""What is left to do of a study, and how long it will take by what its own runs have recorded on this machine."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

import attrs

from atat_zoo.model.model import device_name, torch_device
from atat_zoo.results.history import history
from atat_zoo.run.environment import machine
from atat_zoo.study.results import machine_of
from atat_zoo.study.runner import in_order

if TYPE_CHECKING:
    from atat_zoo.study.runner import StudyRunner
    from atat_zoo.study.schema import StudyRun

FINISHED, TO_CONTINUE, TO_DO = "finished", "to continue", "to do"


@attrs.frozen(kw_only=True)
class Planned:
    """A run in the plan."""

    run: str  # its name; with ? while the point of the sweep or the number of steps is not known
    state: str
    step: int  # that it has reached
    steps: int  # in all; of a similar arm while it is not known
    seconds: float | None  # of the steps that are left, None when no run has recorded its time here


def plan(runner: StudyRunner) -> list[Planned]:
    """Return every run of a study in the order of the trainings."""
    study = runner.study
    runs = {run.name: run for run in [*study.sweep_runs(), *in_order(runner.runs)]}
    speeds: dict[str, list[float]] = {}
    for run in runs.values():
        if seconds_per_step := _seconds_per_step(run):
            speeds.setdefault(run.arm, []).append(seconds_per_step)
    everything = [speed for of_arm in speeds.values() for speed in of_arm]
    point = next(iter(study.sweep.points)) if study.sweep else None  # any, where it is not known
    for arm in (arm for arm in study.arms if arm not in runner.runs):
        runs |= {f"{arm}-?-seed{seed}": study.run(arm, seed, point) for seed in study.seeds[arm]}
    rows = []
    for name, run in runs.items():
        state, step = _state(run) if name == run.name else (TO_DO, 0)
        steps = run.experiment.train.steps
        left = 0 if state == FINISHED else steps - step
        # The times per step of the arm itself, or else of those that it is like, or else of all.
        similar = next((speeds[arm] for arm in reversed(study.chain(run.arm)) if arm in speeds), everything)
        seconds = left * statistics.median(similar) if similar else None
        rows.append(Planned(run=name, state=state, step=step, steps=steps, seconds=seconds if left else 0.0))
    return rows


def total(rows: list[Planned], jobs: int) -> float | None:
    """Return the seconds of all steps that are left, with some trainings at a time."""
    seconds = [row.seconds for row in rows if row.seconds is not None]
    return sum(seconds) / jobs if len(seconds) == len(rows) else None


def _state(run: StudyRun) -> tuple[str, int]:
    if run.finished:
        return FINISHED, run.experiment.train.steps
    if not run.folder.exists:
        return TO_DO, 0
    lines: list[dict[str, Any]] = run.folder.read_metrics(damaged=True)
    return TO_CONTINUE, int(lines[-1]["step"]) if lines else 0


def _seconds_per_step(run: StudyRun) -> float | None:
    """Return the recorded time of a step, if this machine has recorded it."""
    here, there = machine(), machine_of(run)
    if any(here[key] != there.get(key) for key in ("processor", "cores")):
        return None
    past = history(run.folder, run.experiment)
    device = device_name(torch_device("cpu" if run.experiment.train.device == "cpu" else "auto"))
    if past.computed.get("device", device) != device:
        return None
    return past.seconds / past.clock[-1][0] if past.seconds else None
