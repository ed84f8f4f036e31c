"""What the commands on held-out text share: their options, each declared once, and how these change an experiment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import click

from atat_zoo.cli.choosing import named

if TYPE_CHECKING:
    from collections.abc import Callable

    from atat_zoo.experiment import EvaluationSpec

_Command = TypeVar("_Command", bound="Callable[..., None]")

device_option = click.option("--device", type=click.Choice(["cpu", "gpu"]), default="cpu", show_default=True)

# By their names in [evaluation], and the seed.
_OPTIONS = {
    "split": click.option(
        "--split", type=click.Choice(["validation", "test"]), help="Held-out; the experiment's when absent."
    ),
    "bound": click.option("--bound", help="exact_k, continuous_t, or a table like {use = 'discrete_t', steps = 8}."),
    "sequences": click.option("--sequences", type=click.IntRange(0), help="Sequences at most; 0 takes all."),
    "draws": click.option("--draws", type=click.IntRange(1), help="Masks drawn for every sequence."),
    "batch_size": click.option("--batch-size", type=click.IntRange(1), help="Sequences at once."),
    "seed": click.option("--seed", type=click.IntRange(0), help="Seed of the masks; the experiment's when absent."),
}


def evaluation_options(*names: str) -> Callable[[_Command], _Command]:
    """Return a decorator that gives a command the options of these names, all when none is named, and the device."""

    def decorate(command: _Command) -> _Command:
        for option in (device_option, *(_OPTIONS[name] for name in reversed(names or tuple(_OPTIONS)))):
            command = option(command)
        return command

    return decorate


def bound_of(given: dict[str, Any]) -> dict[str, Any]:
    """Return the options with the bound that they name as a specification, before torch is imported.

    Raises:
        UserError: when there is no such bound.
    """
    return given | ({"bound": named("bound", given["bound"])} if given.get("bound") else {})


def with_options(own: EvaluationSpec, given: dict[str, Any]) -> EvaluationSpec:
    """Return an experiment's own [evaluation] with what was given on the command line in its place."""
    plain: Any = own
    evolved: EvaluationSpec = attrs.evolve(plain, **{k: value for k, value in given.items() if value is not None})
    return evolved
