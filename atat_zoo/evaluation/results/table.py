"""A table of results with unrounded numbers, which can be written as text, Markdown, LaTeX, HTML or CSV.

Commands, studies, reports and papers all use this class.
"""

import csv
import html
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs

from atat_zoo.evaluation.results.format import as_text, markdown
from atat_zoo.evaluation.results.intervals import Interval
from atat_zoo.system.errors import UserError, clip

LOWER, HIGHER = -1, 1  # the direction in which the values of a column are better; 0 for neither


@attrs.frozen(kw_only=True)
class Cell:
    """A cell of a table; if it has a `command`, its number is missing or incomplete, and the command computes it."""

    text: str
    value: float | str | None = None  # unrounded
    low: float | None = None  # ends of the interval
    high: float | None = None
    command: str = ""

    @property
    def sure(self) -> Interval | None:
        """The interval, or None if an end or the value is missing."""
        if self.low is None or self.high is None or not isinstance(self.value, int | float):
            return None
        return Interval(value=self.value, low=self.low, high=self.high)


@attrs.frozen(kw_only=True)
class Column:
    """A column of a table: its heading, its key in files, and the direction in which values are better."""

    heading: str
    key: str = ""
    better: int = 0
    than: float | None = None  # the baseline's value, which does not have a cell


def _columns(columns: Iterable[Column | str]) -> list[Column]:
    return [Column(heading=each, key=each) if isinstance(each, str) else each for each in columns]


def _row(row: Iterable[Cell | str]) -> list[Cell]:
    return [Cell(text=each, value=each) if isinstance(each, str) else each for each in row]


def _rows(rows: Iterable[Iterable[Cell | str]]) -> list[list[Cell]]:
    return list(map(_row, rows))


@attrs.frozen(kw_only=True)
class Table:
    """A table whose first column contains names; a str stands for a column with this heading or for a cell."""

    columns: Sequence[Column] = attrs.field(converter=_columns)
    rows: Sequence[Sequence[Cell]] = attrs.field(converter=_rows)
    title: str = ""  # the title or caption
    said: Sequence[str] = ()  # sentences above the table
    notes: Sequence[str] = ()  # sentences below the table
    label: str = ""  # the name of the table's files
    cited: Sequence[tuple[str, Sequence[Cell]]] = ()  # rows of published values, each with its source

    @property
    def headings(self) -> list[str]:
        """The headings of the columns."""
        return [column.heading for column in self.columns]

    @property
    def texts(self) -> list[list[str]]:
        """The texts of the rows."""
        return [[cell.text for cell in row] for row in self.rows]

    def best(self) -> set[tuple[int, int]]:
        """Return (row, column) of the significantly best cells: those whose interval overlaps no other in the column.

        A column does not have a best cell if a cell is missing or lacks an interval, because that cell might be the
        best. A cited value is treated as a point, even if it is a bound, whose true value may be lower.
        """
        found = set()
        for at, column in enumerate(self.columns):
            cells = [row[at] for row in self.rows if row[at].value is not None or row[at].command]
            finished = ((number, row[at].sure) for number, row in enumerate(self.rows) if not row[at].command)
            sure = {number: interval for number, interval in finished if interval}
            points = [row[at].value for _, row in self.cited] + [column.than]
            fixed = [Interval(value=point, low=point, high=point) for point in points if isinstance(point, int | float)]
            if not column.better or len(sure) < len(cells) or not sure or len(sure) + len(fixed) < 2:
                continue
            number, first = max(sure.items(), key=lambda each: column.better * each[1].value)
            others = [*fixed, *(other for each, other in sure.items() if each != number)]
            if all(first.high < each.low if column.better == LOWER else first.low > each.high for each in others):
                found.add((number, at))
        return found

    def _bold(self, bold: str, write: Any = str) -> Iterator[list[str]]:
        """Yield the texts of the rows, with the best cells formatted by `bold`."""
        best = self.best()
        for number, row in enumerate(self.texts):
            yield [bold.format(write(text)) if (number, at) in best else write(text) for at, text in enumerate(row)]

    def to_text(self, width: int | None = None) -> list[str]:
        """Return lines of aligned columns, without trailing spaces.

        A table wider than `width` is split into several tables that repeat the first column. It is not split before a
        column of sentences, that is, one wider than half of `width`.
        """
        rows = [self.headings, *self.texts]
        widths = [max(len(row[i]) for row in rows) for i in range(len(self.columns))]
        pieces: list[list[int]] = [[0]]
        for i in range(1, len(widths)):
            used = sum(widths[j] + 2 for j in pieces[-1])
            if width is not None and len(pieces[-1]) > 1 and used + widths[i] > width and widths[i] <= width // 2:
                pieces.append([0])
            pieces[-1].append(i)
        parts = [["  ".join(row[i].ljust(widths[i]) for i in piece).rstrip() for row in rows] for piece in pieces]
        return [line for i, part in enumerate(parts) for line in ([""] if i else []) + part]

    def to_markdown(self) -> list[str]:
        """Return the lines of the sentences above the table, the table itself, and its notes as a Markdown list."""
        cited = [[f"{row[0].text} [{by}]" if by else row[0].text, *_texts(row[1:])] for by, row in self.cited]
        notes = ["", *(f"- {note}" for note in self.notes)] if self.notes else []
        lines = markdown(self.headings, [*self._bold("**{}**"), *cited])
        return [*self.said, *([""] if self.said else []), *lines, *notes]

    def to_html(self) -> str:
        """Return the table as HTML without title and sentences; text between backticks becomes code."""
        rows = [("th", self.headings), *(("td", row) for row in self.texts)]
        cells = ("".join(f"<{tag}>{in_html(each)}</{tag}>" for each in row) for tag, row in rows)
        return f'<div class="scroll"><table>{"".join(f"<tr>{row}</tr>" for row in cells)}</table></div>'

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object from which a page's script draws the table."""
        said = {"said": [*self.said, *self.notes]} if self.said or self.notes else {}
        return {"title": self.title, **said, "columns": self.headings, "rows": self.texts}

    def to_latex(self) -> list[str]:
        """Return the lines of a LaTeX `tabular` with booktabs; raise `UserError` as `escape` does."""
        heads = [f"\\textbf{{{escape(each)}}}" for each in self.headings]
        cited = [
            [f"{escape(row[0].text)}~\\cite{{{cite_key(by)}}}" if by else escape(row[0].text), *_texts(row[1:], escape)]
            for by, row in self.cited
        ]
        return [
            f"\\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}",
            *("\\toprule", f"{' & '.join(heads)} \\\\", "\\midrule"),
            *(f"{' & '.join(row)} \\\\" for row in self._bold("\\textbf{{{}}}", escape)),
            *(["\\midrule"] if cited else []),
            *(f"{' & '.join(row)} \\\\" for row in cited),
            *("\\bottomrule", "\\end{tabular}"),
        ]

    def to_csv(self) -> str:
        """Return the table as CSV with unrounded numbers and separate columns for the ends of intervals."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        every = [*(("", row) for row in self.rows), *self.cited]
        ends = [any(row[at].sure for _, row in every) for at in range(len(self.columns))]
        heads = (
            [column.key, *([f"{column.key} low", f"{column.key} high"] if has else [])]
            for column, has in zip(self.columns[1:], ends[1:], strict=True)
        )
        writer.writerow(["name", "source", *(as_text(head) for each in heads for head in each)])
        for by, row in every:
            line: list[object] = [as_text(row[0].text), as_text(by)]
            for each, has in zip(row[1:], ends[1:], strict=True):
                line += [as_text(each.value), *((each.low, each.high) if has else ())]
            writer.writerow(line)
        return file.getvalue()


def _texts(row: Sequence[Cell], write: Any = str) -> list[str]:
    return [write(cell.text) for cell in row]


def in_html(text: str) -> str:
    """Return a text as HTML, in which text between backticks becomes code."""
    return re.sub("`(.*?)`", r"<code>\1</code>", html.escape(text.encode("utf-8", "replace").decode()))


# LaTeX

_ESCAPES = {
    **{each: f"\\{each}" for each in "{}$&#_%"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\n": " "},
    **{"[": "{[}", "]": "{]}", '"': r"\textquotedbl{}"},  # after \\ a bracket would be its argument
    **{"<": "$<$", ">": "$>$", "|": "$|$", "−": "$-$", "±": r"$\pm$", "×": r"$\times$", "·": r"$\cdot$"},
    **{"≤": r"$\le$", "≥": r"$\ge$", "∞": r"$\infty$", "→": r"$\to$", "≈": r"$\approx$", "Σ": r"$\Sigma$"},
    **{"—": "---", "–": "--", "…": r"\ldots{}", "’": "'", "“": "``", "”": "''", "√": r"$\surd$"},
    **{"α": r"$\alpha$", "β": r"$\beta$", "λ": r"$\lambda$", "σ": r"$\sigma$", "θ": r"$\theta$"},
}
_LAST = "ſ"  # the last Latin letter that pdflatex typesets without packages


def escape(text: str) -> str:
    """Return a text escaped for LaTeX, or raise `UserError` for a character that pdflatex cannot typeset."""
    for character in text:
        if character not in _ESCAPES and (character > _LAST or not character.isprintable()):
            raise UserError(f"{clip(repr(text), 60)}: LaTeX cannot typeset {character!r}; use Latin letters instead")
    escaped = "".join(_ESCAPES.get(character, character) for character in text)
    return escaped.replace(" \\%", "~\\%")  # keeps a percent sign from beginning a line


def cite_key(source: str) -> str:
    """Return the BibTeX key of a source in references.bib."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", source).strip("-")
