"""Run a study: the sweep, the arms, the arms with measured numbers of steps, and the comparison.

The plan lists all runs, and estimates the time of the remaining steps from the times that the study's runs recorded on
this machine.
"""

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from atat_zoo.evaluation.results.history import history
from atat_zoo.evaluation.results.store import finite
from atat_zoo.evaluation.tasks import require
from atat_zoo.experiment.runs import sha256_of, write_json
from atat_zoo.experiment.runs.model_files import WEIGHTS
from atat_zoo.studies import study_results, study_tasks
from atat_zoo.studies.differences import NOT_WORSE, sensitivity
from atat_zoo.studies.processes import LocalExecutor, elements, ran_with
from atat_zoo.studies.run_measurement import Written, measure_all, price, recorded, write_all
from atat_zoo.studies.study_schema import Study, StudyRun, in_order
from atat_zoo.system import atomic_files, locks, parsing
from atat_zoo.system.devices import device_name, torch_device
from atat_zoo.system.environment import describe, machine
from atat_zoo.system.errors import UserError

FINISHED, TO_CONTINUE, TO_DO = "finished", "to continue", "to do"


@attrs.define
class StudyRunner:
    """Trains and evaluates the runs of a study, and holds what is known of them so far."""

    study: Study
    device: str = "cpu"
    say: Callable[[str], None] = print
    failed: dict[str, str] = attrs.field(factory=dict)  # error by name of the run
    sweep: dict[str, dict[str, Any]] = attrs.field(factory=dict)  # chosen point of each arm
    runs: dict[str, list[StudyRun]] = attrs.field(factory=dict)  # of each arm whose settings are known
    nats: list[dict[str, Any]] = attrs.field(factory=list)  # of each sequence, as `study_results.nats_of` yields them

    def train(self, executor: LocalExecutor, *, test_again: bool = False) -> None:
        """Train every unfinished run, and add the errors of failed runs to `failed`; raise `Stopped` after a signal."""
        study = self.study
        self.check(test_again=test_again)
        self.failed |= executor.train(study.sweep_runs())
        self.choose(measure=True)
        self._add_arms(matched=False)
        self.failed |= executor.train(in_order(self.runs))
        self._add_arms(matched=True)
        self.failed |= executor.train(in_order({arm: self.runs.get(arm, []) for arm in study.matched}))

    def train_element(self, executor: LocalExecutor, number: int) -> None:
        """Train run `number` of the job array, from 1; raise `UserError` if none, or `Stopped` after a signal."""
        self.check(test_again=True)  # the job after the array checks the record
        runs = elements(self.study)
        if number > len(runs):
            raise UserError(f"--array-index {number}: pass a number from 1 to {len(runs)}, the number of training runs")
        self.failed |= executor.train([runs[number - 1]])

    def train_nothing(self) -> None:
        """Load the study's state as `look` does, and add unfinished runs to `failed` instead of training them."""
        self.look()
        unfinished, logs = (run.name for run in in_order(self.runs) if not run.finished), self.study.folder / "logs"
        self.failed |= {name: f"is not finished ({logs / name}.txt)" for name in unfinished}

    def check(self, *, test_again: bool) -> None:
        """Raise `UserError` for errors in existing runs, or if training would end in a second test evaluation."""
        study = self.study
        seen = StudyRunner(study)
        seen.look()
        record = study.folder / "test.json"
        before = read_record(record) if study.held_out.test and not test_again else None
        if before is not None and any(run.name not in before["weights"] for run in in_order(seen.runs)):
            raise again_refused(record)  # training could only end in a second evaluation

    def look(self) -> None:
        """Load sweep points and runs; raise `UserError` if a task lacks files or a run has another experiment."""
        study = self.study
        require(study.held_out.tasks, study.run(study.baseline, study.seeds[study.baseline][0]).experiment)
        for run in study.sweep_runs():
            run.check()
        self.choose(measure=False)
        self._add_arms(matched=False)
        self._add_arms(matched=True)

    def choose(self, *, measure: bool) -> None:
        """Choose each arm's sweep point on the selection half; without `measure`, from saved evaluations only."""
        sweep = self.study.sweep_runs()
        finished = [run for run in sweep if run.finished]
        if measure:
            measured = measure_all(self.study, finished, "selection", device=self.device, say=self.say)
        else:
            measured = [kept for run in finished if (kept := recorded(self.study, run, "selection"))]
        if measured and (measure or len(measured) == len(sweep)):
            self.sweep = study_results.choices(self.study, measured)

    def _add_arms(self, *, matched: bool) -> None:
        """Add the runs of the arms with measured steps, or of the other arms, once their settings are known."""
        study, points = self.study, {arm: choice["chosen"] for arm, choice in self.sweep.items()}
        for arm in study.arms:
            if (arm in study.matched) is not matched or (study.sweep and study.chain(arm)[0] not in points):
                continue
            steps = None
            if matched:
                if begun := [run.folder for run in study.arm_runs(arm, points) if run.folder.exists]:
                    steps = begun[0].table()["train"]["steps"]  # the number is fixed
                else:
                    steps = study_results.steps_in_the_time_of(study, arm, self.runs)
                if steps is None:
                    continue
            self.runs[arm] = study.arm_runs(arm, points, steps)
            for run in self.runs[arm]:
                run.check()

    def report(self, *, test_again: bool = False) -> dict[str, Any]:
        """Evaluate finished runs, write study.json and its NLLs, and return the report; refuse a second test."""
        study, how, self.nats = self.study, ran_with(self.study.folder), []
        report: dict[str, Any] = {
            "study": study.name,
            "file": study.file.name,
            "half": study.held_out.half,
            "nats": True,
            "halves": "even-numbered validation sequences are for selection, odd-numbered ones for claims",
            "baseline": study.baseline,
            "not_worse_percent": NOT_WORSE,
            **{key: value for key, value in describe([]).items() if key in ("python", "packages", "git")},
            "sweep": {"seed": study.sweep.seed, "half": "selection", "arms": self.sweep} if study.sweep else None,
            **study_results.tables(study, self._measured(study.held_out.half), how),
            "samplers": self._samplers(),
            "gaps": self._gaps(),
            "tasks": self._tasks(),
            "test": None,
            "failed": self.failed,
        }
        report["grids"] = sensitivity(study.grids, report)
        report["left_out"] = missing = [arm for arm in study.arms if arm not in self.runs]
        problem = None
        if study.held_out.test and (missing or not all(run.finished for run in in_order(self.runs))):
            self.say("the test split is not evaluated, because some runs are not finished")
        elif study.held_out.test:
            try:
                report["test"] = {
                    "times": self._once(test_again),
                    **study_results.tables(study, self._measured("test"), how),
                }
            except UserError as error:
                problem = error
        report = finite(report)
        atomic_files.write_all(self.files(study.folder / "study.json", report))
        if problem:
            raise problem
        return report

    def files(self, path: Path, report: dict[str, Any]) -> dict[Path, bytes]:
        """Return the files of a report: its JSON, and the nats per sequence with one line per run and quantity."""
        nats = "".join(f"{json.dumps(line)}\n" for line in self.nats)
        return {path.with_suffix(".nats.jsonl"): nats.encode(), path: atomic_files.json_bytes(report)}

    def _measured(self, part: str) -> study_results.ByArm:
        finished = [run for run in in_order(self.runs) if run.finished]
        by_arm: study_results.ByArm = {arm: {} for arm in self.runs}
        for measured in measure_all(self.study, finished, part, device=self.device, say=self.say):
            by_arm[measured.run.arm][measured.run.seed] = measured
        self.nats += study_results.nats_of(part, by_arm)
        return by_arm

    def _samplers(self) -> list[dict[str, Any]] | None:
        written: dict[str, list[list[Written]]] = {}
        for arm in self.study.samplers.arms if self.study.samplers else ():
            for run in (run for run in self.runs.get(arm, ()) if run.finished):
                written.setdefault(arm, []).append(write_all(self.study, run, device=self.device, say=self.say))
        self.nats += study_results.nats_of_samplers(written)
        return study_results.sampler_tables(written) if self.study.samplers else None

    def _gaps(self) -> list[dict[str, Any]] | None:
        if self.study.gaps is None:
            return None
        runs = {arm: [run for run in self.runs.get(arm, ()) if run.finished] for arm in self.study.gaps.arms}
        priced = {
            arm: [price(self.study, run, device=self.device, say=self.say) for run in of_arm]
            for arm, of_arm in runs.items()
        }
        self.nats += study_results.nats_of_gaps(priced)
        return study_results.gap_tables(self.study, priced)

    def _tasks(self) -> list[dict[str, Any]]:
        found: study_tasks.ByArm = {}
        for arm, runs in self.runs.items() if self.study.held_out.tasks else ():
            for run in (run for run in runs if run.finished):
                scores = study_tasks.measure(self.study, run, device=self.device, say=self.say)
                found.setdefault(arm, {})[run.seed] = scores
        self.nats += study_tasks.nats_of(found, self.study)
        return study_tasks.tables(self.study, found)

    def _once(self, again: bool) -> int:
        """Record the settings of the test evaluation before it starts; return the number of test evaluations."""
        record = self.study.folder / "test.json"
        held = self.study.held_out
        settings = {
            "sequences": held.sequences,
            "draws": held.mask_samples,
            "seed": held.seed,
            "bound": held.bound.name,
        }
        weights = {run.name: sha256_of(run.folder.model / WEIGHTS) for run in in_order(self.runs)}
        now: dict[str, Any] = {"settings": settings, "weights": weights}
        with locks.locked(self.study.folder / ".test.lock", lambda _: None):
            before = read_record(record)
            times = 0 if before is None else before["times"]
            if before is None or {key: before.get(key) for key in now} != now:
                if before is not None and not again:
                    raise again_refused(record)
                times += 1
                write_json(record, {"times": times, **now})
        return times


def read_record(record: Path) -> dict[str, Any] | None:
    """Return the record of the test evaluation, or None if it does not exist; raise `UserError` if it is unreadable."""
    try:
        table = parsing.from_json(parsing.read(record))
        return {**table, "times": int(table["times"]), "weights": dict(table["weights"])}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{record} cannot be read: {error}; restore it, or choose a different folder") from None


def again_refused(record: Path) -> UserError:
    """Return the error for evaluating the test split a second time."""
    return UserError(
        f"{record}: the test split was already evaluated with other runs or settings; set evaluation.test = false, or "
        "pass --test-again and report that it was evaluated again"
    )


@attrs.frozen(kw_only=True)
class Planned:
    """A run of a study with its progress and the estimated time of its remaining steps."""

    run: str  # name of the run, with ? while the point of the sweep or the number of steps is unknown
    state: str
    step: int  # step that the run has reached
    steps: int  # total number of steps; that of a similar arm while it is unknown
    seconds: float | None  # time of the remaining steps; None if no run has recorded its time here


def plan(runner: StudyRunner) -> list[Planned]:
    """Return a `Planned` for each run of a study, in training order; the runner has called `look`."""
    study = runner.study
    runs = {run.name: run for run in [*study.sweep_runs(), *in_order(runner.runs)]}
    speeds: dict[str, list[float]] = {}
    for run in runs.values():
        if seconds_per_step := _seconds_per_step(run):
            speeds.setdefault(run.arm, []).append(seconds_per_step)
    everything = [speed for of_arm in speeds.values() for speed in of_arm]
    point = next(iter(study.sweep.points)) if study.sweep else None  # any point, if it is unknown
    for arm in (arm for arm in study.arms if arm not in runner.runs):
        runs |= {f"{arm}-?-seed{seed}": study.run(arm, seed, point) for seed in study.seeds[arm]}
    rows = []
    for name, run in runs.items():
        state, step, steps = TO_DO, 0, run.experiment.train.steps
        if name == run.name and run.finished:
            state, step = FINISHED, steps
        elif name == run.name and run.folder.exists:
            lines = run.folder.read_metrics(damaged=True)
            state, step = TO_CONTINUE, int(lines[-1]["step"]) if lines else 0
        left = steps - step
        # The times per step of the arm itself, or else of the arms that it is like, or else of all arms.
        similar = next((speeds[arm] for arm in reversed(study.chain(run.arm)) if arm in speeds), everything)
        seconds = left * statistics.median(similar) if similar else None
        rows.append(Planned(run=name, state=state, step=step, steps=steps, seconds=seconds if left else 0.0))
    return rows


def total(rows: list[Planned], jobs: int) -> float | None:
    """Return the estimated seconds of all remaining steps, with `jobs` concurrent training runs; None if unknown."""
    seconds = [row.seconds for row in rows if row.seconds is not None]
    return sum(seconds) / jobs if len(seconds) == len(rows) else None


def _seconds_per_step(run: StudyRun) -> float | None:
    """Return the time per step recorded on this machine, or None."""
    here, there = machine(), run.folder.machine()
    if any(here[key] != there.get(key) for key in ("processor", "cores")):
        return None
    past = history(run.folder, run.experiment)
    device = device_name(torch_device(run.experiment.train.device))
    if past.computed.get("device", device) != device:
        return None
    return past.seconds / past.clock[-1][0] if past.seconds else None
