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

# The label of a table or figure, in LaTeX and in file names.
LABEL = re.compile(r"[a-z0-9][a-z0-9-]{0,60}")
# arXiv's identifiers since 2007, and DOIs.
SOURCE = re.compile(r"arXiv:\d{4}\.\d{4,5}(v\d+)?|doi:10\.\d{4,9}/[^\s{}\\%#]+")
PAPERS = Path(__file__).parent / "papers"  # paper files that ship with the package

Intervals = Literal["both", "sequences"]
_OVER = (
    "variation that the intervals cover; both: over seeds and held-out text; sequences: over held-out text "
    "only, which also works for arms with one seed"
)


@component
class PaperSpec:
    """Top-level keys of a paper file, except its tables and figures."""

    title: str = param(help="title of the paper")
    results: str = param(
        "docs/studies",
        help="folder of results from `atat study --write`; results that are not there are read from the study's folder",
    )


@component
class ArmRow:
    """Row in a table of arms."""

    arm: str = param(help="arm of the study")
    study: str | None = param(None, help="study that contains the arm; default: the table's study")
    against: str | None = param(
        None, help="reference arm for the difference; default: the arm with which the study compares this one"
    )
    name: str | None = param(None, help="label in the table; default: the arm's name")


@component
class GapRow:
    """Row in a table of gaps."""

    arm: str = param(help="arm of the study")
    by: str = param("bound", help="sampler under which the perplexity is computed, or `bound`")
    against: str | None = param(None, help="show the difference from the baseline's value for this sampler or `bound`")
    name: str | None = param(None, help="label in the table; default: the arm's name")


@component
class SamplerRow:
    """Row in a table of samplers."""

    arm: str = param(help="arm of the study for which samplers are compared")
    sampler: int = param(help="position in the study's list of samplers, from 1", ge=1)
    name: str | None = param(None, help="label in the table; default: the names of the arm and the sampler")


@component
class ScoreRow:
    """Row in a table of scores."""

    arm: str = param(help="arm of the study")
    name: str | None = param(None, help="label in the table; default: the arm's name")


@component
class PromiseRow:
    """Row in a table of promises: a promise, and where its measured value is looked up."""

    name: str = param(help="what is promised, such as lower perplexity")
    promised: str = param(help="size of the promise, such as −10 %")
    setting: str = param("", help="what was measured, such as ATAT as in its report")
    study: str = param("", help="study with the measured value")
    arm: str = param("", help="arm of the study")
    against: str | None = param(
        None, help="reference arm for the difference; default: the arm with which the study compares this one"
    )
    sampler: int | None = param(
        None, help="position in the study's list of samplers, from 2, which is compared with its first", ge=2
    )
    page: str = param("", help="Markdown page with the ratio, if no study has it")
    row: str = param("", help="first cell of the page's row")
    column: str = param(
        "",
        help="heading on the page, or a ratio: `parameters`, `steps` or another of the study, `times_as_long` for a "
        "sampler; default: perplexity",
    )
    unmeasured: str = param("", help="reason why nothing was measured")

    def __attrs_post_init__(self) -> None:
        given = {field.name for field in fields_of(PromiseRow) if getattr(self, field.name)}
        measured = given - {"name", "promised", "setting"}
        of_study = {"study", "arm"} <= measured <= {"study", "arm", "against", "sampler", "column"}
        if not of_study and measured not in ({"page", "row", "column"}, {"unmeasured"}):
            raise ValueError(
                "set `study` and `arm` (and, if needed, `against`, `sampler` and `column`), or `page`, `row` and "
                "`column`, or `unmeasured`"
            )


@component
class RunRow:
    """Row in a table of runs."""

    run: str = param(help="run folder")
    experiment: str | None = param(None, help="name of an experiment that ships with atat_zoo, or a file")
    overrides: tuple[str, ...] = param((), help="key=value overrides of the experiment")
    train: str | None = param(None, help="command that trains the run, instead of `experiment`")
    name: str | None = param(None, help="label in the table; default: the name of the run folder")

    def __attrs_post_init__(self) -> None:
        if (self.experiment is None) == (self.train is None):
            raise ValueError("set either `experiment`, from which the run is trained, or `train`, the training command")


@component_base
class TableSpec:
    """Base class with the options of every table."""

    label: str = param(help="label in LaTeX, and name of the table's files")
    caption: str = param(help="caption of one or two sentences")
    columns: tuple[str, ...] = param(help="columns, from left to right, or the rows of a table of parameters")


@component
class ArmsTable(TableSpec):
    """Table with results of studies' arms; each column is a quantity, such as `value` or `difference`."""

    study: str | None = param(None, help="study that contains the arms of all rows that name no study themselves")
    intervals: Intervals = param("both", help=_OVER)


@component
class GapsTable(TableSpec):
    """Table with the perplexity of gaps given the rest of the text, from a study; each column is a gap."""

    study: str = param(help="study with [gaps]")
    intervals: Intervals = param("both", help=_OVER)


@component
class SamplersTable(TableSpec):
    """Table with the perplexity and NFE of a study's samplers."""

    study: str = param(help="study with [samplers]")
    intervals: Intervals = param("both", help=_OVER)


@component
class PromisesTable(TableSpec):
    """Table with promises and what was measured; each measured value is a change in percent."""


@component_base
class Directed(TableSpec):
    """Base class for tables that state in which columns lower or higher is better."""

    lower: tuple[str, ...] = param((), help="columns in which lower is better")
    higher: tuple[str, ...] = param((), help="columns in which higher is better")


@component
class ScoresTable(Directed):
    """Table with the scores of a study's arms in one of its tasks; each column is a score."""

    study: str = param(help="study with evaluation.tasks")
    task: str = param(help="name of the task, such as `infilling`")
    intervals: Intervals = param("both", help=_OVER)


@component
class EvaluationsTable(TableSpec):
    """Table with results of `atat eval` for runs, on the text of their experiments."""

    split: Literal["validation", "test"] = param("validation", help="held-out split")
    metrics: Any = components_param("metric", help="additional metrics, whose titles can be columns")


@component
class TasksTable(Directed):
    """Table with scores of runs from `atat eval --task`; each column is a score."""

    task: Any = component_param("task", attrs.NOTHING, help="task, with the parameters of the evaluations")


@component
class ParametersTable(TableSpec):
    """Table with hyperparameters; each key in `columns`, such as `train.steps`, is a row, and each run a column."""


@component
class FigureSpec:
    """Figure of a study."""

    kind: Literal["curve", "sensitivity", "arms"] = param(
        help="curve: bounds by number of training steps; sensitivity: bounds at the points of a grid or sweep, and "
        "perplexity under each sampler; arms: differences from the baseline"
    )
    label: str = param(help="label in LaTeX, and name of the figure's files")
    caption: str = param(help="caption of one or two sentences")
    study: str = param(help="study to draw")
    arms: tuple[str, ...] = param((), help="arms to draw, in this order; default: all arms that this kind can draw")
    names: dict[str, str] = param(attrs.Factory(dict), help="labels of the arms in the figure")
    intervals: Intervals = param("both", help=_OVER)


@component
class CitedRow:
    """Row for a published model, which is added below the rows of a table."""

    table: str = param(help="label of the table to which the row is added")
    name: str = param(help="name of the model")
    source: str = param(help="reference, such as arXiv:2406.07524 or doi:10.…")
    differs: str = param(help="note on how the published evaluation differs, or why its value is not comparable")
    values: dict[str, float] = param(
        attrs.Factory(dict), help="published values by column; leave it out if nothing is comparable"
    )
    at_most: bool = param(False, help="whether the values are upper bounds")

    def __attrs_post_init__(self) -> None:
        if self.at_most and not self.values:
            raise ValueError("at_most: there are no values that could be upper bounds; add values, or leave it out")
        if not SOURCE.fullmatch(self.source):
            got = clip(repr(self.source), 60)
            raise ValueError(f"source: expected arXiv:2406.07524 or doi:10.1162/tacl_a_00300, got {got}")


DATA: dict[str, tuple[type, type]] = {
    "study": (ArmsTable, ArmRow),
    "gaps": (GapsTable, GapRow),
    "samplers": (SamplersTable, SamplerRow),
    "scores": (ScoresTable, ScoreRow),
    "promises": (PromisesTable, PromiseRow),
    "evaluations": (EvaluationsTable, RunRow),
    "tasks": (TasksTable, RunRow),
    "parameters": (ParametersTable, RunRow),
}


@attrs.frozen(kw_only=True)
class WantedTable:
    """Table that a paper file requests."""

    where: str  # its key, for messages
    given: Mapping[str, Any]  # its keys in the file, without `data` and `rows`
    spec: Any
    rows: tuple[Any, ...]


@attrs.frozen(kw_only=True)
class Paper:
    """Validated content of a paper file."""

    name: str  # the file's name without its ending
    file: Path
    title: str
    results: Path
    tables: tuple[WantedTable, ...]
    figures: Mapping[str, FigureSpec]  # by key
    cited: tuple[CitedRow, ...]

    def refuse(self, problems: list[str]) -> None:
        """Raise a `UserError` with all problems, each preceded by the path of the file, if there are any."""
        if problems:
            raise UserError("\n".join(f"{clip(self.file)}: {problem}" for problem in problems))


def load(file: Path) -> Paper:
    """Return the paper in a TOML file, or in the shipped file with that name; raise a `UserError` with all problems."""
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
            yield f"{where}.label: expected up to 61 lower-case letters, digits and hyphens, no hyphen first, got {got}"
        elif counts[label] > 1:
            yield f"{where}.label: {label!r} is used more than once; give every table and figure its own label"
    for table in paper.tables:
        if not table.spec.columns:
            yield f"{table.where}.columns: expected at least one column"
        for column, count in Counter(table.spec.columns).items():
            if count > 1:
                yield f"{table.where}.columns: {column!r} is listed more than once; list each column once"


def _cited(paper: Paper) -> Iterator[str]:
    columns = {table.spec.label: table.spec.columns for table in paper.tables if table.spec.columns}
    for i, row in enumerate(paper.cited):
        if row.table not in columns:
            known = list(columns)
            yield f"cited[{i}].table: unknown table {row.table!r}{nearest(row.table, known)} ({', '.join(known)})"
        for column in row.values if row.table in columns else ():
            if column not in (known := list(columns[row.table])):
                hint = nearest(column, known)
                yield f"cited[{i}].values: table {row.table!r} has no column {column!r}{hint} ({', '.join(known)})"
