"""The commands `atat paper` and `atat importance-figures`, which make a paper's tables and figures from results."""

from pathlib import Path
from typing import Any

import click

from atat_zoo.cli.arguments import chosen, options, output, with_options
from atat_zoo.cli.console import Bars, print_json, printable, table
from atat_zoo.evaluation.results.format import number
from atat_zoo.experiment import from_run
from atat_zoo.experiment.effects import require_estimator
from atat_zoo.experiment.runs import RunFolder
from atat_zoo.reports import require
from atat_zoo.system.errors import UserError, clip
from atat_zoo_paper.paper_file import load
from atat_zoo_paper.paper_folder import charts, compile_in, compiler, fill, write


@click.command()
@click.argument("manifest", type=click.Path(path_type=Path), metavar="MANIFEST.toml")
@output("--out", help="Folder to write the paper to (default: papers/NAME).")
def paper(manifest: Path, out: Path | None) -> int:
    """Write a LaTeX folder with a paper's tables, figures, claims and references.

    Every number comes from a study's JSON or a run folder. A missing value is printed as --, and missing.md lists the
    command that computes it. If tectonic or latexmk is installed, main.tex is also compiled.
    """
    if charts() is None:
        require("atat paper", "vl_convert")
    filled = fill(load(manifest))
    folder = out or Path("papers") / filled.paper.name
    write(filled, folder)
    missing = filled.missing()
    drawn = sum(figure.drawn for figure in filled.figures) if charts() is None else 0
    said = f"{number(len(filled.tables), 'table')} and {number(drawn, 'figure')} in {folder}"
    click.echo(printable(f"{said}; {number(sum(map(len, missing.values())), 'cell')} missing"))
    if filled.figures and (install := charts()):
        click.echo(f"no figures were drawn, because the package vl_convert is missing; install it with `{install}`")
    if missing:
        click.echo("")
        table(["missing", "command"], [[number(len(what), "cell"), command] for command, what in missing.items()])
    if command := compiler():
        if problem := compile_in(folder, command):
            click.echo(printable(f"error: {command[0]} cannot compile {folder / 'main.tex'}:\n{problem}"), err=True)
            return 1
        click.echo(printable(f"compiled: {folder / 'main.pdf'}"))
    return 0


@click.command("importance-figures")
@options("run")
@click.argument("others", nargs=-1, type=click.Path(path_type=Path), metavar="[OTHER_RUN]...")
@options("step", "split", "sequences", "mask_samples", "sequences_at_once", "mask_seed", "sampler")
@output("--out", help="Folder to write the figures to (default: report/importance in the run folder).")
@options("device", "json")
def importance_figures(
    run: Path,
    others: tuple[Path, ...],
    step: int | str | None,
    seed: int | None,
    sampler: str | None,
    out: Path | None,
    device: str,
    as_json: bool,
    **given: Any,
) -> None:
    """Plot RUN's importance on held-out text, with figures as PDF and SVG and their data as CSV.

    The figures show importance by mask rate, word class, token frequency and checkpoint, its agreement with that of
    OTHER_RUN (such as another seed), scores in context_probe, and the NFE of the run's sampler or of --sampler.
    """
    # Mistakes in these are reported before torch is imported.
    require("atat importance-figures", "vl_convert")
    if out is not None and out.exists() and not out.is_dir():
        raise UserError(f"--out {clip(out)} is a file; pass a folder")
    for each in (run, *others):
        require_estimator(from_run(each), each)
    from atat_zoo.reports.report_data import short_names

    short_names((run, *others))
    parts = chosen(run, (), sampler, step)[0].parts
    from atat_zoo.evaluation.importance_quality import weigh
    from atat_zoo.generation.model import Model
    from atat_zoo_paper.importance_figures import write as write_figures
    from atat_zoo_paper.importance_tables import Analysis

    model = Model.from_run(run, device, step)
    spec, seed = with_options(model.experiment.evaluation, given), model.experiment.seed if seed is None else seed
    how: dict[str, Any] = {"spec": spec, "seed": seed, "sampler": parts["sampler"], "device": device}
    with Bars(silent=as_json) as bars:
        analysis = Analysis(model=model, run=run, others=others, progress=bars.working, **how)
        analysis.check()
        tables, notes = analysis.tables(weigh(model, run, spec, seed=seed, progress=bars.evaluating))
    folder = out or RunFolder(run).report / "importance"
    # In a folder passed with --out, files with these names may belong to the user.
    paths = write_figures(tables, folder, model.step, clear=out is None)
    if as_json:
        print_json({"run": str(run), "figures": [str(path) for path in paths], "notes": notes})
    else:
        click.echo(printable("\n".join([f"{click.format_filename(folder)}: {len(paths)} files", *notes])))
