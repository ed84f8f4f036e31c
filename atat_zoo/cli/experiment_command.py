"""`atat check` and `atat resolve`: check an experiment, and print it in full, without importing torch."""

import click

from atat_zoo.cli.arguments import options
from atat_zoo.cli.console import print_json
from atat_zoo.experiment import Experiment, load
from atat_zoo.registry.spec import components_in
from atat_zoo.system.errors import UserError
from atat_zoo.system.machine import lacking


@click.command()
@click.argument("experiment")
@options("overrides")
def check(experiment: str, overrides: tuple[str, ...]) -> None:
    """Report every mistake in EXPERIMENT, and missing files and packages."""
    loaded = load(experiment, overrides)
    parts = ", ".join(f"{kind} {loaded.parts[kind].name}" for kind in loaded.kinds)
    click.echo(f"{loaded.name} is valid and uses {parts}")
    for sentence in missing(loaded):
        click.echo(f"missing: {sentence}")


def missing(experiment: Experiment) -> list[str]:
    """Return a sentence for each missing package, and for each corpus, tokenizer or task whose files are missing."""
    # A corpus is checked by its stamp, because its fingerprint may require hashing many files.
    looks = [(experiment.parts["corpus"], "stamp"), (experiment.parts["tokenizer"], "fingerprint")]
    sentences = []
    for spec, look in looks:
        try:
            getattr(spec, look, lambda: None)()
        except UserError as error:
            sentences.append(str(error))
        sentences += lacking([spec, *(part for _, part in components_in(spec))])
    sentences += [sentence for task in experiment.evaluation.tasks for sentence in task.absent()]
    used = (
        experiment.parts["backbone"],
        experiment.parts["optimizer"],
        *experiment.data.transforms,
        *experiment.train.parts,
    )
    return sentences + lacking(used)


@click.command()
@click.argument("experiment")
@options("overrides", "json")
def resolve(experiment: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """Print EXPERIMENT with all its parameters. The output is a valid experiment."""
    loaded = load(experiment, overrides)
    if as_json:
        print_json(loaded.to_table())
    else:
        click.echo(loaded.to_toml(), nl=False)
