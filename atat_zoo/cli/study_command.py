"""`atat study`: train arms × seeds as normal runs, and compare the arms."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs
import click

from atat_zoo.cli.arguments import check_output, count, options, output
from atat_zoo.cli.console import print_json, table
from atat_zoo.evaluation.results.format import NONE, joined, number
from atat_zoo.experiment.runs import write_text
from atat_zoo.studies import Study, load, markdown
from atat_zoo.studies.processes import LocalExecutor, Stopped, elements, submit, threads_for, write_script
from atat_zoo.system.atomic_files import write_all
from atat_zoo.system.errors import UserError

_CLUSTER = "Write a SLURM job array, and submit it if sbatch is installed."
_WRITE = "Also write the tables to this Markdown file, with the JSON and the NLL of every sequence in the same folder."


@click.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="STUDY.toml")
@count("--jobs", 1, "Runs to train at once (default: 1). Each run uses one GPU; with fewer GPUs, runs share them.")
@click.option("--dry-run", is_flag=True, help="List the runs with their steps so far and the estimated time left.")
@output("--write", "page", help=_WRITE)
@click.option("--test-again", is_flag=True, help="Evaluate the test split again.")
@click.option("--cluster", is_flag=True, help=_CLUSTER)
@count("--array-index element", 1, "Train only this run of the job array, without evaluation.")
@click.option("--measure", is_flag=True, help="Evaluate the finished runs without training.")
@options("device", "json")
def study(
    file: Path,
    jobs: int | None,
    dry_run: bool,
    page: Path | None,
    test_again: bool,
    cluster: bool,
    element: int | None,
    measure: bool,
    device: str,
    as_json: bool,
) -> int:
    """Train every arm of STUDY.toml with every seed, and compare the arms on held-out text.

    Finished runs are kept and unfinished runs are resumed. Several `atat study` processes on one file share the work.
    The results are written to study.json and study.md in the folder of the study.
    """
    loaded = load(file)
    asked = {"--dry-run": dry_run, "--cluster": cluster, "--array-index": element, "--measure": measure}
    if len(both := [flag for flag, given in asked.items() if given]) > 1:
        raise UserError(f"{joined(both)} cannot be combined; leave all but one out")
    if page is not None and page.suffix != ".md":
        raise UserError(f"--write {page} is not a Markdown file; pass a path that ends in .md")
    if page is not None:
        check_output(page.with_suffix(".json"), "--write", [file])
    if dry_run:
        _show_plan(loaded, jobs or 1, as_json)
        return 0
    from atat_zoo.studies.runner import StudyRunner

    def say(text: str) -> None:
        click.echo(text, err=as_json)

    words = [str(file), *(["--write", str(page)] if page else []), *(["--test-again"] if test_again else [])]
    words += ["--device", device] if device != "auto" else []
    runner = StudyRunner(study=loaded, device=device, say=say)
    if cluster:
        runner.check(test_again=test_again)
        _submit(loaded, words, jobs, as_json)
        return 0
    executor = LocalExecutor(folder=loaded.folder, jobs=jobs or 1, say=say)
    try:
        if measure:
            runner.train_nothing()
        elif element:
            runner.train_element(executor, element)
        else:
            runner.train(executor, test_again=test_again)
    except Stopped as stopped:
        say(f"stopped; resume with: atat study {shlex.join([*words, *(['--jobs', str(jobs)] if jobs else [])])}")
        return 128 + stopped.number
    if element:
        return _failures(runner.failed)
    report = runner.report(test_again=test_again)
    text = markdown.page(report)
    write_text(loaded.folder / "study.md", text)
    failed = runner.failed
    if page is not None and not report["arms"]:
        failed = failed | {f"--write {page}": "not written, because no run is finished; train one first"}
    elif page is not None:
        write_all({page: text.encode(), **runner.files(page.with_suffix(".json"), report)})
    if as_json:
        print_json(report)
    else:
        click.echo(f"\n{text}")
    return _failures(failed)


def _failures(failed: Mapping[str, str]) -> int:
    for run, why in failed.items():
        click.echo(f"error: {run}: {why}", err=True)
    return 1 if failed else 0


def _submit(loaded: Study, words: Sequence[str], jobs: int | None, as_json: bool) -> None:
    script, trainings = write_script(loaded, words, jobs), len(elements(loaded))
    said = submit(script)
    if as_json:
        print_json({"script": str(script), "trainings": trainings, "submitted": said})
        return
    click.echo(f"{number(trainings, 'training run')}, and a job that evaluates them: {script}")
    click.echo(said or f"sbatch is not installed here; on the cluster, run: bash {script}")


def _show_plan(loaded: Study, jobs: int, as_json: bool) -> None:
    from atat_zoo.studies.runner import FINISHED, TO_CONTINUE, TO_DO, StudyRunner, plan, total

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
        about = f"about {_time(seconds)} of optimizer steps, without evaluations"
    click.echo(f"time left with {number(jobs, 'run')} at a time, {number(threads_for(jobs), 'thread')} each: {about}")


def _time(seconds: float | None) -> str:
    if seconds is None or seconds < 120:
        return NONE if seconds is None else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
