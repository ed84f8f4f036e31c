"""Studies used in a paper: their files, their results, and checks on whether one table may combine them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs

from atat_zoo.evaluation.results.intervals import LEVEL
from atat_zoo.registry.spec import unstructure
from atat_zoo.studies import Study, load
from atat_zoo.system.errors import UserError, clip, nearest
from atat_zoo.system.parsing import from_json, read
from atat_zoo_paper.paper_file import ArmRow, Paper, PromiseRow

Report = dict[str, Any]


class CannotShow(Exception):
    """Raised if a table or figure cannot be made because of the value of a key in the paper file."""

    def __init__(self, key: str, text: str) -> None:
        super().__init__(text)
        self.key = key

    def at(self, where: str) -> str:
        """Return the message, preceded by the path of the key; `where` is the path of the table or figure."""
        return f"{where}.{self.key}: {self}"


@attrs.frozen(kw_only=True)
class KnownStudy:
    """Study with its results, or without any if it has not been run."""

    study: Study
    report: Report | None
    command: str  # command that runs the study and writes the report

    def arm(self, name: str, key: str = "rows") -> Report | None:
        """Return the results of an arm, or None if there are none; raise `CannotShow` for an unknown arm."""
        known = list(self.study.arms)
        if name not in known:
            there = f"(arms: {', '.join(known)})"
            raise CannotShow(key, f"the study {self.study.name!r} has no arm {name!r}{nearest(name, known)} {there}")
        return self.report["arms"].get(name) if self.report else None

    def against(self, row: ArmRow | PromiseRow) -> str:
        """Return the reference arm for a row's difference: the row's own choice, or else the study's."""
        others = self.study.against(row.arm) if row.arm in self.study.arms else ()
        return row.against or (others[0] if others and self.study.baseline not in others else self.study.baseline)

    def text(self) -> dict[str, Any]:
        """Return the settings that determine the held-out text and its masks, which comparable bounds share."""
        run, held = self.study.run(self.study.baseline, self.study.seeds[self.study.baseline][0]), self.study.held_out
        parts = {key: unstructure(run.experiment.parts[key]) for key in ("corpus", "tokenizer")}
        data = {f"data.{key}": getattr(run.experiment.data, key) for key in ("length", "special_tokens", "packing")}
        held_out = {f"evaluation.{key}": getattr(held, key) for key in ("half", "sequences", "mask_samples", "seed")}
        of_report = {"tokens": self.report["tokens"]} if self.report else {}
        return parts | data | held_out | of_report


class Studies:
    """Studies used in a paper; each study is read once."""

    def __init__(self, paper: Paper) -> None:
        self.paper = paper
        self.known: dict[str, KnownStudy] = {}

    def named(self, name: str) -> KnownStudy:
        """Return a study, by name or file, with its results; raise a `UserError` if either cannot be read."""
        if name not in self.known:
            study = load(Path(name))
            path = self.paper.results / f"{study.name}.json"
            page = shlex.quote(str(path.with_suffix(".md")))
            command = f"atat study {shlex.quote(name)} --jobs 2"
            if self.paper.results.is_dir():
                command += f" --write {page}"
            # Without --write, `atat study` leaves the results only in the folder of the study.
            report = _report(path) or _report(study.folder / "study.json")
            self.known[name] = KnownStudy(study=study, report=report, command=command)
        return self.known[name]


def _report(path: Path) -> Report | None:
    try:
        report = from_json(read(path))
        return report if report["arms"] or report["comparisons"] else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UserError(f"{clip(path)} cannot be read: {error}; rewrite it with `atat study --write`") from None
    except (KeyError, TypeError):
        raise UserError(
            f"{clip(path)} does not contain a study's results; use the folder written by `atat study --write`"
        ) from None


def same_text(known: Sequence[KnownStudy]) -> None:
    """Raise `CannotShow` if a study was evaluated on different text, or with different masks, from the first one."""
    first = known[0]
    for other in known[1:]:
        mine, theirs = first.text(), other.text()
        if key := next((key for key in mine if key in theirs and mine[key] != theirs[key]), None):
            names = f"{other.study.name!r} was evaluated on different text or masks from {first.study.name!r}"
            raise CannotShow(
                "rows",
                f"the study {names}: {key} differs; put these studies into separate tables",
            )


def seeds_enough(spec: Any, arm: str, known: KnownStudy, columns: Sequence[str]) -> None:
    """Raise `CannotShow` for an unknown arm, or for one with a single seed if the intervals cover seeds."""
    known.arm(arm)  # raises `CannotShow` for an unknown arm
    if spec.intervals == "both" and columns and len(known.study.seeds[arm]) < 2:
        which = f"the arm {arm!r} of the study {known.study.name!r} has one seed"
        raise CannotShow("intervals", f'{which}, so intervals cannot cover seeds; set intervals = "sequences"')


def compared(report: Report, arm: str, other: str) -> Report | None:
    """Return the comparison of `arm` with `other`, or None if the report does not have it."""
    return next((each for each in report["comparisons"] if (each["arm"], each["against"]) == (arm, other)), None)


def legend(intervals: str, held_out: str = "sequences") -> str:
    """Return the legend of a study's table, which explains brackets and bold numbers."""
    percent = f"{100 * LEVEL:g} %"
    of_both = f"Brackets are {percent} CIs over seeds and held-out {held_out}"
    over_items = f"Brackets are {percent} CIs over held-out {held_out}, without the variation between seeds"
    said = of_both if intervals == "both" else over_items
    return f"{said}; bold: the best value, if its interval overlaps no other in its column."


def studies_of(paper: Paper) -> Iterator[str]:
    """Yield the name of the study of each table, row and figure in a paper, with repetitions."""
    for table in paper.tables:
        yield from filter(None, (getattr(each, "study", None) for each in (table.spec, *table.rows)))
    yield from (figure.study for figure in paper.figures.values())
