"""The grids of a study, whose points become arms `like` the grid's arm. Imports no torch."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import product
from typing import Any

import attrs

from atat_zoo.experiment import Experiment
from atat_zoo.registry.registry_file import inline
from atat_zoo.studies.study_schema import WORD, ArmSpec, Grid, GridSpec, Study
from atat_zoo.system.errors import UserError, clip, nearest


def tables_of_grids(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the key path and the table, with dotted axes, of each grid from [grid] or [[grid]]."""
    for number, table in enumerate(value if isinstance(value, list) else [value]):
        where = f"grid[{number}]" if isinstance(value, list) else "grid"
        if isinstance(table, dict) and isinstance(table.get("axes"), dict):
            table = {**table, "axes": dict(_dotted(table["axes"]))}
        yield where, table


def _dotted(axes: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield axes with dotted keys, because an unquoted a.b = [1, 2] is a nested table in TOML."""
    for key, value in axes.items():
        if isinstance(value, dict):
            yield from _dotted(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def conflicts(study: Study, grids: Mapping[str, GridSpec]) -> Iterator[str]:
    """Yield errors for unknown arms, arms with `match_seconds`, and axes that `seeds` or the sweep also sets."""
    known = list(study.arms)
    for where, grid in grids.items():
        for key, names in (("arm", (grid.arm,)), ("against", grid.against)):
            for name in (name for name in names if name not in known):
                yield f"{where}.{key}: no arm is named {name!r}{nearest(name, known)} (arms: {', '.join(known)})"
        if grid.arm in study.matched:
            yield f"{where}.arm: {grid.arm!r} sets match_seconds; choose an arm with a fixed number of steps"
        for axis in grid.axes:
            if axis == "seed":
                yield f"{where}.axes.seed: the key seeds sets the seed; leave this axis out"
            for point, overrides in study.sweep.points.items() if study.sweep else ():
                if any(_overlap(axis, text.partition("=")[0].strip()) for text in overrides):
                    yield f"sweep.points.{point}: {axis} is an axis of {where}; leave it out of one of them"


def _overlap(one: str, other: str) -> bool:
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def with_grids(study: Study, specs: Mapping[str, GridSpec]) -> tuple[Study, list[str]]:
    """Return the study with the arms of its grids, and the errors in them.

    Each point is an arm `like` the grid's arm, except that the point with the arm's own values is the arm itself.
    """
    problems: list[str] = []
    for where, spec in specs.items():
        try:
            own = study.run(spec.arm, 0).experiment
        except UserError:  # `study_file` reports the errors of all arms
            continue
        for keys in [tuple(spec.axes)] if spec.product else [(key,) for key in spec.axes]:
            try:
                study = _with_grid(study, spec, keys, own)
            except UserError as error:
                problems += [f"{where}.axes.{' × '.join(keys)}: {line}" for line in str(error).splitlines()]
    return study, problems


def _with_grid(study: Study, spec: GridSpec, keys: tuple[str, ...], own: Experiment) -> Study:
    """Return the study with the points on these axes; raise `UserError` for a point that cannot be trained."""
    arms, seeds = dict(study.arms), dict(study.seeds)
    wider = attrs.evolve(study, arms=arms)  # the points below are added to it
    others = dict(_trained_beside(study, spec))
    points, trained = list[tuple[tuple[Any, ...], str]](), list[Experiment]()
    for values in product(*(spec.axes[key] for key in keys)):
        set_to = dict(zip(keys, values, strict=True))
        name = "-".join([spec.arm, *(f"{key}={in_word(value)}" for key, value in set_to.items())])
        overrides = tuple(f"{key}={inline(value)}" for key, value in set_to.items())
        if not WORD.fullmatch(name):
            raise UserError(
                f"{clip(repr(name))} is too long for a folder name; define the point as an arm with a shorter name"
            )
        if name in arms:
            raise UserError(f"{name!r} would name two arms; rename one of them, or leave a value out")
        arms[name] = ArmSpec(
            like=spec.arm, overrides=overrides, against=tuple(dict.fromkeys((spec.arm, *spec.against)))
        )
        experiment = wider.run(name, 0).experiment
        if experiment in trained:
            raise UserError(f"{' '.join(overrides)} equals another point; leave one of them out")
        trained.append(experiment)
        if experiment == own:
            del arms[name]
            name = spec.arm
        elif other := next((arm for arm, each in others.items() if _nameless(each) == _nameless(experiment)), None):
            raise UserError(f"{' '.join(overrides)} equals the arm {other!r}; leave one of them out")
        else:
            seeds[name] = spec.seeds or study.seeds[spec.arm]
        points.append((values, name))
    if own not in trained:
        points.append((tuple(_at(own.to_table(), key) for key in keys), spec.arm))
        if all(type(value) in (int, float) for values, _ in points for value in values):
            points.sort(key=lambda point: point[0])
    grid = Grid(arm=spec.arm, keys=keys, points=points)
    return attrs.evolve(wider, seeds=seeds, grids=[*study.grids, grid])


def _trained_beside(study: Study, spec: GridSpec) -> Iterator[tuple[str, Experiment]]:
    """Yield the other arms that share a seed with the points, each with its experiment."""
    seeds, root = {*(spec.seeds or study.seeds[spec.arm])}, study.chain(spec.arm)[0]
    for arm in study.arms:
        # Skip arms with measured steps, and arms whose point a sweep chooses separately.
        follows = arm in study.matched or (study.sweep and study.chain(arm)[0] != root)
        if arm != spec.arm and not follows and seeds & {*study.seeds[arm]}:
            with suppress(UserError):  # `study_file` reports the errors of all arms
                yield arm, study.run(arm, 0).experiment


def _nameless(experiment: Experiment) -> Experiment:
    return attrs.evolve(experiment, name="")  # the file's name, on which nothing depends


def in_word(value: Any) -> str:
    """Return a value as part of a folder name, in which + replaces unsuitable characters."""
    return re.sub(r"[^\w.=+-]+", "+", re.sub(r"[^\w.=+-]*=[^\w.=+-]*", "=", inline(value))).strip("+")


def _at(table: Any, key: str) -> Any:
    """Return the value of a key in an experiment's table, or None if it is not set."""
    for name in key.split("."):
        table = table.get(name) if isinstance(table, dict) else None
    return table
