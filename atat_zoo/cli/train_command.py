"""`atat train`: train an experiment or resume a run, and print progress and results."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import click

from atat_zoo.cli.arguments import count, options, output
from atat_zoo.cli.audit_command import show
from atat_zoo.cli.console import Bars, headed, on_terminal, print_json, printable
from atat_zoo.cli.evaluate_command import lines
from atat_zoo.evaluation.results.format import joined, number
from atat_zoo.experiment import load
from atat_zoo.experiment.runs import write_text
from atat_zoo.system.errors import UserError

if TYPE_CHECKING:
    from atat_zoo.experiment import Experiment
    from atat_zoo.generation.model import Model
    from atat_zoo.training import Result
    from atat_zoo.training.cost import Cost, CPUCost


@click.command()
@click.argument("experiment", required=False)
@options("overrides")
@output("--out", help="Run folder (default: runs/NAME).")
@click.option("--resume", type=click.Path(path_type=Path), help="Resume this run from its newest checkpoint.")
@count(
    "--step", 1, "With --resume: resume from the checkpoint at this step and delete later ones (default: the newest)."
)
@click.option(
    "--overwrite",
    is_flag=True,
    help="Replace an existing run once the new experiment is validated and its shards are built.",
)
@count("--profile", 1, "Profile this many steps and print where the time goes.")
@click.option("--dry-run", is_flag=True, help="Estimate time, memory and cost without training.")
@count("--gpus", 1, "With --dry-run: number of GPUs (default: 1).")
@click.option("--gpu", help="With --dry-run: GPU model (default: H100 80GB HBM3).")
@click.option("--price", type=click.FloatRange(0), help="With --dry-run: dollars per GPU-hour (default: 3).")
@count("--vocab-size vocabulary", 1, "With --dry-run: vocabulary size to assume if the tokenizer's files are missing.")
@options("json")
def train(
    experiment: str | None,
    overrides: tuple[str, ...],
    out: Path | None,
    resume: Path | None,
    step: int | None,
    overwrite: bool,
    profile: int | None,
    dry_run: bool,
    gpus: int | None,
    gpu: str | None,
    price: float | None,
    vocabulary: int | None,
    as_json: bool,
) -> int:
    """Train EXPERIMENT: a TOML file, or the name of an experiment that ships with atat_zoo.

    `atat zoo list experiment` names those that ship.
    Ctrl-C saves a checkpoint after the current step, and `--resume RUN` resumes training from it. `--resume RUN
    train.steps=600` trains longer, even if the run is finished, unless a component depends on the number of steps.
    It can also change keys that affect the weights only by rounding, such as `train.microbatch_size`.
    `init_from=RUN` fine-tunes the final weights of another run, with its tokenizer and backbone.
    """
    if resume is not None and experiment is not None and "=" in experiment:
        overrides, experiment = (experiment, *overrides), None
    if (experiment is None) == (resume is None):
        raise UserError("pass an experiment to train, or a run to resume with --resume RUN")
    if resume is not None and (out or overwrite):
        raise UserError("--resume writes to the run that it resumes; leave out --out and --overwrite")
    if resume is None and step is not None:
        raise UserError("--step only works with --resume; add --resume RUN")
    # Every mistake is reported before torch is imported.
    loaded = load(experiment, overrides) if experiment else None
    if dry_run:
        if loaded is None:
            raise UserError("--dry-run needs an experiment; pass an experiment instead of --resume")
        from atat_zoo.training.cost import cost, cpu_cost

        price = 3.0 if price is None else price
        found = cost(loaded, gpus=gpus or 1, gpu=gpu or "H100", price=price, vocabulary=vocabulary)
        on_cpu = None
        if gpus is None and gpu is None:
            from atat_zoo.system.devices import torch_device

            if torch_device(loaded.train.device) == "cpu":
                on_cpu = cpu_cost(loaded, vocabulary)
        return show_cost(loaded, found, on_cpu, as_json)
    options_of_cost = (("--gpus", gpus), ("--gpu", gpu), ("--price", price), ("--vocab-size", vocabulary))
    if said := [option for option, value in options_of_cost if value is not None]:
        raise UserError(f"{', '.join(said)} only works with --dry-run; add --dry-run, or leave {', '.join(said)} out")
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
            result = training.resume(folder, overrides=overrides, step=step, reporter=reporter, callbacks=profiles)
    for measured in [] if as_json else profiles:
        click.echo("\n".join(measured.lines()))
    return finish(result, as_json) if first_rank else 0


def show_cost(experiment: Experiment, of: Cost, on_cpu: CPUCost | None, as_json: bool) -> int:
    """Print the estimated time, cost, memory and disk space of a training run, and return exit code 0."""
    train = experiment.train
    if as_json:
        print_json({"experiment": experiment.name, **attrs.asdict(of), "cpu": on_cpu and attrs.asdict(on_cpu)})
        return 0
    estimator = f" and {_many(of.weights_estimator)} of the importance estimator" if of.weights_estimator else ""
    text = f"{number(train.steps, 'step')} of {train.batch_size:,} × {experiment.data.length:,} tokens"
    click.echo(
        f"{experiment.name}: {text}, {_many(of.tokens)} in all; {_many(of.weights)} weights{estimator}; "
        f"vocabulary size {of.vocabulary_size:,}; {of.flops:.2e} FLOPs"
    )
    if on_cpu:
        rate, threads = on_cpu.flops_per_second / 1e9, number(on_cpu.threads, "thread")
        click.echo(f"this CPU: about {_time(on_cpu.seconds)} with {threads}, at a measured {rate:,.0f} GFLOP/s")
    # First as the experiment is compiled, then the alternative in brackets.
    memory = {"compiled": of.memory_compiled / 1e9, "eager": of.memory_eager / 1e9}
    first, other = ("eager", "compiled") if train.compile is False else ("compiled", "eager")
    click.echo(
        f"{of.gpus} × {of.gpu}:\n"
        f"  time    {_time(of.seconds)} at {of.utilisation:.0%} of the peak\n"
        f"  cost    ${of.dollars:,.0f}\n"
        f"  memory  {memory[first]:,.1f} GB per GPU {first} ({memory[other]:,.1f} GB {other}), with "
        f"micro-batches of {number(of.rows, 'sequence')}"
    )
    kept = f"the {train.keep_checkpoints} newest are kept (train.keep_checkpoints)"
    click.echo(f"  disk    {of.checkpoint / 1e9:,.1f} GB per checkpoint; {kept}")
    if not of.fits:
        more = "pass more --gpus, or a larger --gpu"
        more = more if train.sharding == "full" else f'set train.sharding = "full" and {more}'
        remedy = f"set {joined([*of.changes])}" if of.changes else more
        click.echo(f"  the training run does not fit in GPU memory; {remedy}")
    click.echo("Estimated with the formula in docs/results/scale.md, without evaluations and checkpoints.")
    return 0


def _many(count: float) -> str:
    """Return a count in its largest unit, such as 4.2M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:,.1f}{unit}"
    return f"{count:,}"


def _time(seconds: float) -> str:
    """Return a time in its largest unit, such as 3.2 hours."""
    for unit, size in (("years", 365 * 86400), ("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.0f} seconds"


def finish(result: Result, as_json: bool) -> int:
    """Write samples.txt, print the results and return 0; if training was interrupted, return 128 + signal."""
    path = result.folder.path
    if not result.finished:
        click.echo(f"stopped after step {result.step}; resume with: atat train --resume {path}")
        return 128 + (result.signal or 2)
    assert result.evaluation is not None
    assert result.model is not None
    experiment = result.model.experiment
    texts: list[str] = []
    if experiment.evaluation.samples:
        texts = samples_of(result.model, path, experiment.evaluation.samples)
        write_text(result.folder.samples, "\n\n".join(texts) + "\n")
    if as_json:
        tasks = {"tasks": [each.to_table() for each in result.tasks]} if result.tasks else {}
        print_json({"run": str(path), "step": result.step, **result.evaluation.to_table(), **tasks, "samples": texts})
        return 0
    click.echo("")
    click.echo("\n".join(lines(result.evaluation)))
    show(result.tasks)
    for i, text in enumerate(texts, 1):
        headed(f"sample {i} of {len(texts)}", printable(text) if on_terminal() else text)
    how = "--num-samples 5" if experiment.data.format == "text" else '--chat "…"'
    if experiment.train.keep_best:
        click.echo(
            f"\nStep {result.folder.step_of('best')} has the best model on held-out text; pass --step best to use it."
        )
    click.echo(f"\nThe run is saved in {path}. Try next:")
    click.echo(f"  atat sample {path} {how} --seed 1\n  atat report {path}")
    return 0


def samples_of(model: Model, run: Path, number: int) -> list[str]:
    """Return texts that a model generates; after instruction tuning, held-out prompts with the model's answers."""
    experiment = model.experiment
    if experiment.data.format == "text":
        return model.sample(number, seed=experiment.seed).texts
    from atat_zoo.evaluation.held_out_text import held_out_text
    from atat_zoo.evaluation.tasks.answers import answers_to, questions_of

    text = held_out_text(model, run, experiment.evaluation.split, number, packed=True)
    questions = questions_of(text)[:number]
    answers = answers_to(model, questions, seed=experiment.seed, batch_size=number)
    given = (model.tokenizer.decode(question.given).strip() for question in questions)
    return [f"{asked}\n{answer}" for asked, answer in zip(given, answers, strict=True)]
