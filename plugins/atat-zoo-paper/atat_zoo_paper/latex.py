"""LaTeX: text escaped, tables with booktabs, the frame of the paper, and references.bib."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from atat_zoo.errors import UserError, clip
from atat_zoo_paper.cells import FilledTable

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


def table(filled: FilledTable) -> str:
    """Return a table as a float with booktabs."""
    best = filled.best()
    heads = [f"\\textbf{{{escape(each)}}}" for each in (filled.corner, *(column.heading for column in filled.columns))]
    lines = [
        f"\\begin{{tabular}}{{l{'r' * len(filled.columns)}}}",
        "\\toprule",
        f"{' & '.join(heads)} \\\\",
        "\\midrule",
    ]
    for number, (name, cells) in enumerate(filled.rows):
        shown = [escape(cell.text) for cell in cells]
        shown = [f"\\textbf{{{text}}}" if (number, at) in best else text for at, text in enumerate(shown)]
        lines.append(f"{' & '.join([escape(name), *shown])} \\\\")
    lines += ["\\midrule"] if filled.cited else []
    for name, source, cells in filled.cited:
        cited = f"{escape(name)}~\\cite{{{cite_key(source)}}}" if source else escape(name)
        lines.append(f"{' & '.join([cited, *(escape(cell.text) for cell in cells)])} \\\\")
    lines += ["\\bottomrule", "\\end{tabular}"]
    notes = [f"\\par\\smallskip{{\\footnotesize {' '.join(map(escape, filled.notes))}\\par}}"] if filled.notes else []
    return floating(
        "table", filled.caption, filled.label, ["\\adjustbox{max width=\\linewidth}{%", *lines, "}", *notes]
    )


def figure(caption: str, label: str, drawn: bool, instead: str = "") -> str:
    """Return a figure as a float; one that is missing is the command that draws it."""
    body = f"\\includegraphics{{figures/{label}.pdf}}"
    if not drawn:
        body = f"\\fbox{{\\parbox{{0.9\\linewidth}}{{missing: \\texttt{{{escape(instead).replace('--', '-{}-')}}}}}}}"
    return floating("figure", caption, label, [body])


def floating(what: str, caption: str, label: str, body: Sequence[str]) -> str:
    """Return a float with its caption and label."""
    name = {"table": "tab", "figure": "fig"}[what]
    head = [f"\\begin{{{what}}}[htbp]", "\\centering"]
    said = f"\\caption{{{escape(caption)}}}\\label{{{name}:{label}}}"
    middle = [said, "\\smallskip", *body] if what == "table" else [*body, said]
    return "\n".join([*head, *middle, f"\\end{{{what}}}"]) + "\n"


def main(title: str, tables: Iterable[str], figures: Iterable[str]) -> str:
    """Return the frame, which inputs tables and figures by their labels."""
    packages = ["[T1]{fontenc}", "{lmodern}", "{textcomp}", "[margin=2.5cm]{geometry}"]
    packages += ["{adjustbox}", "{booktabs}", "{graphicx}", "[hidelinks]{hyperref}"]
    return "\n".join(
        [
            "\\documentclass{article}",
            *(f"\\usepackage{package}" for package in packages),
            f"\\title{{{escape(title)}}}",
            "\\author{}",
            "\\date{}",
            "\\begin{document}",
            "\\maketitle",
            "\\section{Results}",
            "\\input{results}",
            *(f"\\input{{tables/{label}}}" for label in tables),
            *(f"\\input{{figures/{label}}}" for label in figures),
            "\\clearpage",
            "\\nocite{*}",
            "\\bibliographystyle{plain}",
            "\\bibliography{references}",
            "\\end{document}",
            "",
        ]
    )


def references(sources: Mapping[str, Sequence[str]], written: str = "") -> str:
    """Return references.bib: what is written, and an entry for each other source, with what it is the source of."""
    entries, keys = [written] if written else [], set(re.findall(r"@\w+\s*\{\s*([^\s,]+)", written))
    for source, of in sorted(sources.items()):
        if cite_key(source) in keys:
            continue
        address = source.removeprefix("doi:")
        fields = {"key": source, "title": f"{{{escape(source)}}}", "note": f"for {escape(', '.join(of))}"}
        if source.startswith("arXiv:"):
            eprint = source.removeprefix("arXiv:")
            fields |= {
                "eprint": eprint,
                "archiveprefix": "arXiv",
                "howpublished": f"\\url{{https://arxiv.org/abs/{eprint}}}",
            }
        elif source.startswith("doi:"):
            fields |= {"doi": address, "howpublished": f"\\url{{https://doi.org/{address}}}"}
        elif "://" in source:
            fields |= {"title": f"{{{escape(of[0])}}}", "howpublished": f"\\url{{{address}}}"}
        lines = ",\n".join(f"  {key} = {{{value}}}" for key, value in fields.items())
        entries.append(f"@misc{{{cite_key(source)},\n{lines}\n}}\n")
    return "\n".join(entries)
