"""`atat train` and `atat study`: one training with its progress and results, and arms × seeds, compared."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from atat_zoo.cli.arguments import count, options
from atat_zoo.cli.console import Bars, print_json, table
from atat_zoo.cli.evaluate import lines
from atat_zoo.errors import UserError
from atat_zoo.experiment import load
from atat_zoo.results.format import NONE, number
from atat_zoo.run import write_json, write_text

if TYPE_CHECKING:
    from atat_zoo.study import Study
    from atat_zoo.training import Result

_WRITE = "Write the tables there as well, and the JSON beside them."


@click.command()
@click.argument("experiment", required=False)
@options("overrides")
@click.option("--out", type=click.Path(path_type=Path), help="The run folder; runs/NAME when absent.")
@click.option("--resume", type=click.Path(path_type=Path), help="Continue this run with exactly the next sample.")
@click.option("--overwrite", is_flag=True, help="Replace an existing run.")
@count("--profile", 1, "Measure so many steps, and say where their time went.")
@options("json")
def train(
    experiment: str | None,
    overrides: tuple[str, ...],
    out: Path | None,
    resume: Path | None,
    overwrite: bool,
    profile: int | None,
    as_json: bool,
) -> int:
    """Train EXPERIMENT, a TOML file or the name of one that ships with the zoo.

    Ctrl-C saves the run after the current step; `--resume RUN` continues it, and `--resume RUN train.steps=600` trains
    it longer, also a finished one, if no part of it goes by the number of steps. `init_from=RUN` starts from the final
    weights of another run, with its tokenizer and backbone: to continue with other text or other parts.
    """
    if resume is not None and experiment is not None and "=" in experiment:
        overrides, experiment = (experiment, *overrides), None
    if (experiment is None) == (resume is None):
        raise UserError("name either an experiment, or a run to continue with --resume RUN")
    if resume is not None and (out or overwrite):
        raise UserError("--resume continues a run as it was begun: leave out --out and --overwrite")
    # Every mistake is reported before torch is imported.
    loaded = load(experiment, overrides) if experiment else None
    _wait_passively()
    from atat_zoo import training

    first_rank = os.environ.get("RANK", "0") == "0"
    folder = resume or out or Path("runs") / (loaded.name if loaded else "")
    profiles = []
    if profile is not None and first_rank:
        from atat_zoo.training.profiling import Profile

        profiles = [Profile(folder / "profile", profile)]
    with Bars(silent=as_json or not first_rank) as reporter:
        if loaded is not None:
            result = training.train(loaded, folder, overwrite=overwrite, reporter=reporter, callbacks=profiles)
        else:
            result = training.resume(folder, overrides=overrides, reporter=reporter, callbacks=profiles)
    for measured in [] if as_json else profiles:
        click.echo("\n".join(measured.lines()))
    return finish(result, as_json) if first_rank else 0


def finish(result: Result, as_json: bool) -> int:
    """Write samples.txt with the final model, print the result of a training, and return the exit code."""
    path = result.folder.path
    if not result.finished:
        click.echo(f"stopped after step {result.step}; continue with: atat train --resume {path}")
        return 128 + (result.signal or 2)
    assert result.evaluation is not None
    assert result.model is not None
    experiment = result.model.experiment
    texts: list[str] = []
    if experiment.evaluation.samples:
        texts = result.model.sample(experiment.evaluation.samples, seed=experiment.seed).texts
        write_text(result.folder.samples, "\n\n".join(texts) + "\n")
    if as_json:
        print_json({"run": str(path), "step": result.step, **result.evaluation.to_table(), "samples": texts})
        return 0
    click.echo("")
    click.echo("\n".join(lines(result.evaluation)))
    for i, text in enumerate(texts, 1):
        click.echo(f"\nsample {i}\n{text}")
    click.echo(f"\nThe run is in {path}. Try next: atat sample {path} --number 5 --seed 1")
    return 0


def _wait_passively() -> None:
    # Busy-waiting threads starve each other on a shared CPU: beside one other busy process a step takes several times
    # as long. torch reads this variable when it is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@click.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="STUDY.toml")
@count("--jobs", 1, "Trainings at a time; each has one GPU, which several share where there are fewer.", 1)
@click.option("--dry-run", is_flag=True, help="Print the runs, what is left of each, and an estimate of the time.")
@click.option("--write", "page", type=click.Path(path_type=Path), help=_WRITE)
@click.option("--test-again", is_flag=True, help="Evaluate the test split although it was evaluated before.")
@options("device", "json")
def study(file: Path, jobs: int, dry_run: bool, page: Path | None, test_again: bool, device: str, as_json: bool) -> int:
    """Train every arm of STUDY.toml with every seed, and compare the arms on held-out text.

    Runs that are finished are not repeated, others continue; several `atat study` of one file share the work. Ctrl-C
    stops all of it. The results are study.json and study.md in the folder of the study.
    """
    from atat_zoo.study import load as load_study

    loaded = load_study(file)
    if page is not None and page.suffix != ".md":
        raise UserError(f"--write {page}: name a Markdown file, which ends in .md; the JSON is written beside it")
    _wait_passively()
    if dry_run:
        _show_plan(loaded, jobs, as_json)
        return 0
    from atat_zoo.study import markdown
    from atat_zoo.study.processes import LocalExecutor, Stopped
    from atat_zoo.study.runner import StudyRunner

    def say(text: str) -> None:
        click.echo(text, err=as_json)

    runner = StudyRunner(study=loaded, device=device, say=say)
    try:
        runner.train(LocalExecutor(folder=loaded.folder, jobs=jobs, say=say), test_again=test_again)
    except Stopped as stopped:
        say(f"stopped; the same command continues it: atat study {file}")
        return 128 + stopped.number
    report = runner.report(test_again=test_again)
    text = markdown.page(report)
    write_text(loaded.folder / "study.md", text)
    if page is not None:
        write_text(page, text)
        write_json(page.with_suffix(".json"), report)
    if as_json:
        print_json(report)
    else:
        click.echo(f"\n{text}")
    for run, why in runner.failed.items():
        click.echo(f"error: {run}: {why}", err=True)
    return 1 if runner.failed else 0


def _show_plan(loaded: Study, jobs: int, as_json: bool) -> None:
    import attrs

    from atat_zoo.study.processes import threads_for
    from atat_zoo.study.runner import FINISHED, TO_CONTINUE, TO_DO, StudyRunner, plan, total

    runner = StudyRunner(study=loaded)
    runner.look()
    rows = plan(runner)
    seconds = total(rows, jobs)
    if as_json:
        print_json({"runs": [attrs.asdict(row) for row in rows], "jobs": jobs, "seconds": seconds})
        return
    cells = [[row.run, row.state, f"{row.step}/{row.steps}", _time(row.seconds)] for row in rows]
    table(["run", "state", "steps", "time left"], cells)
    counts = ", ".join(f"{sum(row.state == state for row in rows)} {state}" for state in (FINISHED, TO_CONTINUE, TO_DO))
    click.echo(f"\n{len(rows)} runs: {counts}")
    about = "unknown until a run of this study has recorded its steps on this machine"
    if seconds is not None:
        about = f"about {_time(seconds)} of optimizer steps; evaluations come on top"
    click.echo(f"time left with {jobs} at a time, {number(threads_for(jobs), 'thread')} each: {about}")


def _time(seconds: float | None) -> str:
    if seconds is None or seconds < 120:
        return NONE if seconds is None else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
