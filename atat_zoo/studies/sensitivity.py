"""How a bound changes along the axes of a study's grids: from the numbers of the arms, and as tables."""

from collections.abc import Mapping
from typing import Any

from atat_zoo.evaluation.results.format import NONE, cell, change
from atat_zoo.studies.differences import of_point
from atat_zoo.studies.grids import in_word
from atat_zoo.studies.schema import Study

Table = dict[str, Any]
LEGEND = "Geometric mean over seeds, and the difference paired by sequence and mask."


def sensitivity(study: Study, part: Mapping[str, Any]) -> list[Table]:
    """Return every grid with the bounds of its points, from the tables of the arms and of their comparisons."""
    compared = {(each["arm"], each["against"]): each for each in part["comparisons"]}
    return [
        {
            "arm": grid.arm,
            "keys": list(grid.keys),
            "points": [
                {"values": list(values), "arm": arm, **of_point(part["arms"][arm], compared.get((arm, grid.arm)))}
                for values, arm in grid.points
                if arm in part["arms"]
            ],
        }
        for grid in study.grids
    ]


def sensitivity_table(grid: Table) -> tuple[list[str], list[list[str]]]:
    """Return the columns and rows of a grid."""
    rows = []
    for point in grid["points"]:
        ends = ", ".join(cell(point[key], ".2f") for key in ("low", "high"))
        bound = [point["bound"], f"{cell(point['value'], '.2f')} [{ends}]", str(point["seeds"])]
        rows.append([*labels(point), *bound, said(point)])
    return [*grid["keys"], "bound", "value", "seeds", f"difference from {grid['arm']}"], rows


def labels(point: Table) -> list[str]:
    """Return the values of a point in words."""
    return [NONE if value is None else in_word(value) for value in point["values"]]


def said(point: Table) -> str:
    """Return the difference of a point in words."""
    if (difference := point["difference"]) is None:
        return NONE
    return difference["problem"] if "problem" in difference else change(difference)
