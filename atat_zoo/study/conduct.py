"""A study from its beginning to its results: the sweep, the arms, the arms with measured steps, the comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from atat_zoo import parsing
from atat_zoo.errors import UserError
from atat_zoo.evaluation.perplexity import finite
from atat_zoo.run import locks, sha256_of, write_json
from atat_zoo.run.environment import describe
from atat_zoo.run.model_files import WEIGHTS
from atat_zoo.study import results
from atat_zoo.study.measuring import measure_all, recorded, write_all
from atat_zoo.study.processes import ran_with

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from atat_zoo.study.measuring import Written
    from atat_zoo.study.processes import Workplace
    from atat_zoo.study.schema import Study, StudyRun


@attrs.define
class Conduct:
    """What is known of a study so far."""

    study: Study
    device: str = "cpu"
    say: Callable[[str], None] = print
    failed: dict[str, str] = attrs.field(factory=dict)  # why, by the names of runs
    sweep: dict[str, dict[str, Any]] = attrs.field(factory=dict)  # the choice of each arm
    runs: dict[str, list[StudyRun]] = attrs.field(factory=dict)  # of each arm whose settings are known

    def refuse_test(self) -> None:
        """Refuse, before anything is trained, what could only end in a second evaluation of the test split.

        Raises:
            UserError: when it was evaluated, and there are runs that were not there then.
        """
        record = self.study.folder / "test.json"
        before = read_record(record) if self.study.held_out.test else None
        if before is not None and any(run.name not in before["weights"] for run in in_order(self.runs)):
            raise UserError(again_refused(record))

    def train(self, workplace: Workplace, *, test_again: bool = False) -> None:
        """Train everything that is not finished; a run that fails is listed, and the others go on."""
        study = self.study
        seen = Conduct(study)
        seen.look()  # what is wrong with the runs that are there is said before anything is trained
        if not test_again:
            seen.refuse_test()
        self.failed |= workplace.train(study.sweep_runs())
        self.choose(measure=True)
        self._add_arms()
        self.failed |= workplace.train(in_order(self.runs))
        self._add_matched()
        self.failed |= workplace.train(in_order({arm: self.runs.get(arm, []) for arm in study.matched}))

    def look(self) -> None:
        """Find out what is known already, without training or measuring."""
        _check(self.study.sweep_runs())
        self.choose(measure=False)
        self._add_arms()
        self._add_matched()

    def choose(self, *, measure: bool) -> None:
        """Choose the point of each arm from the finished runs of the sweep, on the selection half."""
        runs = [run for run in self.study.sweep_runs() if run.finished]
        if not runs:
            return
        if measure:
            measured = measure_all(self.study, runs, "selection", device=self.device, say=self.say)
        else:
            measured = [each for each in (recorded(self.study, run, "selection") for run in runs) if each]
            if len(measured) < len(self.study.sweep_runs()):
                return
        self.sweep = results.choices(self.study, measured)

    def _add_arms(self) -> None:
        for arm in self.study.arms:
            known = not self.study.sweep or self.study.chain(arm)[0] in self.sweep
            if arm not in self.study.matched and known:
                self.runs[arm] = self.study.arm_runs(arm, self._points)
                _check(self.runs[arm])

    def _add_matched(self) -> None:
        for arm in self.study.matched:
            if self.study.sweep and self.study.chain(arm)[0] not in self.sweep:
                continue
            # A run that was begun has fixed the number.
            begun = [run for run in self.study.arm_runs(arm, self._points) if run.folder.exists]
            steps = (
                begun[0].folder.table()["train"]["steps"]
                if begun
                else results.steps_in_the_time_of(self.study, arm, self.runs)
            )
            if steps is not None:
                self.runs[arm] = self.study.arm_runs(arm, self._points, steps)
                _check(self.runs[arm])

    @property
    def _points(self) -> dict[str, str]:
        return {arm: choice["chosen"] for arm, choice in self.sweep.items()}

    def report(self, *, test_again: bool = False) -> dict[str, Any]:
        """Measure what is finished, and write study.json.

        Raises:
            UserError: when the test split was evaluated before, with other arms or settings.
        """
        study, how = self.study, ran_with(self.study.folder)
        report: dict[str, Any] = {
            "study": study.name,
            "file": study.file.name,
            "half": study.held_out.half,
            "halves": "validation sequences with an even number are for selection, those with an odd one for claims",
            "baseline": study.baseline,
            "not_worse_percent": results.NOT_WORSE,
            **{key: value for key, value in describe([]).items() if key in ("python", "packages", "git")},
            "sweep": {"seed": study.sweep.seed, "half": "selection", "arms": self.sweep} if study.sweep else None,
            **results.tables(study, self._measured(study.held_out.half), how),
            "samplers": results.sampler_tables(study, self._written()) if study.samplers else None,
            "test": None,
            "failed": self.failed,
        }
        missing = [arm for arm in study.arms if arm not in self.runs]
        report["left_out"] = missing
        problem = ""
        if study.held_out.test and (missing or not all(run.finished for run in in_order(self.runs))):
            self.say("the test split is not evaluated: not every run is finished")
        elif study.held_out.test:
            try:
                report["test"] = {**self._once(test_again), **results.tables(study, self._measured("test"), how)}
            except UserError as error:
                problem = str(error)
        report = finite(report)
        write_json(study.folder / "study.json", report)
        if problem:
            raise UserError(problem)
        return report

    def _measured(self, part: str) -> results.ByArm:
        finished = [run for run in in_order(self.runs) if run.finished]
        measured = measure_all(self.study, finished, part, device=self.device, say=self.say)
        by_arm: results.ByArm = {arm: {} for arm in self.runs}
        for each in measured:
            by_arm[each.run.arm][each.run.seed] = each
        return {
            arm: {seed: found[seed] for seed in self.study.seeds[arm] if seed in found} for arm, found in by_arm.items()
        }

    def _written(self) -> dict[str, list[list[Written]]]:
        assert self.study.samplers is not None
        finished = {arm: [r for r in self.runs.get(arm, ()) if r.finished] for arm in self.study.samplers.arms}
        return {
            arm: [write_all(self.study, run, device=self.device, say=self.say) for run in runs]
            for arm, runs in finished.items()
            if runs
        }

    def _once(self, again: bool) -> dict[str, Any]:
        """Write down what the test split is evaluated with, before it is; returns how often it has been.

        Raises:
            UserError: when it was evaluated with something else before, unless `again`.
        """
        record = self.study.folder / "test.json"
        settings = {key: getattr(self.study.held_out, key) for key in ("sequences", "draws", "seed")}
        settings["bound"] = self.study.held_out.bound.name
        weights = {run.name: _weights(run) for run in in_order(self.runs)}
        now: dict[str, Any] = {"settings": settings, "weights": weights}
        with locks.locked(self.study.folder / ".test.lock", lambda _: None):
            before = read_record(record)
            times = 0 if before is None else int(before["times"])
            if before is None or {key: before.get(key) for key in now} != now:
                if before is not None and not again:
                    raise UserError(again_refused(record))
                times += 1
                write_json(record, {"times": times, **now})
        return {"times": times}


def read_record(record: Path) -> dict[str, Any] | None:
    """Return what the test split was evaluated with, or None if it was not.

    Raises:
        UserError: when that cannot be read: it may have been evaluated.
    """
    try:
        table = parsing.from_json(parsing.read(record))
        return {**table, "times": int(table["times"]), "weights": dict(table["weights"])}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{record} cannot be read: {error}; copy it again, or take another folder") from None


def again_refused(record: Path) -> str:
    """Return the sentence about a second evaluation of the test split."""
    return (
        f"{record}: the test split was evaluated before, with other runs or settings, and is evaluated once; "
        "set evaluation.test = false, or pass --test-again and say so where you report it"
    )


def in_order(runs: dict[str, list[StudyRun]]) -> list[StudyRun]:
    """Return runs seed by seed, so that arms can be compared early."""
    longest = max((len(each) for each in runs.values()), default=0)
    return [each[number] for number in range(longest) for each in runs.values() if number < len(each)]


def _check(runs: Sequence[StudyRun]) -> None:
    for run in runs:
        run.check()


def _weights(run: StudyRun) -> str:
    return sha256_of(run.folder.model / WEIGHTS)
