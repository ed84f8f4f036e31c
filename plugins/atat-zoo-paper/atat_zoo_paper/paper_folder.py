"""The folder for a paper, which is written only after all results have been read and checked."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import attrs

from atat_zoo import experiment as experiments
from atat_zoo.evaluation.results.table import Cell, Table, escape
from atat_zoo.experiment import Experiment
from atat_zoo.registry.spec import components_in
from atat_zoo.system.atomic_files import write_all
from atat_zoo.system.errors import UserError, clip
from atat_zoo_paper import claims, figures, latex
from atat_zoo_paper.cells import missing_in, nothing, words
from atat_zoo_paper.paper_file import (
    ArmsTable,
    CitedRow,
    EvaluationsTable,
    FigureSpec,
    GapsTable,
    Paper,
    ParametersTable,
    PromisesTable,
    SamplersTable,
    ScoresTable,
    TasksTable,
    WantedTable,
)
from atat_zoo_paper.paper_studies import CannotShow, KnownStudy, Studies, studies_of
from atat_zoo_paper.promise_tables import promises_table
from atat_zoo_paper.run_tables import evaluations_table, parameters_table, tasks_table
from atat_zoo_paper.study_tables import arms_table, gaps_table, samplers_table, scores_table


@attrs.frozen(kw_only=True)
class FilledFigure:
    """Figure with the points to draw."""

    spec: FigureSpec
    known: KnownStudy
    points: dict[str, Any]  # by arm or panel; empty or None where results are missing

    @property
    def drawn(self) -> bool:
        """Whether the figure has points."""
        return any(self.points.values())

    def missing(self) -> Iterator[str]:
        """Yield the label and arm of each missing line or point, or only the label if nothing can be drawn."""
        if not self.drawn:
            yield f"{self.spec.label}: the figure"
        else:
            yield from (f"{self.spec.label}: {arm}" for arm, found in self.points.items() if not found)


@attrs.frozen(kw_only=True)
class FilledPaper:
    """Paper with the data of its tables and figures."""

    paper: Paper
    tables: list[Table]
    figures: list[FilledFigure]
    said: dict[str, list[str]]  # label of a table -> sentences on its comparisons
    sources: dict[str, list[str]]  # reference -> the components or published models that cite it

    def missing(self) -> dict[str, list[str]]:
        """Return a dict from command to the missing cells and points that it computes."""
        found: dict[str, list[str]] = {}
        for table in self.tables:
            for what, command in missing_in(table):
                found.setdefault(command, []).append(what)
        for figure in self.figures:
            for what in figure.missing():
                found.setdefault(figure.known.command, []).append(what)
        return found


@contextmanager
def _noting(where: str, problems: list[str]) -> Iterator[None]:
    """Append an error to the problems if a table or figure cannot be shown, preceded by its key."""
    try:
        yield
    except CannotShow as refused:
        problems.append(refused.at(where))
    except UserError as error:
        problems += [f"{where}: {line}" for line in str(error).splitlines()]
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
        problems.append(f"{where}: the results are damaged; run the study or evaluation again")


def fill(paper: Paper) -> FilledPaper:
    """Return a paper with its results, or raise a `UserError` that lists all problems, such as unknown columns."""
    studies, problems = Studies(paper), list[str]()
    tables, drawn, said = list[Table](), list[FilledFigure](), dict[str, list[str]]()
    for wanted in paper.tables:
        with _noting(wanted.where, problems):
            tables.append(_with_cited(_fill(wanted, studies), paper.cited))
            said[wanted.spec.label] = list(dict.fromkeys(claims.sentences(wanted, studies)))
    for where, spec in paper.figures.items():
        with _noting(where, problems):
            known = studies.named(spec.study)
            drawn.append(FilledFigure(spec=spec, known=known, points=figures.points(spec, known)))
    paper.refuse(list(dict.fromkeys(problems)))
    # Otherwise, every cell would be reported as missing.
    if (
        any(studies_of(paper))
        and not paper.results.is_dir()
        and not any(studies.named(name).report for name in studies_of(paper))
    ):
        remedy = (
            "run `atat study` first, or set results to a folder written by `atat study --write`, such as docs/studies"
        )
        paper.refuse([f"results: the folder {clip(paper.results)} does not exist; {remedy}"])
    return FilledPaper(paper=paper, tables=tables, figures=drawn, said=said, sources=_sources(paper, studies, tables))


def _fill(wanted: WantedTable, studies: Studies) -> Table:
    match wanted.spec:
        case ArmsTable():
            return arms_table(wanted, studies)
        case GapsTable():
            return gaps_table(wanted, studies)
        case SamplersTable():
            return samplers_table(wanted, studies)
        case ScoresTable():
            return scores_table(wanted, studies)
        case PromisesTable():
            return promises_table(wanted, studies)
        case EvaluationsTable():
            return evaluations_table(wanted)
        case TasksTable():
            return tasks_table(wanted)
        case _:
            assert isinstance(wanted.spec, ParametersTable)
            return parameters_table(wanted)


def _with_cited(table: Table, cited: tuple[CitedRow, ...]) -> Table:
    """Return a table with published rows below its own rows."""
    rows, notes = [], []
    for row in (row for row in cited if row.table == table.label):
        cells = [words(row.name), *(nothing() for _ in table.columns[1:])]
        if not row.values:
            cells[1] = nothing("not comparable")
        for column, value in row.values.items():
            at = [each.key for each in table.columns].index(column)
            cells[at] = Cell(text=f"{'≤ ' if row.at_most else ''}{value:g}", value=value)
        rows.append((row.source, cells))
        notes.append(f"{row.name}: {row.differs}.")
    return attrs.evolve(table, cited=[*table.cited, *rows], notes=[*table.notes, *notes])


def _sources(paper: Paper, studies: Studies, tables: list[Table]) -> dict[str, list[str]]:
    """Return the references for the components in the paper's experiments and for its cited rows.

    A reference without a colon, such as `ATAT`, has no address and is not cited.
    """
    found: dict[str, list[str]] = {}

    def add(source: str, of: str) -> None:
        if ":" in source and of not in found.setdefault(source, []):
            found[source].append(of)

    for made in _experiments(paper, studies):
        for kind, spec in made.parts.items():
            for of_kind, each in [(kind, spec), *components_in(spec)]:
                for source in each.refs:
                    add(source, f"{of_kind} {each.name}")
    for table in tables:
        for source, (name, *_) in table.cited:
            if source:
                add(source, name.text)
    return found


def _experiments(paper: Paper, studies: Studies) -> Iterator[Experiment]:
    for name in dict.fromkeys(studies_of(paper)):
        study = studies.named(name).study
        yield from (study.run(arm, study.seeds[arm][0]).experiment for arm in study.arms)
    rows = [row for table in paper.tables for row in table.rows if getattr(row, "experiment", None)]
    for named in dict.fromkeys((row.experiment, row.overrides) for row in rows):
        yield experiments.load(*named)


def write(filled: FilledPaper, out: Path) -> None:
    """Write the folder, replacing files with the same names and keeping all others.

    Nothing is written unless the disk has room for everything. An existing main.tex and existing entries in
    references.bib are kept, because authors edit them.
    """
    paper, files = filled.paper, dict[str, str]()
    for table in filled.tables:
        name = f"tables/{table.label}"
        page = "\n".join([table.title, "", *table.to_markdown()]) + "\n"
        files |= {f"{name}.tex": latex.table(table), f"{name}.md": page, f"{name}.csv": table.to_csv()}
    for figure in filled.figures:
        spec = figure.spec
        there, instead = figure.drawn and charts() is None, charts() if figure.drawn else figure.known.command
        files[f"figures/{spec.label}.tex"] = latex.figure(spec.caption, spec.label, there, instead or "")
    files["results.tex"] = _results(filled)
    bibliography = out / "references.bib"
    written = bibliography.read_text(encoding="utf-8") if bibliography.is_file() else ""
    files["references.bib"] = latex.references(filled.sources, written)
    if not (out / "main.tex").is_file():
        labels = [table.label for table in filled.tables]
        files["main.tex"] = latex.main(paper.title, labels, [figure.spec.label for figure in filled.figures])
    files["missing.md"] = missing_page(filled)
    contents = {out / name: text.encode() for name, text in files.items()}
    for figure in filled.figures:
        if figure.drawn and charts() is None:
            drawn = figures.draw(figure.spec, figure.known, figure.points)
            contents |= {out / "figures" / name: content for name, content in drawn}
    write_all(contents)


def charts() -> str | None:
    """Return the command that installs the package for figures, or None if it is installed."""
    return None if find_spec("vl_convert") else "pip install 'atat-zoo[report]'"


def _results(filled: FilledPaper) -> str:
    """Return one paragraph of claims for each table that contains comparisons."""
    paragraphs = [
        f"\\paragraph{{Table~\\ref{{tab:{label}}}.}} " + "\n".join(map(escape, said))
        for label, said in filled.said.items()
        if said
    ]
    return "\n\n".join(paragraphs or ["The results do not contain any comparisons yet."]) + "\n"


def missing_page(filled: FilledPaper) -> str:
    """Return Markdown that lists missing cells and points with the commands that compute them."""
    rows = [[f"`{command}`", "; ".join(what)] for command, what in filled.missing().items()]
    lines = [
        "# Missing",
        "",
        "Each command computes the cells in its row. Run the command, and then run `atat paper` again.",
        "",
        *Table(columns=["command", "what"], rows=rows).to_markdown(),
    ]
    return "\n".join(lines if rows else ["# Missing", "", "Nothing."]) + "\n"


# What compiles main.tex, if it is installed
_COMPILERS = {"tectonic": ["main.tex"], "latexmk": ["-pdf", "-interaction=nonstopmode", "-halt-on-error", "main.tex"]}


def compiler() -> list[str] | None:
    """Return the command that compiles main.tex, or None if no compiler is installed."""
    return next(([name, *words] for name, words in _COMPILERS.items() if shutil.which(name)), None)


def compile_in(out: Path, command: list[str]) -> str:
    """Compile main.tex; return an empty string, or the end of the log if compilation fails."""
    done: Any = subprocess.run(command, cwd=out, capture_output=True, text=True, errors="replace", check=False)
    return "" if done.returncode == 0 else "\n".join((done.stdout + done.stderr).splitlines()[-10:]) or command[0]
