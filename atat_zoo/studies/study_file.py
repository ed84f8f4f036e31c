"""Load study files and validate them before any training run starts. Imports no torch."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from atat_zoo import experiment as experiments
from atat_zoo.experiment import Experiment
from atat_zoo.experiment.runs.changes import changes
from atat_zoo.registry import Zoo, problems_of
from atat_zoo.registry.spec import fields_of, structure, unstructure
from atat_zoo.studies.grids import conflicts, tables_of_grids, with_grids
from atat_zoo.studies.study_schema import (
    TABLES,
    WORD,
    ArmSpec,
    GridSpec,
    HeldOutSpec,
    PlainSpec,
    Study,
    StudyRun,
    SweepSpec,
)
from atat_zoo.system.errors import Problem, UserError, clip, nearest


def load(file: Path) -> Study:
    """Return the validated study in a file, or shipped under this name; raise `UserError` with a line per error."""
    try:
        table = experiments.read_toml(file)
    except FileNotFoundError:
        named = str(file).removesuffix(".toml")
        known = [name.removeprefix("studies/") for name in experiments.names() if name.startswith("studies/")]
        if named in known and (ours := experiments.shipped(f"studies/{named}")):
            return load(ours)
        remedy = f"pass a TOML file with [arms.NAME], or the name of a shipped study: {', '.join(known)}"
        raise UserError(f"study {clip(file)} does not exist; {remedy}{nearest(named, known)}") from None
    zoo = Zoo.load()
    name: Any = table.pop("name", file.stem)
    tables = {key: table.pop(key) for key in (*TABLES, "arms") if key in table}
    keys = ["name", *(field.name for field in fields_of(PlainSpec)), "arms", *TABLES]
    there = f"(keys: {', '.join(keys)})"
    problems = [f"{key} is not a key of a study{nearest(key, keys)} {there}" for key in table if key not in keys]
    if not isinstance(name, str) or not WORD.fullmatch(name):
        problems.append(f"name: expected a word that can be a folder name, got {clip(repr(name))}")
    plain, wrong = structure(PlainSpec, {key: value for key, value in table.items() if key in keys}, "", zoo)
    problems += map(str, wrong)
    parts: dict[str, Any] = dict.fromkeys(TABLES)
    for key in (key for key in TABLES if key in tables and key != "grid"):
        parts[key], wrong = _table(TABLES[key], tables[key], key, zoo)
        problems += map(str, wrong)
    grids: dict[str, GridSpec] = {}
    for where, value in tables_of_grids(tables.get("grid", [])):
        grids[where], wrong = _table(GridSpec, value, where, zoo)
        problems += map(str, wrong)
    arms: dict[str, ArmSpec] = {}
    if not isinstance(tables.get("arms"), dict) or not tables["arms"]:
        problems.append("arms: expected a table for each arm, such as [arms.mdlm] with the key experiment")
    else:
        for key, value in tables["arms"].items():
            arm, wrong = _table(ArmSpec, value, f"arms.{key}", zoo)
            problems += map(str, wrong)
            if not WORD.fullmatch(key):
                problems.append(f"arms.{clip(key)}: expected a folder name of letters, digits and . = + - _")
            arms[key] = arm
    _refuse(problems, file)
    _refuse(list(_budgets(arms, plain.baseline, parts["sweep"])), file)
    arms = dict(_with_budgets(arms, plain.baseline))
    study = Study(
        name=name,
        file=file,
        folder=Path(plain.folder or f"runs/{name}"),
        baseline=plain.baseline,
        overrides=plain.overrides,
        arms=arms,
        seeds={key: arm.seeds or plain.seeds for key, arm in arms.items()},
        sweep=parts["sweep"],
        held_out=parts["evaluation"] or HeldOutSpec(),
        samplers=parts["samplers"],
        gaps=parts["gaps"],
    )
    _refuse([*_names(study), *_seeds(study), *_overrides(study), *conflicts(study, grids)], file)
    study, problems = with_grids(study, grids)
    _refuse(problems or [*_names(study), *_seeds(study)], file)
    _refuse(_runs(study), file)
    return study


def _budgets(arms: Mapping[str, ArmSpec], baseline: str, sweep: SweepSpec | None) -> Iterator[str]:
    """Yield errors for budgets that duplicate another arm, or that the compared arms lack."""
    for name, arm in arms.items():
        where = f"arms.{name}.budgets"
        if arm.budgets and arm.match_seconds is not None:
            yield f"{where}: {name!r} sets match_seconds, which determines its steps; leave the budgets out"
        for steps, times in Counter(arm.budgets).items():
            if times > 1:
                yield f"{where}: {steps} appears twice; list each number once"
            if f"{name}-{steps}" in arms:
                yield f"arms.{name}-{steps}: {name!r} with {steps} steps already has this name; rename the arm"
            for other in arm.compared_with(name, baseline):
                if other in arms and steps not in arms[other].budgets:
                    yield f"{where}: {name!r} is compared with {other!r}, which lacks this budget; add {steps} there"
    for point, overrides in sweep.points.items() if sweep else ():
        if any(arm.budgets for arm in arms.values()) and any(text.startswith("train.steps=") for text in overrides):
            yield f"sweep.points.{point}: budgets already set train.steps; leave train.steps out"


def _with_budgets(arms: Mapping[str, ArmSpec], baseline: str) -> Iterator[tuple[str, ArmSpec]]:
    """Yield each arm, and one arm per budget that is compared with arms trained for the same number of steps."""
    for name, arm in arms.items():
        yield name, arm
        for steps in arm.budgets:
            against = tuple(f"{other}-{steps}" for other in arm.compared_with(name, baseline))
            overrides = (f"train.steps={steps}",)
            yield f"{name}-{steps}", ArmSpec(like=name, overrides=overrides, seeds=arm.seeds, against=against)


def _table(cls: type, value: Any, path: str, zoo: Zoo) -> tuple[Any, list[Problem]]:
    if not isinstance(value, dict):
        return None, [Problem(path, f"expected a table, got {clip(repr(value))}")]
    return structure(cls, value, path, zoo)


def _refuse(problems: list[str], file: Path) -> None:
    if problems:
        raise UserError("\n".join(f"{clip(file)}: {problem}" for problem in problems))


def _names(study: Study) -> Iterator[str]:
    """Yield errors for unknown arm names, and for circular `like` and `match_seconds`."""
    known = list(study.arms)

    def missing(key: str, name: str) -> Iterator[str]:
        if name not in known:
            yield f"{key}: no arm is named {name!r}{nearest(name, known)} (arms: {', '.join(known)})"

    yield from missing("baseline", study.baseline)
    for key, spec in study.writing.items():
        for name in spec.arms:
            yield from missing(f"{key}.arms", name)
    if study.gaps and study.baseline not in study.gaps.arms:
        yield f"gaps.arms: the baseline {study.baseline!r} is missing; add it"
    for name, arm in study.arms.items():
        where = f"arms.{name}"
        if (arm.experiment is None) == (arm.like is None):
            yield f"{where}: set either experiment or like, but not both"
        for other in arm.against or ():
            yield from missing(f"{where}.against", other)
            if other == name:
                yield f"{where}.against: an arm cannot be compared with itself; leave {name!r} out"
        trail = [name]
        while (like := study.arms[trail[-1]].like) in study.arms and like is not None and like not in trail:
            trail.append(like)
        if like is not None and like in trail:
            yield f"{where}.like: {' is like '.join([*trail, like])}; remove the circular reference"
        elif like is not None:
            yield from missing(f"arms.{trail[-1]}.like", like)
        if arm.match_seconds is not None:
            yield from missing(f"{where}.match_seconds", arm.match_seconds)
            if arm.like is None:
                yield f"{where}.match_seconds: set `like` to the arm whose time per step is measured"
        for key in ("like", "match_seconds"):
            if getattr(arm, key) in study.matched:
                yield f"{where}.{key}: {getattr(arm, key)!r} sets match_seconds; choose an arm with fixed steps"


def _seeds(study: Study) -> Iterator[str]:
    """Yield errors for arms without seeds, and for arms that share no seed with the arms they are compared with."""
    for name, seeds in study.seeds.items():
        if not seeds:
            yield f"seeds: arm {name!r} has no seeds; set seeds = [18, 19, 20]"
        if twice := [seed for seed, count in Counter(seeds).items() if count > 1]:
            yield f"seeds: {twice[0]} appears twice for arm {name!r}; list each seed once"
        if study.sweep and study.sweep.seed in seeds:
            yield f"sweep.seed: {study.sweep.seed} is also a seed of arm {name!r}; choose another seed for the sweep"
        for other in study.against(name):
            if seeds and study.seeds.get(other) and not set(seeds) & set(study.seeds[other]):
                yield f"seeds: arms {name!r} and {other!r} have no common seed; add one to compare them"


def _overrides(study: Study) -> Iterator[str]:
    """Yield errors for overrides of the seed, and for invalid point names."""
    lists = {"overrides": study.overrides}
    lists |= {f"arms.{key}.overrides": arm.overrides for key, arm in study.arms.items()}
    for point, overrides in (study.sweep.points if study.sweep else {}).items():
        if not WORD.fullmatch(point):
            yield f"sweep.points.{clip(point)}: expected a folder name of letters, digits and . = + - _"
        lists[f"sweep.points.{point}"] = overrides
    for where, overrides in lists.items():
        if any(text.partition("=")[0].strip() == "seed" for text in overrides):
            yield f"{where}: the key seeds sets the seed; leave the override out"


def _runs(study: Study) -> list[str]:
    """Return errors in the experiments, and errors for arms with different tokens or two runs in one folder."""
    problems, paths = list[str](), Counter[Path]()
    loaded: dict[str, StudyRun] = {}
    for arm in study.arms:
        for point in study.sweep.points if study.sweep else [None]:
            try:
                runs = [study.run(arm, seed, point) for seed in study.seeds[arm]]
            except UserError as error:
                problems += [f"arms.{arm}: {line}" for line in str(error).splitlines()]
                continue
            loaded.setdefault(arm, runs[0])
            paths.update(run.path for run in runs)
    paths.update(run.path for run in study.sweep_runs() if not problems)
    problems += [f"two runs would use the folder {path}; rename an arm" for path, n in paths.items() if n > 1]
    for arm, run in loaded.items():
        if (steps := run.experiment.train.steps) in study.arms[arm].budgets:
            problems.append(f"arms.{arm}.budgets: {steps} is already the arm's own number of steps; leave it out")
    for arm, run in loaded.items():
        beside = (study.baseline,) if study.gaps and arm in study.gaps.arms else ()
        for name, base in [(name, loaded[name]) for name in (*study.against(arm), *beside) if name in loaded]:
            for key, one, other in _other_tokens(run.experiment, base.experiment):
                values = f"{clip(repr(one), 60)}, and {clip(repr(other), 60)} for {name!r}"
                problems.append(f"arms.{arm}: {key} is {values}, so nats per token are not comparable; make them equal")
    for i, task in enumerate(study.held_out.tasks):
        for arm, run in loaded.items():
            said = [problem.text for problem in problems_of(task, run.experiment)]
            problems += [f"evaluation.tasks[{i}]: arm {arm!r}: {text}" for text in said]
    problems += [problem for arm, run in loaded.items() for problem in _samplers(study, arm, run.experiment)]
    problems += [problem for arm, run in loaded.items() for problem in _gaps(study, arm, run.experiment)]
    return list(dict.fromkeys(problems))


def _samplers(study: Study, arm: str, experiment: Experiment) -> Iterator[str]:
    """Yield errors for samplers that an arm cannot use, or that have no policy bound."""
    for key, spec in study.writing.items():
        # The NLL of gaps under a model with one fixed order is computed with its own sampler.
        if arm not in spec.arms or (spec is study.gaps and experiment.parts["objective"].exact):
            continue
        named = [(f"{key}.each[{i}]", sampler) for i, sampler in enumerate(spec.each)]
        if spec is study.gaps and arm == study.baseline:
            named += [(f"{key}.of_baseline[{i}]", sampler) for i, sampler in enumerate(spec.of_baseline)]
        for name, sampler in named:
            if why := sampler.no_policy_bound_because:
                yield f"{name}: {sampler.name!r} has no policy bound: {why}; leave it out"
            for problem in experiments.conflicts_with(experiment, {"sampler": sampler}):
                yield f"{name}: arm {arm!r}: {problem}"


def _gaps(study: Study, arm: str, experiment: Experiment) -> Iterator[str]:
    """Yield errors for gaps that are not shorter than a sequence, and for a baseline without a bound for gaps."""
    if study.gaps is None or arm not in study.gaps.arms:
        return
    length = experiment.data.length
    if (longest := max(study.gaps.lengths, default=0)) >= length:
        yield f"gaps.lengths: {longest} is not shorter than a sequence of {length} tokens; use a smaller length"
    if arm == study.baseline and experiment.parts["objective"].exact:
        yield f"gaps: the baseline {arm!r} has one fixed order and no bound for gaps; leave the table out"


def _other_tokens(one: Experiment, other: Experiment) -> Iterator[tuple[str, Any, Any]]:
    for key in ("length", "special_tokens", "packing"):
        if getattr(one.data, key) != getattr(other.data, key):
            yield f"data.{key}", getattr(one.data, key), getattr(other.data, key)
    mine, theirs = one.parts["tokenizer"], other.parts["tokenizer"]
    # A run's tokenizer may be the same tokenizer under a different name.
    if mine != theirs and mine.like is None and theirs.like is None:
        yield from (each[:3] for each in changes(unstructure(mine), unstructure(theirs), "tokenizer."))
