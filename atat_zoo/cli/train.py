"""`atat train`: train an experiment, or resume a run, with progress and results."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import click

from atat_zoo.cli.arguments import count, options, output
from atat_zoo.cli.console import Bars, print_json
from atat_zoo.cli.evaluate import lines
from atat_zoo.cli.tasks import show
from atat_zoo.experiment import load
from atat_zoo.experiment.runs import write_text
from atat_zoo.system.errors import UserError

if TYPE_CHECKING:
    from atat_zoo.experiment import Experiment
    from atat_zoo.generation.model import Model
    from atat_zoo.training import Result
    from atat_zoo.training.cost import Cost


@click.command()
@click.argument("experiment", required=False)
@options("overrides")
@output("--out", help="The run folder; runs/NAME when absent.")
@click.option("--resume", type=click.Path(path_type=Path), help="Continue this run with exactly the next sample.")
@count("--step", 1, "With --resume: from the checkpoint of this step; later ones are deleted. The newest when absent.")
@click.option(
    "--overwrite", is_flag=True, help="Replace an existing run, once the new one is validated and its shards are built."
)
@count("--profile", 1, "Measure so many steps, and say where their time went.")
@click.option(
    "--dry-run", is_flag=True, help="Say what the training would take on GPUs, by formula, and train nothing."
)
@count("--gpus", 1, "With --dry-run: how many; 1 when absent.")
@click.option("--gpu", help="With --dry-run: their kind; H100 80GB HBM3 when absent.")
@click.option("--price", type=click.FloatRange(0), help="With --dry-run: dollars of one an hour; 3 when absent.")
@count("--vocab-size vocabulary", 1, "With --dry-run: how many tokens, if the tokenizer's files are not here.")
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
    if resume is None and step is not None:
        raise UserError("--step only works with --resume; add the run to continue")
    # Every mistake is reported before torch is imported.
    loaded = load(experiment, overrides) if experiment else None
    if dry_run:
        if loaded is None:
            raise UserError("--dry-run is of an experiment: name one in place of --resume")
        from atat_zoo.training.cost import cost

        price = 3.0 if price is None else price
        found = cost(loaded, gpus=gpus or 1, gpu=gpu or "H100 80GB HBM3", price=price, vocabulary=vocabulary)
        return show_cost(loaded, found, as_json)
    options_of_cost = (("--gpus", gpus), ("--gpu", gpu), ("--price", price), ("--vocab-size", vocabulary))
    if said := [option for option, value in options_of_cost if value is not None]:
        raise UserError(f"{', '.join(said)}: said of a --dry-run alone; add it, or leave it out")
    wait_passively()
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


def show_cost(experiment: Experiment, of: Cost, as_json: bool) -> int:
    """Print what a training would take, and return the exit code."""
    train = experiment.train
    if as_json:
        print_json({"experiment": experiment.name, **attrs.asdict(of)})
        return 0
    gpus = "one GPU" if of.gpus == 1 else f"{of.gpus} GPUs"
    click.echo(
        f"{experiment.name}: {train.steps:,} steps of {train.batch_size} x {experiment.data.length:,} tokens, "
        f"{of.tokens / 1e9:,.2f}G, with {of.weights / 1e6:,.1f}M weights\n"
        f"  time    {of.seconds / 3600:,.2f} hours on {gpus} ({of.gpu}) at {of.utilisation:.0%} of the peak, "
        f"{of.flops:.2e} FLOPs\n"
        f"  cost    ${of.dollars:,.0f}\n"
        f"  memory  {of.memory_compiled / 1e9:,.1f} GB of each compiled, {of.memory_eager / 1e9:,.1f} GB eager, with "
        f"{of.rows} sequences at once\n"
        "  by formula (docs/scale.md); an importance estimator, evaluations and checkpoints are not counted"
    )
    return 0


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
        click.echo(f"\nsample {i}\n{text}")
    how = "--num-samples 5" if experiment.data.format == "text" else '--chat "…"'
    if experiment.train.keep_best:
        click.echo(f"\nThe best model is of step {result.folder.step_of('best')}; choose it with --step best.")
    click.echo(f"\nThe run is in {path}. Try next: atat sample {path} {how} --seed 1")
    return 0


def samples_of(model: Model, run: Path, number: int) -> list[str]:
    """Return texts that a model writes, or, of a chat, what it is asked in held-out dialogues, and its answers."""
    experiment = model.experiment
    if experiment.data.format == "text":
        return model.sample(number, seed=experiment.seed).texts
    from atat_zoo.evaluation.tasks.answers import answers_to, questions_of
    from atat_zoo.evaluation.text import held_out_text

    text = held_out_text(model, run, experiment.evaluation.split, number, packed=True)
    questions = questions_of(text)[:number]
    answers = answers_to(model, questions, seed=experiment.seed, batch_size=number)
    given = (model.tokenizer.decode(question.given).strip() for question in questions)
    return [f"{asked}\n{answer}" for asked, answer in zip(given, answers, strict=True)]


def wait_passively() -> None:
    """Keep the threads of torch from waiting busily."""
    # Busy-waiting threads starve each other on a shared CPU: beside one other busy process a step takes several times
    # as long. torch reads this variable when it is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
