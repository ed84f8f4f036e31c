"""`atat study`: arms × seeds trained as normal runs, and compared."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from atat_zoo.cli.arguments import NONE, options
from atat_zoo.cli.console import print_json, table
from atat_zoo.errors import UserError

if TYPE_CHECKING:
    from atat_zoo.study import Study


@click.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="STUDY.toml")
@click.option(
    "--jobs",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="Trainings at a time; each has one GPU, which several share where there are fewer.",
)
@click.option("--dry-run", is_flag=True, help="Print the runs, what is left of each, and an estimate of the time.")
@click.option(
    "--write", "page", type=click.Path(path_type=Path), help="Write the tables there as well, and the JSON beside them."
)
@click.option("--test-again", is_flag=True, help="Evaluate the test split although it was evaluated before.")
@options("device", "json")
def study(file: Path, jobs: int, dry_run: bool, page: Path | None, test_again: bool, device: str, as_json: bool) -> int:
    """Train every arm of STUDY.toml with every seed, and compare the arms on held-out text.

    Runs that are finished are not repeated, others continue; several `atat study` of one file share the work. Ctrl-C
    stops all of it. The results are study.json and study.md in the folder of the study.
    """
    from atat_zoo.study import load

    loaded = load(file)
    if page is not None and page.suffix != ".md":
        raise UserError(f"--write {page}: name a Markdown file, which ends in .md; the JSON is written beside it")
    # As `atat train` does, before torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if dry_run:
        _show_plan(loaded, jobs, as_json)
        return 0
    from atat_zoo.run import write_json, write_text
    from atat_zoo.study import page as pages
    from atat_zoo.study.conduct import Conduct
    from atat_zoo.study.processes import Stopped, Workplace

    def say(text: str) -> None:
        click.echo(text, err=as_json)

    conduct = Conduct(study=loaded, device=device, say=say)
    try:
        conduct.train(Workplace(folder=loaded.folder, jobs=jobs, say=say), test_again=test_again)
    except Stopped as stopped:
        say(f"stopped; the same command continues it: atat study {file}")
        return 128 + stopped.number
    report = conduct.report(test_again=test_again)
    text = pages.page(report)
    write_text(loaded.folder / "study.md", text)
    if page is not None:
        write_text(page, text)
        write_json(page.with_suffix(".json"), report)
    if as_json:
        print_json(report)
    else:
        click.echo(f"\n{text}")
    for run, why in conduct.failed.items():
        click.echo(f"error: {run}: {why}", err=True)
    return 1 if conduct.failed else 0


def _show_plan(loaded: Study, jobs: int, as_json: bool) -> None:
    """Print the runs and what is left of them."""
    import attrs

    from atat_zoo.study.conduct import Conduct
    from atat_zoo.study.planning import FINISHED, TO_CONTINUE, TO_DO, plan, total
    from atat_zoo.study.processes import threads_for

    conduct = Conduct(study=loaded)
    conduct.look()
    rows = plan(conduct)
    seconds = total(rows, jobs)
    if as_json:
        print_json({"runs": [attrs.asdict(row) for row in rows], "jobs": jobs, "seconds": seconds})
        return
    cells = [[row.run, row.state, f"{row.step}/{row.steps}", _time(row.seconds)] for row in rows]
    table(["run", "state", "steps", "time left"], cells)
    counts = ", ".join(f"{sum(row.state == state for row in rows)} {state}" for state in (FINISHED, TO_CONTINUE, TO_DO))
    click.echo(f"\n{len(rows)} runs: {counts}")
    where = f"with {jobs} at a time, {threads_for(jobs)} thread{'s' if threads_for(jobs) > 1 else ''} each"
    if seconds is None:
        click.echo(f"time left {where}: unknown until a run of this study has recorded its steps on this machine")
    else:
        click.echo(f"time left {where}: about {_time(seconds)} of optimizer steps; evaluations come on top")


def _time(seconds: float | None) -> str:
    if seconds is None:
        return NONE
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
