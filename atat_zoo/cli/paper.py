"""`atat paper`: tables, figures and references of a paper, from what was measured."""

from pathlib import Path

import click

from atat_zoo.cli.arguments import output
from atat_zoo.cli.console import printable, table
from atat_zoo.paper.folder import compile_in, compiler, fill, write
from atat_zoo.paper.manifest import load
from atat_zoo.results.format import number


@click.command()
@click.argument("manifest", type=click.Path(path_type=Path), metavar="MANIFEST.toml")
@output("--out", help="The folder; papers/NAME when absent.")
def paper(manifest: Path, out: Path | None) -> int:
    """Write the folder of a paper: its tables, figures, sentences and references, which LaTeX compiles.

    Every number is of a study's JSON or of a run folder. A cell that is not measured is --, and is listed with the
    command that fills it. Where tectonic or latexmk is installed, main.tex is compiled.
    """
    filled = fill(load(manifest))
    folder = out or Path("papers") / filled.paper.name
    write(filled, folder)
    missing = filled.missing()
    drawn = sum(figure.drawn for figure in filled.figures)
    said = f"{number(len(filled.tables), 'table')} and {number(drawn, 'figure')} in {folder}"
    click.echo(printable(f"{said}; {number(sum(map(len, missing.values())), 'cell')} missing"))
    if missing:
        click.echo("")
        table(["missing", "command"], [[number(len(what), "cell"), command] for command, what in missing.items()])
    if command := compiler():
        if problem := compile_in(folder, command):
            click.echo(printable(f"error: {command[0]} cannot compile {folder / 'main.tex'}:\n{problem}"), err=True)
            return 1
        click.echo(printable(f"compiled: {folder / 'main.pdf'}"))
    return 0
