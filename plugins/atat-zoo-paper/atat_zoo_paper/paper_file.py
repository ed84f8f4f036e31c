"""The TOML file for a paper, whose tables and figures are validated as far as possible without results."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import attrs

from atat_zoo import experiment as experiments
from atat_zoo.registry import Zoo, component, component_param, components_param, param
from atat_zoo.registry.spec import component_base, fields_of, structure
from atat_zoo.system.errors import UserError, clip, nearest

# Of a table or figure: it names files, and is a label of LaTeX.
LABEL = re.compile(r"[a-z0-9][a-z0-9-]{0,60}")
# arXiv's identifiers since 2007, and DOIs.
SOURCE = re.compile(r"arXiv:\d{4}\.\d{4,5}(v\d+)?|doi:10\.\d{4,9}/[^\s{}\\%#]+")
PAPERS = Path(__file__).parent / "papers"  # those that ship

Intervals = Literal["both", "sequences"]
_OVER = (
    "variation that the intervals cover. both: seeds and held-out text; sequences: held-out text "
    "only, which also works for arms with one seed"
)


@component
class PaperSpec:
    """Top-level keys of a paper file, except its tables and figures."""

    title: str = param(help="title of the paper")
    results: str = param(
        "docs/studies",
        help="folder written by `atat study --write`; studies without a file there are read from their own folders",
    )


@component
class ArmRow:
    """Row in a table of arms."""

    arm: str = param(help="arm of the study")
    study: str | None = param(None, help="study; default: the table's")
    against: str | None = param(
        None, help="reference arm for the difference; default: the arm with which the study compares this one"
    )
    name: str | None = param(None, help="label in the table; default: the arm's")


@component
class GapRow:
    """Row in a table of gaps."""

    arm: str = param(help="arm of the study")
    by: str = param("bound", help="sampler or bound for the row")
    against: str | None = param(None, help="sampler or bound of the baseline with which the difference is computed")
    name: str | None = param(None, help="label in the table; default: the arm's")


@component
class SamplerRow:
    """Row in a table of samplers."""

    arm: str = param(help="arm of the study for which samplers are compared")
    sampler: int = param(help="position in the study's list of samplers, from 1", ge=1)
    name: str | None = param(None, help="label in the table; default: the labels of the arm and the sampler")


@component
class ScoreRow:
    """Row in a table of scores."""

    arm: str = param(help="arm of the study")
    name: str | None = param(None, help="label in the table; default: the arm's")


@component
class RunRow:
    """Row in a table of runs."""

    run: str = param(help="run folder")
    experiment: str | None = param(None, help="name of an experiment that ships with atat_zoo, or a file")
    overrides: tuple[str, ...] = param((), help="key=value overrides of the experiment")
    train: str | None = param(None, help="training command, as an alternative to an experiment")
    name: str | None = param(None, help="label in the table; default: the name of the run folder")

    def __attrs_post_init__(self) -> None:
        if (self.experiment is None) == (self.train is None):
            raise ValueError("set either `experiment`, which the run trains, or `train`, the training command")


@component_base
class TableSpec:
    """Options of every table."""

    label: str = param(help="label in LaTeX and name of the files")
    caption: str = param(help="caption, one or two sentences")
    columns: tuple[str, ...] = param(help="columns, from left to right")


@component
class ArmsTable(TableSpec):
    """Arms of studies."""

    study: str | None = param(None, help="study that contains the rows' arms")
    intervals: Intervals = param("both", help=_OVER)


@component
class GapsTable(TableSpec):
    """Table with a study's perplexity of gaps given the rest of the text; each column is a gap."""

    study: str = param(help="study with [gaps]")
    intervals: Intervals = param("both", help=_OVER)


@component
class SamplersTable(TableSpec):
    """Table with the perplexity and NFE of a study's samplers."""

    study: str = param(help="study with [samplers]")
    intervals: Intervals = param("both", help=_OVER)


@component_base
class Directed(TableSpec):
    """Base class for tables that state in which columns lower or higher is better."""

    lower: tuple[str, ...] = param((), help="columns in which lower is better")
    higher: tuple[str, ...] = param((), help="columns in which higher is better")


@component
class ScoresTable(Directed):
    """Table with the scores of a study's arms in one of its tasks; each column is a score."""

    study: str = param(help="study with evaluation.tasks")
    task: str = param(help="name of the task")
    intervals: Intervals = param("both", help=_OVER)


@component
class EvaluationsTable(TableSpec):
    """Table with results of `atat eval` for runs, on the text of their experiments."""

    split: Literal["validation", "test"] = param("validation", help="held-out split")
    metrics: Any = components_param("metric", help="additional metrics, whose titles can be columns")


@component
class TasksTable(Directed):
    """Table with scores of runs from `atat eval --task`; each column is a score."""

    task: Any = component_param("task", attrs.NOTHING, help="tasks")


@component
class ParametersTable(TableSpec):
    """Table with hyperparameters of experiments; each column is a key such as `train.steps`."""


@component
class FigureSpec:
    """Figure of a study."""

    kind: Literal["curve", "sensitivity", "arms"] = param(
        help="figure type: bounds against step budgets, grid points (including samplers) or sweep values, or "
        "differences from the baseline"
    )
    label: str = param(help="label in LaTeX and name of the files")
    caption: str = param(help="caption, one or two sentences")
    study: str = param(help="study to draw")
    arms: tuple[str, ...] = param((), help="arms, from top to bottom; default: all suitable arms")
    names: dict[str, str] = param(attrs.Factory(dict), help="labels of the arms in the figure")
    intervals: Intervals = param("both", help=_OVER)


@component
class CitedRow:
    """Published row, which is added below the rows of a table."""

    table: str = param(help="label of the table that contains the row")
    name: str = param(help="name of the model")
    source: str = param(help="reference, such as arXiv:2406.07524 or doi:10.…")
    differs: str = param(help="note on what differs, or on why the value is not comparable")
    column: str | None = param(None, help="column that contains the value")
    value: float | None = param(None, help="published value; leave it out if it is not comparable")
    at_most: bool = param(False, help="whether the value is an upper bound")

    def __attrs_post_init__(self) -> None:
        if not SOURCE.fullmatch(self.source):
            got = clip(repr(self.source), 60)
            raise ValueError(f"source: expected arXiv:2406.07524 or doi:10.1162/tacl_a_00300, got {got}")
        if (self.value is None) != (self.column is None):
            raise ValueError("set both value and column, or leave out both if nothing is comparable")


DATA: dict[str, tuple[type, type]] = {
    "study": (ArmsTable, ArmRow),
    "gaps": (GapsTable, GapRow),
    "samplers": (SamplersTable, SamplerRow),
    "scores": (ScoresTable, ScoreRow),
    "evaluations": (EvaluationsTable, RunRow),
    "tasks": (TasksTable, RunRow),
    "parameters": (ParametersTable, RunRow),
}


@attrs.frozen(kw_only=True)
class WantedTable:
    """Table that a paper file requests."""

    where: str  # its key, for messages
    given: Mapping[str, Any]  # as it stands there
    spec: Any
    rows: tuple[Any, ...]


@attrs.frozen(kw_only=True)
class Paper:
    """A validated manifest."""

    name: str  # that of the file
    file: Path
    title: str
    results: Path
    tables: tuple[WantedTable, ...]
    figures: Mapping[str, FigureSpec]  # by key
    cited: tuple[CitedRow, ...]

    def refuse(self, problems: list[str]) -> None:
        """Raise a `UserError` with all problems, each preceded by the name of the file."""
        if problems:
            raise UserError("\n".join(f"{clip(self.file)}: {problem}" for problem in problems))


def load(file: Path) -> Paper:
    """Return the paper described by a TOML file, or by the file that ships with the package under the name `file`."""
    try:
        table = experiments.read_toml(file)
    except FileNotFoundError:
        named = str(file).removesuffix(".toml")
        known = sorted(path.stem for path in PAPERS.glob("*.toml"))
        if named in known:
            return load(PAPERS / f"{named}.toml")
        problem = f"the paper file {clip(file)} does not exist{nearest(named, known)}"
        raise UserError(f"{problem} (pass a TOML file with [[table]], or one of: {', '.join(known)})") from None
    zoo, problems = Zoo.load(), list[str]()
    lists = {key: table.pop(key, []) for key in ("table", "figure", "cited")}
    for key, value in lists.items():
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            problems.append(f"{key}: expected tables, each as [[{key}]]")
            lists[key] = []
    keys = [*(field.name for field in fields_of(PaperSpec)), *lists]
    there = f"(keys: {', '.join(keys)})"
    problems += [f"{key} is not a key of a paper file{nearest(key, keys)} {there}" for key in table if key not in keys]
    plain, wrong = structure(PaperSpec, {key: value for key, value in table.items() if key in keys}, "", zoo)
    problems += map(str, wrong)

    def one(cls: type, value: Mapping[str, Any], where: str) -> Any:
        made, wrong = structure(cls, value, where, zoo)
        problems.extend(map(str, wrong))
        return made

    tables = [_table(value, f"table[{i}]", one, problems) for i, value in enumerate(lists["table"])]
    figures = {f"figure[{i}]": one(FigureSpec, value, f"figure[{i}]") for i, value in enumerate(lists["figure"])}
    cited = [one(CitedRow, value, f"cited[{i}]") for i, value in enumerate(lists["cited"])]
    paper = Paper(
        name=file.stem,
        file=file,
        title=plain.title if plain else "",
        results=Path(plain.results if plain else ""),
        tables=tuple(filter(None, tables)),
        figures=figures,
        cited=tuple(cited),
    )
    paper.refuse(problems)
    paper.refuse([*_labels(paper), *_cited(paper)])
    return paper


def _table(value: dict[str, Any], where: str, one: Any, problems: list[str]) -> WantedTable | None:
    """Return a table with its rows, and append problems to `problems`."""
    data, rows = value.pop("data", None), value.pop("rows", None)
    if not isinstance(data, str) or data not in DATA:
        hint = nearest(data, list(DATA)) if isinstance(data, str) else ""
        problems.append(f"{where}.data: expected {' | '.join(DATA)}, got {clip(repr(data), 60)}{hint}")
        return None
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        problems.append(f"{where}.rows: expected a list of tables, one per row")
        return None
    of_table, of_row = DATA[data]
    made = [one(of_row, row, f"{where}.rows[{i}]") for i, row in enumerate(rows)]
    return WantedTable(where=where, given=value, spec=one(of_table, value, where), rows=tuple(made))


def _labels(paper: Paper) -> Iterator[str]:
    labels = {table.where: table.spec.label for table in paper.tables}
    labels |= {where: figure.label for where, figure in paper.figures.items()}
    counts = Counter(labels.values())
    for where, label in labels.items():
        if not LABEL.fullmatch(label):
            got = clip(repr(label), 60)
            yield f"{where}.label: expected lower-case letters, digits and hyphens, for files and LaTeX, got {got}"
        elif counts[label] > 1:
            yield f"{where}.label: {label!r} is used twice; rename one of the two"
    for table in paper.tables:
        if not table.spec.columns:
            yield f"{table.where}.columns: expected at least one column"
        for column, count in Counter(table.spec.columns).items():
            if count > 1:
                yield f"{table.where}.columns: {column!r} is listed twice; list each column once"


def _cited(paper: Paper) -> Iterator[str]:
    columns = {table.spec.label: table.spec.columns for table in paper.tables if table.spec.columns}
    for i, row in enumerate(paper.cited):
        if row.table not in columns:
            known = list(columns)
            yield f"cited[{i}].table: unknown table {row.table!r}{nearest(row.table, known)} ({', '.join(known)})"
        elif row.column is not None and row.column not in columns[row.table]:
            known = list(columns[row.table])
            hint = nearest(row.column, known)
            yield f"cited[{i}].column: table {row.table!r} has no column {row.column!r}{hint} ({', '.join(known)})"
