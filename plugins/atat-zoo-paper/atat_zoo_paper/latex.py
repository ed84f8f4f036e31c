"""LaTeX output: floats for tables and figures, main.tex, and references.bib."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files

from atat_zoo.evaluation.results.table import Table, cite_key, escape


def table(filled: Table) -> str:
    """Return a table as a LaTeX float that uses booktabs."""
    notes = [f"\\par\\smallskip{{\\footnotesize {' '.join(map(escape, filled.notes))}\\par}}"] if filled.notes else []
    body = ["\\adjustbox{max width=\\linewidth}{%", *filled.to_latex(), "}", *notes]
    return floating("table", filled.title, filled.label, body)


def figure(caption: str, label: str, drawn: bool, instead: str = "") -> str:
    """Return a figure as a LaTeX float, which shows the command `instead` if the figure is not drawn."""
    body = f"\\includegraphics{{figures/{label}.pdf}}"
    if not drawn:
        body = f"\\fbox{{\\parbox{{0.9\\linewidth}}{{missing: \\texttt{{{escape(instead).replace('--', '-{}-')}}}}}}}"
    return floating("figure", caption, label, [body])


def floating(what: str, caption: str, label: str, body: Sequence[str]) -> str:
    """Return a LaTeX float, a `table` or a `figure`, with a caption, a label and the lines of its body."""
    name = {"table": "tab", "figure": "fig"}[what]
    head = [f"\\begin{{{what}}}[htbp]", "\\centering"]
    said = f"\\caption{{{escape(caption)}}}\\label{{{name}:{label}}}"
    middle = [said, "\\smallskip", *body] if what == "table" else [*body, said]
    return "\n".join([*head, *middle, f"\\end{{{what}}}"]) + "\n"


def main(title: str, tables: Iterable[str], figures: Iterable[str]) -> str:
    """Return main.tex, which includes results.tex and the tables and figures with the given labels."""
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
    """Return references.bib: the entries in `written`, and one for each further source, with a note on its use."""
    known = tomllib.loads(files(__package__).joinpath("references.toml").read_text(encoding="utf-8"))
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
        if source in known:
            author, title, *year = known[source]
            years = year or [2000 + int(source[6:8])]  # an arXiv identifier begins with the year
            fields |= {"author": author, "title": f"{{{escape(title)}}}", "year": f"{years[0]}"}
        lines = ",\n".join(f"  {key} = {{{value}}}" for key, value in fields.items())
        entries.append(f"@misc{{{cite_key(source)},\n{lines}\n}}\n")
    return "\n".join(entries)
