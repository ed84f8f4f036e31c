"""The tables of a study file, and the study with all of its experiments. Imports no torch."""

import re
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

import attrs

from atat_zoo import experiment as experiments
from atat_zoo.evaluation.metrics import Metric
from atat_zoo.evaluation.tasks import Task
from atat_zoo.experiment import EvaluationSpec, Experiment
from atat_zoo.experiment.runs import RunFolder
from atat_zoo.experiment.runs.changes import changes
from atat_zoo.experiment.runs.model_files import DESCRIPTION
from atat_zoo.generation.samplers import Sampler
from atat_zoo.modeling.bounds import Bound
from atat_zoo.registry import component, component_param, components_param, param
from atat_zoo.system.errors import UserError, clip

# Names of arms and points become folder names.
WORD = re.compile(r"\w[\w.=+-]{0,99}")


@component
class PlainSpec:
    """The keys of a study that are outside its tables."""

    folder: str | None = param(None, help="folder for the runs and results; default: runs/NAME")
    baseline: str = param(help="arm that the others are compared with")
    seeds: tuple[int, ...] = param((), help="seeds of each arm", ge=0)
    overrides: tuple[str, ...] = param((), help="key=value overrides for every arm")


@component
class ArmSpec:
    """An arm: an experiment with overrides, trained once for each seed."""

    experiment: str | None = param(
        None, help="experiment that ships with atat_zoo, or a file relative to the study file"
    )
    like: str | None = param(None, help="arm whose experiment, overrides and sweep point this arm copies")
    overrides: tuple[str, ...] = param((), help="key=value overrides, applied after those of the study and of `like`")
    seeds: tuple[int, ...] = param((), help="seeds; default: the study's", ge=0)
    budgets: tuple[int, ...] = param((), help="additional step counts, each trained as an arm named NAME-STEPS", ge=1)
    bound: str | None = param(None, help="bound to compare, such as sets; default: that of `like`, or the first")
    against: tuple[str, ...] | None = param(
        None, help="arms that this arm is compared with; default: the baseline; [] compares it with none"
    )
    match_seconds: str | None = param(
        None, help="arm whose training time this arm matches; the time per step of `like` determines its training steps"
    )

    def compared_with(self, name: str, baseline: str) -> tuple[str, ...]:
        """Return the arms that this arm, which has this name, is compared with."""
        if self.against is None:
            return () if name == baseline else (baseline,)
        return self.against


@component
class SweepSpec:
    """A sweep over the same points for each arm with an `experiment`; the selection half decides each arm's point."""

    seed: int = param(help="seed of the sweep; must differ from the study's seeds", ge=0)
    points: dict[str, tuple[str, ...]] = param(help="overrides of each point, from one end of the range to the other")

    def __attrs_post_init__(self) -> None:
        if len(self.points) < 2:
            raise ValueError("`points` has fewer than two points; define at least two, or leave [sweep] out")


@component
class HeldOutSpec:
    """The held-out text, metrics and tasks on which trained models are evaluated."""

    half: Literal["selection", "claim"] = param(
        "claim",
        help="half of the validation sequences: even-numbered ones for model selection, odd-numbered ones for "
        "reported results",
    )
    sequences: int = param(0, help="maximum number of sequences per half and in the test split; 0 means all", ge=0)
    mask_samples: int = param(4, help="masks sampled per sequence", ge=1)
    seed: int = param(0, help="seed of the masks", ge=0)
    batch_size: int = param(64, help="sequences per batch", ge=1)
    bound: Bound = component_param("bound", "exact_k", help="bound estimator")
    metrics: tuple[Metric, ...] = components_param(
        "metric", help="additional metrics of the predictions or of generated texts"
    )
    texts: int = param(
        64, help="number of texts generated for metrics of generated text; at most the number of sequences", ge=1
    )
    tasks: tuple[Task, ...] = components_param("task", help="tasks evaluated for every run, with `seed`")
    test: bool = param(False, help="also evaluate the test split once, when all runs are finished")

    def __attrs_post_init__(self) -> None:
        EvaluationSpec(metrics=self.metrics, tasks=self.tasks)  # refuses duplicates


@component
class SamplersSpec:
    """Samplers whose cost and policy bounds are measured on the runs of some arms."""

    each: tuple[Sampler, ...] = components_param("sampler", help="samplers; the first is the reference for the others")
    arms: tuple[str, ...] = param(help="arms whose runs generate text")
    sequences: int = param(64, help="maximum number of sequences for the policy bounds", ge=2)
    orders: int = param(64, help="number of random decoding orders whose probabilities a policy bound averages", ge=1)
    texts: int = param(64, help="number of texts generated to measure the time", ge=1)
    repeat: int = param(3, help="number of timings per sampler, interleaved; the shortest is reported", ge=1)

    def __attrs_post_init__(self) -> None:
        if len(self.each) < 2:
            raise ValueError("`each` has fewer than two samplers; list at least two, or leave [samplers] out")


@component
class GapsSpec:
    """The NLL of a sequence, its second half, and gaps in its middle, given the rest, for the runs of some arms."""

    each: tuple[Sampler, ...] = components_param(
        "sampler", help="samplers under which the policy bound of each part is computed"
    )
    of_baseline: tuple[Sampler, ...] = components_param("sampler", help="additional samplers for the baseline only")
    arms: tuple[str, ...] = param(help="arms to evaluate, including the baseline")
    lengths: tuple[int, ...] = param((32, 16, 8), help="gap lengths in tokens", ge=1)
    sequences: int = param(256, help="maximum number of sequences", ge=2)
    orders: int = param(64, help="number of random decoding orders whose probabilities a policy bound averages", ge=1)
    random_sequences: int = param(64, help="maximum number of sequences for samplers with a random order", ge=2)


@component
class GridSpec:
    """Values of an experiment's keys to vary around an arm; every point is an arm `like` this arm."""

    arm: str = param(help="arm whose experiment and overrides every point uses")
    axes: dict[str, tuple[Any, ...]] = param(help="values per key, such as masking.temperature = [0.3, 1.0, 3.0]")
    product: bool = param(False, help="train all combinations of values instead of one axis at a time")
    seeds: tuple[int, ...] = param((), help="seeds; default: the arm's", ge=0)
    against: tuple[str, ...] = param((), help="additional arms that the points are compared with")

    def __attrs_post_init__(self) -> None:
        if empty := [key for key, values in self.axes.items() if not values]:
            raise ValueError(f"axes.{empty[0]} has no values; list some, or leave the axis out")
        if not self.axes:
            raise ValueError("axes is empty; add a key with its values, such as masking.temperature = [0.3, 1.0, 3.0]")


TABLES = {"sweep": SweepSpec, "grid": GridSpec, "evaluation": HeldOutSpec, "samplers": SamplersSpec, "gaps": GapsSpec}


@attrs.frozen(kw_only=True, eq=False)
class Grid:
    """The points of one axis around an arm, or of the product of all axes, in order."""

    arm: str
    keys: tuple[str, ...]
    points: Sequence[tuple[tuple[Any, ...], str]]  # the values of the keys, and the arm with these values


@attrs.frozen(kw_only=True, eq=False)
class StudyRun:
    """One training run of a study."""

    arm: str
    seed: int
    point: str | None  # of the sweep
    file: str  # file of the experiment, with which `atat train` starts the run
    overrides: tuple[str, ...]
    bound: str | None  # bound to compare (default: the first)
    path: Path  # its run folder
    experiment: Experiment

    @property
    def name(self) -> str:
        """The name of the run folder."""
        return self.path.name

    @property
    def folder(self) -> RunFolder:
        """The run folder."""
        return RunFolder(self.path)

    @property
    def finished(self) -> bool:
        """Whether the run has a final model."""
        return self.folder.exists and (self.folder.model / DESCRIPTION).is_file()

    def check(self) -> None:
        """Raise `UserError` if the run folder contains a different experiment."""
        if not self.folder.exists:
            return
        there = experiments.from_run(self.path).to_table()
        for key, wanted, found, _ in changes(self.experiment.to_table(), there):
            values = f"its {key} is {clip(repr(found), 60)}, not {clip(repr(wanted), 60)} as in the study"
            remedy = "rename the arm, choose a different folder, or delete the run"
            raise UserError(f"{self.path} is a run of a different experiment: {values}; {remedy}")


@attrs.frozen(kw_only=True, eq=False)
class Study:
    """A validated study: its arms with their seeds, its sweep and grids, and the settings of its evaluation."""

    name: str
    file: Path
    folder: Path
    baseline: str
    overrides: tuple[str, ...]
    arms: Mapping[str, ArmSpec]
    seeds: Mapping[str, tuple[int, ...]]  # of each arm
    sweep: SweepSpec | None
    held_out: HeldOutSpec
    samplers: SamplersSpec | None = None
    gaps: GapsSpec | None = None
    grids: Sequence[Grid] = ()

    def chain(self, arm: str) -> list[str]:
        """Return the chain from the arm with an `experiment` through the arms `like` it to this arm."""
        like = self.arms[arm].like
        return [*(self.chain(like) if like is not None else []), arm]

    @property
    def writing(self) -> dict[str, SamplersSpec | GapsSpec]:
        """The tables [samplers] and [gaps] of the study by key, if present."""
        return {key: spec for key, spec in (("samplers", self.samplers), ("gaps", self.gaps)) if spec is not None}

    @property
    def swept(self) -> list[str]:
        """The arms that the sweep covers."""
        return [name for name, arm in self.arms.items() if arm.like is None] if self.sweep else []

    @property
    def matched(self) -> list[str]:
        """The arms whose number of steps is derived from measured times."""
        return [name for name, arm in self.arms.items() if arm.match_seconds is not None]

    def at_budgets(self, arm: str) -> list[str]:
        """Return the names of an arm and of its variants with different numbers of steps."""
        budgets = self.arms[arm].budgets if arm in self.arms else ()
        return [arm, *(f"{arm}-{steps}" for steps in budgets)]

    def overrides_of(self, arm: str) -> list[str]:
        """Return the overrides of an arm: the study's, then those of the arms in `chain`."""
        return [*self.overrides, *(text for name in self.chain(arm) for text in self.arms[name].overrides)]

    def against(self, arm: str) -> tuple[str, ...]:
        """Return the arms that an arm is compared with: its `against`, or else the baseline, which has none."""
        return self.arms[arm].compared_with(arm, self.baseline)

    def run(self, arm: str, seed: int, point: str | None = None, steps: int | None = None) -> StudyRun:
        """Return an arm's run, with a sweep point and number of steps if given; raise `UserError` if it is invalid."""
        wanted = self.arms[self.chain(arm)[0]].experiment
        assert wanted is not None
        file = str(self.file.parent / wanted) if wanted.endswith(".toml") else wanted
        overrides = self.overrides_of(arm)
        if point is not None:
            assert self.sweep is not None
            overrides += self.sweep.points[point]
        overrides += [f"seed={seed}", *([] if steps is None else [f"train.steps={steps}"])]
        return StudyRun(
            arm=arm,
            seed=seed,
            point=point,
            file=file,
            overrides=tuple(overrides),
            bound=next((self.arms[each].bound for each in reversed(self.chain(arm)) if self.arms[each].bound), None),
            path=self.folder / "-".join([arm, *([] if point is None else [point]), f"seed{seed}"]),
            experiment=experiments.load(file, overrides, overrides_from="in its overrides"),
        )

    def sweep_runs(self) -> list[StudyRun]:
        """Return the runs of the sweep."""
        sweep = self.sweep
        return [self.run(arm, sweep.seed, point) for arm in self.swept for point in sweep.points] if sweep else []

    def arm_runs(self, arm: str, points: Mapping[str, str], steps: int | None = None) -> list[StudyRun]:
        """Return the runs of an arm, one per seed, at the chosen point of the sweep."""
        return [self.run(arm, seed, points.get(self.chain(arm)[0]), steps) for seed in self.seeds[arm]]

    def spec(self, split: Literal["validation", "test"]) -> EvaluationSpec:
        """Return the settings with which runs are evaluated on a split."""
        held = self.held_out
        return experiments.EvaluationSpec(
            split=split,
            sequences=held.sequences,
            mask_samples=held.mask_samples,
            bound=held.bound,
            batch_size=held.batch_size,
            metrics=held.metrics,
            texts=held.texts,
        )


def in_order(runs: Mapping[str, Sequence[StudyRun]]) -> list[StudyRun]:
    """Return the runs of all arms, the first seed of each arm first, so that arms can be compared early."""
    return [run for of_seed in zip_longest(*runs.values()) for run in of_seed if run is not None]
