"""`atat report` and `atat watch`: an HTML report of runs or of a study, and a live dashboard of a run."""

import shutil
import time
import warnings
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import click

from atat_zoo.cli.arguments import options, output
from atat_zoo.cli.console import Bars, on_terminal, printable
from atat_zoo.experiment import from_run
from atat_zoo.experiment.runs import RunFolder, write_json, write_text
from atat_zoo.reports import PAGE, require
from atat_zoo.system.errors import UnsavedNote, UserError, clip

_EVERY = 2.0  # seconds after which `atat watch` checks the files again


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN... | STUDY")
@output("--out", help="HTML file to write (default: report.html, in the folder of a single run or study).")
@output("--figures", help="Folder for the charts as SVG, PNG and CSV files.")
@click.option("--compute", is_flag=True, help="Compute missing evaluations and save them in the run folder.")
@click.option("--frontier", is_flag=True, help="With --compute: evaluate the samplers too (slow).")
@click.option("--open", "show", is_flag=True, help="Open the report in the browser.")
def report(
    runs: tuple[Path, ...], out: Path | None, figures: Path | None, compute: bool, frontier: bool, show: bool
) -> None:
    """Write an HTML report of one or more RUNs, or of a STUDY (its JSON or its folder).

    The report is one self-contained file that shows the recorded results of the runs.
    """
    from atat_zoo.reports.report_data import collect
    from atat_zoo.reports.study_data import file_of, of_study

    if frontier and not compute:
        raise UserError("--frontier only works with --compute; add --compute, or leave --frontier out")
    study = file_of(runs[0]) if len(runs) == 1 else None
    if study and compute:
        raise UserError(f"--compute does not work with a study such as {runs[0]}; leave --compute out")
    command = {"out": out, "figures": figures}
    if out is None:
        beside = runs[0] if len(runs) == 1 else Path()
        out = runs[0].with_suffix(".html") if study == runs[0] else beside / "report.html"
    if out.suffix.lower() not in (".html", ".htm") or out.is_dir():
        raise UserError(f"--out {clip(out)} is a folder or does not end in .html; pass a path such as report.html")
    data = of_study(study) if study else collect(runs, **command)
    require("atat report", *PAGE)
    from atat_zoo.reports import html_report

    if figures:
        figures.mkdir(parents=True, exist_ok=True)
    text = html_report.page(data)
    write_text(out, text)  # before the slow work, in case the disk has no room for it
    if compute:
        for sentence in _compute(runs, frontier):
            click.echo(sentence)
        data = collect(runs, **command)
        text = html_report.page(data)
        write_text(out, text)
    click.echo(f"{click.format_filename(out)}: {len(text.encode()) / 2**20:.1f} MiB")
    if figures:
        from atat_zoo.reports import charts

        click.echo(f"{click.format_filename(figures)}: {len(charts.figures(data, figures))} files")
    if show:
        webbrowser.open(out.resolve().as_uri())


def _compute(runs: Sequence[Path], frontier: bool) -> Iterator[str]:
    """Compute the missing evaluations, and yield a sentence about each of them."""
    from atat_zoo.reports.report_data import compared
    from atat_zoo.reports.report_records import FRONTIER, compute, missing

    with Bars(silent=False) as bars:
        for run in runs:
            for what, seconds in compute(run, frontier=frontier, progress=bars.working).items():
                yield f"{click.format_filename(run)}: {what} took {seconds:.1f} s"
            with suppress(UserError):  # a run without a model has caused a warning above
                if not frontier and FRONTIER in missing(run):
                    yield f"{click.format_filename(run)}: no sampler was evaluated; pass --frontier (slow)"
        if len(runs) > 1 and not compared([RunFolder(run) for run in runs]):
            began = time.perf_counter()
            try:
                _compare(runs, bars)
            except UserError as error:  # write the page with the existing results, as without --compute
                warnings.warn(f"no comparison in the report: {error}", UnsavedNote, stacklevel=2)
                return
            yield f"{click.format_filename(runs[0])}: the comparison took {time.perf_counter() - began:.1f} s"


def _compare(runs: Sequence[Path], bars: Bars) -> None:
    """Compare the runs with the first one as `atat compare` does, and save the result in the first run's folder."""
    from atat_zoo.evaluation import run_comparison as comparing
    from atat_zoo.reports.run_records import model_sum

    first = RunFolder(runs[0])
    experiment = from_run(runs[0])
    seed, spec = experiment.seed, experiment.evaluation
    measured = comparing.measure_runs(runs, spec, seed=seed, progress=bars.evaluating)
    table = comparing.compare(measured, spec, seed=seed).to_table()
    models = [model_sum(RunFolder(run)) for run in runs]
    write_json(first.report / "compare.json", {"format": 1, "models": models, **table})


@click.command()
@options("run")
@click.option(
    "--terminal",
    is_flag=True,
    help="Draw the curves as text in the terminal; if the output is not a terminal, draw them only once.",
)
@click.option("--once", is_flag=True, help="Draw once and exit.")
@click.option(
    "--port", default=8421, show_default=True, type=click.IntRange(0, 65535), help="Port; 0 picks a free port."
)
def watch(run: Path, terminal: bool, once: bool, port: int) -> None:
    """Open a live dashboard of RUN while it trains; stop with Ctrl-C.

    The dashboard is served on localhost only. From another machine, use `ssh -L 8421:localhost:8421 HOST`.
    """
    folder = RunFolder(run)
    folder.table()
    require("atat watch", *(("plotext",) if terminal or once else PAGE))
    from atat_zoo.reports.live_dashboard import PageServer

    with suppress(KeyboardInterrupt):  # Ctrl-C ends the command
        if terminal or once:
            _draw(folder, once or not on_terminal())
            return
        with PageServer(run, port) as server:
            click.echo(f"{run} is shown at {server.address} until you press Ctrl-C")
            server.serve_forever()


def _draw(folder: RunFolder, once: bool) -> None:
    """Redraw the curves whenever the run's files or the terminal's size change, until the run is finished."""
    from atat_zoo.reports.live_dashboard import frame, stamp

    width, height = shutil.get_terminal_size()
    if once:
        click.echo(printable(frame(folder, width, height)[0]))
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    seen, text, finished = None, "", False
    try:
        with Live(console=Console(highlight=False), screen=True, auto_refresh=False) as live:
            while not finished:
                size = shutil.get_terminal_size()
                if seen != (now := (stamp(folder), size)):
                    try:
                        text, finished = frame(folder, *size)
                        seen = now
                    except (UserError, OSError) as error:  # the files are gone for a moment
                        text = str(error)
                    live.update(Text(printable(text)), refresh=True)
                time.sleep(_EVERY)
    finally:
        click.echo(printable(text))
