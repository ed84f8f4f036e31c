"""The command `python -m atat_zoo_images`, which generates, inpaints and evaluates pictures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import click

from atat_zoo.cli import run as run_command

Decorator: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]
FILE = click.Path(path_type=Path)
_seed: Decorator = click.option("--seed", default=17, show_default=True, type=click.IntRange(0), help="Random seed.")
_step: Decorator = click.option(
    "--step", help="Training step of the model: a number, newest or best (default: the final model)."
)
_guidance: Decorator = click.option(
    "--guidance",
    default=0.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Scale of classifier-free guidance with the class; 0 disables it.",
)


def _out(default: str) -> Decorator:
    return click.option("--out", type=FILE, default=default, show_default=True, help="Picture file to write.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Generate, inpaint and evaluate pictures with a run whose tokenizer is `pixels`."""


@main.command()
@click.argument("run", type=FILE)
@click.option("--class", "classes", multiple=True, help="Class to generate (default: all); can be repeated.")
@click.option("--num-samples", default=10, show_default=True, type=click.IntRange(1), help="Pictures of each class.")
@_guidance
@_step
@_seed
@_out("pictures.png")
def generate(
    run: Path, classes: tuple[str, ...], num_samples: int, guidance: float, step: str | None, seed: int, out: Path
) -> None:
    """Write a grid of generated pictures, with a row for each class."""
    from atat_zoo.system.errors import UserError, nearest
    from atat_zoo_images.picture_files import write_grid
    from atat_zoo_images.picture_models import labels_of, load_run, samples_of

    model = load_run(run, step)
    labels = list(labels_of(model, run))
    for each in classes:
        if each not in labels:
            raise UserError(f"--class: unknown class {each!r}{nearest(each, labels)} (classes: {', '.join(labels)})")
    rows = []
    for label in classes or labels:
        made = samples_of(model, label, num_samples, guidance=guidance, seed=seed).tolist()
        rows.append([model.tokenizer.picture(ids) or [] for ids in made])
    write_grid(out, rows)
    click.echo(f"wrote {out}: {num_samples} pictures of each of {len(rows)} classes")


@main.command()
@click.argument("run", type=FILE)
@click.argument("picture")
@click.option("--mask", required=True, type=FILE, help="Picture file that is white where pixels are to be generated.")
@click.option("--class", "label", help="The picture's class. By default, that of a file is generated, too.")
@click.option("--num-samples", default=8, show_default=True, type=click.IntRange(1), help="Number of fills.")
@_seed
@_out("inpainted.png")
def inpaint(run: Path, picture: str, mask: Path, label: str | None, num_samples: int, seed: int, out: Path) -> None:
    """Fill the masked pixels of PICTURE, a picture file or the number of a picture in the test split.

    The grid has the picture, the picture with its mask, and the fills. Given pixels do not change.
    """
    from atat_zoo_images.grid_orders import grid_of
    from atat_zoo_images.picture_files import hidden_pixels, write_grid
    from atat_zoo_images.picture_models import inpainted, load_run, picture_ids

    model = load_run(run)
    ids, (first, side) = picture_ids(model, run, picture, label), grid_of(model.context.length)
    hidden = [False] * first + hidden_pixels(mask, side)
    given = [model.context.mask_id if hide else i for i, hide in zip(ids, hidden, strict=True)]
    fills = inpainted(model, given, num_samples, seed=seed).tolist()
    write_grid(out, [[model.tokenizer.picture(each) or [] for each in (ids, given, *fills)]])
    click.echo(f"wrote {out}: the picture, its mask of {sum(hidden)} pixels, and {num_samples} fills")


@main.command()
@click.argument("runs", nargs=-1, required=True, type=FILE)
@click.option("--split", default="test", show_default=True, type=click.Choice(["validation", "test"]), help="Split.")
@click.option("--num-samples", default=30, show_default=True, type=click.IntRange(1), help="Samples of each class.")
@click.option(
    "--mask-samples", default=16, show_default=True, type=click.IntRange(1), help="Masks per picture, for a bound."
)
@_guidance
@_step
@_seed
def evaluate(runs: tuple[Path, ...], num_samples: int, step: str | None, **settings: Any) -> None:
    """Print the bits per dimension of RUNS, and how many samples of each class a classifier recognises.

    The classifier is a support vector machine, trained on the training split of a run's corpus. Runs are compared with
    the first one, picture by picture.
    """
    from atat_zoo_images.picture_models import labels_of, load_run
    from atat_zoo_images.picture_quality import quality, tables

    found = {str(run): quality(load_run(run, step), run, samples=num_samples, **settings) for run in runs}
    click.echo(tables(found, labels_of(load_run(runs[0]), runs[0])))


if __name__ == "__main__":
    run_command(main, "python -m atat_zoo_images")
