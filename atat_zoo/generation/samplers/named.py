"""Every named sampler at given numbers of steps: the rows of a benchmark."""

from collections.abc import Sequence
from typing import Any

from atat_zoo.experiment import Experiment, conflicts_with
from atat_zoo.registry import Zoo

Row = tuple[str, int | None, Any]  # name, steps, specification
UNNAMED = frozenset({"combination"})  # no sampler by itself: its parts must be named
REFERENCE = "ancestral"  # the sampler that the others are compared with


def fitting(
    experiment: Experiment, steps: Sequence[int], rows: Sequence[Row] | None = None
) -> tuple[list[Row], dict[str, str]]:
    """Return the samplers that fit an experiment, the reference with the most steps first; and why others do not.

    They are those of `rows`, or, if None, all named ones at each number of `steps`, in ascending order. One that fits
    only as the experiment has set it is taken as that.
    """
    own: Any = experiment.parts["sampler"]
    if rows is None:
        rows = [row for name in Zoo.load().names("sampler") if name not in UNNAMED for row in at_steps(name, steps)]
    first = at_steps(REFERENCE, steps[-1:])[0]
    fits: list[Row] = []
    refused: dict[str, str] = {}
    for name, number, sampler in [first, *(row for row in rows if row != first)]:
        problems = conflicts_with(experiment, {"sampler": sampler})
        if problems and name != own.name:
            refused[name] = str(problems[0])
        else:
            fits.append((name, number, own if problems else sampler))
    return fits, refused


def at_steps(name: str, steps: Sequence[int]) -> list[Row]:
    """Return a sampler at each number of steps; once, unchanged, if it has no such parameter."""
    zoo = Zoo.load()
    parameters, spec = zoo.describe("sampler", name).parameters, zoo.spec("sampler", name)
    cap = next((key for key in ("steps", "max_steps") if key in parameters), None)
    if cap is None:
        return [(name, None, spec)]
    tables: list[dict[str, Any]] = [{"use": name, cap: n} for n in steps]
    if "min_steps" in parameters:
        tables = [table | {"min_steps": min(spec.min_steps, table[cap])} for table in tables]
    return [(name, table[cap], zoo.spec("sampler", table)) for table in tables]
