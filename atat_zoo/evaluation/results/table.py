"""A table of results: its cells with their unrounded numbers, written as text, Markdown, LaTeX, HTML or CSV.

The commands, the pages of studies, the report and the paper all write this one.
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

LOWER, HIGHER = -1, 1  # in which direction a column is better; 0 for neither


@attrs.frozen(kw_only=True)
class Cell:
    """A cell; one with a command is missing, or a part of it, and the command fills it."""

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
    """A column: its heading, its key in files, in which direction it is better, and from where on."""

    heading: str
    key: str = ""
    better: int = 0
    than: float | None = None  # the baseline's, which has no cell of its own


def _columns(columns: Iterable[Column | str]) -> list[Column]:
    return [Column(heading=each, key=each) if isinstance(each, str) else each for each in columns]


def _row(row: Iterable[Cell | str]) -> list[Cell]:
    return [Cell(text=each, value=each) if isinstance(each, str) else each for each in row]


def _rows(rows: Iterable[Iterable[Cell | str]]) -> list[list[Cell]]:
    return list(map(_row, rows))


@attrs.frozen(kw_only=True)
class Table:
    """A table; a text stands for a column of this heading, and for a cell of it. The first column has names."""

    columns: Sequence[Column] = attrs.field(converter=_columns)
    rows: Sequence[Sequence[Cell]] = attrs.field(converter=_rows)
    title: str = ""  # or its caption
    said: Sequence[str] = ()  # sentences above it
    notes: Sequence[str] = ()  # sentences below it
    label: str = ""  # that names its files
    cited: Sequence[tuple[str, Sequence[Cell]]] = ()  # rows that others have published, each behind its source

    @property
    def headings(self) -> list[str]:
        """The headings from left to right."""
        return [column.heading for column in self.columns]

    @property
    def texts(self) -> list[list[str]]:
        """The texts of the rows."""
        return [[cell.text for cell in row] for row in self.rows]

    def best(self) -> set[tuple[int, int]]:
        """Return row and column of the cells whose interval lies apart from all others of their column.

        None of a column in which one is missing, or without an interval: it might be the best. What is cited is a
        point, of a bound too: the true value may be lower still.
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
        """Yield the texts of the rows as they are written, the best within `bold`."""
        best = self.best()
        for number, row in enumerate(self.texts):
            yield [bold.format(write(text)) if (number, at) in best else write(text) for at, text in enumerate(row)]

    def to_text(self, width: int | None = None) -> list[str]:
        """Return the lines of aligned columns, without spaces at their ends.

        A table wider than `width` is cut into several below each other, each with the first column, the names; but
        not before a column of sentences, which is wider than half of it.
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
        """Return the lines of the sentences above, of the table, and of the notes as a list."""
        cited = [[f"{row[0].text} [{by}]" if by else row[0].text, *_texts(row[1:])] for by, row in self.cited]
        notes = ["", *(f"- {note}" for note in self.notes)] if self.notes else []
        lines = markdown(self.headings, [*self._bold("**{}**"), *cited])
        return [*self.said, *([""] if self.said else []), *lines, *notes]

    def to_html(self) -> str:
        """Return the table as HTML, with words between backticks as code; without title and sentences."""
        rows = [("th", self.headings), *(("td", row) for row in self.texts)]
        cells = ("".join(f"<{tag}>{in_html(each)}</{tag}>" for each in row) for tag, row in rows)
        return f'<div class="scroll"><table>{"".join(f"<tr>{row}</tr>" for row in cells)}</table></div>'

    def to_json(self) -> dict[str, Any]:
        """Return what the script of a page draws it from."""
        said = {"said": [*self.said, *self.notes]} if self.said or self.notes else {}
        return {"title": self.title, **said, "columns": self.headings, "rows": self.texts}

    def to_latex(self) -> list[str]:
        """Return the lines of a `tabular` with booktabs."""
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
        """Return it as CSV: numbers as they were measured, the ends of an interval in columns of their own."""
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
    """Return a text as HTML, with words between backticks as code."""
    return re.sub("`(.*?)`", r"<code>\1</code>", html.escape(text.encode("utf-8", "replace").decode()))


# LaTeX

_ESCAPES = {
    **{each: f"\\{each}" for each in "{}$&#_%"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\n": " "},
    **{"[": "{[}", "]": "{]}", '"': r"\textquotedbl{}"},  # behind \\ a bracket would be its argument
    **{"<": "$<$", ">": "$>$", "|": "$|$", "−": "$-$", "±": r"$\pm$", "×": r"$\times$", "·": r"$\cdot$"},
    **{"≤": r"$\le$", "≥": r"$\ge$", "∞": r"$\infty$", "→": r"$\to$", "≈": r"$\approx$", "Σ": r"$\Sigma$"},
    **{"—": "---", "–": "--", "…": r"\ldots{}", "’": "'", "“": "``", "”": "''", "√": r"$\surd$"},
    **{"α": r"$\alpha$", "β": r"$\beta$", "λ": r"$\lambda$", "σ": r"$\sigma$", "θ": r"$\theta$"},
}
_LAST = "ſ"  # of the Latin letters that pdflatex sets by itself


def escape(text: str) -> str:
    """Return a text for LaTeX, or raise a `UserError` when it has a character that pdflatex cannot set."""
    for character in text:
        if character not in _ESCAPES and (character > _LAST or not character.isprintable()):
            raise UserError(f"{clip(repr(text), 60)}: LaTeX cannot set {character!r} here; write it in Latin letters")
    escaped = "".join(_ESCAPES.get(character, character) for character in text)
    return escaped.replace(" \\%", "~\\%")  # no line begins with a percent sign


def cite_key(source: str) -> str:
    """Return the key of a source in references.bib."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", source).strip("-")
